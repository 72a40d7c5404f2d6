"""Pages in Markdown: one of each study, and the overview of every claim."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flatclr.files import json_ready, parse_json, replace_files
from flatclr.plots import figure_bytes, figure_style
from flatclr.studies.judging import HELD, NOT_RUN, WORDS, Verdict
from flatclr.studies.literature import NOT_HERE, UNJUDGED
from flatclr.studies.study import FILLED_BY, Claim, Found, Row, Run, Study

PAGE, RESULT = "README.md", "result.json"
COMMAND = "flatclr study"


def judge(study: Study, planned: Sequence[Run], found: Found) -> list[Verdict]:
    """Of each claim; those whose runs are not all there are not judged."""
    return [_judge(claim, [run for run in planned if claim.needs(run)], found) for claim in study.claims]


def _judge(claim: Claim, needed: Sequence[Run], found: Found) -> Verdict:
    there = sum(run.name in found for run in needed)
    if there < len(needed) or not needed:
        return Verdict(NOT_RUN, f"{there} of {len(needed)} runs are there.")
    return claim.judge(found)


def write_page(
    study: Study,
    home: Path,
    planned: Sequence[Run],
    found: Found,
    verdicts: Sequence[Verdict],
    *,
    command: str,
    quick: bool,
) -> dict[str, Path]:
    """The page, its figures and what machines read; returns where the figures are by name."""
    with figure_style():
        drawn = {name: figure_bytes(figure) for name, figure in (study.draw(found) if len(found) else {}).items()}
    paths = {name: home / f"{name}.png" for name in drawn}
    text = _page(study, planned, found, verdicts, list(drawn), command)
    result = json_ready(result_of(study, planned, found, verdicts, quick=quick))
    home.mkdir(parents=True, exist_ok=True)
    replace_files(
        {
            **{paths[name]: content for name, content in drawn.items()},
            home / PAGE: text.encode(),
            home / RESULT: (json.dumps(result, indent=1) + "\n").encode(),
        }
    )
    return paths


def result_of(
    study: Study, planned: Sequence[Run], found: Found, verdicts: Sequence[Verdict], *, quick: bool
) -> dict[str, Any]:
    """Table and verdicts as plain values."""
    return {
        "study": study.name,
        "quick": quick,
        "runs": len(found),
        "planned": len(planned),
        "table": [dict(row) for row in (study.table(found) if len(found) else [])],
        "claims": [claim_row(claim, verdict) for claim, verdict in zip(study.claims, verdicts, strict=True)],
    }


def claim_row(claim: Claim, verdict: Verdict) -> dict[str, Any]:
    """A claim with its verdict as plain values."""
    score = verdict.measured
    measured = None if score is None else {"value": score.value, "low": score.low, "high": score.high}
    return {
        "source": claim.source,
        "claim": claim.statement,
        "criterion": claim.criterion,
        "verdict": verdict.word,
        "says": verdict.says,
        "measured": measured,
        "unit": verdict.unit,
    }


def write_overview(home: Path, studies: Sequence[Study]) -> Path:
    """Every claim of the literature in one table, from what the folders of the studies hold."""
    rows = [row for study in studies for row in _overview_rows(study, home / study.name)]
    rows += [
        {"claim": one.statement, "source": one.source, "verdict": one.word, "measured": f"Needs {one.needs}."}
        for one in UNJUDGED
    ]
    path = home / PAGE
    text = "\n\n".join(
        [
            "# What of the literature held",
            f"{_count(rows)} A claim is judged by a criterion that was written before its runs, by 95 % intervals; the "
            "page of each study states it, with seeds, command, hardware and what was changed from the source. "
            f"`{COMMAND} NAME` makes a study again, `{COMMAND} list` names them.",
            markdown(rows),
        ]
    )
    replace_files({path: f"{text}\n".encode()})
    return path


def _count(rows: Sequence[Row]) -> str:
    words = [row["verdict"].removeprefix("[").partition("]")[0] for row in rows]
    parts = [f"{words.count(word)} {word}" for word in (*WORDS, NOT_HERE) if word in words]
    return f"Of {len(rows)} claims: {', '.join(parts)}."


def _overview_rows(study: Study, home: Path) -> list[Row]:
    judged = _judged_in(home)
    rows: list[Row] = []
    for claim in study.claims:
        kept = judged.get(claim.statement, {})
        word = kept.get("verdict", NOT_RUN)
        link = f"[{word}]({study.name}/{PAGE})" if judged else word
        says = kept.get("says") if word != NOT_RUN else None
        rows.append(
            {
                "claim": claim.statement,
                "source": claim.source,
                "verdict": link,
                "measured": says or f"`{COMMAND} {study.name}`: {study.budget}.",
            }
        )
    return rows


def _judged_in(home: Path) -> dict[str, dict[str, Any]]:
    path = home / RESULT
    if not path.exists():
        return {}
    content = parse_json(path.read_bytes())
    if content.get("quick", False):  # a smoke test says nothing of the claims
        return {row["claim"]: {**row, "verdict": NOT_RUN} for row in content["claims"]}
    return {row["claim"]: row for row in content["claims"]}


def _page(
    study: Study,
    planned: Sequence[Run],
    found: Found,
    verdicts: Sequence[Verdict],
    figures: Sequence[str],
    command: str,
) -> str:
    claims = [
        {
            "claim": claim.statement,
            "holds if": claim.criterion,
            "verdict": f"**{verdict.word}**" if verdict.word == HELD else verdict.word,
            "measured": " ".join(filter(None, [verdict.says, f"({verdict.number})" if verdict.number else ""])),
        }
        for claim, verdict in zip(study.claims, verdicts, strict=True)
    ]
    parts = [
        f"# {study.title}",
        f"{study.source}. {study.experiment}",
        _quick_note(found),
        "## Claims",
        markdown(claims),
        *_numbered("## What holds, what does not", study.summary(verdicts)),
        "## Measured",
        _state(planned, found, study),
        markdown(study.table(found)) if len(found) else "",
        *(study.notes(found) if len(found) else []),
        *(f"![{name.replace('_', ' ')}]({name}.png)" for name in figures),
        *_listed("## Empty cells", [_into_this_page(row, command) for row in study.empty(found)]),
        "## How",
        f"```sh\n{command}\n```",
        _origin(found),
        f"Changed from the source: {study.changed}",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _numbered(title: str, sentences: Sequence[str]) -> list[str]:
    return [title, "\n".join(f"{n}. {sentence}" for n, sentence in enumerate(sentences, 1))] if sentences else []


def _listed(title: str, rows: Sequence[Row]) -> list[str]:
    return [title, markdown(rows)] if rows else []


def _into_this_page(row: Row, command: str) -> Row:
    """An empty cell whose command fills this page, and no other one."""
    _, there, folder = command.partition(" --out ")
    return {**row, FILLED_BY: f"{row[FILLED_BY].rstrip('`')} --out {folder}`"} if there else row


def require_same_size(home: Path, *, quick: bool) -> None:
    """Refuse a smoke test where the page of a whole study is, and the other way round: it would be overwritten."""
    path = home / RESULT
    if not path.exists():
        return
    content = parse_json(path.read_bytes())
    if not content["runs"]:  # says nothing yet
        return
    kinds = {True: "a smoke test (--quick)", False: "a whole study"}
    if content.get("quick", False) != quick:
        raise ValueError(
            f"out must be a folder of its own for {kinds[quick]}, got {home.parent}, where {home.name} is "
            f"{kinds[not quick]}; name another --out."
        )


def _quick_note(found: Found) -> str:
    quick = any(kept.settings.get("quick") for kept in found)
    return "**A smoke test of the code (`--quick`): its verdicts say nothing of the claims.**" if quick else ""


def _state(planned: Sequence[Run], found: Found, study: Study) -> str:
    if not found:
        return f"Not run yet. The full size takes {study.budget}."
    shared = [run.shared for run in planned]
    places = ["`runs/`"] * (not all(shared)) + ["`../pool/runs/`, which studies share"] * any(shared)
    raw = f"Raw numbers of every run are in {' and '.join(places)}."
    brackets = f" Brackets are {study.brackets}." if study.brackets else ""
    missing = "" if len(found) == len(planned) else " The table fills as the others come."
    return f"{len(found)} of {len(planned)} runs are kept.{missing} {raw}{brackets}"


def _origin(found: Found) -> str:
    """Seeds, hardware, versions, commits and time."""
    if not found:
        return ""
    seeds = ", ".join(str(seed) for seed in sorted({kept.seed for kept in found}))
    places = sorted({_place(kept.environment) for kept in found})
    minutes = sum(kept.seconds for kept in found) / 60
    return f"Seeds {seeds}. {'; '.join(places)}. {minutes:.1f} minutes over all runs."


def _place(environment: Mapping[str, Any]) -> str:
    device = environment.get("gpu") if environment.get("device") != "cpu" else None
    where = device or f"{environment['cores']} cores of {environment['cpu']}"
    return f"{where}, PyTorch {environment['torch']}, commit {environment['commit']}"


def markdown(rows: Sequence[Row]) -> str:
    """A table; "" of no rows.

    >>> print(markdown([{"K": "8", "nats": "2.08"}]))
    | K | nats |
    | --- | --- |
    | 8 | 2.08 |
    """
    if not rows:
        return ""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns), *([row.get(name, "") for name in columns] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
