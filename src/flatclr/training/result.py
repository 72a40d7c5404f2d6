"""What a finished run leaves, as tables and pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from flatclr.files import json_read
from flatclr.models.saving import load_encoder
from flatclr.models.trained import load_network
from flatclr.plots import figure_style, new_figure
from flatclr.runs import SIDES, RunDirectory

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PANELS = {  # what is drawn over the steps, where it was measured
    "loss": "loss, nats",
    "mi_nats": "MI bound of the batch, nats",
    "ess": "ESS of the negatives",
    "beta": "inverse temperature",
    "knn": "kNN accuracy",
    "retrieval_at_1": "retrieval at 1",
    "effective_rank": "effective rank",
    "pool_mi_best_nats": "MI against a pool, nats",
}


@dataclass(frozen=True)
class RunResult:
    """What a finished run leaves.

    Args:
        path: its directory, with the encoder and everything that was measured; the same on every process.
        steps: how many were taken, those before a resume included.
        metrics: of the last evaluation, by name.
    """

    path: Path
    steps: int
    metrics: dict[str, Any]

    @cached_property
    def history(self) -> pd.DataFrame:
        """Everything that was measured on the way, a row for each line of metrics.jsonl; `kind` says which."""
        import pandas as pd

        return pd.DataFrame(json_read(RunDirectory(self.path).metrics()))

    @cached_property
    def encoder(self) -> nn.Module:
        """The trained encoder; of paired data, the network of both sides."""
        return load_network(self.path) if (self.path / SIDES[0]).is_dir() else load_encoder(self.path)

    def to_frame(self) -> pd.DataFrame:
        """The last evaluation, a row for each number."""
        import pandas as pd

        return pd.DataFrame({"metric": list(self.metrics), "value": list(self.metrics.values())})

    def plot(self) -> Figure:
        """How the run went: loss, MI, ESS and what the evaluations measured, over the steps.

        Returns:
            A matplotlib figure, which notebooks show.
        """
        drawn = [(name, label) for name, label in PANELS.items() if name in self.history]
        with figure_style():
            figure = new_figure(9, 2.2 * -(-max(len(drawn), 1) // 2))
            for place, (name, label) in enumerate(drawn, 1):
                axes = figure.add_subplot(-(-len(drawn) // 2), 2, place)
                rows = self.history[["step", name]].dropna().astype(float)
                axes.plot(rows["step"], rows[name], marker="." if len(rows) < 30 else "")
                axes.set_title(label)
                axes.set_xlabel("step")
        return figure

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(index=False, float_format="{:.4g}".format, border=0)
        return f"<p>{self.steps:,} steps, in <code>{self.path}</code></p>{table}"
