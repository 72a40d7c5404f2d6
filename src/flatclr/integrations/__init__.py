"""FlatCLR inside other people's trainers: one file per host library, imported only when asked for.

`flatclr.integrations.lightning` and `flatclr.integrations.sentence_transformers` need their library, which is an extra
of this package; `flatclr.integrations.open_clip` needs nothing more.
"""
