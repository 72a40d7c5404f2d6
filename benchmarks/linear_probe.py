"""Time and accuracy of the linear probe against scikit-learn, at the size of CIFAR-10's features from a ResNet-18.

    python -m benchmarks.linear_probe            (--device cuda for the time on a GPU)

50,000 x 512 training and 10,000 test features of 10 classes: rectified mixtures of Gaussian classes whose spectrum
falls over one and a half decades. Both sides scale the features and fit at the same L2 strength; times are medians of
interleaved runs in one process.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from flatclr.evaluation.linear import fit_linear, fit_probe
from flatclr.evaluation.scores import selection_score

STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4)


def features(samples: int, d: int, classes: int, *, seed: int) -> tuple[Tensor, Tensor]:
    fixed, drawn = torch.Generator().manual_seed(0), torch.Generator().manual_seed(seed)
    means_Cd = 0.15 * torch.randn(classes, d, generator=fixed)
    mixing_dd = torch.randn(d, d, generator=fixed) / d**0.5 * torch.logspace(0, -1.5, d)
    labels = torch.randint(classes, (samples,), generator=drawn)
    return ((means_Cd[labels] + torch.randn(samples, d, generator=drawn)) @ mixing_dd).relu(), labels


def with_sklearn(x: Tensor, labels: Tensor, l2: float) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=1 / (l2 * len(x)), max_iter=1000))
    return model.fit(x.numpy(), labels.numpy())


def compare(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: int, l2: float, rounds: int
) -> dict[str, Any]:
    results: dict[str, Any] = {}

    def keep(name: str, call: Callable[[], Any]) -> Callable[[], None]:
        return lambda: results.update({name: call()})

    times = record.interleaved_ms(
        {
            "sklearn": keep("sklearn", lambda: with_sklearn(*train, l2)),
            "flatclr": keep("flatclr", lambda: fit_linear(*train, classes=classes, l2=l2)),
        },
        rounds=rounds,
    )
    x, labels = test
    theirs = torch.from_numpy(results["sklearn"].predict(x.numpy()))
    ours = results["flatclr"].logits(x).argmax(1)
    (theirs_ms, theirs_spread), (ours_ms, ours_spread) = (
        record.median_and_spread(times[name]) for name in ("sklearn", "flatclr")
    )
    return {
        "l2": f"{l2:g}",
        "scikit-learn s": f"{theirs_ms / 1e3:.2f} ± {theirs_spread / 1e3:.2f}",
        "flatclr s": f"{ours_ms / 1e3:.2f} ± {ours_spread / 1e3:.2f}",
        "time ratio": f"{ours_ms / theirs_ms:.2f}",
        "scikit-learn top-1 %": f"{100 * (theirs == labels).double().mean().item():.2f}",
        "flatclr top-1 %": f"{100 * (ours == labels).double().mean().item():.2f}",
    }


def whole_probe(train: tuple[Tensor, Tensor], classes: int, rounds: int) -> dict[str, Any]:
    """Path over the strengths, choice and refit, on the device of the features."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        probe = fit_probe(*train, classes=classes, score=selection_score)
        probe.classifier.weights_DC.sum().item()  # waits for the device
        seconds.append(time.perf_counter() - start)
    median, spread = record.median_and_spread(seconds[1:])
    device = torch.cuda.get_device_name() if train[0].is_cuda else "cpu"
    return {
        "whole probe on": device,
        "s": f"{median:.2f} ± {spread:.2f}",
        "first s": f"{seconds[0]:.2f}",
        "strengths tried": len(probe.path),
        "l2": f"{probe.classifier.l2:g}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", help="cuda: only the whole probe is timed, there")
    parser.add_argument("--no-save", action="store_true", help="print only, leave results/ alone")
    args = parser.parse_args()
    if args.rounds < 2 or args.samples < 100 or args.classes < 2:
        parser.error("expected --rounds >= 2, --samples >= 100 and --classes >= 2; a spread needs two rounds.")
    train = features(args.samples, args.d, args.classes, seed=1)
    test = features(10_000, args.d, args.classes, seed=2)
    rows = []
    if args.device == "cpu":
        rows = [compare(train, test, args.classes, l2, args.rounds) for l2 in STRENGTHS]
        print(record.markdown(rows) + "\n")
    x, labels = train
    probe = whole_probe((x.to(args.device), labels.to(args.device)), args.classes, args.rounds)
    print(record.markdown([probe]))
    print("\nmedian ± interquartile range; " + record.where())
    if not args.no_save:
        command = shlex.join(["python", "-m", "benchmarks.linear_probe", *sys.argv[1:]])
        print(
            f"appended to {record.append('linear_probe', [*rows, probe], command).relative_to(record.RESULTS.parent)}"
        )


if __name__ == "__main__":
    main()
