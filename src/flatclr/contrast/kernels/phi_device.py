"""Device code of the functions of a score that `flatclr.contrast.related` needs: (phi(s), phi'(s))."""

import triton
import triton.language as tl


@triton.jit
def identity(s, _, __):
    return s, s * 0.0 + 1.0


@triton.jit
def softplus_of_minus(s, _, __):
    return tl.maximum(-s, 0.0) + tl.log(1 + tl.exp(-tl.abs(s))), -tl.sigmoid(-s)
