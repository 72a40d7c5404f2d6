"""Correlated Gaussians, and the methods told apart by whether they learn."""

from flatclr.mi import FitSettings, tasks
from flatclr.mi.methods import VARIATIONAL

PAIR = tasks.gaussian_pairs(2, pairs=1, correlation=0.8)
ANCHOR_ONLY = FitSettings(steps=0, hidden=4)
FIXED = ["gaussian", "student", "spiral", "ksg", "ksg2", "mixed_ksg"]
LEARNED = [*VARIATIONAL, "ba", "club", "l1out", "doe"]
