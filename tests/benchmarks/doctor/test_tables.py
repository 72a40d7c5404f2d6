"""The pages of the benches say what the rules find in the runs that are kept."""

from __future__ import annotations

import pytest

from benchmarks.doctor.__main__ import BENCHES, FOLDER
from benchmarks.doctor.cases import kept
from benchmarks.doctor.tables import judged, summary


@pytest.mark.parametrize("name", BENCHES)
def test_the_page_of_a_bench_states_its_rates(name: str) -> None:
    records = list(kept(FOLDER / f"{name}.jsonl.gz"))
    assert {record["case"] for record in records} == {case.name for case in BENCHES[name].cases}
    assert summary(judged(records)) in (FOLDER / f"{name}.md").read_text()


@pytest.mark.parametrize("name", BENCHES)
def test_a_bench_breaks_every_fault_and_has_ten_sound_runs(name: str) -> None:
    from flatclr.doctor.rules import RULES

    faults = [case.fault for case in BENCHES[name].cases]
    assert set(faults) == {None, *RULES}
    assert faults.count(None) >= 10
    assert len(faults) - faults.count(None) >= 20
