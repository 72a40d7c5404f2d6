"""Mutual information: estimates with their limits, and tasks whose answer is known."""

from flatclr.mi import bounds, limits, tasks
from flatclr.mi.critics import CRITICS
from flatclr.mi.estimator import estimate
from flatclr.mi.fit import FAST, FitSettings
from flatclr.mi.methods import METHODS
from flatclr.mi.result import MIEstimate

__all__ = ["CRITICS", "FAST", "METHODS", "FitSettings", "MIEstimate", "bounds", "estimate", "limits", "tasks"]
