"""From what a user names to a dataset: arrays, folders, archives of a known layout, tar shards, the hub."""

from flatclr.data.opening.entry import from_anywhere, open_dataset
from flatclr.data.opening.given import dataset_from
from flatclr.data.opening.known import DATASETS, fashion_mnist_small
from flatclr.data.opening.names import LABELS
from flatclr.data.opening.text import token_ids

__all__ = ["DATASETS", "LABELS", "dataset_from", "fashion_mnist_small", "from_anywhere", "open_dataset", "token_ids"]
