"""Device code of `flatclr.objectives.f_divergence`: (phi(s), phi'(s)).

Gaussian penalties take the logarithm of the shift, v = s + shift; Tsallis' order comes last. What a function does not
use is there because all have the same arguments.
"""

import triton
import triton.language as tl

from flatclr.contrast.kernels.phi_device import softplus

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def kl_gaussian(s, shift, _):
    value = tl.exp(s + shift)
    return value, value


@triton.jit
def js_gaussian(s, shift, _):
    value, share = softplus(s + shift)
    return value - LN2, share


@triton.jit
def pearson_gaussian(s, shift, _):
    square = tl.exp(2 * (s + shift))
    return square - 1, 2 * square


@triton.jit
def hellinger_gaussian(s, shift, _):
    root = tl.exp(0.5 * (s + shift))
    return root - 1, 0.5 * root


@triton.jit
def vlc_gaussian(s, shift, _):
    rest = tl.sigmoid(-(s + shift))
    return 3 - 8 * rest + 4 * rest * rest, 8 * rest * (1 - rest) * (1 - rest)


@triton.jit
def tsallis_gaussian(s, shift, order):
    power = tl.exp(order * (s + shift))
    return power + 1 / (order - 1), order * power


@triton.jit
def kl_cosine(s, _, __):
    value = tl.exp(s - 1)
    return value, value


@triton.jit
def js_cosine(s, _, __):
    e = tl.exp(0.5 * s)
    return -tl.log(2 - e), 0.5 * e / (2 - e)


@triton.jit
def pearson_cosine(s, _, __):
    return tl.where(s >= -2, s * (0.25 * s + 1), -1.0), tl.maximum(1 + 0.5 * s, 0.0)


@triton.jit
def hellinger_cosine(s, _, __):
    rest = 1 / (1 - 0.5 * s)
    return 0.5 * s * rest, 0.5 * rest * rest


@triton.jit
def vlc_cosine(s, _, __):
    t = 0.5 * s
    root = tl.sqrt(1 - t)
    return tl.where(t >= -3, 4 - t - 4 * root, -1.0), tl.where(t >= -3, 1 / root - 0.5, 0.0)


@triton.jit
def tsallis_cosine(s, order, _):
    rest = 1 / (order - 1)
    base = (s + tl.where(order > 1, 1.0, -2.0)) / (order * rest)
    base = tl.where(order > 1, tl.maximum(base, 0.0), base)
    return _power(base, order * rest) + rest, _power(base, rest)


@triton.jit
def _power(base, exponent):
    return tl.exp2(exponent * tl.log2(base))
