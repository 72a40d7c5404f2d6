"""Device code of `flatclr.objectives.sigmoid`: (phi(s), phi'(s)); the parameter is the bias."""

import triton
import triton.language as tl


@triton.jit
def softplus_above(s, bias, _):
    v = s + bias
    x = tl.exp(-tl.abs(v))
    small = x * (1 - x * (0.5 - x * (1 / 3 - 0.25 * x)))  # most pairs are far below 0, where 1 + x would lose x
    return tl.maximum(v, 0.0) + tl.where(x < 0.01, small, tl.log(1 + x)), tl.sigmoid(v)


@triton.jit
def sigmoid_above(s, bias, _):
    share = tl.sigmoid(s + bias)
    return share, share * (1 - share)
