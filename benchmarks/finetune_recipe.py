"""Which fine-tuning recipe: candidates compared on a held-out fifth of the embedded training images.

    python -m benchmarks.finetune_recipe

No test image is looked at. An encoder is pre-trained on the other four fifths; each candidate is fine-tuned with three
draws of 1 % and 10 % of the labels.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

import flatclr
from benchmarks import record
from flatclr.data import Dataset, ResidentImages, open_dataset
from flatclr.evaluation.finetune import Recipe, class_balanced, finetune
from flatclr.evaluation.opening import open_subject

CANDIDATES = {
    "from the probe, crops from 0.7": replace(Recipe(), smallest_crop=0.7),
    "crops from 0.5": replace(Recipe(), smallest_crop=0.5),
    "crops from 0.9": replace(Recipe(), smallest_crop=0.9),
    "from zeros, crops from 0.7": replace(Recipe(), starts_from_probe=False, smallest_crop=0.7),
    "from zeros, crops from 0.5": replace(Recipe(), starts_from_probe=False, smallest_crop=0.5),
}
SHARES = (0.01, 0.1)


def held_out_accuracy(folder: Path, recipe: Recipe, data: Dataset, share: float, draw: int) -> float:
    train, test = data.train, data.test
    assert isinstance(train, ResidentImages)
    assert isinstance(test, ResidentImages)
    assert train.labels is not None
    assert test.labels is not None
    chosen = class_balanced(train.labels, share, classes=10, seed=draw)
    options: dict[str, Any] = {"classes": 10, "chosen": chosen, "recipe": recipe, "seed": draw}
    logits = finetune(open_subject(folder), train, train.labels, test, device=torch.device("cpu"), **options)
    return (logits.argmax(1).cpu() == test.labels).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400, help="of pre-training (default: %(default)s)")
    args = parser.parse_args()
    images = open_dataset().train
    assert isinstance(images, ResidentImages)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    fifth = len(images) // 5
    data = Dataset("held-out", images.subset(order[fifth:], "train"), images.subset(order[:fifth], "held out"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        flatclr.train(flatclr.TrainConfig(steps=args.steps, out=str(run), eval_start=False), data=data)
        todo = [(name, share, draw) for name in CANDIDATES for share in SHARES for draw in range(args.draws)]
        found = {
            cell: held_out_accuracy(run, CANDIDATES[cell[0]], data, *cell[1:])
            for cell in track(todo, "fine-tuning", console=Console(stderr=True))
        }
        for name in CANDIDATES:
            accuracies = {s: [100 * found[name, s, d] for d in range(args.draws)] for s in SHARES}
            rows.append({"candidate": name} | {f"{s:.0%}": f"{statistics.mean(a):.1f}" for s, a in accuracies.items()})
    print(record.markdown(rows))
    command = shlex.join(["python", "-m", "benchmarks.finetune_recipe", *sys.argv[1:]])
    print(f"appended to {record.append('finetune_recipe', rows, command).name}")


if __name__ == "__main__":
    main()
