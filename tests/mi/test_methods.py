"""The table of methods: everything that is said of a method, or done with it, comes from its one row."""

import inspect
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import flatclr
from flatclr import stats_from_scores
from flatclr.cli import main as cli
from flatclr.mi import METHODS, bounds, estimate, limits, tasks
from flatclr.mi.methods import REGISTRY, Method, methods_markdown, register
from flatclr.mi.outcome import MethodOptions, Outcome
from flatclr.objectives import variational
from tests.support.mi import ANCHOR_ONLY

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mutual-information.md"
MARKED = re.compile(r"^<!-- begin: flatclr\.mi\.methods\.methods_markdown\(\) -->\n(.*?)^<!-- end -->$", re.M | re.S)


def test_the_table_of_the_docs_is_the_one_generated_from_the_registry():
    (drawn,) = MARKED.findall(PAGE.read_text(encoding="utf-8"))

    assert drawn == methods_markdown()


def test_every_method_has_one_line_of_the_table_with_its_kind_and_summary():
    lines = methods_markdown().splitlines()[2:]

    assert [line.split("`")[1] for line in lines] == list(METHODS) == list(REGISTRY)
    for line, method in zip(lines, REGISTRY.values(), strict=True):
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 4  # no formula may hold a bar
        assert cells[1].startswith(method.kind)
        assert method.summary in cells[3]
        assert method.formula in cells[2]


def test_names_come_with_lines_that_begin_with_the_kind():
    for name, meaning in METHODS.items():
        kind = REGISTRY[name].kind
        assert meaning.startswith("neither" if kind == "neither" else f"{kind} bound")


@pytest.mark.parametrize("name", REGISTRY)
def test_a_method_gives_the_kind_of_number_its_row_says(name: str):
    x, y = tasks.gaussian_pairs(1, pairs=1, correlation=0.6).sample(400, seed=0)

    assert estimate(x, y, name, settings=ANCHOR_ONLY).kind == REGISTRY[name].kind


def constant(x: np.ndarray, y: np.ndarray, options: MethodOptions) -> Outcome:
    return Outcome(nats=options.seed / 100, rows=len(x), influence=np.zeros(0), negative_pairs=1)


def test_one_row_is_all_a_new_method_needs(monkeypatch: pytest.MonkeyPatch):
    row = Method("constant", "upper", "a hundredth of the seed", constant, formula="s / 100")
    for known in (REGISTRY, METHODS):  # as they are, once the test is over
        monkeypatch.setitem(known, row.name, None)
        del known[row.name]
    assert register(row) is row
    x, y = tasks.gaussian_pairs(2).sample(600, seed=0)

    result = estimate(x, y, "constant", seed=7)

    assert (result.nats, result.kind, result.method, result.reason) == (0.07, "upper", "constant", "asked for.")
    assert estimate(x, y, "constant", given=x[:, :1], seed=7).nats == 0
    assert "upper bound: a hundredth" in CliRunner().invoke(cli.app, ["mi", "--method", "list"]).stdout
    with pytest.raises(ValueError, match="critic must be None for method 'constant'"):
        estimate(x, y, "constant", critic="joint")
    with pytest.raises(ValueError, match="folds must be 1 for method 'constant'"):
        estimate(x, y, "constant", folds=2)


def test_a_name_that_is_taken_and_what_is_no_method_are_refused():
    with pytest.raises(ValueError, match="a method must have a name of its own, got 'dv' again; choose another"):
        register(REGISTRY["dv"])
    with pytest.raises(TypeError, match=r"a method must be a flatclr\.mi\.Method, got function"):
        register(constant)
    assert flatclr.mi.REGISTRY is REGISTRY


@pytest.mark.parametrize("name", ["dv", "nwj", "tuba", "js", "ba", "club"])
def test_the_table_writes_a_bound_as_its_own_docstring_does(name: str):
    formula = REGISTRY[name].formula.replace(" given ", " | ")  # a bar would end a cell of the table

    assert f"bound {formula}" in getattr(bounds, name).__doc__


def test_a_run_that_names_another_kind_or_method_is_believed():
    def chooses(x: np.ndarray, y: np.ndarray, options: MethodOptions) -> Outcome:
        return replace(constant(x, y, options), kind="lower", method="another", reason="because.")

    found = Method("chooser", "neither", "", chooses)(np.zeros((3, 1)), np.zeros((3, 1)), MethodOptions())

    assert (found.kind, found.method, found.reason) == ("lower", "another", "because.")


def scores(rows: int = 6) -> torch.Tensor:
    return 3 * torch.randn(rows, rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


U = torch.linspace(-1, 1, 6, dtype=torch.float64)
OWNED: dict[str, tuple[Any, ...]] = {
    "dv": (stats_from_scores(scores()),),
    "nwj": (stats_from_scores(scores()),),
    "tuba": (stats_from_scores(scores()), U),
    "flo": (stats_from_scores(scores()), U),
    "smile": (U, torch.tensor(0.3, dtype=torch.float64)),
    "interpolated": (scores(), U, 0.5),
}


@pytest.mark.parametrize("name", OWNED)
def test_a_bound_is_its_objective_with_the_other_sign(name: str, monkeypatch: pytest.MonkeyPatch):
    loss = getattr(variational, name)(*OWNED[name])
    torch.testing.assert_close(getattr(bounds, name)(*OWNED[name]), -loss, atol=0, rtol=0)

    monkeypatch.setattr(variational, name, lambda *_: torch.tensor(5.0))  # the owner is asked, not a copy of it
    assert getattr(bounds, name)(*OWNED[name]) == -5


@pytest.mark.parametrize(("name", "owner"), [("js_loss", "js"), ("mine_loss", "mine")])
def test_a_loss_is_its_owners(name: str, owner: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(variational, owner, lambda *_: "asked")

    assert getattr(bounds, name)(None, None) == "asked"


def public_functions(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    found = [
        name for name in names if inspect.isfunction(getattr(module, name)) or inspect.isclass(getattr(module, name))
    ]
    homes = {name: getattr(module, name).__module__ for name in found}
    return [
        f"{module.__name__}.{n}" for n, home in homes.items() if home.startswith("flatclr") and home != "flatclr.checks"
    ]


PUBLIC = [
    *("flatclr.mi.estimate", "flatclr.mi.FitSettings", "flatclr.mi.MIEstimate"),
    *public_functions(bounds),
    *public_functions(limits),
    *public_functions(tasks),
]


@pytest.mark.parametrize("path", PUBLIC)
def test_every_public_name_says_what_it_takes_and_shows_an_example(path: str):
    module, _, name = path.removeprefix("flatclr.mi.").rpartition(".")
    where = getattr(flatclr.mi, module) if module else flatclr.mi
    named = getattr(where, name)
    text = inspect.getdoc(named) or ""

    assert len(text.splitlines()[0]) > 10
    assert ">>> " in text
    assert inspect.isclass(named) or re.search(r"^Returns:$", text, re.M)
    assert not inspect.signature(named).parameters or re.search(r"^(Args|Attributes):$", text, re.M)
