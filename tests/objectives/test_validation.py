"""Bad input gets one clear line: what was expected, what came, what to do."""

from typing import Any

import pytest
import torch

import flatclr
from flatclr import EssControl

Z = torch.randn(4, 3)

BAD_BATCHES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "rank": ({"z_a": torch.randn(4, 3, 1)}, ValueError, r"z_a must have shape \[N, d\], got \[4, 3, 1\]; flatten"),
    "vector": ({"z_b": torch.randn(3)}, ValueError, r"z_b must have shape \[N, d\], got \[3\]"),
    "list": ({"z_a": [[1.0]]}, TypeError, "z_a must be a torch.Tensor of shape .* got list; use torch.as_tensor"),
    "integers": (
        {"z_a": torch.ones(4, 3, dtype=torch.long)},
        TypeError,
        r"floating-point tensor, got torch.int64; call .float",
    ),
    "shapes": ({"z_b": torch.randn(5, 3)}, ValueError, r"same shape, got \[4, 3\] and \[5, 3\]; row i"),
    "dtypes": ({"z_b": Z.half()}, TypeError, "z_b must have z_a's dtype torch.float32, got torch.float16; cast"),
    "devices": ({"z_b": Z.to("meta")}, ValueError, "z_b must be on z_a's device cpu, got meta; move"),
    "empty": ({"z_a": Z[:0], "z_b": Z[:0]}, ValueError, r"z_a must not be empty, got shape \[0, 3\]"),
    "one_pair": (
        {"z_a": Z[:1], "z_b": Z[:1]},
        ValueError,
        "every anchor must have a negative, got a batch of 1 .* at least 2 pairs",
    ),
    "queue_rank": ({"negatives": torch.randn(3)}, ValueError, r"negatives must have shape \[M, d\], got \[3\]"),
    "queue_width": ({"negatives": torch.randn(5, 2)}, ValueError, r"negatives must have shape \[M, 3\], got \[5, 2\]"),
    "queue_dtype": ({"negatives": torch.randn(5, 3).double()}, TypeError, "negatives must have z_a's dtype"),
    "empty_queue": ({"negatives": torch.randn(0, 3)}, ValueError, r"negatives must not be empty, got shape \[0, 3\]"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_batch_that_does_not_fit_is_refused(name: str) -> None:
    change, error, message = BAD_BATCHES[name]
    batch = {"z_a": Z, "z_b": Z} | change
    z_a, z_b = batch.pop("z_a"), batch.pop("z_b")
    with pytest.raises(error, match=message):
        flatclr.FlatNCE()(z_a, z_b, **batch)
    with pytest.raises(error, match=message):
        flatclr.contrast_stats(z_a, z_b, inverse_temperature=1.0, pairing="two_view", **batch)


BAD_SETTINGS: dict[str, tuple[Any, type[Exception], str]] = {
    "zero temperature": (
        lambda: flatclr.InfoNCE(0.0),
        ValueError,
        "temperature must be a finite number > 0, got 0.0; pass exp",
    ),
    "negative temperature": (
        lambda: flatclr.FlatNCE(-0.1),
        ValueError,
        "temperature must be a finite number > 0, got -0.1",
    ),
    "nan temperature": (lambda: flatclr.FlatNCE(float("nan")), ValueError, "got nan"),
    "text temperature": (lambda: flatclr.FlatNCE("0.1"), TypeError, "finite number > 0, got '0.1'"),
    "inverse temperature": (
        lambda: flatclr.contrast_stats(Z, Z, inverse_temperature=0.0, pairing="two_view"),
        ValueError,
        "inverse_temperature must be a finite number > 0, got 0.0; pass 1 / temperature",
    ),
    "inverse temperature shape": (
        lambda: flatclr.contrast_stats(Z, Z, inverse_temperature=torch.ones(2), pairing="two_view"),
        ValueError,
        r"one per anchor \[8\], got \[2\]",
    ),
    "pairing": (
        lambda: flatclr.InfoNCE(pairing="twoview"),
        ValueError,
        "pairing must be one of .* did you mean 'two_view'",
    ),
    "backend": (lambda: flatclr.InfoNCE(backend="tritn"), ValueError, "backend must be one of"),
    "option": (
        lambda: flatclr.InfoNCE(gahter=True),
        ValueError,
        "option of InfoNCE must be one of .* got 'gahter'; did you mean 'gather'",
    ),
    "argument": (lambda: flatclr.InfoNCE(temprature=0.1), ValueError, "got 'temprature'; did you mean 'temperature'"),
    "learned bandwidth": (lambda: flatclr.FMICL(learn_temperature=True), ValueError, "option of FMICL must be one of"),
    "learned t": (lambda: flatclr.AlignUniform(learn_temperature=True), ValueError, "option of AlignUniform must be"),
    "temperature for t": (lambda: flatclr.AlignUniform(temperature=0.1), ValueError, "option of AlignUniform must be"),
    "value": (lambda: flatclr.FlatNCE(value="papr"), ValueError, "did you mean 'paper'"),
    "divergence": (lambda: flatclr.FMICL("helinger"), ValueError, "did you mean 'hellinger'"),
    "kernel": (lambda: flatclr.FMICL(kernel="gauss"), ValueError, "did you mean 'gaussian'"),
    "cosine temperature": (
        lambda: flatclr.FMICL(kernel="cosine", temperature=0.1),
        ValueError,
        "must be None with kernel='cosine'",
    ),
    "tsallis": (
        lambda: flatclr.FMICL("tsallis", tsallis_alpha=1),
        ValueError,
        "must not be 1, got 1; use divergence='kl'",
    ),
    "flat unnormalised": (lambda: flatclr.FlatNCE(normalize=False), ValueError, "no lower bound .* training diverges"),
    "holder unnormalised": (lambda: flatclr.HolderFlatNCE(normalize=False), ValueError, "training diverges"),
    "flat learned": (lambda: flatclr.FlatNCE(learn_temperature=True), ValueError, "must not learn its temperature"),
    "holder learned": (
        lambda: flatclr.HolderFlatNCE(learn_temperature=True),
        ValueError,
        "must not learn its temperature",
    ),
    "controlled and learned": (
        lambda: flatclr.InfoNCE(EssControl(), learn_temperature=True),
        ValueError,
        "learn_temperature must be False with an EssControl",
    ),
    "gamma": (
        lambda: flatclr.HolderFlatNCE(gamma=float("nan")),
        ValueError,
        "gamma must be a number, 0, inf or -inf, got nan",
    ),
    "sphere": (lambda: flatclr.AlignUniform(normalize=False), ValueError, "unit sphere, got normalize=False"),
    "rpc": (lambda: flatclr.RPC(g=-1.0), ValueError, "g must be >= 0, got -1.0"),
    "flo u": (lambda: flatclr.FLO(u=lambda a, b: a), TypeError, "u must be an nn.Module"),
    "draw nothing": (lambda: flatclr.InfoNCE(negatives_per_anchor=0), ValueError, "must be a whole number >= 1, got 0"),
    "draw too many": (
        lambda: flatclr.InfoNCE(negatives_per_anchor=7)(Z, Z),
        ValueError,
        "<= 6, got 7; enlarge the batch",
    ),
    "draw a fraction": (lambda: flatclr.InfoNCE(negatives_per_anchor=1.5)(Z, Z), TypeError, "got 1.5"),
    "generator": (lambda: flatclr.InfoNCE(generator=3), TypeError, "generator must be a torch.Generator, got int"),
    "flag": (lambda: flatclr.InfoNCE(gather="no"), TypeError, "gather must be True or False, got 'no'"),
    "boolean gamma": (lambda: flatclr.HolderFlatNCE(gamma=True), ValueError, "gamma must be a number"),
    "negative tensor": (
        lambda: flatclr.contrast_stats(Z, Z, inverse_temperature=torch.tensor(-3.0)),
        ValueError,
        "inverse_temperature must be a finite number > 0, got -3.0",
    ),
    "queue only, no queue": (lambda: flatclr.InfoNCE(in_batch_negatives=False)(Z, Z), ValueError, "pass negatives="),
    "target": (lambda: EssControl(target=1.0), ValueError, "target must be a finite number > 0 and < 1, got 1.0"),
    "clamps": (lambda: EssControl(minimum=5, maximum=4), ValueError, "maximum must be a finite number > 5, got 4"),
    "initial": (lambda: EssControl(initial=500.0), ValueError, r"initial must be within \[1, 100\], got 500"),
    "phi": (lambda: flatclr.pairwise_mean(Z, Z, phi=torch.exp), TypeError, "phi must be a flatclr.Phi"),
    "scores": (
        lambda: flatclr.stats_from_scores(torch.randn(4, 3)),
        ValueError,
        r"at least as many columns as rows .* got \[4, 3\]",
    ),
    "one score": (lambda: flatclr.stats_from_scores(torch.randn(1, 1)), ValueError, "at least 2"),
}


@pytest.mark.parametrize("name", BAD_SETTINGS)
def test_a_bad_setting_is_refused(name: str) -> None:
    make, error, message = BAD_SETTINGS[name]
    with pytest.raises(error, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_u_of_the_wrong_shape_is_refused() -> None:
    class Wrong(torch.nn.Module):
        def forward(self, z_a: torch.Tensor, z_b: torch.Tensor) -> torch.Tensor:
            return z_a

    with pytest.raises(ValueError, match=r"one value per pair, shape \[4\], got \[4, 3\]"):
        flatclr.FLO(u=Wrong())(Z, Z)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", ["z_a", "z_b", "negatives"])
def test_the_first_bad_row_is_named_when_asked(bad: float, where: str) -> None:
    tensors = {name: torch.randn(6, 3) for name in ("z_a", "z_b", "negatives")}
    tensors[where][2, 1] = bad
    tensors[where][4, 0] = bad
    objective = flatclr.FlatNCE(check_embeddings=True)
    with pytest.raises(ValueError, match=f"{where} must be finite, got NaN or Inf in 2 of 6 rows, first in row 2"):
        objective(tensors["z_a"], tensors["z_b"], negatives=tensors["negatives"])


def test_zero_rows_are_named_when_asked_and_harmless_when_not() -> None:
    z_a = torch.randn(6, 3)
    z_a[3] = 0
    z_a.requires_grad_()
    z_b = torch.randn(6, 3)
    with pytest.raises(ValueError, match="z_a must have no zero rows to be normalised, got 1 of 6, first in row 3"):
        flatclr.FlatNCE(check_embeddings=True)(z_a, z_b)
    flatclr.FlatNCE()(z_a, z_b).backward()
    assert z_a.grad is not None
    assert z_a.grad.isfinite().all()
    assert (z_a.grad[3] == 0).all()


def test_zero_rows_are_fine_where_nothing_is_normalised() -> None:
    z = torch.zeros(4, 3)
    assert flatclr.RPC(check_embeddings=True)(z, z) == 0


def test_nan_is_not_hidden() -> None:
    z = torch.randn(4, 3)
    z[0, 0] = float("nan")
    assert flatclr.FlatNCE()(z, z).isnan()


def test_flat_nce_that_keeps_the_positive_is_bounded_and_may_learn() -> None:
    objective = flatclr.FlatNCE(keep_positive=True, normalize=False, learn_temperature=True)
    assert objective(Z, Z).isfinite()
    assert len(list(objective.parameters())) == 1


def test_unbounded_flat_nce_does_diverge_as_the_refusal_says() -> None:
    """The functional form cannot know where its scores come from; this is what the module refuses."""
    from flatclr.objectives.nce import flat_nce

    torch.manual_seed(0)
    w = torch.eye(4, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.1)
    for _ in range(200):
        x = torch.randn(8, 4)
        stats = flatclr.stats_from_scores(x @ w @ (x + 0.1 * torch.randn(8, 4)).T)
        optimizer.zero_grad()
        flat_nce(stats).mean().backward()
        optimizer.step()
    assert w.detach().norm() > 20  # still growing, linearly
