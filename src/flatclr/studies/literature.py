"""Claims of the literature that no study here judges, and what each would need."""

from __future__ import annotations

from dataclasses import dataclass

FLATNCE = "FlatNCE paper (Chen et al. 2021)"
REVIEW = "review of FlatNCE"
F_MICL = "f-MICL (Lu et al. 2023)"
NEGATIVES = "slides on negatives in contrastive learning"
INFOMAX = "notes on mutual-information maximisation"
RANK_ME = "RankMe (Garrido et al. 2023)"
THIS = "this package"
NOT_HERE = "not reproducible here"


@dataclass(frozen=True)
class Unjudged:
    """A claim without a study.

    Args:
        source: where it stands.
        statement: what is claimed.
        needs: what would be needed to judge it.
        word: what the overview says of it.
    """

    source: str
    statement: str
    needs: str
    word: str = NOT_HERE


UNJUDGED = (
    Unjudged(
        f"{FLATNCE}, Tables 1, 2 and S3, on ImageNet itself",
        "At 100 epochs FlatCLR is 2.61 points of linear top-1 above SimCLR.",
        "ImageNet, and a few GPU weeks; the study imagenet-style does the same on ten of its classes",
    ),
    Unjudged(
        f"{FLATNCE}, STL-10",
        "The paper's experiments on STL-10.",
        "the STL-10 files; `flatclr train --data stl10` reads them",
    ),
    Unjudged(
        f"{INFOMAX}, text",
        "The experiment on sentences of BookCorpus.",
        "BookCorpus; `flatclr train --data FILE.txt` pairs adjacent sentences of any text for a bi-GRU",
    ),
)
