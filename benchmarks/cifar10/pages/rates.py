"""Learning rate by batch size."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks import record
from benchmarks.cifar10 import figures
from benchmarks.cifar10.claims import Claim, joined
from benchmarks.cifar10.kept import measured_rates
from benchmarks.cifar10.pages.book import NOT_RUN, Book
from benchmarks.cifar10.pages.common import (
    Page,
    alike_to,
    findings_of,
    held_out_row,
    held_out_score,
    made_page,
    neighbours,
    rate_cell,
    score_text,
    spoken,
)
from benchmarks.cifar10.plan import CONTROLLED, SIMCLR, Rates, rate_exponent
from benchmarks.cifar10.summary import Spread
from flatclr.evaluation.intervals import Score


def rate_page(book: Book) -> Page:
    scale, runs, around = book.scale, book.runs("lr"), book.runs("lr-flat")
    tried: dict[int, dict[float, Score]] = {batch: {} for batch in scale.tried_rates}
    for run in book.there(runs):
        tried[run.config.batch_size][run.config.learning_rate] = held_out_score(run, scale)
    chosen = measured_rates(book.kept, scale)
    rows = [
        {
            "batch": str(batch),
            "learning rate": f"{rate:g}",
            "held-out kNN %": score_text(tried[batch][rate]) if rate in tried[batch] else NOT_RUN,
            "": "chosen" if chosen is not None and chosen[batch] == rate else "",
        }
        for batch, rates in scale.tried_rates.items()
        for rate in rates
    ]
    voting = min(scale.rate_eval_samples, scale.images - scale.held_out)
    found = [
        f"{spoken(SIMCLR)} for {scale.rate_epochs:g} epochs. {scale.held_out:,} of the training images are held out. "
        f"kNN accuracy on them decides: {neighbours(voting)} among {voting:,} of the other images. No test image is "
        "looked at. Brackets are 95 % intervals over the held-out images.",
        record.markdown(rows),
    ]
    if book.there(around):
        found += [
            f"## {spoken(CONTROLLED)} around these rates",
            "Half, all and double of the rate, in the same way. This does not change the choice above.",
            record.markdown([held_out_row(book, run, {"batch": str(run.batch), **rate_cell(run)}) for run in around]),
        ]
    seeds = book.short_spread
    says = [_rate_rule(chosen, tried, seeds), *(_rate_choice(batch, tried[batch], chosen, seeds) for batch in tried)]
    claims = []
    if chosen is not None:
        claims.append(Claim("The best rate", "grows with the batch", {"kNN": _rate_power(chosen, tried, seeds)}))
    cannot = (
        "Whether the same rate is best for longer runs or for other objectives, all of which take it from here. Each "
        f"rate has one seed. The deviation over seeds, {100 * seeds.deviation:.1f} points, is that of runs of other "
        "stages."
    )
    findings = findings_of(claims, cannot, says)
    shown = {"learning_rate": figures.rates_figure(tried)} if all(tried.values()) else {}
    return made_page(book, "Learning rate by batch size", runs, ["lr"], found, findings, shown)


def _rate_rule(chosen: Rates | None, tried: Mapping[int, Mapping[float, Score]], seeds: Spread) -> str | None:
    if chosen is None:
        return None
    first, last, power = min(chosen), max(chosen), _rate_power(chosen, tried, seeds)
    listed = " and ".join(f"{rate:g} at batch {batch}" for batch, rate in chosen.items())
    return (
        f"The rule is {listed}. In between, rate(B) = {chosen[first]:g} (B / {first})^{power.value:.2f}. The power is "
        f"loosely known: rates that are not told apart from the chosen ones fit powers from {power.low:.1f} to "
        f"{power.high:.1f} (1 is linear scaling, 0.5 the square root). Beyond batch {last} the rule is extrapolation."
    )


def _rate_power(chosen: Rates, tried: Mapping[int, Mapping[float, Score]], seeds: Spread) -> Score:
    """Of the batch, with those that fit rates not told apart from the chosen ones."""
    first, last = min(chosen), max(chosen)
    low, high = ([chosen[batch], *alike_to(chosen[batch], tried[batch], seeds)] for batch in (first, last))
    powers = [rate_exponent({first: small, last: large}) for small in low for large in high]
    return Score(rate_exponent(chosen), min(powers), max(powers))


def _rate_choice(batch: int, scores: Mapping[float, Score], chosen: Rates | None, seeds: Spread) -> str | None:
    if chosen is None:
        return None
    best, rates = chosen[batch], sorted(scores)
    alike = alike_to(best, scores, seeds)
    text = f"At batch {batch}, rate {best:g} is best"
    text += f"; {joined(f'{rate:g}' for rate in alike)} cannot be told apart from it." if alike else ", clearly."
    if best in (rates[0], rates[-1]):
        text += " It is at the end of the range that was tried, so a better one may lie beyond."
    return text
