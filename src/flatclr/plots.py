"""The common style of figures, and how they become files; matplotlib without its global state."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatclr.files import replace_files

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1b1f24", "#8c959f", "#e4e7eb"
COLOURS = ("#0b6e99", "#d9730d", "#448361", "#ad1a72", "#6940a5", "#cb912f")
DOTS_PER_INCH = 150
STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


@contextmanager
def figure_style() -> Iterator[None]:
    """Figures made inside look alike."""
    from cycler import cycler
    from matplotlib import rc_context

    settings: dict[Any, Any] = {**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with rc_context(settings):
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure of its own in inches, known to no window and to no global list."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def figure_bytes(figure: Figure) -> bytes:
    """The figure as PNG."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # of names of files and classes, which nobody can change for a font; the figure shows a box in their place
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH)
    return buffer.getvalue()


def save_figure(path: Path, figure: Figure) -> None:
    """Write a PNG, whole or not at all."""
    replace_files({path: figure_bytes(figure)})
