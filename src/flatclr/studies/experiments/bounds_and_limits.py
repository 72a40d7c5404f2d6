"""What bounds on mutual information can and cannot do at the optimal critic, and limits of entropy."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from matplotlib.figure import Figure
from torch import Tensor

from flatclr.mi.limits import dv_bias_nats, entropy_limit_nats, gaussian_nwj_variance, nwj_least_variance
from flatclr.plots import COLOURS, MUTED, new_figure
from flatclr.studies.gaussian_pairs import GaussianPairs
from flatclr.studies.judging import Verdict, above, exactly, mean_score, negated, score_text, together
from flatclr.studies.literature import INFOMAX, REVIEW
from flatclr.studies.study import Claim, Found, Job, Numbers, Plan, Row, Run, Study

BATCHES = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
BATCH_LEVELS = (2.0, 5.0)
LEVELS = (0.25, 0.5, 0.75, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0)
DIMENSIONS, CHUNK, M = 20, 100_000, 1000  # M negatives of one estimate
TELLABLE, WITHIN = 0.1, 0.2
ENTROPY_ROWS, ENTROPY_K = 200, 5.0


def log_ratio(pairs: GaussianPairs, x: Tensor, y: Tensor) -> Tensor:
    """log p(x, y) / p(x) p(y) of every x with every y."""
    rho = pairs.correlation
    squares = rho**2 * (x.square().sum(1, keepdim=True) + y.square().sum(1))
    return -pairs.dimensions / 2 * math.log1p(-(rho**2)) - (squares - 2 * rho * x @ y.T) / (2 * (1 - rho**2))


def measure_info_nce(job: Job) -> Numbers:
    """The gap of the bound at the optimal critic for every K, on the same pairs."""
    pairs, generator = GaussianPairs(job.settings["mi_nats"], DIMENSIONS), torch.Generator().manual_seed(job.seed)
    batches = [k for k in BATCHES if k <= job.settings["pairs"]]
    gaps = dict.fromkeys(batches, 0.0)
    for _ in range(job.settings["draws"]):
        x, y = pairs.draw(job.settings["pairs"], generator)
        for k in batches:
            scores = (log_ratio(pairs, *sides).double() for sides in zip(x.split(k), y.split(k), strict=True))
            # E of the positive's score is I, so what is left of I - bound is the log of the mean
            means = torch.cat([torch.logsumexp(block, 1) - math.log(k) for block in scores])
            gaps[k] += means.mean().item() / job.settings["draws"]
    return {f"gap_{k}": gap for k, gap in gaps.items()}


def measure_partition(job: Job) -> Numbers:
    """Independent negatives of the optimal critic: variance of NWJ's partition, bias of DV's logarithm."""
    pairs, generator = GaussianPairs(job.settings["mi_nats"], DIMENSIONS), torch.Generator().manual_seed(job.seed)
    rho, chunk = pairs.correlation, job.settings["chunk"]
    ratios = []
    for _ in range(job.settings["draws"] // chunk):
        x, y = torch.randn(2, chunk, DIMENSIONS, generator=generator)
        squares = rho**2 * (x.square().sum(1) + y.square().sum(1)) - 2 * rho * (x * y).sum(1)
        log_r = -DIMENSIONS / 2 * math.log1p(-(rho**2)) - squares.double() / (2 * (1 - rho**2))
        ratios.append(log_r.exp())
    r = torch.cat(ratios)
    logs = r.view(-1, M).mean(1).log()
    return {
        "nwj_variance": r.var().item() / M,
        "relative_error": relative_error(pairs, len(r)),
        "dv_bias": -logs.mean().item(),
        "dv_error": logs.std().item() / math.sqrt(len(logs)),
    }


def relative_error(pairs: GaussianPairs, draws: int) -> float:
    """Standard error of the sample variance of r over the variance, exactly; infinite without a fourth moment."""
    moments = [_moment(pairs, power) for power in range(5)]
    if math.inf in moments:
        return math.inf
    variance = moments[2] - 1
    fourth = moments[4] - 4 * moments[3] + 6 * moments[2] - 3
    return math.sqrt((fourth / variance**2 - 1) / draws)


def _moment(pairs: GaussianPairs, power: int) -> float:
    """E_q r^power, a Gaussian integral for every coordinate."""
    rho = pairs.correlation
    a = power / (1 - rho**2)
    determinant = (1 + a * rho**2) ** 2 - (a * rho) ** 2
    if determinant <= 0 or 1 + a * (rho**2 - rho) <= 0:
        return math.inf
    return math.pow((1 - rho**2) ** (-power / 2) / math.sqrt(determinant), pairs.dimensions)


def measure_entropy(job: Job) -> Numbers:
    """How often draws from as many symbols as the limit says repeat one."""
    rows, trials = job.settings["rows"], job.settings["trials"]
    symbols = round(math.exp(entropy_limit_nats(rows, ENTROPY_K)))
    draws = torch.randint(symbols, (trials, rows), generator=torch.Generator().manual_seed(job.seed)).sort(1).values
    return {"symbols": symbols, "repeated": (draws.diff(dim=1) == 0).any(1).double().mean().item()}


def info_arm(level: float) -> str:
    return f"InfoNCE, I {level:g}"


def partition_arm(level: float) -> str:
    return f"NWJ and DV, I {level:g}"


ENTROPY = "entropy"


def plan(of: Plan) -> list[Run]:
    quick = {"quick": of.quick}
    pairs = {"pairs": 64, "draws": 4} if of.quick else {"pairs": 4096, "draws": 4}
    drawn = {"draws": 20_000, "chunk": 20_000} if of.quick else {"draws": 2_000_000, "chunk": CHUNK}
    levels = (0.25, 1.0) if of.quick else LEVELS
    runs = []
    for seed in of.seeds:
        runs += [Run(info_arm(i), seed, measure_info_nce, {"mi_nats": i, **pairs, **quick}) for i in BATCH_LEVELS]
        runs += [Run(partition_arm(i), seed, measure_partition, {"mi_nats": i, **drawn, **quick}) for i in levels]
        trials = {"rows": ENTROPY_ROWS, "trials": 100 if of.quick else 2000}
        runs.append(Run(ENTROPY, seed, measure_entropy, {**trials, **quick}))
    return runs


def batches_of(found: Found) -> list[int]:
    numbers = found.one(info_arm(BATCH_LEVELS[0])).numbers
    return [k for k in BATCHES if f"gap_{k}" in numbers]


def levels_of(found: Found) -> list[float]:
    return [level for level in LEVELS if found.of(partition_arm(level))]


def table(found: Found) -> list[Row]:
    rows: list[Row] = []
    for level in levels_of(found):
        arm, chi_squared = partition_arm(level), math.expm1(2 * level)
        error = found.one(arm).numbers["relative_error"]
        rows.append(
            {
                "I": f"{level:g}",
                "NWJ variance, measured": f"{found.mean(arm, 'nwj_variance').value:.3g}",
                "chi^2 / M": f"{gaussian_nwj_variance(level, M):.3g}",
                "(e^I - 1) / M": f"{nwj_least_variance(level, M):.3g}",
                "its standard error": f"{error / math.sqrt(len(found.of(arm))):.0%}" if error < 10 else "none",
                "DV bias, measured": score_text(found.mean(arm, "dv_bias"), 4),
                "chi^2 / 2M": f"{dv_bias_nats(chi_squared, M):.3g}",
            }
        )
    return rows


def notes(found: Found) -> list[str]:
    lines = []
    for level in BATCH_LEVELS:
        gaps = ", ".join(f"{found.mean(info_arm(level), f'gap_{k}').value:.3f}" for k in batches_of(found))
        lines.append(
            f"InfoNCE at the optimal critic, I = {level:g}, is below I by {gaps} nats at K = {_listed(found)}."
        )
    return [*lines, f"M = {M:,} independent negatives in each estimate of the table."]


def _listed(found: Found) -> str:
    return ", ".join(map(str, batches_of(found)))


def draw(found: Found) -> dict[str, Figure]:
    figure = new_figure(9.0, 3.2)
    left, right = figure.subplots(1, 2)
    for level, colour in zip(BATCH_LEVELS, COLOURS, strict=False):
        bounds = [level - found.mean(info_arm(level), f"gap_{k}").value for k in batches_of(found)]
        left.plot(batches_of(found), bounds, "o-", color=colour, label=f"InfoNCE, I = {level:g}")
        left.axhline(level, color=colour, linestyle=":", linewidth=1)
    left.plot(batches_of(found), [math.log(k) for k in batches_of(found)], color=MUTED, label="log K")
    left.set_xscale("log", base=2)
    left.set_xlabel("K")
    left.set_ylabel("nats")
    left.set_title("The bound at the optimal critic")
    left.legend()
    levels = levels_of(found)
    right.plot(levels, [found.mean(partition_arm(i), "nwj_variance").value for i in levels], "o", label="measured")
    right.plot(levels, [gaussian_nwj_variance(i, M) for i in levels], label="chi^2 / M")
    right.plot(levels, [nwj_least_variance(i, M) for i in levels], "--", label="(e^I - 1) / M")
    right.set_yscale("log")
    right.set_xlabel("I (nats)")
    right.set_title("Variance of NWJ's partition term")
    right.legend()
    return {"figure": figure}


def judge_info_nce(found: Found) -> Verdict:
    words, batches = [], batches_of(found)
    for level in BATCH_LEVELS:
        arm = info_arm(level)
        words += [exactly(not found.mean(arm, f"gap_{k}").high < 0) for k in batches]
        for small, large in pairwise(batches):
            one, other = found.values(arm, f"gap_{small}"), found.values(arm, f"gap_{large}")
            words.append(above(mean_score([a - b for a, b in zip(one, other, strict=True)])))
    last = [found.mean(info_arm(level), f"gap_{batches[-1]}") for level in BATCH_LEVELS]
    shown = " and ".join(f"{score_text(gap, 3)} at I = {i:g}" for gap, i in zip(last, BATCH_LEVELS, strict=True))
    return Verdict(together(words), f"At K = {batches[-1]:,} the bound is below I by {shown}.", last[-1], "nats")


def judge_variance(found: Found) -> Verdict:
    told, words = [], []
    for level in levels_of(found):
        arm = partition_arm(level)
        if found.one(arm).numbers["relative_error"] / math.sqrt(len(found.of(arm))) < TELLABLE:
            ratio = found.mean(arm, "nwj_variance").value / gaussian_nwj_variance(level, M)
            told.append(f"{ratio:.2f} at I = {level:g}")
            words.append(exactly(abs(ratio - 1) < WITHIN and ratio * math.expm1(2 * level) >= math.expm1(level)))
    says = f"Measured over chi^2 / M: {', '.join(told)}; beyond, the variance of the variance hides it."
    return Verdict(together(words) if words else "cannot be told here", says)


def judge_bias(found: Found) -> Verdict:
    level = levels_of(found)[-1] if len(levels_of(found)) < 4 else 1.0
    arm = partition_arm(level)
    bias = found.mean(arm, "dv_bias")
    theory = dv_bias_nats(math.expm1(2 * level), M)
    return Verdict(
        above(bias), f"At I = {level:g} DV reads {bias.value:.4f} too high; chi^2 / 2M is {theory:.4f}.", bias, "nats"
    )


def judge_entropy(found: Found) -> Verdict:
    rate, most = found.mean(ENTROPY, "repeated"), 1.01 / ENTROPY_K
    symbols = found.one(ENTROPY).numbers["symbols"]
    says = f"{ENTROPY_ROWS} draws from {symbols:,} symbols repeat one in {rate.value:.1%}; at most {most:.0%} may."
    return Verdict(above(negated(rate), -most), says, rate)


STUDY = Study(
    name="bounds-and-limits",
    title="Bounds at the optimal critic, and limits nobody passes",
    source=f"{REVIEW}; {INFOMAX}",
    experiment=(
        f"Gaussian pairs in {DIMENSIONS} dimensions with the exact log-ratio as critic. InfoNCE for K 2 to 4,096 on "
        f"the same pairs; the variance of NWJ's partition term and the bias of DV over {M:,} independent negatives at "
        "I 0.25 to 10; draws from as many symbols as the entropy limit names."
    ),
    changed="the sources state them; levels below 1 nat are added, where the variance can be measured at all.",
    claims=(
        Claim(
            REVIEW,
            "InfoNCE at the optimal critic is a lower bound that becomes tight as K grows.",
            "never above I, and the gap falls from every K to the next",
            judge_info_nce,
        ),
        Claim(
            INFOMAX,
            "The variance of NWJ is at least (e^I - 1) / M.",
            "within 20 % of chi^2 / M, and above (e^I - 1) / M, at every I where its own standard error is below 10 %",
            judge_variance,
        ),
        Claim(INFOMAX, "DV is biased upward.", "bias above 0 at I = 1", judge_bias),
        Claim(
            INFOMAX,
            "A distribution-free lower bound on entropy from N samples is at most ln(2 k N^2).",
            "N draws from that many equal symbols repeat one less often than 1.01 / k",
            judge_entropy,
        ),
    ),
    plan=plan,
    table=table,
    draw=draw,
    seeds=3,
    budget="about 2 minutes on one core",
    notes=notes,
)
