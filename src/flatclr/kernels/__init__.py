"""The streamed reductions, one module per backend."""
