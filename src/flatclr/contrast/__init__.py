"""The one idea: three numbers per anchor, reduced from scores that are never stored.

A call reads downward once: batch (checks, gathers) -> route (decides) -> dense | streamed -> kernels -> stats.
"""

from flatclr.contrast.options import ContrastOptions, Options
from flatclr.contrast.pairs import PairSet
from flatclr.contrast.phi import Phi
from flatclr.contrast.primitive import contrast_stats, pairwise_mean
from flatclr.contrast.route import stats_of
from flatclr.contrast.stats import ContrastStats, stats_from_scores

__all__ = [
    "ContrastOptions",
    "ContrastStats",
    "Options",
    "PairSet",
    "Phi",
    "contrast_stats",
    "pairwise_mean",
    "stats_from_scores",
    "stats_of",
]
