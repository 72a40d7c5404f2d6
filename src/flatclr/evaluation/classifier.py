"""A classifier to keep: an encoder fine-tuned with labels, its classes, and how good it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from flatclr.checks import checked_device, require_count, require_seed
from flatclr.data.opening import dataset_from
from flatclr.data.progress import Progress
from flatclr.data.sources import Dataset
from flatclr.evaluation.embedding import fitted
from flatclr.evaluation.features import OUTPUT, compute_features, frozen
from flatclr.evaluation.finetune import Classifier, Recipe, class_balanced, shortage, trained_classifier
from flatclr.evaluation.intervals import Score
from flatclr.evaluation.linear import Scaling
from flatclr.evaluation.opening import is_by_name, open_named, open_subject
from flatclr.evaluation.request import taking
from flatclr.evaluation.scores import is_unbalanced, score_predictions
from flatclr.evaluation.splits import Splits
from flatclr.evaluation.subjects import Subject
from flatclr.files import parse_json, replace_files
from flatclr.models.network import Normalisation
from flatclr.models.saving import load_encoder, save_encoder

FORMAT = "flatclr-classifier"
WEIGHTS, DOCUMENT = "classifier.safetensors", "classifier.json"
AT_ONCE = 256


class FinetunedClassifier:
    """Images to classes; what `finetune` gives and `load_classifier` reads.

    Args:
        network: encoder, scaling and linear layer.
        classes: their names, in the order of the scores.
        normalisation: of images in [0, 1].
        about: how it was made and how good it is.

    >>> images, labels = torch.zeros(60, 1, 8, 8, dtype=torch.uint8), torch.arange(60) % 2
    >>> images[labels == 1, :, :4] = 255
    >>> encoder = flatclr.models.build_encoder("mlp", channels=1, image_size=8, width=8)
    >>> classifier = flatclr.evaluation.finetune(encoder, (images, labels), device="cpu")
    >>> classifier.predict(images[:2])
    ['0', '1']
    """

    def __init__(
        self,
        network: Classifier,
        classes: Sequence[str],
        normalisation: Normalisation | None,
        about: Mapping[str, Any],
    ) -> None:
        self.network, self.classes, self.normalisation = network.eval(), tuple(classes), normalisation
        self.about = dict(about)

    @property
    def accuracy(self) -> Score:
        """On images held out from training, with its 95 % interval."""
        return Score(**self.about["accuracy"])

    @torch.no_grad()
    def scores(self, images: Tensor) -> Tensor:
        """The probability of every class.

        Args:
            images: [N, C, S, S] of the size in training, uint8 or float in [0, 1].

        Returns:
            [N, classes].
        """
        device = next(self.network.parameters()).device
        with frozen(self.network):
            return torch.cat([self._logits(part.to(device)).softmax(1).cpu() for part in images.split(AT_ONCE)])

    def predict(self, images: Tensor) -> list[str]:
        """The name of the likeliest class of every image.

        Args:
            images: as for `scores`.

        Returns:
            A name each.
        """
        return [self.classes[number] for number in self.scores(images).argmax(1).tolist()]

    def _logits(self, images: Tensor) -> Tensor:
        levels = images.float() / 255 if images.dtype == torch.uint8 else images
        logits: Tensor = self.network(levels if self.normalisation is None else self.normalisation(levels))
        return logits

    def save(self, folder: str | Path) -> Path:
        """Write classifier.safetensors, classifier.json and the encoder's two files.

        Args:
            folder: where to; it is made.

        Returns:
            The folder.
        """
        target = Path(folder)
        encoder, linear, scaling = self.network.encoder, self.network.linear, self.network.scaling
        save_encoder(target, encoder, description={"fine-tuned": self.about}, normalisation=self.normalisation)
        tensors = {"weight": linear.weight, "bias": linear.bias, "mean": scaling.mean_d, "std": scaling.deviation_d}
        content = safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
        document = {
            "format": FORMAT,
            "classes": list(self.classes),
            "sha256": hashlib.sha256(content).hexdigest(),
            "about": self.about,
        }
        text = json.dumps(document, indent=2) + "\n"
        replace_files({target / WEIGHTS: content, target / DOCUMENT: text.encode()})
        return target


def load_classifier(folder: str | Path, *, into: nn.Module | None = None) -> FinetunedClassifier:
    """A classifier that was saved.

    Args:
        folder: that `flatclr finetune` or `FinetunedClassifier.save` wrote.
        into: a module of the encoder's architecture, where it was not built by name.

    Returns:
        The classifier on the CPU.

    Raises:
        FileNotFoundError: there is none.
        ValueError: its files are damaged.

    >>> import tempfile
    >>> images, labels = torch.zeros(60, 1, 8, 8, dtype=torch.uint8), torch.arange(60) % 2
    >>> encoder = flatclr.models.build_encoder("mlp", channels=1, image_size=8, width=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = flatclr.evaluation.finetune(encoder, (images, labels), device="cpu").save(folder)
    ...     flatclr.evaluation.load_classifier(folder).classes
    ('0', '1')
    """
    place = Path(folder)
    if not (place / DOCUMENT).is_file() or not (place / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"a classifier must be in {place}, got no {DOCUMENT}; pass what flatclr finetune wrote."
        )
    content = (place / WEIGHTS).read_bytes()
    try:
        document = parse_json((place / DOCUMENT).read_bytes())
        if (document["format"], document["sha256"]) != (FORMAT, hashlib.sha256(content).hexdigest()):
            raise ValueError("another format, or weights of another document")
        tensors = safetensors.torch.load(content)
    except Exception as error:  # damaged files fail in many ways
        raise ValueError(f"{place / DOCUMENT} must go with {WEIGHTS}, got damaged files; copy them again.") from error
    encoder = load_encoder(place, into=into)
    network = Classifier.of(encoder, tensors["weight"], tensors["bias"], Scaling(tensors["mean"], tensors["std"]))
    normalisation = getattr(encoder, "normalisation", None)
    return FinetunedClassifier(network, document["classes"], normalisation, document["about"])


@dataclass(frozen=True)
class FinetuneRequest:
    """The arguments of `finetune`, which says what each means."""

    run_or_encoder: Any
    data: Any = None
    _: KW_ONLY
    labels: str | float | int = 1.0
    epochs: int | None = None
    image_size: int | None = None
    data_dir: str | Path | None = None
    architecture: str | None = None
    normalisation: Normalisation | None = None
    device: str | torch.device = "auto"
    seed: int = 0
    progress: Progress | None = None

    def __post_init__(self) -> None:
        require_seed("seed", self.seed)
        for name in ("image_size", "epochs"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), advice="pass a larger whole number, or leave it out.")
        labels_asked(self.labels, 1)

    @property
    def recipe(self) -> Recipe:
        return Recipe() if self.epochs is None else Recipe(epochs=self.epochs, fewest_steps=1)


@taking(FinetuneRequest)
def finetune(request: FinetuneRequest) -> FinetunedClassifier:
    """Train an encoder further with labels, and keep the classifier.

    Linear probe first, then all weights (Kumar et al. 2022); as the protocols finetune and semi of `evaluate` do.

    Args:
        run_or_encoder: as for `evaluate`.
        data: labelled images, as for `flatclr.train`; None: what the run was trained on. Every image of a folder has
            the name of its sub-folder as label. Where the data has no test part, a tenth is held out for the accuracy.
        labels: how many of the training labels are used: "10%", a share such as 0.1, or a number of images.
        epochs: passes over these; None: 5, and at least 200 steps.
        image_size: side of the square images; that of the encoder unless given.
        data_dir, architecture, normalisation: as for `evaluate`.
        device: where to train.
        seed: of the labels that are drawn, of the held-out images and of the training.
        progress: called with (what, done, total).

    Returns:
        The classifier: `.accuracy` with its interval, `.classes`, `.predict(images)`, `.save(folder)`.

    Raises:
        ValueError: the data has no labels or too few.

    >>> images, labels = torch.zeros(80, 1, 8, 8, dtype=torch.uint8), torch.arange(80) % 2
    >>> images[labels == 1, :, :4] = 255
    >>> encoder = flatclr.models.build_encoder("mlp", channels=1, image_size=8, width=8)
    >>> flatclr.evaluation.finetune(encoder, (images, labels), labels="25%", device="cpu").accuracy.value
    1.0
    """
    device = checked_device(request.device)
    subject, data = _opened(request)
    labels, classes = data.labels, data.train.classes
    share = labels_asked(request.labels, len(labels))
    if reason := shortage(labels, share, classes):
        raise ValueError(f"{data.name} must have {reason}; ask for more labels, or add images.")
    chosen = (
        torch.arange(len(labels))
        if share == 1
        else class_balanced(labels, share, classes=len(classes), seed=request.seed)
    )
    assert data.test is not None
    with subject.on(device):
        network = trained_classifier(
            subject,
            data.train,
            labels,
            classes=len(classes),
            chosen=chosen,
            recipe=request.recipe,
            device=device,
            seed=request.seed,
            progress=request.progress,
        )
        logits = compute_features(network, data.test, subject.plain(), device=device, progress=request.progress)[OUTPUT]
    scored = score_predictions([logits.cpu()], data.test_labels, classes, unbalanced=is_unbalanced(labels))
    about = {
        "encoder": subject.name,
        "data": data.name,
        "labels": len(chosen),
        "label_share": round(len(chosen) / len(labels), 6),
        "test_images": len(data.test),
        "headline": scored.headline,
        "accuracy": asdict(scored.values["top1"]),
        "scores": {name: asdict(score) for name, score in scored.values.items()},
        "per_class": {name: asdict(score) for name, score in scored.per_class.items()},
        "steps": request.recipe.steps(len(chosen)),
        "seed": request.seed,
    }
    return FinetunedClassifier(network, classes, subject.normalisation, about)


def labels_asked(asked: Any, images: int) -> float:
    """The share of all labels that is meant.

    >>> labels_asked("10%", 500), labels_asked(50, 500), labels_asked("0.5", 500)
    (0.1, 0.1, 0.5)
    """
    text = str(asked).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    counted = isinstance(asked, int) or (text.isdigit() and int(text) > 1)
    share = number / 100 if text.endswith("%") else number / images if counted and number > 1 else number
    if isinstance(asked, bool) or not share > 0 or (share > 1 and images > 1):
        raise ValueError(f"labels must be a share such as 10%, or a number of images up to {images}, got {asked!r}.")
    return min(share, 1.0)


def _opened(request: FinetuneRequest) -> tuple[Subject, Splits]:
    """The encoder, and labelled images as it takes them."""
    by_name = is_by_name(request.run_or_encoder, request.architecture)
    subject = None if by_name else open_subject(request.run_or_encoder, normalisation=request.normalisation)
    given = request.data if request.data is not None or subject is None else subject.data
    if given is None:
        raise ValueError("data must be named for an encoder without a run, got none; pass --data (data= from Python).")
    is_folder = isinstance(given, str | Path) and Path(given).expanduser().is_dir()
    dataset = dataset_from(
        given,
        data_dir=request.data_dir or (None if subject is None else subject.data_dir),
        image_size=request.image_size if by_name else None,
        labels="folders" if is_folder else "auto",
        seed=request.seed,
        progress=request.progress,
    )
    data = _labelled(dataset)
    if subject is None:
        subject = open_named(
            request.run_or_encoder,
            channels=data.train.channels,
            image_size=data.train.image_size,
            architecture=request.architecture,
            normalisation=request.normalisation,
        )
    if not subject.trainable:
        raise ValueError(f"an encoder must have weights to be fine-tuned, got {subject.name} without; pass another.")
    parts = [fitted(part, subject, request.image_size) for part in data.parts]
    return subject, Splits(data.name, parts[0], parts[1])


def _labelled(dataset: Dataset) -> Splits:
    data = Splits.of(dataset)
    if not data.labelled:
        lacking = "no test images" if data.test is None else "no labels"
        raise ValueError(f"{dataset.name} must have labelled images, got {lacking}; sort them into folders by class.")
    if data.several_classes:
        raise ValueError(f"{dataset.name} must have one class per image, got several; use flatclr eval.")
    if reason := data.problem_with_labels():
        raise ValueError(reason)
    return data
