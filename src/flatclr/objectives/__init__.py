"""Contrastive objectives: pure functions, one value per anchor, and modules that average them."""

from flatclr.objectives.align_uniform import pair_alignment, uniformity
from flatclr.objectives.ess_control import EssControl
from flatclr.objectives.f_divergence import f_micl_cosine, f_micl_gaussian, find_divergence
from flatclr.objectives.modules import (
    DV,
    FLO,
    FMICL,
    NWJ,
    RPC,
    AlignUniform,
    FlatNCE,
    HolderFlatNCE,
    InfoNCE,
    Objective,
)
from flatclr.objectives.nce import flat_nce, holder_flat_nce, info_nce
from flatclr.objectives.rpc import rpc
from flatclr.objectives.variational import dv, flo, nwj

OBJECTIVES: dict[str, type[Objective]] = {
    "infonce": InfoNCE,
    "flatnce": FlatNCE,
    "holder": HolderFlatNCE,
    "align_uniform": AlignUniform,
    "fmicl": FMICL,
    "rpc": RPC,
    "dv": DV,
    "nwj": NWJ,
    "flo": FLO,
}

__all__ = [
    "DV",
    "FLO",
    "FMICL",
    "NWJ",
    "OBJECTIVES",
    "RPC",
    "AlignUniform",
    "EssControl",
    "FlatNCE",
    "HolderFlatNCE",
    "InfoNCE",
    "Objective",
    "dv",
    "f_micl_cosine",
    "f_micl_gaussian",
    "find_divergence",
    "flat_nce",
    "flo",
    "holder_flat_nce",
    "info_nce",
    "nwj",
    "pair_alignment",
    "rpc",
    "uniformity",
]
