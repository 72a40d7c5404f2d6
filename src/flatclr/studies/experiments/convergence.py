"""FlatNCE paper, S10 to S15: where FlatNCE's expected gradient is zero, and where it is nowhere."""

from __future__ import annotations

from itertools import chain, combinations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from flatclr.plots import COLOURS, new_figure
from flatclr.studies.judging import Verdict, exactly
from flatclr.studies.literature import FLATNCE
from flatclr.studies.multinomial import counts_of, probabilities_of
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Study

SYMBOLS, NEGATIVES = 4, (1, 2, 3, 4, 5, 6, 8, 16, 32, 64)
FAR = 25.0  # nats between scores, where a softmax has forgotten the lower one
AT_ZERO = 1e-8


def joint_of(seed: int) -> Tensor:
    """Dependent, every pair possible."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(SYMBOLS, SYMBOLS, generator=generator, dtype=torch.float64)
    joint = 0.6 * torch.eye(SYMBOLS, dtype=torch.float64) / SYMBOLS + 0.4 * noise / noise.sum()
    return joint / joint.sum()


def measure(job: Job) -> Numbers:
    """Descend the expected loss, whose gradient is FlatNCE's expected gradient, from zero scores to its end."""
    negatives, joint = job.settings["negatives"], joint_of(job.seed)
    margin = joint.sum(0)
    conditional = joint / joint.sum(1, keepdim=True)
    counts = counts_of(SYMBOLS, negatives)
    weights = probabilities_of(counts, margin)
    log_counts = counts.log()
    scores = torch.zeros(SYMBOLS, SYMBOLS, dtype=torch.float64, requires_grad=True)  # of x and y

    def gap() -> Tensor:
        """E log sum_j exp(s(x, y_j)) - E s(x, y), convex in the scores."""
        sums = torch.logsumexp(log_counts.unsqueeze(0) + scores.unsqueeze(1), 2) @ weights
        return (joint.sum(1) * (sums - (conditional * scores).sum(1))).sum()

    optimizer = torch.optim.LBFGS([scores], tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = gap()
        value.backward()
        return value

    def steepest() -> float:
        """From where it is, which need not be where the line search looked last."""
        return torch.autograd.grad(gap(), scores)[0].abs().max().item()

    for _ in range(job.settings["rounds"]):
        optimizer.step(closure)
        if _spread(scores) > FAR or steepest() < AT_ZERO:
            break
    with torch.no_grad():
        partition = (margin * scores.exp()).sum(1, keepdim=True).log()
        bound = (joint * (scores - partition)).sum().item()  # per x, below the information and equal at log r + c(x)
    return {
        "gradient": steepest(),
        "spread": min(_spread(scores), 10 * FAR),
        "bound": bound,
        "mi_nats": (joint * (conditional / margin).log()).sum().item(),
        "zero_for_pairs": _has_zero(conditional, margin, negatives, sizes=(1,)),
        "zero_for_subsets": _has_zero(conditional, margin, negatives, sizes=tuple(range(1, SYMBOLS))),
    }


def _spread(scores: Tensor) -> float:
    """Between the scores of one x; the same added to all of them changes nothing."""
    return (scores.detach().amax(1) - scores.detach().amin(1)).max().item()


def _has_zero(conditional: Tensor, margin: Tensor, negatives: int, sizes: tuple[int, ...]) -> bool:
    """P(S | x) < 1 - (1 - P(S))^K for every x and every set S of so many symbols: the most weight S can get."""
    sets = chain.from_iterable(combinations(range(SYMBOLS), size) for size in sizes)
    return all(
        bool((conditional[:, list(chosen)].sum(1) < 1 - (1 - margin[list(chosen)].sum()) ** negatives).all())
        for chosen in sets
    )


def arm_of(negatives: int) -> str:
    return f"K {negatives}"


def plan(of: Plan) -> list[Run]:
    tried = (1, 8) if of.quick else NEGATIVES
    settings = {"rounds": 20, "quick": of.quick}
    return [Run(arm_of(k), seed, measure, {"negatives": k, **settings}) for seed in of.seeds for k in tried]


def is_zero(numbers: Numbers) -> bool:
    return bool(numbers["gradient"] < AT_ZERO and numbers["spread"] < FAR)


def table(found: Found) -> list[Row]:
    rows: list[Row] = []
    for arm in found.arms:
        runs = [kept.numbers for kept in found.of(arm)]
        rows.append(
            {
                "negatives": arm,
                "p(y given x) < 1 - (1 - p(y))^K": _count(runs, "zero_for_pairs"),
                "the same of all sets": _count(runs, "zero_for_subsets"),
                "descent ends at a zero": f"{sum(map(is_zero, runs))} of {len(runs)}",
                "largest score difference": _spread_text(max(numbers["spread"] for numbers in runs)),
                "I less the critic's bound there": _worst_gap(runs),
            }
        )
    return rows


def _spread_text(spread: float) -> str:
    return f"{spread:.1f}" if spread < FAR else "diverges"


def _worst_gap(runs: list[Numbers]) -> str:
    return f"{max(n['mi_nats'] - n['bound'] for n in runs):.4f}" if all(map(is_zero, runs)) else "no zero"


def _count(runs: list[Numbers], name: str) -> str:
    return f"{sum(bool(numbers[name]) for numbers in runs)} of {len(runs)}"


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(6.4, 3.0)
    axes = figure.subplots()
    for kept, colour in zip(found.of(found.arms[0]), COLOURS * 3, strict=False):
        runs = [one for one in found if one.seed == kept.seed]
        gaps = [max(one.numbers["mi_nats"] - one.numbers["bound"], 1e-6) for one in runs]
        negatives = [one.settings["negatives"] for one in runs]
        axes.plot(negatives, gaps, "o-", color=colour, label=f"joint {kept.seed}")
        far = [(k, gap) for k, gap, one in zip(negatives, gaps, runs, strict=True) if not is_zero(one.numbers)]
        axes.plot([k for k, _ in far], [gap for _, gap in far], "x", color="black", markersize=9)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("negatives K; crosses: scores diverge")
    axes.set_ylabel("I less bound (nats)")
    axes.set_title("Where the expected FlatNCE gradient leads a free critic")
    axes.legend()
    return {"figure": figure}


def judge(found: Found) -> Verdict:
    without = sorted({kept.settings["negatives"] for kept in found if not is_zero(kept.numbers)})
    if not without:
        return Verdict(exactly(True), "A zero exists at every K.")
    return Verdict(
        exactly(False), f"Joints without a zero, where scores diverge, are at K {', '.join(map(str, without))}."
    )


def notes(found: Found) -> list[str]:
    right = {
        name: sum(is_zero(kept.numbers) == bool(kept.numbers[name]) for kept in found)
        for name in ("zero_for_pairs", "zero_for_subsets")
    }
    gaps: dict[int, float] = {}
    for kept in filter(lambda one: is_zero(one.numbers), found):
        negatives, gap = kept.settings["negatives"], kept.numbers["mi_nats"] - kept.numbers["bound"]
        gaps[negatives] = max(gap, gaps.get(negatives, 0.0))
    shown = ", ".join(f"{gap:.4f} at K {k}" for k, gap in sorted(gaps.items()))
    return [
        f"The condition on pairs (x, y) predicts {right['zero_for_pairs']} of {len(found)} descents, that on all sets "
        f"of symbols {right['zero_for_subsets']}.",
        f"A zero is not the best critic: its bound is below I by {shown} nats, at the worst joint.",
    ]


STUDY = Study(
    name="convergence",
    title="Where FlatNCE converges",
    source=f"{FLATNCE}, S10 to S15",
    experiment=(
        "The expected FlatNCE gradient of a free critic on joint distributions of 4 x 4 symbols, exactly, by "
        "enumeration of which symbols the K negatives are. It is the gradient of a convex function, E log sum exp of "
        "negatives less E of the positive; L-BFGS goes to its end from zero scores. A zero exists if no set of symbols "
        "needs more weight than it can get: P(S given x) < 1 - (1 - P(S))^K."
    ),
    changed="the source argues by stochastic approximation; here the expectation is exact, and the critic is free.",
    claims=(
        Claim(
            f"{FLATNCE}, S10 to S15",
            "FlatNCE converges to a stationary point of I.",
            "a zero of the expected gradient exists for every K from 1 to 64",
            judge,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=3,
    budget="seconds on a CPU",
    notes=notes,
    brackets="",
)
