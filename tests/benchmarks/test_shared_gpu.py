"""Runs that start at once do not meet, and the benchmark of them says what failed."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flatclr
from benchmarks import shared_gpu
from flatclr.training.config import TrainConfig

TINY = replace(shared_gpu.quick(shared_gpu.Settings("cpu")), runs=2)


def write_random_npy(folder: Path) -> Path:
    shape = (TINY.images, TINY.image_size, TINY.image_size, 3)
    np.save(folder / "random.npy", np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))
    return folder / "random.npy"


def train_here(data: Path, out: Path, seed: int = 0) -> shared_gpu.Outcome:
    config = TrainConfig(
        data=str(data),
        batch_size=TINY.batch,
        steps=TINY.steps,
        encoder=TINY.encoder,
        encoder_options={"width": 8},
        device="cpu",
        log_every=TINY.log_every,
        out=str(out),
        seed=seed,
    )
    return shared_gpu.Outcome(0, flatclr.train(config).path, "")


@pytest.mark.slow
def test_runs_started_at_once_are_whole_and_equal_the_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    data = write_random_npy(tmp_path)
    outcomes = shared_gpu.together(TINY, data, tmp_path / "together", 2)
    assert [(outcome.exit_code, outcome.missing(TINY.steps)) for outcome in outcomes] == [(0, []), (0, [])]
    assert len({outcome.path for outcome in outcomes}) == 2
    alone = train_here(data, tmp_path / "alone").weights()
    # the number of threads is another here, and with it the rounding
    assert all(shared_gpu.distance(outcome.weights(), alone) < 1e-5 for outcome in outcomes)


def test_the_shared_benchmark_reports_runs_that_fail_lack_files_or_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_random_npy(tmp_path)
    same, other = (train_here(data, tmp_path / str(seed), seed) for seed in (0, 1))
    (tmp_path / "0" / "report.html").write_text("")
    (tmp_path / "1" / "report.html").write_text("")

    def report(*shared: shared_gpu.Outcome) -> tuple[list[dict[str, Any]], list[str]]:
        monkeypatch.setattr(shared_gpu, "together", lambda *a: [same] if a[-1] == 1 else list(shared))
        return shared_gpu.measure(TINY)

    rows, failures = report(same, same)
    assert failures == []
    assert [row["distance of the weights"] for row in rows] == ["0", "0"]
    assert rows[0].keys() == rows[1].keys()
    assert re.match(
        r"an encoder trained beside others is [\d.e-]+ from the one trained alone", report(same, other)[1][0]
    )
    assert "exit code 3: no space" in report(same, replace(same, exit_code=3, error="no space"))[1][0]
    (tmp_path / "1" / "encoder.json").unlink()
    assert report(same, other)[1] == [f"{tmp_path / '1'} lacks encoder.json"]
