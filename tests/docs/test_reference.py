"""docs/reference is what the code says, and the code says enough of every public name."""

import inspect
import re
import sys
from pathlib import Path

import pytest

from scripts.reference import text
from scripts.reference.hosts import HOSTS, module_named
from scripts.reference.names import Entry, callable_of, entries, members, public_names, undocumented
from scripts.reference.pages import pages

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES = pages()
ENTRIES = entries()
HOSTED = {library for libraries in HOSTS.values() for library in libraries}
CALLABLE = [entry for entry in ENTRIES if entry.is_function or entry.is_class]
TOLD_ELSEWHERE = {
    "TrainConfig",
    "Options",
    "ContrastOptions",
    "PairSet",
}  # by tables, or by the function that makes one
HANDED_TO_USERS = {  # what users get and never make
    "Event", "Started", "Measured", "Logged", "Evaluated", "Saved", "Warned", "Stopped", "Finished", "RunResult",
    "Forecast", "Progressed", "Nearest", "Pair",
    "Setting", "DivergedError", "TrainingStoppedError", "TrainingInterruptedError", "LinearProbe", "Retrieval", "Ended",
    "Job", "Kept",
    "Plan", "Progress", "StudyResult", "BatchNormHealth", "Finding",
}  # fmt: skip


def named(entry: Entry) -> str:
    return entry.path


def described(entry: Entry) -> set[str]:
    """The arguments that the docstring, or that of a base, describes."""
    bases = entry.value.__mro__ if entry.is_class else [entry.value]
    return {name for base in bases for name in text.arguments(inspect.cleandoc(base.__doc__ or ""))}


def taken(entry: Entry) -> list[str]:
    """The arguments of the call, `self` and what a base class passes on left out."""
    if entry.is_class and (issubclass(entry.value, BaseException) or getattr(entry.value, "_is_protocol", False)):
        return []
    return [name for name in inspect.signature(entry.value).parameters if name not in ("args", "kwargs")]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_what_the_code_says(page: str) -> None:
    file = FOLDER / page
    kept = file.read_text(encoding="utf-8") if file.exists() else ""

    assert kept == PAGES[page], f"docs/reference/{page} is not what the code says: run make docs"


def test_no_page_is_left_over() -> None:
    assert {file.name for file in FOLDER.glob("*.md")} == set(PAGES), "run make docs"


def test_every_name_of_the_package_is_on_a_page() -> None:
    assert undocumented() == []
    assert len(ENTRIES) > 150


@pytest.mark.parametrize("entry", ENTRIES, ids=named)
def test_a_public_name_has_a_summary(entry: Entry) -> None:
    summary = entry.doc.split("\n\n")[0]

    assert summary.endswith("."), "a docstring, or a text below the assignment, must begin with a sentence"
    assert len(summary.splitlines()) <= 2


@pytest.mark.parametrize("entry", [entry for entry in CALLABLE if entry.name not in TOLD_ELSEWHERE], ids=named)
def test_every_argument_is_described(entry: Entry) -> None:
    missing = [name for name in taken(entry) if name not in described(entry)]
    if entry.name == "contrast_stats":
        missing.remove("options")  # described one by one

    assert missing == []


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.is_function], ids=named)
def test_a_function_says_what_it_returns(entry: Entry) -> None:
    assert "\nReturns:\n" in entry.doc or inspect.signature(entry.value).return_annotation == "None"


@pytest.mark.parametrize("entry", [entry for entry in CALLABLE if entry.name not in HANDED_TO_USERS], ids=named)
def test_a_name_that_users_call_has_an_example_that_runs(entry: Entry) -> None:
    assert re.search(r"^>>> ", entry.doc, re.MULTILINE)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.is_class], ids=named)
def test_methods_are_described_by_themselves_or_by_what_they_override(entry: Entry) -> None:
    own = {name: callable_of(member) for name, member in vars(entry.value).items() if not name.startswith("_")}
    silent = [name for name, function in own.items() if function is not None and not inspect.getdoc(function)]

    assert silent == []


def test_integrations_are_described_whether_or_not_their_libraries_are_there() -> None:
    before = dict(sys.modules)
    sentence_transformers = module_named("flatclr.integrations.sentence_transformers")
    names = {entry.path for entry in ENTRIES if entry.page == "integrations"}

    assert {
        "flatclr.integrations.lightning.ContrastMonitor",
        "flatclr.integrations.sentence_transformers.FlatNCELoss",
        "flatclr.integrations.sentence_transformers.CachedFlatNCELoss",
        "flatclr.integrations.open_clip.ClipLoss",
    } <= names
    assert "similarity_fct: Callable[[Tensor, Tensor], Tensor] = cos_sim" in PAGES["integrations.md"]
    assert sentence_transformers.TrainerCallback.__mro__ == (sentence_transformers.TrainerCallback, object)
    left = {name for name in set(sys.modules) - set(before) if name.partition(".")[0] in HOSTED}
    assert left == set()
    assert sys.modules.get("flatclr.integrations.sentence_transformers") is not sentence_transformers


def test_a_class_shows_the_methods_of_bases_that_are_not_public() -> None:
    (pair_set,) = [entry for entry in ENTRIES if entry.name == "PairSet"]

    assert {"of", "mean_phi", "of_all_ranks", "everyone_VNd"} <= {name for name, _ in members(pair_set)}


def test_names_of_a_module_without_a_list_are_those_it_defines() -> None:
    assert {"pages"} <= {name for name, _ in public_names(inspect.getmodule(pages))}  # type: ignore[arg-type]


def test_a_signature_reads_as_the_code_does() -> None:
    def call(x: "int | None", *rows: "list[int]", scale: float = 0.5, key: object = len, **options: int) -> "str": ...

    assert text.signature("call", call) == (
        "call(x: int | None, *rows: list[int], scale: float = 0.5, key: object = len, **options) -> str"
    )


def test_pages_hold_no_address_of_this_process() -> None:
    assert [page for page, content in PAGES.items() if re.search(r"0x[0-9a-f]{6}", content)] == []


def test_a_record_that_users_make_shows_its_defaults() -> None:
    assert "route: str = 'dense'" in PAGES["contrast.md"]
