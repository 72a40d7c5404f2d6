"""What `fused` runs on the device, in Triton: `views_kernel`, and `blur_kernel` where views are blurred.

Formulas, order and clamps are those of PyTorch's operations in `flatclr.data.views`.
"""
