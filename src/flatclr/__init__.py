"""FlatCLR: contrastive representation learning on a budget, and mutual-information estimation.

>>> import flatclr, torch
>>> objective = flatclr.FlatNCE(temperature=flatclr.EssControl(target=0.25))
>>> loss, stats = objective.with_stats(torch.randn(16, 8), torch.randn(16, 8))
>>> stats.negatives
30
"""

from flatclr import diagnostics, mi, objectives, studies
from flatclr.contrast import ContrastStats, PairSet, Phi, contrast_stats, pairwise_mean, stats_from_scores, stats_of
from flatclr.evaluation.evaluator import evaluate
from flatclr.models.saving import load_encoder
from flatclr.models.trained import load_network
from flatclr.objectives import (
    DCL,
    DCLW,
    DHEL,
    DV,
    FLO,
    FMICL,
    MACL,
    NWJ,
    RPC,
    AlignUniform,
    BarlowTwins,
    Debiased,
    EssControl,
    FlatNCE,
    HolderFlatNCE,
    InfoNCE,
    ISogCLR,
    Matryoshka,
    Objective,
    SigLIP,
    SogCLR,
    Spectral,
    SupCon,
    VICReg,
)
from flatclr.training import TrainConfig, train

__version__ = "0.1.0"

__all__ = [
    "DCL",
    "DCLW",
    "DHEL",
    "DV",
    "FLO",
    "FMICL",
    "MACL",
    "NWJ",
    "RPC",
    "AlignUniform",
    "BarlowTwins",
    "ContrastStats",
    "Debiased",
    "EssControl",
    "FlatNCE",
    "HolderFlatNCE",
    "ISogCLR",
    "InfoNCE",
    "Matryoshka",
    "Objective",
    "PairSet",
    "Phi",
    "SigLIP",
    "SogCLR",
    "Spectral",
    "SupCon",
    "TrainConfig",
    "VICReg",
    "contrast_stats",
    "diagnostics",
    "evaluate",
    "load_encoder",
    "load_network",
    "mi",
    "objectives",
    "pairwise_mean",
    "stats_from_scores",
    "stats_of",
    "studies",
    "train",
]
