"""From what a user names to a dataset: arrays, folders, archives of a known layout, tar shards, the hub."""

from flatclr.data.opening.entry import from_anywhere, open_dataset
from flatclr.data.opening.given import dataset_from
from flatclr.data.opening.known import DATASETS, fashion_mnist_small
from flatclr.data.opening.names import LABELS
from flatclr.data.opening.text import are_sentences, in_single_sentences

__all__ = [
    "DATASETS",
    "LABELS",
    "are_sentences",
    "dataset_from",
    "fashion_mnist_small",
    "from_anywhere",
    "in_single_sentences",
    "open_dataset",
]
