"""Mutual information: estimates with their limits, and tasks whose answer is known."""

from flatclr.mi import bounds, limits, tasks
from flatclr.mi.budget import Progress
from flatclr.mi.consistency import Consistency, SelfTest, check
from flatclr.mi.critics import CRITICS
from flatclr.mi.estimator import estimate
from flatclr.mi.fit import FAST, FitSettings
from flatclr.mi.methods import METHODS, REGISTRY, Method, register
from flatclr.mi.outcome import MethodOptions, Outcome
from flatclr.mi.result import MIEstimate

__all__ = [
    "CRITICS",
    "FAST",
    "METHODS",
    "REGISTRY",
    "Consistency",
    "FitSettings",
    "MIEstimate",
    "Method",
    "MethodOptions",
    "Outcome",
    "Progress",
    "SelfTest",
    "bounds",
    "check",
    "estimate",
    "limits",
    "register",
    "tasks",
]
