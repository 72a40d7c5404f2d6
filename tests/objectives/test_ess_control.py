"""The controller: settles, clamps, alarms, saves, and never waits for the device."""

import copy
import io
import itertools
import math
import pickle

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import flatclr
from flatclr import EssControl
from flatclr.objectives import OBJECTIVES


def drive(control: EssControl, z_a: torch.Tensor, z_b: torch.Tensor, steps: int, **options: object) -> list[float]:
    """ESS over steps on fixed embeddings: only the temperature can move it."""
    objective = flatclr.FlatNCE(control, **options)  # type: ignore[arg-type]
    return [objective.with_stats(z_a, z_b)[1].ess.mean().item() for _ in range(steps)]


@pytest.mark.parametrize("target", [0.1, 0.25, 0.5, 0.8])
@pytest.mark.parametrize("initial", [1.0, 10.0, 90.0])
def test_ess_reaches_its_target_within_fifty_steps_from_either_side(target: float, initial: float) -> None:
    z_a, z_b = torch.randn(2, 64, 16).unbind()
    ess = drive(EssControl(target=target, initial=initial), z_a, z_b, 120)
    assert torch.tensor(ess[50:60]).mean().item() == pytest.approx(target, abs=0.05)
    assert torch.tensor(ess[-20:]).mean().item() == pytest.approx(target, abs=0.02)


def test_steps_near_the_target_are_those_of_the_published_rule() -> None:
    control, beta = EssControl(target=0.25, rate=0.01), 10.0
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        ess = 0.25 * (1 + 0.09 * (2 * torch.rand((), generator=generator) - 1))
        control.observe(ess)
        beta *= 1.01 if ess > 0.25 else 0.99
    assert control.inverse_temperature.item() == pytest.approx(beta, rel=1e-4)


def test_steps_grow_only_while_the_error_is_large_and_of_one_sign() -> None:
    control, betas = EssControl(target=0.25, maximum=1e6), [10.0]

    def moved(*ess: float) -> list[float]:
        for mean in ess:
            control.observe(torch.tensor(mean))
            betas.append(control.inverse_temperature.item())
        return [after / before - 1 for before, after in itertools.pairwise(betas[-len(ess) - 1 :])]

    assert moved(*[0.9] * 5) == pytest.approx([0.01] * 5, rel=1e-3)
    assert moved(0.9, 0.9) == pytest.approx([0.013, 0.0169], rel=1e-3)
    assert moved(*[0.9] * 20)[-1] == pytest.approx(0.15, rel=1e-3)
    assert moved(0.1, 0.9, 0.1) == pytest.approx([-0.075, 0.0375, -0.01875], rel=1e-3)  # as a search by halves
    assert moved(0.26, 0.9) == pytest.approx([0.01, 0.01], rel=1e-3)


def test_one_step_moves_beta_by_the_rate_towards_the_target() -> None:
    control = EssControl(target=0.5, rate=0.02, initial=10.0)
    control.observe(torch.tensor([0.9]))
    assert control.inverse_temperature.item() == pytest.approx(10.2)
    control.observe(torch.tensor([0.1]))
    assert control.inverse_temperature.item() == pytest.approx(10.2 * 0.98)


def test_the_controlled_quantity_is_the_mean_over_anchors() -> None:
    control = EssControl(target=0.5)
    control.observe(torch.tensor([0.9, 0.9, 0.0]))
    assert control.inverse_temperature > 10


CONTROLLED = [
    n for n, kind in OBJECTIVES.items() if kind.traits.temperature is not None and kind.traits.accepts_control
]


@pytest.mark.parametrize("name", CONTROLLED)
def test_the_controller_is_accepted_wherever_a_temperature_is(name: str) -> None:
    kind = OBJECTIVES[name]
    control = EssControl(target=0.3, initial=5.0)
    objective = kind(temperature=control)
    z_a, z_b = torch.randn(2, 16, 8).unbind()
    before = control.inverse_temperature.clone()
    loss = objective(z_a.requires_grad_(), z_b)
    control.advance()
    assert control.inverse_temperature != before
    loss.backward()  # the changed buffer must not spoil backward
    assert z_a.grad is not None
    fixed = kind(temperature=0.2)(z_a, z_b)
    torch.testing.assert_close(loss, fixed)


def test_evaluation_mode_leaves_beta_alone() -> None:
    control = EssControl()
    objective = flatclr.FlatNCE(control).eval()
    objective(*torch.randn(2, 16, 8).unbind())
    assert control.inverse_temperature == 10


def test_collapsed_embeddings_run_into_the_clamp_and_raise_the_alarm() -> None:
    control = EssControl(target=0.25)
    point = torch.ones(8, 4)
    drive(control, point, point, 300)
    assert control.inverse_temperature == 100
    assert control.clamped
    assert control.collapsed
    assert control.collapsed_steps > 0


def test_an_alarm_goes_out_when_the_run_recovers() -> None:
    control = EssControl(target=0.25, maximum=12.0)
    point = torch.ones(8, 4)
    drive(control, point, point, 40)
    assert control.collapsed
    z_a, z_b = torch.randn(2, 64, 2).unbind()
    drive(control, z_a, z_b, 200)
    assert not control.collapsed
    assert control.collapsed_steps > 0


def test_the_lower_clamp_is_an_alarm_but_no_collapse() -> None:
    control = EssControl(target=0.9, initial=2.0)
    for _ in range(200):
        control.observe(torch.tensor(0.2))
    assert control.inverse_temperature == 1
    assert control.clamped
    assert not control.collapsed


def test_the_upper_clamp_without_equal_weights_is_no_collapse() -> None:
    control = EssControl(target=0.2, initial=90.0)
    for _ in range(50):
        control.observe(torch.tensor(0.5))  # above the target, but far from equal weights
    assert control.clamped
    assert not control.collapsed
    assert control.collapsed_steps == 0


def test_a_loaded_beta_is_brought_inside_the_clamps() -> None:
    saved = EssControl(initial=90.0).state_dict()
    control = EssControl(maximum=20.0)
    control.load_state_dict(saved)
    assert control.inverse_temperature == 20


def test_a_batch_of_nan_changes_nothing() -> None:
    control = EssControl()
    control.observe(torch.tensor([float("nan")]))
    assert control.inverse_temperature == 10


def test_state_dict_carries_beta_target_and_alarms() -> None:
    objective = flatclr.FlatNCE(EssControl(target=0.25, maximum=12.0))
    for _ in range(50):
        objective(torch.ones(8, 4), torch.ones(8, 4))
    file = io.BytesIO()
    torch.save(objective.state_dict(), file)
    file.seek(0)
    fresh = EssControl(target=0.7, maximum=12.0)
    flatclr.FlatNCE(fresh).load_state_dict(torch.load(file))
    assert fresh.inverse_temperature == 12
    assert fresh.collapsed
    assert fresh.collapsed_steps > 0
    assert fresh.target == pytest.approx(0.25)


def test_the_target_can_be_moved_during_a_run() -> None:
    control = EssControl(target=0.25)
    z_a, z_b = torch.randn(2, 64, 16).unbind()
    drive(control, z_a, z_b, 400)
    control.target = 0.6
    assert torch.tensor(drive(control, z_a, z_b, 400)[-50:]).mean().item() == pytest.approx(0.6, abs=0.02)


def test_half_precision_modules_keep_the_controller_in_float32() -> None:
    control = flatclr.FlatNCE(EssControl()).half().scale.control
    control.observe(torch.tensor([0.9]))
    assert control.inverse_temperature.dtype == torch.float32
    assert control.inverse_temperature.item() == pytest.approx(10.1)


def test_objectives_with_a_controller_can_be_copied() -> None:
    objective = flatclr.FlatNCE(EssControl(target=0.4))
    other = copy.deepcopy(objective)
    other(*torch.randn(2, 16, 8).unbind())
    assert objective.scale.control.inverse_temperature == 10


@pytest.mark.parametrize("target", [0.1, 1 / 14])
def test_a_target_no_batch_can_reach_is_refused(target: float) -> None:
    z = torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"target must be > 1/6 = 0.167.*got.*use more negatives"):
        flatclr.FlatNCE(EssControl(target=target))(z, z)


def test_labels_that_leave_too_few_negatives_are_warned_of() -> None:
    z, labels = torch.randn(2, 6, 3), torch.tensor([0, 0, 0, 1, 1, 1])
    objective = flatclr.FlatNCE(EssControl(target=0.15))  # 10 negatives at most, 6 are left
    with pytest.warns(
        RuntimeWarning, match=r"target must be > 0.167, the smallest mean ESS .*got 0.15; .*mix the batch"
    ):
        objective(z, labels=labels)
    flatclr.FlatNCE(EssControl(target=0.17))(z, labels=labels)
    flatclr.FlatNCE(EssControl(target=0.11))(z)
    objective.eval()(z, labels=labels)


def test_a_controlled_step_never_waits_for_the_device(route: str) -> None:
    """Fake tensors hold no data, so any read of a value on the host raises."""
    with FakeTensorMode():
        z_a, z_b = (torch.randn(16, 8, requires_grad=True) for _ in range(2))
        for kind in (flatclr.FlatNCE, flatclr.InfoNCE, flatclr.HolderFlatNCE, flatclr.NWJ):
            loss, _ = kind(EssControl(), route=route).with_stats(z_a, z_b, negatives=torch.randn(8, 8))
            loss.backward()
        with pytest.raises(Exception, match=r"data-dependent|data dependent|_local_scalar_dense"):
            loss.item()


def test_a_small_batch_learns_with_its_ess_on_target() -> None:
    """A linear encoder at batch 8 must find the 8 shared directions among 32 noisy ones."""
    encoder = torch.nn.Linear(32, 16)
    objective = flatclr.FlatNCE(EssControl(target=0.4))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-3)
    mixing = torch.linalg.qr(torch.randn(32, 32))[0][:8]

    def two_views(samples: int) -> list[torch.Tensor]:
        x = torch.randn(samples, 8) @ mixing
        return [encoder(x + 0.5 * torch.randn(samples, 32)) for _ in range(2)]

    def pool_mi() -> float:
        with torch.no_grad():
            return flatclr.contrast_stats(*two_views(512), inverse_temperature=10.0).mi_nats.item()

    before = pool_mi()
    ess = []
    for _ in range(500):
        loss, stats = objective.with_stats(*two_views(8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ess.append(stats.ess.mean().item())
    assert pool_mi() > before + 0.5
    assert sum(ess[-100:]) / 100 == pytest.approx(0.4, abs=0.05)


def updated(control: EssControl, weight: torch.nn.Parameter, micro_batches: int, **options: object) -> None:
    """One update of a weight by plain SGD, over several calls of the loss."""
    objective = flatclr.FlatNCE(control, **options)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for views in torch.randn(micro_batches, 2, 16, 8):
        objective(*(views @ weight).unbind()).backward()
    optimizer.step()


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_an_optimizers_step_is_one_step_however_often_the_loss_was_called(micro_batches: int) -> None:
    control, weight = EssControl(target=0.5, initial=2.0, rate=0.02), torch.nn.Parameter(torch.eye(8))
    for step in range(1, 4):
        updated(control, weight, micro_batches)
        assert control.inverse_temperature.item() == pytest.approx(2.0 * 1.02**step)


def test_a_step_goes_by_the_mean_over_its_calls() -> None:
    control, one = EssControl(target=0.5), torch.nn.Parameter(torch.ones(()))
    for ess in (0.9, 0.4, 0.4, math.nan):
        control.note(torch.tensor(ess))
    one.grad = torch.ones(())
    torch.optim.SGD([one], lr=0.1).step()
    assert control.inverse_temperature.item() == pytest.approx(10.1)
    torch.optim.SGD([one], lr=0.1).step()  # of somebody else: nothing was noted since
    assert control.inverse_temperature.item() == pytest.approx(10.1)


def test_calls_without_gradient_are_not_noted() -> None:
    control, z = EssControl(), torch.randn(2, 16, 8)
    objective = flatclr.FlatNCE(control)
    with torch.no_grad():
        objective(*z)
    with torch.inference_mode():
        objective.with_stats(*z)
    control.advance()
    assert control.inverse_temperature == 10


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_loss_that_is_computed_again_for_its_gradient_is_one_step(reentrant: bool) -> None:
    """Checkpointing must find the same temperature again, or the gradient is that of another loss."""
    z = torch.randn(2, 16, 8, requires_grad=True)
    want = torch.autograd.grad(flatclr.FlatNCE(0.1)(*z), z)[0]
    control = EssControl(target=0.5, rate=0.02)
    objective, optimizer = flatclr.FlatNCE(control), torch.optim.SGD([z], lr=0.1)
    for step in range(3):
        loss = checkpoint(objective, *z, use_reentrant=reentrant)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            torch.testing.assert_close(z.grad, want)
        optimizer.step()
    assert control.inverse_temperature.item() == pytest.approx(10 * 0.98**3)


def test_a_copy_and_a_loaded_controller_follow_optimizers_too() -> None:
    control, weight = EssControl(target=0.5, initial=2.0), torch.nn.Parameter(torch.eye(8))
    other = pickle.loads(pickle.dumps(copy.deepcopy(control)))
    updated(other, weight, 2)
    assert (control.inverse_temperature.item(), other.inverse_temperature.item()) == (2.0, pytest.approx(2.02))


def test_what_was_noted_before_a_checkpoint_counts_after_it() -> None:
    control, resumed = EssControl(target=0.5), EssControl(target=0.3)
    control.note(torch.tensor(0.9))
    resumed.load_state_dict(control.state_dict())
    resumed.advance()
    assert resumed.inverse_temperature.item() == pytest.approx(10.1)


def test_a_state_from_before_steps_could_grow_is_loaded() -> None:
    state = {name: x for name, x in EssControl(initial=20.0).state_dict().items() if name not in ("_stride", "_run")}
    state = {name: x for name, x in state.items() if not name.startswith("_noted")}
    control = EssControl()
    control.load_state_dict(state)
    assert control.inverse_temperature == 20


def test_without_any_optimizer_a_warning_says_that_calls_are_steps_from_now_on() -> None:
    control, z = EssControl(target=0.9), torch.randn(2, 16, 8, requires_grad=True)
    objective = flatclr.FlatNCE(control)
    for _ in range(99):
        objective(*z)
    assert control.inverse_temperature == 10
    with pytest.warns(RuntimeWarning, match=r"got 100 calls without one; .*call control.advance\(\) after each update"):
        objective(*z)
    for _ in range(9):
        objective(*z)
    assert control.inverse_temperature.item() < 9.1


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a CUDA device the kernel is compiled: see test_gpu")
@pytest.mark.parametrize("initial", [1.0, 10.0, 99.5])
def test_the_step_in_one_launch_is_the_step_of_the_operations(initial: float) -> None:
    pytest.importorskip("triton")
    from flatclr.objectives.device import ess_control as device

    controls = [EssControl(target=0.3, initial=initial) for _ in range(2)]
    for ess in (0.9, 0.9, 0.1, 0.3, float("nan"), 0.66, *[0.2] * 8, 0.64, 0.9):
        for mean in torch.tensor([ess, 0.5])[: 1 + (ess == 0.66)]:
            controls[0].note(mean)
            device.note(mean, controls[1]._noted_ess, controls[1]._noted_calls)
        controls[0].advance()
        controls[1]._step_in_one_launch()
        want, got = (control.state_dict() for control in controls)
        assert all(torch.equal(got[name], want[name]) for name in want), (ess, want, got)


def within_one_per_cent(stats: flatclr.ContrastStats, target: float) -> None:
    assert (stats.ess / target - 1).abs().max() < 0.01


@pytest.mark.parametrize("target", [0.1, 0.25, 0.5, 0.8])
@pytest.mark.parametrize("pairing", ["two_view", "cross", "one_way", "within"])
def test_every_anchor_meets_the_target_at_a_temperature_of_its_own(target: float, pairing: str, route: str) -> None:
    z_a, z_b = torch.randn(2, 24, 6).unbind()
    control = EssControl(target, per_anchor=True, minimum=0.05, maximum=10_000.0)
    _, stats = flatclr.FlatNCE(control, pairing=pairing, route=route).with_stats(z_a, z_b)
    within_one_per_cent(stats, target)
    assert not control.clamped


def test_every_anchor_meets_the_target_with_queue_labels_and_views(route: str) -> None:
    views, labels = torch.randn(3, 16, 6), torch.arange(16) % 5
    objective = flatclr.InfoNCE(EssControl(0.3, per_anchor=True), route=route)
    said = {"negatives": torch.randn(9, 6), "labels": labels, "negative_labels": torch.arange(9)}
    within_one_per_cent(objective.with_stats(views, **said)[1], 0.3)
    within_one_per_cent(objective.with_stats(views, hard_negatives=torch.randn(16, 3, 6))[1], 0.3)


def test_a_solved_temperature_gets_no_gradient_and_gives_that_of_fixed_ones(route: str) -> None:
    z_a, z_b = torch.randn(2, 16, 6, dtype=torch.float64).unbind()
    z_a.requires_grad_()
    control = EssControl(0.3, per_anchor=True)
    loss = flatclr.FlatNCE(control, route=route)(z_a, z_b)
    pairs = flatclr.PairSet.of(z_a, z_b, route=route)
    beta = control.solved(lambda b: flatclr.stats_of(pairs, b).ess, 32)
    want = flatclr.stats_of(pairs, beta).gap.mean()
    torch.testing.assert_close(torch.autograd.grad(loss, z_a), torch.autograd.grad(want, z_a))
    assert float(control.inverse_temperature) == pytest.approx(beta.mean().item())


def test_anchors_that_cannot_meet_the_target_sit_at_a_clamp_and_most_of_them_ring() -> None:
    point = torch.ones(8, 4)
    control = EssControl(0.25, per_anchor=True)
    objective = flatclr.FlatNCE(control)
    objective(point, point)
    assert float(control.inverse_temperature) == pytest.approx(100, rel=0.01)
    assert control.clamped
    assert control.collapsed
    objective(*torch.randn(2, 32, 6).unbind())
    assert not control.clamped
    assert (control.clamped_steps, control.collapsed_steps) == (1, 1)
    objective(torch.full((8, 4), torch.nan), point)
    assert control.inverse_temperature.isfinite()


@pytest.mark.parametrize("name", [name for name in CONTROLLED if name != "fmicl"])
def test_objectives_that_take_a_controller_take_one_per_anchor(name: str) -> None:
    z_a, z_b = torch.randn(2, 16, 6).unbind()
    clamps = {"minimum": 0.05, "maximum": 20.0} if name == "rpc" else {}  # its scores are not cosines
    objective = OBJECTIVES[name](temperature=EssControl(0.3, per_anchor=True, initial=1.0, **clamps))
    loss, stats = objective.with_stats(z_a.requires_grad_(), z_b)
    loss.backward()
    within_one_per_cent(stats, 0.3)


def test_one_bandwidth_for_all_is_asked_of_f_micl() -> None:
    with pytest.raises(ValueError, match="inverse_temperature of f-MICL must be one value, got 32; pass one for all"):
        flatclr.FMICL(temperature=EssControl(0.3, per_anchor=True))(*torch.randn(2, 16, 6).unbind())


def test_solving_costs_twelve_passes_and_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatclr.contrast import route as routes

    passes = []
    negatives_of = routes.negatives_of
    monkeypatch.setattr(routes, "negatives_of", lambda *a, **b: passes.append(1) or negatives_of(*a, **b))
    objective = flatclr.FlatNCE(EssControl(0.3, per_anchor=True), route="streamed")
    objective(*torch.randn(2, 16, 6).unbind())
    assert len(passes) == 12 + 1


@pytest.mark.parametrize("route", ["dense", "streamed"])
def test_solving_never_waits_for_the_device(route: str) -> None:
    with FakeTensorMode():
        z_a, z_b = (torch.randn(8, 4, requires_grad=True) for _ in range(2))
        flatclr.FlatNCE(EssControl(per_anchor=True), route=route)(z_a, z_b).backward()


@pytest.mark.parametrize("name", ["_noted_ess", "_noted_calls", "_stride", "_run"])
def test_a_state_with_a_nan_in_what_a_step_reads_is_refused(name: str) -> None:
    control = EssControl(0.3)
    with pytest.raises(
        ValueError, match=f"the state of EssControl must have a finite {name}, got nan; load an earlier"
    ):
        control.load_state_dict({**control.state_dict(), name: torch.tensor(math.nan)})


@pytest.mark.parametrize("name", ["inverse_temperature", "target_ess"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, -1.0])
def test_a_state_that_no_step_could_mend_is_refused_and_changes_nothing(name: str, value: float) -> None:
    control = EssControl(0.3)
    damaged = {**control.state_dict(), name: torch.tensor(value)}
    with pytest.raises(
        ValueError, match=f"the state of EssControl must have {name} > 0 .*; load an earlier checkpoint"
    ):
        control.load_state_dict(damaged)
    assert (control.target, control.inverse_temperature.item()) == (0.3, 10.0)
