"""Datasets known by name: how their files are laid out, where they are looked for and where they come from."""

from flatclr.data.named.download import fetch
from flatclr.data.named.finding import load, recognise
from flatclr.data.named.layouts import Layout, NamedDataset, Remote
from flatclr.data.named.mnist import FASHION, read_idx
from flatclr.data.named.splits import Labelled, Splits
from flatclr.data.named.table import NAMED
from flatclr.data.progress import Progress

__all__ = [
    "FASHION",
    "NAMED",
    "Labelled",
    "Layout",
    "NamedDataset",
    "Progress",
    "Remote",
    "Splits",
    "fetch",
    "load",
    "read_idx",
    "recognise",
]
