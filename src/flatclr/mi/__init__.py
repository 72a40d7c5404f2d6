"""Mutual information: estimates with their limits, and tasks whose answer is known."""

from flatclr.mi import bounds, limits, tasks
from flatclr.mi.critics import CRITICS
from flatclr.mi.estimator import METHODS, MIEstimate, estimate
from flatclr.mi.fit import FAST, FitSettings

__all__ = ["CRITICS", "FAST", "METHODS", "FitSettings", "MIEstimate", "bounds", "estimate", "limits", "tasks"]
