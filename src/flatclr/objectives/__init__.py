"""Contrastive objectives, one file per family: the equation per anchor, the module that averages it, and its traits."""

import importlib
import pkgutil

from flatclr.objectives.align_uniform import AlignUniform, pair_alignment, uniformity
from flatclr.objectives.base import OBJECTIVES, Objective, Traits, register
from flatclr.objectives.critics import CRITICS, CriticObjective
from flatclr.objectives.debiased import Debiased, debiased
from flatclr.objectives.decoupled import DCL, DCLW, DHEL, dcl, dclw, dhel
from flatclr.objectives.ess_control import EssControl
from flatclr.objectives.f_divergence import find_divergence
from flatclr.objectives.f_micl import FMICL, f_micl_cosine, f_micl_gaussian
from flatclr.objectives.macl import MACL, macl
from flatclr.objectives.matryoshka import Matryoshka
from flatclr.objectives.multi_positive import SupCon, sup_con
from flatclr.objectives.nce import FlatNCE, HolderFlatNCE, InfoNCE, flat_nce, holder_flat_nce, info_nce
from flatclr.objectives.redundancy import BarlowTwins, VICReg, barlow_twins, vic_reg
from flatclr.objectives.rpc import RPC, rpc
from flatclr.objectives.sigmoid import SigLIP, sig_lip
from flatclr.objectives.sogclr import ISogCLR, SogCLR, negatives_kl, sog_clr
from flatclr.objectives.spectral import Spectral, spectral
from flatclr.objectives.variational import DV, FLO, NWJ, dv, flo, nwj

for _module in pkgutil.iter_modules(__path__):  # a file that is added here is registered without being listed
    importlib.import_module(f"{__name__}.{_module.name}")
for _name in sorted(OBJECTIVES):  # help texts and messages list them in this order
    OBJECTIVES[_name] = OBJECTIVES.pop(_name)

__all__ = [
    "CRITICS",
    "DCL",
    "DCLW",
    "DHEL",
    "DV",
    "FLO",
    "FMICL",
    "MACL",
    "NWJ",
    "OBJECTIVES",
    "RPC",
    "AlignUniform",
    "BarlowTwins",
    "CriticObjective",
    "Debiased",
    "EssControl",
    "FlatNCE",
    "HolderFlatNCE",
    "ISogCLR",
    "InfoNCE",
    "Matryoshka",
    "Objective",
    "SigLIP",
    "SogCLR",
    "Spectral",
    "SupCon",
    "Traits",
    "VICReg",
    "barlow_twins",
    "dcl",
    "dclw",
    "debiased",
    "dhel",
    "dv",
    "f_micl_cosine",
    "f_micl_gaussian",
    "find_divergence",
    "flat_nce",
    "flo",
    "holder_flat_nce",
    "info_nce",
    "macl",
    "negatives_kl",
    "nwj",
    "pair_alignment",
    "register",
    "rpc",
    "sig_lip",
    "sog_clr",
    "spectral",
    "sup_con",
    "uniformity",
    "vic_reg",
]
