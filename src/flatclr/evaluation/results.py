"""What an evaluation found, and the files it is kept in."""

from __future__ import annotations

import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flatclr.evaluation.intervals import Score
from flatclr.files import parse_json, replace_files

if TYPE_CHECKING:
    import pandas as pd

FORMAT = "flatclr-evaluation"
RESULTS = "results.json"
FIGURE = "evaluation.png"
TRAINED, RANDOM = "trained", "random"


@dataclass(frozen=True)
class Row:
    """One protocol's verdict on one set of weights. Accuracies are shares of 1, information is in nats.

    Args:
        protocol: its name.
        version: of the protocol; rows of different versions are not to be compared.
        variant: "" where the protocol has only one.
        data: name of the dataset.
        layer: that was measured, "output" by default.
        weights: "trained" or "random".
        headline: the score to look at first.
        scores: by name, with 95 % intervals.
        chosen: what was fixed or selected, never on test data.
        per_class: accuracy of every class.
        confusion: counts of (class, predicted class).
        correct: which test samples, one bit each in base64; "" where a sample is not just right or wrong.
        seconds: that it took.
        data_sha256: of both parts of the data.
        seed: of splits, draws and random weights.

    >>> row = Row("knn", 2, "", "mine", "output", "trained", "top1", {"top1": Score(0.9, 0.85, 0.94)})
    >>> row.best.value
    0.9
    """

    protocol: str
    version: int
    variant: str  # "" where the protocol has only one
    data: str
    layer: str
    weights: str  # "trained" or "random"
    headline: str
    scores: Mapping[str, Score]
    chosen: Mapping[str, Any] = field(default_factory=dict)  # what was fixed or selected, never on test data
    per_class: Mapping[str, Score] = field(default_factory=dict)
    confusion: list[list[int]] | None = None
    correct: str = ""  # which test samples: one bit each, in base64; "" where a sample is not just right or wrong
    seconds: float = 0.0
    data_sha256: str = ""  # of both parts
    seed: int = 0  # of splits, draws and random weights

    @property
    def key(self) -> tuple[str, ...]:
        """What was measured; two rows with the same key measured the same."""
        return (self.protocol, self.variant, self.data, self.data_sha256, self.layer, self.weights)

    @property
    def best(self) -> Score:
        """The headline score."""
        return self.scores[self.headline]

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Row:
        """From what `dataclasses.asdict` made of one."""
        scored = {part: {k: Score(**v) for k, v in content[part].items()} for part in ("scores", "per_class")}
        return cls(**{**content, **scored})


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found: all rows, and whose they are. `found["knn"]` is the first trained row of a protocol.

    Args:
        encoder: what was evaluated, in words.
        encoder_sha256: of its weights.
        rows: one for each measurement.
        skipped: protocols that were left out, each with the reason.
        report: how the tensors of a file fitted the encoder.
        architecture: None where too little is known of it to tell that two are the same.
        normalisation: of images in [0, 1], as it was used.
        set_aside: the file of earlier results of other weights or settings; "" where none was in the way.

    >>> row = Row("knn", 2, "", "mine", "output", "trained", "top1", {"top1": Score(0.9, 0.85, 0.94)})
    >>> Evaluation("encoder", "0" * 64, (row,))["knn"].best
    Score(value=0.9, low=0.85, high=0.94)
    """

    encoder: str
    encoder_sha256: str
    rows: tuple[Row, ...]
    skipped: tuple[tuple[str, str], ...] = ()  # protocol, reason
    report: str = ""
    architecture: str | None = None  # None: too little is known of it to tell that two are the same
    normalisation: Mapping[str, Any] | None = None  # of images in [0, 1], as it was used
    set_aside: str = ""  # the file of earlier results of other weights or settings, "" where none was in the way

    def __getitem__(self, protocol: str) -> Row:
        """The first trained row of a protocol."""
        for row in self.rows:
            if row.protocol == protocol and row.weights == TRAINED:
                return row
        raise KeyError(
            f"no row for protocol {protocol!r}; there are {', '.join(dict.fromkeys(r.protocol for r in self.rows))}"
        )

    def random_beside(self, row: Row) -> Row | None:
        """The same measurement of random weights.

        Args:
            row: of trained weights.

        Returns:
            The row; None where random weights were not measured.
        """
        wanted = (*row.key[:-1], RANDOM)
        return next((other for other in self.rows if other.key == wanted), None)

    def to_frame(self) -> pd.DataFrame:
        """A row for each score: protocol, variant, data, layer, weights, score, value, low and high."""
        import pandas as pd

        names = ("protocol", "variant", "data", "layer", "weights")
        rows = (
            {name: getattr(row, name) for name in names} | {"score": score} | asdict(value)
            for row in self.rows
            for score, value in row.scores.items()
        )
        return pd.DataFrame(rows, columns=[*names, "score", "value", "low", "high"])

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(index=False, float_format="{:.4g}".format, border=0)
        left_out = "".join(f"<p>left out {name}: {html.escape(reason)}</p>" for name, reason in self.skipped)
        return f"<p>{html.escape(self.encoder)}, with 95 % intervals</p>{table}{left_out}"

    def to_dict(self) -> dict[str, Any]:
        """As results.json holds it."""
        return {"format": FORMAT, **asdict(self)}


def merged(earlier: Evaluation | None, new: Evaluation) -> Evaluation:
    """Rows of both for the same encoder; where both measured the same, the new one."""
    if earlier is None or not _same(earlier, new):
        return new
    rows = {row.key: row for row in (*earlier.rows, *new.rows)}
    return replace(new, rows=tuple(rows.values()), set_aside=new.set_aside or earlier.set_aside)


def _same(earlier: Evaluation, new: Evaluation) -> bool:
    return new.architecture is not None and _identity(earlier) == _identity(new)


def _identity(evaluation: Evaluation) -> Any:
    return _plain([evaluation.encoder_sha256, evaluation.architecture, evaluation.normalisation])


def set_aside(folder: Path, new: Evaluation) -> str:
    """Keep what results.json holds under a name of its own if rows of `new` will not join it; returns that name.

    A copy, under a digest of the content: nothing is lost whatever stops the evaluation, and no copy takes another's
    place.
    """
    path = folder / RESULTS
    earlier = read_results(folder)
    if not path.is_file() or (earlier is not None and _same(earlier, new)):
        return ""
    content = path.read_bytes()
    kept = path.with_stem(f"{path.stem}-{hashlib.sha256(content).hexdigest()[:12]}")
    replace_files({kept: content})
    return kept.name


def read_results(folder: Path) -> Evaluation | None:
    """What an earlier evaluation wrote into results.json.

    Args:
        folder: that `evaluate` was given as `out`, or `<run>/evaluation` of `flatclr eval`.

    Returns:
        The evaluation; None where nothing readable is there.

    >>> read_results(Path("no/such/folder")) is None
    True
    """
    try:
        content = parse_json((folder / RESULTS).read_bytes())
        if content.pop("format") != FORMAT:
            return None
        rows = tuple(Row.from_dict(row) for row in content["rows"])
        skipped = tuple((protocol, reason) for protocol, reason in content["skipped"])
        return Evaluation(**{**content, "rows": rows, "skipped": skipped})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_results(folder: Path, evaluation: Evaluation) -> Path:
    """results.json, with the rows that were there for the same weights, and the figure beside it."""
    from flatclr.evaluation.figures import draw
    from flatclr.plots import figure_bytes

    folder.mkdir(parents=True, exist_ok=True)
    together = merged(read_results(folder), evaluation)
    text = json.dumps(_plain(together.to_dict()), indent=2, allow_nan=False) + "\n"
    replace_files({folder / RESULTS: text.encode(), folder / FIGURE: figure_bytes(draw(together))})
    return folder / RESULTS


def markdown_table(evaluation: Evaluation) -> str:
    """Headline scores of trained and random weights, for a model card.

    Args:
        evaluation: from `evaluate` or `read_results`.

    Returns:
        A Markdown table, a line for every trained row.

    >>> row = Row("knn", 2, "", "mine", "output", "trained", "top1", {"top1": Score(0.9, 0.85, 0.94)})
    >>> markdown_table(Evaluation("encoder", "0" * 64, (row,))).splitlines()[2]
    '| knn v2 | mine | output | top1 | 0.9 [0.85, 0.94] |  |'
    """
    lines = ["| protocol | data | layer | score | trained | random weights |", "| --- | --- | --- | --- | --- | --- |"]
    for row in evaluation.rows:
        if row.weights == TRAINED:
            random = evaluation.random_beside(row)
            name = f"{row.protocol} {row.variant}".strip() + f" v{row.version}"
            values = (_text(row.best), "" if random is None else _text(random.best))
            lines.append(f"| {' | '.join((name, row.data, row.layer, row.headline, *values))} |")
    return "\n".join(
        [*lines, "", "Accuracies are shares of 1, mutual information is in nats; 95 % intervals in brackets."]
    )


def _text(score: Score) -> str:
    return f"{score.value:.4g} [{score.low:.4g}, {score.high:.4g}]"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
