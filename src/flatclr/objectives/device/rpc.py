"""Device code of `flatclr.objectives.rpc`: (phi(s), phi'(s)); the parameters are a and g."""

import triton
import triton.language as tl  # noqa: F401  Triton's interpreter looks for it in the module of a function


@triton.jit
def rpc(s, a, g):
    return s * (a + 0.5 * g * s), a + g * s
