"""Device code of the functions of a score that `flatclr.contrast.related` needs: (phi(s), phi'(s))."""

import triton
import triton.language as tl


@triton.jit
def log_of_one_plus(x):
    """log(1 + x) of x in [0, 1], to 3e-7 of it: a logarithm takes more than twice as many instructions.

    x times a polynomial that meets log(1 + x) / x in eight Chebyshev points.
    """
    share = 0.04349390044808388 - 0.00837115291506052 * x
    share = share * x - 0.1068500280380249
    share = share * x + 0.1768747717142105
    share = share * x - 0.24474774301052094
    share = share * x + 0.3327192962169647
    share = share * x - 0.49997174739837646
    return x * (share * x + 0.9999997615814209)


@triton.jit
def softplus(v):
    """(softplus(v), sigmoid(v)), also where one of them is tiny."""
    x = tl.exp(-tl.abs(v))
    return tl.maximum(v, 0.0) + log_of_one_plus(x), tl.where(v < 0, x, 1.0) / (1 + x)


@triton.jit
def identity(s, _, __):
    return s, s * 0.0 + 1.0


@triton.jit
def softplus_of_minus(s, _, __):
    value, share = softplus(-s)
    return value, -share
