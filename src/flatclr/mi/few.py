"""The default on fewer than 50 rows: what correlations certify, and no upper limit.

So few rows show next to nothing but correlations: noise around a circle, 0.7 nats, looks like noise. But correlations
certify: of all joint laws of two normal columns with a given correlation the normal one has the largest entropy, so

    I(x; y) >= -1/2 ln(1 - rho^2)

whatever the law, rho the correlation of the normal scores. So the Gaussian plug-in value, less a quantile of its
errors, is a lower bound. How often that is too high, `benchmarks.mi_certified` counts.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from flatclr.mi.arrays import Array
from flatclr.mi.columns import dithered
from flatclr.mi.copula import fit_gaussian
from flatclr.mi.families import plug_in
from flatclr.mi.levels import dither_rng
from flatclr.mi.outcome import MethodOptions, Outcome
from flatclr.mi.student import student_quantile

_NORMAL = 1.959964  # 97.5 % quantile; with 95 % one bound in twelve was too high, as errors are estimated too


def read_few(x: Array, y: Array, options: MethodOptions) -> Outcome:
    """The Gaussian plug-in value as a guess without a finite error, and the lower bound that correlations certify.

    Tied columns are dithered, which changes no information, so that the bound holds for them too.
    """
    if options.tied:
        rng = dither_rng(options.seed)
        x, y = dithered(x, rng), dithered(y, rng)
    found = plug_in(fit_gaussian(x, y), x, y)
    error, certifies = found.standard_error, math.isfinite(found.standard_error)
    errors = student_quantile(np.array([_NORMAL]), len(x) - x.shape[1] - y.shape[1] - 1)[0] if certifies else math.inf
    told = f"{len(x)} rows show correlations at most; there may be any further information."
    return replace(
        found,
        method="gaussian",
        second_order=math.inf,
        lower_nats=max(found.nats - float(errors) * error, 0.0) if certifies else 0.0,
        warnings=(*found.warnings, told),
        reason=f"fewer than 50 rows; if the copula is Gaussian, the error is {error:.3f}." if certifies else told,
        again=lambda x, y: read_few(x, y, options),
    )
