"""The pages of the benches say what the rules find in the runs that are kept."""

from __future__ import annotations

import pytest

from benchmarks.doctor.__main__ import AGAIN, BENCHES, FOLDER, judge
from benchmarks.doctor.cases import Bench, Case, kept
from benchmarks.doctor.tables import judged, summary
from flatclr.doctor.rules import RULES
from flatclr.models.encoders import Encoder
from flatclr.objectives import OBJECTIVES

OF_THE_OBJECTIVE = ("objective", "objective_options")  # which say what it is, not that it is broken


@pytest.mark.parametrize("name", [name for name in BENCHES if (FOLDER / f"{name}.md").exists()])
def test_the_page_of_a_bench_has_its_rates_and_every_run(name: str) -> None:
    records, page = list(kept(FOLDER / f"{name}.jsonl.gz")), (FOLDER / f"{name}.md").read_text()
    assert {record["case"] for record in records} == {case.name for case in BENCHES[name].cases}
    assert all(f"| {record['case']} | {record['fault'] or 'nothing'} |" in page for record in records)


@pytest.mark.parametrize("name", [name for name in BENCHES if (FOLDER / f"{name}.md").exists()])
def test_what_the_rules_of_today_find_is_on_a_page_of_its_own(name: str) -> None:
    rows, page = judged(kept(FOLDER / f"{name}.jsonl.gz")), (FOLDER / AGAIN).read_text()
    assert f"- Bench {name[-1].upper()}: {summary(rows)}" in page
    assert all(
        row["right"] or f"| {row['run']} | {row['fault']} | {', '.join(row['found']) or 'nothing'} |" in page
        for row in rows
    )


def test_a_bench_is_judged_once() -> None:
    with pytest.raises(SystemExit, match=r"a bench is judged once, got .*bench_b\.md"):
        judge(BENCHES["bench_b"], FOLDER / "bench_b.jsonl.gz")


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_breaks_every_fault_and_has_ten_sound_runs(name: str) -> None:
    faults = [case.fault for case in BENCHES[name].cases]
    assert set(faults) == {None, *RULES}
    assert faults.count(None) >= 10
    assert len(faults) - faults.count(None) >= 20


@pytest.mark.parametrize("name", [name for name in BENCHES if (FOLDER / f"{name}.jsonl.gz").exists()])
def test_findings_do_not_read_the_settings_that_break_a_run(name: str) -> None:
    cases = {case.name: case for case in BENCHES[name].cases}
    for record in kept(FOLDER / f"{name}.jsonl.gz"):
        case, settings = cases[record["case"]], record["settings"]
        if case.fault is None:
            continue
        kept_names = ("objective",) if case.fault in ("collapse", "dimensional_collapse") else OF_THE_OBJECTIVE
        switched = {setting for setting in case.settings if setting not in kept_names}
        without = {**record, "settings": {n: v for n, v in settings.items() if n not in switched}}
        assert judged([without])[0]["found"] == judged([record])[0]["found"], case.name


SATURATE = {name for name, kind in OBJECTIVES.items() if kind.traits_with(keep_positive=True).vanishes_when_solved}


def made_of(bench: Bench, case: Case) -> tuple[str, str]:
    """Objective and encoder of a run."""
    config = bench.base.changed(**case.settings)
    if case.encoder is None:
        return config.objective, config.encoder
    encoder = case.encoder()
    return config.objective, encoder.spec.name if isinstance(encoder, Encoder) else type(encoder).__name__


LETTERS = ("bench_d", "bench_e", "bench_f")  # those that are to be new to the rules in every way


@pytest.mark.parametrize("name", LETTERS)
def test_a_bench_has_another_dataset_objective_and_encoder_for_every_fault_than_those_before(name: str) -> None:
    bench = BENCHES[name]
    earlier = [(one, case) for one in BENCHES.values() if one.name < name for case in one.cases]
    for case in bench.cases:
        if case.fault is None:
            continue
        objective, encoder = made_of(bench, case)
        others = [made_of(one, other) for one, other in earlier if other.fault == case.fault]
        used = {known for known, _ in others}
        assert objective not in used or (case.fault, used) == ("bound_saturated", SATURATE), case.name
        assert encoder not in {known for _, known in others}, case.name
    assert bench.images not in {one.images for one, _ in earlier}


@pytest.mark.parametrize("name", LETTERS)
def test_a_bench_has_two_severities_and_the_sound_runs_that_are_asked_for(name: str) -> None:
    bench = BENCHES[name]
    for fault in RULES:
        forms = [case.name.partition(":")[0] for case in bench.cases if case.fault == fault]
        assert forms == ["mild", "severe"]
    sound = [case for case in bench.cases if case.fault is None]
    configs = [bench.base.changed(**case.settings) for case in sound]
    assert any(config.objective == "infonce" and config.batch_size == 32 for config in configs)
    assert any(config.steps is None and config.epochs == 1 for config in configs)
    assert any(not case.labelled for case in sound)
