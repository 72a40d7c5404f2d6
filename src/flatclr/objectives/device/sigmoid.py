"""Device code of `flatclr.objectives.sigmoid`: (phi(s), phi'(s)); the parameter is the bias."""

import triton
import triton.language as tl

from flatclr.contrast.kernels.phi_device import softplus


@triton.jit
def softplus_above(s, bias, _):
    return softplus(s + bias)


@triton.jit
def sigmoid_above(s, bias, _):
    share = tl.sigmoid(s + bias)
    return share, share * (1 - share)
