"""The pages as a reader uses them: their code runs, their links lead somewhere, the tree they draw exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKED = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]

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


def tree_entries() -> list[str]:
    """Paths drawn under README's heading "Repository": one per line, two spaces deeper than their folder."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Repository\n")[1]
    drawn = FENCED.search(section)
    assert drawn is not None
    folders: list[str] = []
    entries = []
    for line in drawn[2].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [line.split()[0]]
        entries.append("".join(folders))
    return entries


@pytest.mark.parametrize("page", [page for page in PAGES if any(python_blocks(page))], ids=name)
def test_code_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng(devices=[]):
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


def test_every_path_of_the_readme_tree_exists():
    entries = tree_entries()

    assert len(entries) > 40
    assert [entry for entry in entries if not (ROOT / entry).exists()] == []
