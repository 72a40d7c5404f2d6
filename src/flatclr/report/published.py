"""Published numbers that an evaluation stands beside: the same data and protocol, with where they were published."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """A number of somebody else's.

    Args:
        data: the name of the dataset.
        protocol: as `flatclr eval` calls it.
        accuracy: a share of 1.
        says: method, batch and epochs.
        source: where it stands.
    """

    data: str
    protocol: str
    accuracy: float
    says: str
    source: str


KOBAK, DCL, LIGHTLY, SOLO = (
    "dkobak/simclr-cifar10",
    "Yeh et al. 2022, by raminnakhli/Decoupled-Contrastive-Learning",
    "lightly's benchmark",
    "solo-learn",
)
PUBLISHED = (  # all of a ResNet-18 with a 3x3 stem
    Published("cifar10", "knn", 0.832, "SimCLR, batch 512, 100 epochs", KOBAK),
    Published("cifar10", "knn", 0.847, "SimCLR, batch 128, 200 epochs", LIGHTLY),
    Published("cifar10", "knn", 0.903, "SimCLR, batch 512, 500 epochs", KOBAK),
    Published("cifar10", "linear", 0.783, "SimCLR, batch 32, 100 epochs", DCL),
    Published("cifar10", "linear", 0.846, "DCL, batch 32, 100 epochs", DCL),
    Published("cifar10", "linear", 0.856, "SimCLR, batch 512, 100 epochs", KOBAK),
    Published("cifar10", "linear", 0.907, "SimCLR, batch 256, 1,000 epochs", SOLO),
    Published("cifar100", "linear", 0.522, "SimCLR, batch 32, 100 epochs", DCL),
    Published("cifar100", "linear", 0.601, "DCL, batch 32, 100 epochs", DCL),
    Published("cifar100", "linear", 0.596, "SimCLR, batch 256, 100 epochs", DCL),
)


def published_for(data: str, protocol: str) -> list[Published]:
    """What is known for this dataset and protocol.

    >>> [row.accuracy for row in published_for("CIFAR-10", "knn")]
    [0.832, 0.847, 0.903]
    """
    name = data.lower().replace("-", "").replace("_", "")
    return [row for row in PUBLISHED if row.data == name and row.protocol == protocol]
