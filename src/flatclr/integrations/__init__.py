"""FlatCLR inside other people's trainers: one file per host library, imported only when asked for.

`flatclr.integrations.lightning`, `flatclr.integrations.sentence_transformers` and `flatclr.integrations.open_clip` each
need their library, which is an extra of this package.
"""
