"""Contrastive objectives: pure functions on stats, and modules."""

from flatclr.objectives.ess_control import EssControl
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
]
