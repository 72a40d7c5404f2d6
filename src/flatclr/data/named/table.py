"""The datasets known by name."""

from __future__ import annotations

from flatclr.data.named.cifar import CIFAR10, CIFAR100
from flatclr.data.named.layouts import NamedDataset
from flatclr.data.named.mnist import FASHION_MNIST, MNIST
from flatclr.data.named.stl10 import STL10, STL10_UNLABELLED

NAMED: dict[str, NamedDataset] = {
    dataset.name: dataset for dataset in (CIFAR10, CIFAR100, MNIST, FASHION_MNIST, STL10, STL10_UNLABELLED)
}
