"""The pages as a reader uses them: their code runs, their links lead somewhere, the first of them is short."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from flatclr.mi import METHODS, REGISTRY
from flatclr.objectives import OBJECTIVES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = sorted((ROOT / "docs" / "reference").glob("*.md"))  # their examples run as doctests of the code
LINKED = [*PAGES, *REFERENCE, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def python_blocks(page: Path) -> Iterator[str]:
    """Each block below as many blank lines as precede it, so that a traceback shows the page's line numbers."""
    text = page.read_text(encoding="utf-8")
    for block in FENCED.finditer(text):
        if block[1] == "python":
            yield "\n" * text.count("\n", 0, block.start(2)) + block[2]


def run_page(page: Path) -> None:
    namespace = {"__name__": "__main__"}
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), namespace)


def heading_anchors(page: Path) -> set[str]:
    """What a code host makes of the headings: lower case, punctuation dropped, spaces to hyphens."""
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def relative_links(page: Path) -> list[str]:
    prose = FENCED.sub("", page.read_text(encoding="utf-8"))
    return [target for target in LINK.findall(prose) if not target.startswith(("https://", "http://", "mailto:"))]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own tracer
@pytest.mark.parametrize("page", [page for page in PAGES if any(python_blocks(page))], ids=name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    registers = [patch.dict(known) for known in (OBJECTIVES, METHODS, REGISTRY)]  # a page may add to them
    with torch.random.fork_rng(devices=[]), registers[0], registers[1], registers[2]:
        torch.manual_seed(0)
        run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_code_block_escapes_the_run(page: Path):
    opened = page.read_text(encoding="utf-8").lower().count("```py")

    assert len(list(python_blocks(page))) == opened


def test_a_block_that_raises_fails_with_its_line_on_the_page(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", encoding="utf-8")

    with pytest.raises(AssertionError) as failure:
        run_page(page)

    assert failure.traceback[-1].lineno + 1 == 8


@pytest.mark.parametrize("page", LINKED, ids=name)
def test_relative_links_lead_to_files_and_headings(page: Path):
    broken = []
    for link in relative_links(page):
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in heading_anchors(file)):
            broken.append(link)

    assert broken == []


def test_every_erratum_names_tests_that_exist():
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "errata.md").read_text(encoding="utf-8"))
    defined = re.findall(
        r"^def (test_\w+)", (ROOT / "tests" / "docs" / "test_errata.py").read_text(encoding="utf-8"), re.MULTILINE
    )

    assert sorted(named) == sorted(defined)


@pytest.mark.parametrize("container", ["flatclr", "flatclr.contrast"])
def test_the_layers_of_contributing_are_those_that_are_enforced(container: str):
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (enforced,) = [contract["layers"] for contract in contracts if contract["containers"] == [container]]
    drawn = [
        block[2]
        for block in FENCED.finditer((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
        if block[1] == "text"
    ]
    layers = [[re.split(r"  +", line)[0] for line in block.splitlines()] for block in drawn]

    assert [layer for layer in enforced if layer != "__main__" and "(" not in layer] in layers


def test_readme_is_read_in_minutes():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    first = next(python_blocks(ROOT / "README.md"))

    assert text.count("\n") <= 150
    assert len([line for line in first.splitlines() if line.strip()]) == 6
    assert text.count("![") == 1


def test_the_picture_of_the_readme_is_small():
    (picture,) = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))

    assert (ROOT / picture).stat().st_size < 150_000


@pytest.mark.parametrize(
    ("said", "page", "shown"),
    [
        ("**90.5 %** in 5.4 minutes", "results/cifar10/fast/README.md", ("| 215 | 90.52 |", "| 322 | 322 |")),
        ("**+1.6 points** [0.5, 2.6]", "results/cifar10/batch_size.md", ("1.6 kNN points [0.5, 2.6]",)),
        ("**31 ms and 1.1 GiB**", "docs/benchmarks.md", ("| 112 | 79.6 | 947 | 31.4 | 641 | 1174 |",)),
        ("80 ms, open_clip 112 ms and 64 GiB", "docs/benchmarks.md", ("| 65536 | 512 | 193 | 112 | 79.6 |",)),
    ],
)
def test_every_number_of_the_readme_stands_in_its_evidence(said: str, page: str, shown: tuple[str, ...]):
    assert said in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for words in shown:
        assert words in text


def test_readme_counts_claims_as_the_overview_does() -> None:
    overview = " ".join((ROOT / "results/studies/README.md").read_text(encoding="utf-8").split())
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for sentence in re.findall(r"Of \d+ claims[^.]*\.", readme):
        assert sentence in overview
