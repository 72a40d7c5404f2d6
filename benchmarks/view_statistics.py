"""Which images batch normalisation should take its statistics from, when an encoder was trained on small views.

    python -m benchmarks.view_statistics                                        (embedded images, minutes on two cores)
    python -m benchmarks.view_statistics --data cifar10 --encoder resnet18 --steps 3900 --batch-size 256 --sgd

Trains one encoder for each set of views, then classifies the same whole test images by their neighbours with the
statistics of training (of the first size), of views of each size, and of whole images. Appends a row for each to
results/view_statistics.jsonl.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from flatclr.data.views import apply_views, draw_views
from flatclr.models.network import Network
from flatclr.models.statistics import statistics_of
from flatclr.training import TrainConfig
from flatclr.training.build import Parts, build
from flatclr.training.inputs import ImageViews
from flatclr.training.recorder import Recorder
from flatclr.training.trainer import fit
from flatclr.training.validation import RECALIBRATION_IMAGES, ImageValidation

TRIED: tuple[dict[str, Any], ...] = (
    {"views_per_image": 2},
    {"views_per_image": 4, "view_size": 16},
    {"view_sizes": [[2, 24], [4, 16]]},
    {"view_sizes": [[4, 16], [2, 24]]},
)


def knn_by_statistics(parts: Parts) -> dict[str, float]:
    """kNN accuracy in % of one encoder, by where its statistics come from."""
    validation, network, inputs = parts.validation, parts.train_step.bare_network, parts.train_step.inputs
    assert isinstance(validation, ImageValidation)
    assert isinstance(network, Network)
    assert isinstance(inputs, ImageViews)
    images = validation.source.batch(
        torch.arange(min(RECALIBRATION_IMAGES, validation.samples, len(validation.source)))
    )
    sources: dict[str, AbstractContextManager[None]] = {"training": nullcontext()}
    for group in inputs.groups:
        assert group.size is not None
        views = _views(validation, images, group.size)
        sources[f"views of {group.size}"] = statistics_of(network.encoder, views)
    sources["whole images"] = statistics_of(network.encoder, validation.whole(images))
    found = {}
    for name, statistics in sources.items():
        with statistics:
            found[name] = round(100 * validation.of_features(network.encoder)["knn"], 2)
    return found


def _views(validation: ImageValidation, images: Tensor, size: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(1)
    height, width = images.shape[-2:]
    for part in images.split(512):
        drawn = draw_views(validation.views, len(part), height=height, width=width, generator=generator)
        yield apply_views(part.to(validation.device), drawn.to(validation.device), validation.views, size=size)


def measure(config: TrainConfig) -> dict[str, Any]:
    """One encoder."""
    parts = build(config)
    fit(Recorder(parts))
    inputs = parts.train_step.inputs
    assert isinstance(inputs, ImageViews)
    views = " + ".join(f"{group.count} of {group.size}" for group in inputs.groups)
    return {"views": views, "seed": config.seed, "steps": config.steps, **knn_by_statistics(parts)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Which images batch statistics should come from.")
    parser.add_argument("--data", help="as of flatclr train (default: the embedded images)")
    parser.add_argument("--data-dir", help="as of flatclr train")
    parser.add_argument("--encoder", default="auto", help="default: %(default)s")
    parser.add_argument("--width", type=int, help="of the encoder (default: its own)")
    parser.add_argument("--steps", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--sgd", action="store_true", help="as the recipe cifar10 instead of AdamW")
    parser.add_argument("--precision", default="fp32", help="default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="default: 0")
    parser.add_argument(
        "--eval-samples", type=int, default=10_000, help="of each split, at most (default: %(default)s)"
    )
    parser.add_argument("--tried", type=int, nargs="+", help=f"of the {len(TRIED)} sets of views (default: all)")
    args = parser.parse_args()
    optimisation: dict[str, Any] = {"learning_rate": 2e-3}
    if args.sgd:
        rate = 0.24 * args.batch_size / 256
        optimisation = {"optimizer": "sgd", "learning_rate": rate, "weight_decay": 5e-4}
    config = TrainConfig(
        data=args.data,
        data_dir=args.data_dir,
        encoder=args.encoder,
        encoder_options={"width": args.width} if args.width else {},
        batch_size=args.batch_size,
        steps=args.steps,
        precision=args.precision,
        eval_every=args.steps,
        eval_start=False,
        eval_samples=args.eval_samples,
        checkpoint_every=args.steps,
        **optimisation,
    )
    rows = []
    for number in args.tried or range(len(TRIED)):
        for seed in args.seeds:
            rows.append(measure(config.changed(seed=seed, **TRIED[number])))
            print(json.dumps(rows[-1]), flush=True)
    command = ["python", "-m", "benchmarks.view_statistics", *sys.argv[1:]]
    print(record.append("view_statistics", rows, shlex.join(command)))


if __name__ == "__main__":
    main()
