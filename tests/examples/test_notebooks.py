"""The notebooks of examples/: they hold no output, and they run from their first cell to their last."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.ipynb"))


def test_there_is_a_notebook_for_each_job() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["image_text", "images", "mi_of_a_table", "reading_a_run", "text"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_output(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # Jupyter warns of its own affairs
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    why = 'install it by pip install "flatclr[notebooks]"'
    nbformat, nbclient = (pytest.importorskip(name, reason=why) for name in ("nbformat", "nbclient"))
    if notebook.stem == "text":
        pytest.importorskip(
            "sentence_transformers", reason='install it by pip install "flatclr[sentence-transformers]"'
        )
    content = nbformat.read(notebook, as_version=4)
    nbclient.NotebookClient(content, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
