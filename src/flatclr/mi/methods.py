"""Every method by its name: what kind of number it gives, what it computes, and how it is run.

A new method is one more row of `_ROWS`, or is made known by `register`. The names that `estimate` and the command line
accept, what `flatclr mi --method list` says, which options a method takes, and the table of docs/mutual-information.md
all come from here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from flatclr.mi.arrays import Array
from flatclr.mi.auto import choose
from flatclr.mi.copula import fit_gaussian, fit_student
from flatclr.mi.density_runs import run_ba, run_club, run_l1out
from flatclr.mi.entropies import run_doe
from flatclr.mi.families import run_copula, run_spiral
from flatclr.mi.held_out import run_critic
from flatclr.mi.neighbours import KSG_1, KSG_2, MIXED_KSG, run_neighbours
from flatclr.mi.outcome import Again, Kind, MethodOptions, Outcome, Run
from flatclr.mi.variational import DV, FLO, JS, NWJ, TUBA, Flat, InfoNCE, Interpolated, Mine, Smile, Variational


@dataclass(frozen=True)
class Method:
    """A way to estimate mutual information, to be made known by `flatclr.mi.register`.

    Args:
        name: that `flatclr.mi.estimate(..., method=)` and `flatclr mi --method` take.
        kind: "lower", "upper" or "neither": what its value bounds in expectation, if `condition` holds.
        summary: what it is, in one line.
        run: from rows x [N, d_x] and y [N, d_y], both float64, and the `MethodOptions` of the call to an `Outcome`.
        condition: under which it is of this kind, and what it is elsewhere.
        formula: f the critic, p the joint distribution, q the product of the margins, as `flatclr.mi.bounds` writes it.
        reference: authors and year.
        estimator: how it trains and reads a critic; None: it has none to choose.
        cross_fits: whether it learns, so that it can be evaluated on every row by folds.
        takes_all_rows: whether it is cheap enough for any number of them.
        takes_few_rows: whether it answers where they are too few to learn from, though it learns.

    >>> gaussian = flatclr.mi.REGISTRY["gaussian"]
    >>> x, y = flatclr.mi.tasks.gaussian_dense(2).sample(500, seed=0)
    >>> gaussian.kind, round(gaussian(x, y, flatclr.mi.MethodOptions()).nats, 1)
    ('neither', 0.3)
    """

    name: str
    kind: Kind  # of its value in expectation, if `condition` holds
    summary: str
    run: Run
    condition: str = ""  # under which it is of this kind, and what it is elsewhere
    formula: str = ""  # f the critic, p the joint distribution, q the product of the margins
    reference: str = ""
    estimator: type[Variational] | None = None  # how it trains and reads a critic; None: it has none to choose
    cross_fits: bool = False  # learns, so that it can be evaluated on every row by folds
    takes_all_rows: bool = False  # cheap enough for any number of them
    takes_few_rows: bool = False  # answers where they are too few to learn from, though it learns

    def __call__(self, x: Array, y: Array, options: MethodOptions, *, again: Again | None = None) -> Outcome:
        """Run it, or what an earlier run of it was; kind and name are the method's own where the run names no other."""
        run = again or (lambda x, y: self.run(x, y, options))
        found = run(x, y)
        return replace(found, kind=found.kind or self.kind, method=found.method or self.name, again=found.again or run)

    @property
    def meaning(self) -> str:
        """One line: what kind of number, then what it is."""
        kind = self.kind if self.kind == "neither" else f"{self.kind} bound"
        return f"{kind} {self.condition}: {self.summary}" if self.condition else f"{kind}: {self.summary}"


def _critic(
    name: str, kind: Kind, summary: str, estimator: type[Variational], *, formula: str, reference: str
) -> Method:
    """A method that trains a critic in the estimator's way and reads it in its way."""
    return Method(
        name,
        kind,
        summary,
        partial(run_critic, estimator),
        formula=formula,
        reference=reference,
        estimator=estimator,
        cross_fits=True,
    )


_ROWS = (
    Method(
        "auto",
        "neither",
        "chosen by held-out rows; says which and why",
        choose,
        condition="or lower where a learned bound answers",
        cross_fits=True,
        takes_few_rows=True,
    ),
    _critic(
        "infonce",
        "lower",
        "InfoNCE, at most log K, K the evaluation pool",
        InfoNCE,
        formula="E_p log(e^f / mean_K e^f)",
        reference="van den Oord et al. 2018",
    ),
    _critic(
        "flatnce",
        "lower",
        "cosine critic trained with FlatNCE, whose scale the ESS sets; validation sets it for reading",
        Flat,
        formula="E_p log(e^f / mean_K e^f)",
        reference="Chen et al. 2021",
    ),
    _critic(
        "dv",
        "lower",
        "Donsker-Varadhan, biased upward by about chi^2 / 2M, M the negative pairs",
        DV,
        formula="E_p f - log E_q e^f",
        reference="Donsker & Varadhan 1983",
    ),
    _critic(
        "mine",
        "lower",
        "DV trained with a moving average of the partition",
        Mine,
        formula="E_p f - log E_q e^f",
        reference="Belghazi et al. 2018",
    ),
    _critic(
        "nwj",
        "lower",
        "Nguyen-Wainwright-Jordan, unbiased for its critic, with a variance that grows like e^MI",
        NWJ,
        formula="E_p f - E_q e^(f - 1)",
        reference="Nguyen et al. 2010",
    ),
    _critic(
        "tuba",
        "lower",
        "NWJ with a learned baseline a(x)",
        TUBA,
        formula="1 + E_p[f - log a] - E_q[e^f / a]",
        reference="Poole et al. 2019",
    ),
    _critic(
        "flo",
        "lower",
        "Fenchel-Legendre, with a learned u(x, y)",
        FLO,
        formula="1 - E_p[u + e^-u mean_j e^(f_j - f)]",
        reference="Guo et al. 2022",
    ),
    _critic(
        "js",
        "lower",
        "NWJ's value of a critic trained by logistic regression",
        JS,
        formula="1 + E_p f - E_q e^f",
        reference="Hjelm et al. 2019, Poole et al. 2019",
    ),
    _critic(
        "smile",
        "neither",
        "DV with the partition's scores clipped to +-5",
        Smile,
        formula="E_p f - log E_q e^clip(f)",
        reference="Song & Ermon 2020",
    ),
    _critic(
        "interpolated",
        "lower",
        "between InfoNCE and TUBA, leaving one row j out",
        Interpolated,
        formula="1 + E_p[f - log a_j] - E_q[e^f / a_j]",
        reference="Poole et al. 2019",
    ),
    Method(
        "ba",
        "lower",
        "learned conditional density, and the entropy of y",
        run_ba,
        condition="where one variable is one continuous column, else neither",
        formula="E_p log q(y given x) + H(y)",
        reference="Barber & Agakov 2003",
        cross_fits=True,
    ),
    Method(
        "club",
        "neither",
        "learned conditional density, against other rows' y; an upper bound with the true one, a learned one reads low",
        run_club,
        formula="E_p log q(y given x) - E_x E_y log q(y given x)",
        reference="Cheng et al. 2020",
        cross_fits=True,
    ),
    Method(
        "l1out",
        "neither",
        "learned conditional density, against other rows' x; an upper bound with the true one, a learned one reads low",
        run_l1out,
        formula="E_p[log q(y given x) - log mean_j q(y given x_j)]",
        reference="Poole et al. 2019",
        cross_fits=True,
    ),
    Method(
        "doe",
        "neither",
        "difference of entropies of learned autoregressive mixtures, carried on by how it rises with the rows",
        run_doe,
        formula="E_p[log q(y given x) - log q(y)]",
        reference="McAllester & Stratos 2020",
        cross_fits=True,
    ),
    Method(
        "ksg",
        "neither",
        "nearest neighbours on normal scores, KSG 1",
        partial(run_neighbours, KSG_1),
        formula="psi(k) + psi(N) - E[psi(n_x + 1) + psi(n_y + 1)]",
        reference="Kraskov et al. 2004",
    ),
    Method(
        "ksg2",
        "neither",
        "nearest neighbours on normal scores, KSG 2",
        partial(run_neighbours, KSG_2),
        formula="psi(k) - 1/k + psi(N) - E[psi(n_x) + psi(n_y)]",
        reference="Kraskov et al. 2004",
    ),
    Method(
        "mixed_ksg",
        "neither",
        "nearest neighbours for mixtures of discrete and continuous parts",
        partial(run_neighbours, MIXED_KSG),
        formula="ln N + E[psi(k~) - psi(n_x) - psi(n_y)]",
        reference="Gao et al. 2017",
    ),
    Method(
        "gaussian",
        "neither",
        "plug-in value of the Gaussian copula (CCA on normal scores), bias corrected",
        partial(run_copula, fit_gaussian),
        formula="-1/2 sum_i ln(1 - rho_i^2)",
        reference="Ince et al. 2017",
        takes_all_rows=True,
    ),
    Method(
        "student",
        "neither",
        "plug-in value of the Student copula, which shares a scale",
        partial(run_copula, fit_student),
        formula="-1/2 sum_i ln(1 - rho_i^2) + h(d_x) + h(d_y) - h(d_x + d_y)",
    ),
    Method(
        "spiral",
        "neither",
        "plug-in value of the Gaussian copula after undoing rotations by the norm, sought on half of the rows",
        run_spiral,
        formula="-1/2 sum_i ln(1 - rho_i^2)",
    ),
)

REGISTRY: dict[str, Method] = {}
"""Every method by its name, as `flatclr.mi.register` made it known."""

METHODS: dict[str, str] = {}
"""Names that `flatclr.mi.estimate(..., method=)` knows, each with a line on what it is.

A line starts with the kind of number, "lower bound", "upper bound" or "neither", and under what condition it is one.
"""


def register(method: Method) -> Method:
    """Make a method known by its name to `flatclr.mi.estimate` and `flatclr mi --method`.

    Args:
        method: one whose name is not taken.

    Returns:
        The method.

    >>> def nothing(x, y, options):
    ...     return flatclr.mi.Outcome(0.0, rows=len(x), influence=x[:, 0] * 0, negative_pairs=1)
    >>> register(Method("nothing", "lower", "0, below every information", nothing)).meaning
    'lower bound: 0, below every information'
    >>> x, y = flatclr.mi.tasks.gaussian_dense(2).sample(500, seed=0)
    >>> flatclr.mi.estimate(x, y, method="nothing").nats
    0.0
    >>> del REGISTRY["nothing"], METHODS["nothing"]
    """
    if not isinstance(method, Method):
        raise TypeError(f"a method must be a flatclr.mi.Method, got {type(method).__name__}; make one of it.")
    if method.name in REGISTRY:
        raise ValueError(f"a method must have a name of its own, got {method.name!r} again; choose another.")
    REGISTRY[method.name], METHODS[method.name] = method, method.meaning
    return method


for _method in _ROWS:
    register(_method)

VARIATIONAL: dict[str, type[Variational]] = {m.name: m.estimator for m in _ROWS if m.estimator is not None}


def methods_markdown() -> str:
    """The table of methods in Markdown, as it stands in docs/mutual-information.md between its two markers.

    Returns:
        A header and one line per method, each ended by a newline.

    >>> methods_markdown().splitlines()[0]
    '| name | kind | value | what it is |'
    """
    lines = ["| name | kind | value | what it is |", "| --- | --- | --- | --- |"]
    for method in _ROWS:
        kind = f"{method.kind} {method.condition}".strip()
        value = f"`{method.formula}`" if method.formula else ""
        told = f"{method.summary} ({method.reference})" if method.reference else method.summary
        lines.append(f"| `{method.name}` | {kind} | {value} | {told} |")
    return "\n".join(lines) + "\n"
