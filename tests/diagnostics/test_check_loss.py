"""The check of a loss on several processes finds what is right and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatclr.cli.main import app
from flatclr.diagnostics.check_loss import check_loss

WRONG = """
import torch
import torch.distributed as dist
import torch.nn.functional as F

def local_only(z_a, z_b):
    return F.cross_entropy(z_a @ z_b.T / 0.5, torch.arange(len(z_a)))

def wrong_kind(z_a, z_b):
    return [1.0]

def fails_on_the_second(z_a, z_b):
    if dist.is_initialized() and dist.get_rank() == 1:
        raise KeyError("no such thing")
    return (z_a * z_b).sum()

class Scaled:
    def __init__(self, rank, world):
        assert 0 <= rank < world

    def __call__(self, z_a, z_b, scale):
        return (z_a * z_b).sum(1).mean() * scale
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_losses.py").write_text(WRONG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.distributed
@pytest.mark.usefixtures("mine")
def test_a_loss_that_gathers_passes_and_one_that_does_not_fails() -> None:
    gathered = CliRunner().invoke(
        app,
        ["check-loss", "flatclr:InfoNCE", "--set", "gather=true", "--set", "temperature=0.5", "--temperature", "0.5"],
    )
    local = CliRunner().invoke(app, ["check-loss", "my_losses:local_only", "--temperature", "0.5"])

    assert gathered.exit_code == 0, gathered.output
    assert "is 1.06288 on 8 orthonormal pairs; as InfoNCE by pairing views, 1.06288; not as" in gathered.stdout
    assert "on 2 processes the gradient is the same as one process" in gathered.stdout
    assert local.exit_code == 1
    assert "not as InfoNCE by pairing views, 1.06288; as InfoNCE by pairing cross" in local.stdout
    assert "on 2 processes the gradient is NOT that of one process" in local.stdout


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("mine")
def test_options_may_name_the_process_and_calls_have_more_arguments() -> None:
    (check,) = check_loss(
        "my_losses:Scaled", ranks=[4], options={"rank": "{rank}", "world": "{ranks}"}, arguments=[3.0]
    )
    assert check.equal
    assert check.value[0] == pytest.approx(check.value[1])


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.usefixtures("mine")
def test_a_loss_that_fails_on_some_process_is_said() -> None:
    with pytest.raises(ValueError, match="my_losses:fails_on_the_second must run on 2 processes, got: "):
        check_loss("my_losses:fails_on_the_second")


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["InfoNCE"], "a loss must be MODULE:NAME, got 'InfoNCE'"),
        (["flatclr:InfoNcE"], "a loss must be importable, got 'flatclr:InfoNcE'"),
        (["flatclr:InfoNCE", "--set", "tau=1"], "must be made with these options, got {'tau': 1}"),
        (["flatclr:InfoNCE", "--set", "tau"], "--set must be NAME=VALUE"),
        (["flatclr:InfoNCE", "--ranks", "two"], "--ranks must be whole numbers with commas between, got 'two'"),
        (["flatclr:InfoNCE", "--ranks", "0"], "ranks must be a whole number >= 1, got 0"),
        (["my_losses:wrong_kind"], "must return a number, got list"),
        (["my_losses:Scaled", "--set", "rank={rank}", "--set", "world={ranks}"], "must take (z_a, z_b), got an error"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["check-loss", *arguments])
    assert isinstance(done.exception, ValueError)
    assert message in str(done.exception)
