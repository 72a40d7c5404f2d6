"""results/cifar10: a page with table, figure and findings for each question, from the kept runs and nothing else.

Every sentence with a number is made from the numbers; what was not run is said to be so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import joined
from benchmarks.cifar10.kept import kept_runs
from benchmarks.cifar10.pages.batches import batch_page, compared_batches, eight_times
from benchmarks.cifar10.pages.book import Book
from benchmarks.cifar10.pages.common import Page, accuracy, listed, protocols, those_said
from benchmarks.cifar10.pages.divergences import divergence_page
from benchmarks.cifar10.pages.information import information_page
from benchmarks.cifar10.pages.rates import rate_page
from benchmarks.cifar10.pages.speed import speed_headline, speed_page
from benchmarks.cifar10.pages.targets import ess_page
from benchmarks.cifar10.plan import FULL, NCE, Scale
from flatclr.files import replace_files
from flatclr.plots import figure_bytes

BENCHMARKS = record.RESULTS.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- cifar10:begin -->", "<!-- cifar10:end -->"


PAGES: dict[str, Callable[[Book], Page]] = {
    "learning_rate": rate_page,
    "batch_size": batch_page,
    "ess": ess_page,
    "mi_accuracy": information_page,
    "f_divergences": divergence_page,
    "time_to_accuracy": speed_page,
}


def write(home: Path, scale: Scale = FULL, *, docs: bool = False) -> list[Path]:
    """All pages and figures; returns their paths."""
    book = Book(scale, kept_runs(home))
    contents: dict[Path, bytes] = {}
    for name, make in PAGES.items():
        page = make(book)
        contents[home / f"{name}.md"] = page.text.encode()
        contents |= {home / f"{figure}.png": figure_bytes(drawn) for figure, drawn in page.figures.items()}
    home.mkdir(parents=True, exist_ok=True)
    replace_files(contents)
    if docs:
        replace_files({BENCHMARKS: with_headline(BENCHMARKS.read_text(), headline(book)).encode()})
    return [*contents, *([BENCHMARKS] if docs else [])]


def with_headline(text: str, table: str) -> str:
    """docs/benchmarks.md with the table between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page must hold the lines {BEGIN} and {END}, got none; add them where the table belongs.")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def headline(book: Book) -> str:
    """The tables of docs/benchmarks.md: objectives by batch size, and the time to accuracy."""
    table = book.cells("grid")
    if not any(cell.runs for cell in table):
        return "Not run yet."
    rows, judge = [], book.batch_judge()
    for objective in NCE:
        row = {"objective": objective}
        for cell in (cell for cell in table if cell.objective == objective):
            for protocol, name in figures.PROTOCOLS.items():
                row[f"{name} %, batch {cell.batch}"] = accuracy(cell, protocol, book.spread[protocol])
        rows.append(row)
    seeds = joined(str(seed) for seed in sorted({seed for cell in table for seed in cell.seeds}))
    intro = listed(
        f"ResNet-18 without labels for {book.scale.epochs:g} epochs, seeds {seeds}. The learning rate is tuned for "
        "each batch size on held-out training images.",
        *protocols(book.scale),
        "Accuracies are means ± standard deviations over seeds, with 95 % intervals over test images and seeds. "
        "Differences are on these test images; their intervals over seeds hold together with 95 %.",
    )
    says = [
        compared_batches(table, judge, book.scale),
        eight_times(book.grid(), judge, book.scale),
    ]
    return "\n\n".join([intro, record.markdown(rows), *those_said(says), *speed_headline(book)])
