"""Each rule on a run that just trips it, and on one that just does not."""

from __future__ import annotations

import math
from typing import Any

import pytest

import flatclr
from flatclr.doctor import thresholds as T
from flatclr.doctor.evidence import Evidence
from flatclr.doctor.examination import diagnose
from flatclr.doctor.rules import RULES
from flatclr.objectives import OBJECTIVES, Traits
from tests.support.made_up_run import evidence

K = math.exp(4.844) - 1
FEW = T.FEW_EFFECTIVE / K
ALL, ONE = [1.0] * 12, [0.0] * 6
BILINEAR = {"objective_options": {"critic": "bilinear"}}  # its scores have a scale of their own
SNR = math.sqrt((8 * T.SIGNAL_IN_NOISE + 1) / 7)
FALL = T.FALLEN_ERRORS * math.sqrt(2 * 0.7 * 0.3 / 1000)
HALF = 0.7 * 0.3 * (1.96 / T.HALF_WIDTH) ** 2  # images whose interval is as wide


def falling(by: float) -> dict[str, Any]:
    return {"knn": [0.7, 0.69, 0.68, 0.7 - by]}


def noise(ratio: float, last: float = 0.8) -> dict[str, Any]:
    return {"gradient_snr": [1.2, ratio, ratio, ratio], "pool_mi_best_nats": [0.5, 0.8, 0.8, last]}


def shared(*nats: float, match: float = 0.005) -> dict[str, Any]:
    """What views share at each evaluation, and how often pixels find the other one."""
    return {"pool_mi_best_nats": list(nats), "pixel_match": match}


RISING, SETTLED = [0.06, 0.18, 0.44, 0.54], [0.06, 0.48, 0.52, 0.54]  # bounds


def clamped(ess: float, target: float | None = 0.25, *, rising: bool = False) -> Evidence:
    """A run whose controller is at a limit, before and at its end."""
    nats = RISING if rising else SETTLED
    settings = {"temperature": None, "ess_target": target}
    return evidence({"beta_clamped": ALL, "ess": ess}, {"pool_mi_best_nats": nats}, settings)


def at_odds(times: float, of: float = 0.25) -> float:
    """An ESS whose odds are so many times those of another."""
    odds = times * of / (1 - of)
    return odds / (1 + odds)


EDGES: list[tuple[str, Evidence, Evidence]] = [
    (
        "bound_saturated",
        evidence({"saturation": T.SATURATED + 0.001}),
        evidence({"saturation": T.SATURATED - 0.001}),
    ),
    (
        "bound_saturated",
        evidence({"saturation": T.SATURATED_BELOW_POOL + 0.001}, {"pool_mi_best_nats": 5.0}),
        evidence({"saturation": T.SATURATED_BELOW_POOL + 0.001}, {"pool_mi_best_nats": 4.8}),
    ),
    (
        "bound_saturated",
        evidence({"saturation": 0.95}, settings={"objective": "supcon"}),
        evidence({"saturation": 0.95}, settings={"objective": "flatnce"}),  # whose gradient stays
    ),
    (
        "bound_saturated",
        evidence({"saturation": 0.95}, settings={"objective": "flatnce", "objective_options": {"keep_positive": True}}),
        evidence({"saturation": 0.95}, settings={"objective": "own"}),  # of which nothing is known
    ),
    (
        "temperature_too_high",
        evidence({"ess": T.ESS_ALL_EQUAL + 0.001}),
        evidence({"ess": T.ESS_ALL_EQUAL - 0.001}),
    ),
    (
        "temperature_too_high",
        evidence({"ess": 0.99, "embedding_std": T.SPREAD_STD + 0.001}),
        evidence({"ess": 0.99, "embedding_std": T.SPREAD_STD - 0.001}),  # embeddings that are alike at any temperature
    ),
    ("temperature_too_high", evidence({"ess": 0.99}), evidence({"ess": 0.99}, settings={"objective": "vicreg"})),
    ("temperature_too_high", evidence({"ess": 0.99}), evidence({"ess": 0.99}, settings=BILINEAR)),
    ("temperature_too_low", evidence({"ess": FEW / 2}), evidence({"ess": FEW / 2}, settings=BILINEAR)),
    ("temperature_too_low", evidence({"ess": FEW * 0.99}), evidence({"ess": FEW * 1.01})),
    ("temperature_too_low", evidence({"ess": FEW / 2}), evidence({"ess": FEW / 2, "beta_clamped": False})),
    (
        "temperature_too_low",
        evidence({"ess": [FEW / 2] * 6 + [0.2] * 6}),
        evidence({"ess": [0.2] * 6 + [FEW / 2] * 6}),  # as embeddings spread that have learnt
    ),
    (
        "temperature_too_low",
        evidence({"embedding_std": T.SQUEEZED_STD - 0.001}),
        evidence({"embedding_std": T.SQUEEZED_STD + 0.001}),
    ),
    (
        "controller_clamped",
        evidence({"beta_clamped": [False] * 9 + [True, True, False], "ess": 0.9}),
        evidence({"beta_clamped": [True] * 9 + [True, False, False], "ess": 0.9}),
    ),
    ("controller_clamped", clamped(at_odds(T.MISSED_ODDS * 1.01)), clamped(at_odds(T.MISSED_ODDS * 0.99))),
    ("controller_clamped", clamped(at_odds(0.99 / T.MISSED_ODDS)), clamped(at_odds(1.01 / T.MISSED_ODDS))),
    (
        "controller_clamped",  # which more steps may mend, but for a target that is far
        clamped(at_odds(T.MISSED_FAR * 1.01), rising=True),
        clamped(at_odds(T.MISSED_FAR * 0.99), rising=True),
    ),
    ("controller_clamped", clamped(0.4, None, rising=True), clamped(0.4, rising=True)),  # a target that is not known
    (
        "collapse",
        evidence({"embedding_std": T.COLLAPSED_STD - 0.001, "ess": 0.8}, {"pool_mi_best_nats": SETTLED}),
        evidence({"embedding_std": T.COLLAPSED_STD + 0.001, "ess": 0.8}, {"pool_mi_best_nats": SETTLED}),
    ),
    (
        "collapse",
        evidence({"embedding_std": T.POINT_STD - 0.001, "ess": 0.4}),
        evidence({"embedding_std": T.POINT_STD + 0.001, "ess": 0.4}),  # a cone in which negatives differ
    ),
    (
        "collapse",
        evidence({"uniformity": T.COLLAPSED_UNIFORMITY + 0.01, "ess": 0.8}, {"pool_mi_best_nats": SETTLED}),
        evidence({"uniformity": T.COLLAPSED_UNIFORMITY + 0.01, "ess": 0.6}, {"pool_mi_best_nats": SETTLED}),
    ),
    (
        "collapse",  # where every run begins
        evidence({"uniformity": T.COLLAPSED_UNIFORMITY + 0.01, "ess": 0.8}, {"pool_mi_best_nats": SETTLED}),
        evidence({"uniformity": T.COLLAPSED_UNIFORMITY + 0.01, "ess": 0.8}, {"pool_mi_best_nats": RISING}),
    ),
    (
        "dimensional_collapse",
        evidence(None, {"head_rank": 24 * T.HEAD_RANK_SHARE - 0.1}),
        evidence(None, {"head_rank": 24 * T.HEAD_RANK_SHARE + 0.1}),
    ),
    (
        "dimensional_collapse",
        evidence(None, {"head_rank": [4.8, 2.0, 2.5, T.RANK_LEFT_LOW * 2.0 - 0.1]}),
        evidence(None, {"head_rank": [4.8, 2.0, 2.5, T.RANK_LEFT_LOW * 2.0 + 0.1]}),  # a narrow cone that is left
    ),
    (
        "dimensional_collapse",
        evidence(None, {"head_rank": [4.8, 4.0, 1.5, 4.0]}),  # one that was left, but for as few dimensions
        evidence(None, {"head_rank": [4.8, 3.0, 1.5, 4.0]}),
    ),
    (
        "learning_rate_too_high",
        evidence({"update_ratio": [T.UPDATE_TOO_LARGE * 1.01] + [1e-3] * 11}),
        evidence({"update_ratio": [T.UPDATE_TOO_LARGE * 0.99] + [1e-3] * 11}),
    ),
    (
        "learning_rate_too_high",
        evidence({"bad_steps": [0] * 11 + [7]}),
        evidence({"bad_steps": [0] * 11 + [5]}),
    ),
    (
        "learning_rate_too_high",
        evidence({"update_ratio": None, "loss": [2 + 0.1 * i for i in range(12)]}),
        evidence({"update_ratio": None, "loss": [2 - 0.1 * i for i in range(12)]}),
    ),
    (
        "learning_rate_too_low",
        evidence({"update_ratio": T.UPDATE_TOO_SMALL * 0.99}),
        evidence({"update_ratio": T.UPDATE_TOO_SMALL * 1.01}),
    ),
    ("gradient_noise", evidence(None, noise(SNR * 0.999)), evidence(None, noise(SNR * 1.001))),
    ("gradient_noise", evidence(None, noise(0.38)), evidence(None, noise(0.38, last=1.1))),  # which still learns
    (
        "gradient_noise",  # of a minimum, after much was learnt at once
        evidence(None, {"gradient_snr": 0.38, "pool_mi_best_nats": [0.1, *[0.099 + T.LEARNT_IN_ALL_NATS] * 3]}),
        evidence(None, {"gradient_snr": 0.38, "pool_mi_best_nats": [0.1, *[0.101 + T.LEARNT_IN_ALL_NATS] * 3]}),
    ),
    (
        "false_negatives",
        evidence(None, {"near_duplicates": 1.01 * T.COLLISIONS_PER_ANCHOR / K}),
        evidence(None, {"near_duplicates": 0.99 * T.COLLISIONS_PER_ANCHOR / K}),
    ),
    (
        "false_negatives",
        evidence(None, {"collision_rate": T.COLLISION_RATE + 0.001}),
        evidence(None, {"collision_rate": T.COLLISION_RATE - 0.001}),
    ),
    (
        "views_too_weak",
        evidence(None, {"pixel_match": T.PIXELS_MATCH + 0.001}),
        evidence(None, {"pixel_match": T.PIXELS_MATCH - 0.001}),
    ),
    (
        "gradient_noise",  # a rise from nothing to next to nothing is none
        evidence(None, {"gradient_snr": 0.38, "pool_mi_best_nats": [0.09, 0.005, 0.03, 0.04]}),
        evidence(None, {"gradient_snr": 0.38, "pool_mi_best_nats": [0.09, 0.005, 0.06, 0.12]}),
    ),
    (
        "gradient_noise",  # nor one that was lost again
        evidence(None, {"gradient_snr": 0.38, "pool_mi_best_nats": [0.09, 0.0, 0.13, 0.08]}),
        evidence(None, {"gradient_snr": 0.38, "pool_mi_best_nats": [0.09, 0.0, 0.08, 0.08]}),
    ),
    (
        "views_too_strong",
        evidence(None, shared(*[T.LITTLE_SHARED_NATS - 0.001] * 4)),
        evidence(None, shared(*[T.LITTLE_SHARED_NATS + 0.001] * 4)),
    ),
    (
        "views_too_strong",
        evidence(None, shared(0.07, 0.12, 0.15, 0.15)),
        evidence(None, shared(0.07, 0.02, 0.11, 0.15)),  # which still rises
    ),
    (
        "views_too_strong",
        evidence(None, shared(*[0.1] * 4, match=T.PIXELS_SHARE - 0.001)),
        evidence(None, shared(*[0.1] * 4, match=T.PIXELS_SHARE + 0.001)),  # of which pixels find the other one
    ),
    (
        "data_starved",
        evidence({"data_wait_share": T.WAITING + 0.001}),
        evidence({"data_wait_share": T.WAITING - 0.001}),
    ),
    (
        "split_leak",
        evidence(None, {"split_overlap": T.OVERLAP + 0.001}),
        evidence(None, {"split_overlap": T.OVERLAP - 0.001}),
    ),
    (
        "overfitting",
        evidence(None, {"seen_mi_nats": 3.0, "held_out_mi_nats": 3.0 * (1 - T.HELD_OUT_GAP) - 0.001}),
        evidence(None, {"seen_mi_nats": 3.0, "held_out_mi_nats": 3.0 * (1 - T.HELD_OUT_GAP) + 0.001}),
    ),
    (
        "overfitting",
        evidence(None, {"seen_mi_nats": 1.0, "held_out_mi_nats": 1 - T.GAP_NATS - 0.001}),
        evidence(None, {"seen_mi_nats": 1.0, "held_out_mi_nats": 1 - T.GAP_NATS + 0.001}),
    ),
    (
        "overfitting",  # where images held out still gain
        evidence(None, {"seen_mi_nats": 3.0, "held_out_mi_nats": [0.1, 1.5, 2.0, 3 * (1 - T.GAP_WHILE_RISING) - 0.01]}),
        evidence(None, {"seen_mi_nats": 3.0, "held_out_mi_nats": [0.1, 1.5, 2.0, 3 * (1 - T.GAP_WHILE_RISING) + 0.01]}),
    ),
    ("knn_falling", evidence(None, falling(FALL + 0.001)), evidence(None, falling(FALL - 0.001))),
    (
        "knn_falling",
        evidence(None, falling(0.2)),
        evidence(None, {**falling(0.2), "pool_mi_best_nats": [1.3, 1.2, 1.1, 1.0]}),  # the bound falls too
    ),
    (
        "knn_falling",
        evidence(None, {"knn": [0.7, 0.6, 0.55, 0.56]}),
        evidence(None, {"knn": [0.7, 0.52, 0.55, 0.6]}),  # which recovers
    ),
    (
        "evaluation_too_small",
        evidence(None, {"knn_samples": math.floor(HALF)}),
        evidence(None, {"knn_samples": math.ceil(HALF) + 1}),
    ),
    (
        "dead_batch_norm",
        evidence(None, {"dead_units": T.DEAD_UNITS + 0.001}),
        evidence(None, {"dead_units": T.DEAD_UNITS - 0.001}),
    ),
    (
        "dead_batch_norm",
        evidence(None, {"statistics_gap": T.STATISTICS_GAP + 0.01}),
        evidence(None, {"statistics_gap": T.STATISTICS_GAP - 0.01}),
    ),
    (
        "dead_batch_norm",
        evidence(None, {"statistics_gap": [4.0, 4.0, 4.0, 1.01 * T.STILL_FALLING * 4]}),
        evidence(None, {"statistics_gap": [4.0, 4.0, 4.0, 0.99 * T.STILL_FALLING * 4]}),  # which is on its way
    ),
]


@pytest.mark.parametrize(("name", "tripped", "sound"), EDGES)
def test_a_rule_finds_its_fault_on_one_side_of_its_threshold(name: str, tripped: Evidence, sound: Evidence) -> None:
    found = RULES[name].look(tripped)
    assert found is not None
    assert found.name == name
    assert RULES[name].look(sound) is None


def test_every_rule_is_tried_at_its_edge() -> None:
    assert {name for name, *_ in EDGES} == set(RULES)


def test_statistics_from_before_training_are_not_judged() -> None:
    """They are 0 and 1 then, and most runs are looked at before their second evaluation."""
    before = {"step": 0, "statistics_gap": 5.1, "knn": 0.7}
    steps = [{"step": step, "loss": 1.0} for step in range(1, 102, 10)]
    assert RULES["dead_batch_norm"].look(Evidence([before, *steps])) is None
    after = {"step": T.SETTLED_STEPS, "statistics_gap": 5.1}
    assert RULES["dead_batch_norm"].look(Evidence([before, *steps, after])) is not None


@pytest.mark.parametrize(("name", "tripped", "sound"), EDGES)
def test_a_finding_is_complete(name: str, tripped: Evidence, sound: Evidence) -> None:
    found = RULES[name].look(tripped)
    assert found is not None
    assert 0 < found.cost <= 1
    for sentence in (found.evidence, found.cause, found.remedy):
        assert sentence.endswith(".")
        assert "nan" not in sentence
        assert "None" not in sentence
    assert any(character.isdigit() for character in found.evidence)
    measured = {metric for row in tripped.rows for metric in row}
    assert measured & set(found.series)


@pytest.mark.parametrize("name", sorted(RULES))
def test_a_rule_does_not_judge_what_was_not_measured(name: str) -> None:
    assert RULES[name].look(Evidence([])) is None
    assert RULES[name].look(Evidence([{"step": 1, "kind": "log", "loss": 1.0}])) is None


def test_a_sound_run_trips_nothing() -> None:
    assert [name for name, rule in RULES.items() if rule.look(evidence()) is not None] == []


def test_causes_are_rules_and_none_is_its_own() -> None:
    def causes(name: str, after: tuple[str, ...] = ()) -> None:
        assert name not in after, f"{name} brings itself about: {after}"
        for cause in RULES[name].effect_of:
            causes(cause, (*after, name))

    for name in RULES:
        causes(name)


@pytest.mark.parametrize(
    ("nats", "rises"),
    [
        ((0.06, 0.18, 0.44, 0.54), True),
        ((0.06, 0.44, 0.53, 0.54), False),  # less than a quarter of it came in the second half
        ((0.00, 0.01, 0.03, 0.05), False),  # a rise that is the luck of a pool
        ((0.06, 0.18, 0.64, 0.54), False),  # a fall at the end
        ((0.06, 0.18, 0.58, 0.54), True),
    ],
)
def test_a_bound_still_rises_where_much_of_it_came_in_the_second_half(nats: tuple[float, ...], *, rises: bool) -> None:
    assert evidence(None, {"pool_mi_best_nats": list(nats)}).still_rises is rises
    assert not evidence(None, {"pool_mi_best_nats": None}).still_rises


def test_rules_ask_the_traits_of_an_objective_that_was_registered_since(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(flatclr.Objective):
        traits = Traits(vanishes_when_solved=True, temperature_weighs=False)

    monkeypatch.setitem(OBJECTIVES, "mine", Mine)
    seen = evidence({"saturation": 0.95, "ess": 0.99}, settings={"objective": "mine"})
    assert [finding.name for finding in diagnose(seen).findings] == ["bound_saturated"]
    monkeypatch.setattr(Mine, "traits", Traits())
    assert [finding.name for finding in diagnose(seen).findings] == ["temperature_too_high"]
