"""Triton twins of functions of a score, found by the fused kernels when a `Phi` names them; they need Triton."""
