"""From what a user names to a dataset."""

from __future__ import annotations

from pathlib import Path

from flatclr.checks import require_count, require_number, require_one_of
from flatclr.data import embedded, named
from flatclr.data.opening.hub import PREFIX, open_hub
from flatclr.data.opening.known import DATASETS, data_folders, fashion_mnist_small, from_splits
from flatclr.data.opening.names import LABELS, expanded
from flatclr.data.opening.paths import open_path
from flatclr.data.opening.split import Split
from flatclr.data.progress import Progress
from flatclr.data.sources import Dataset, Sentences


def open_dataset(
    spec: str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    image_size: int | None = None,
    download: bool = True,
    test_fraction: float = 0.1,
    seed: int = 0,
    labels: str = "auto",
    progress: Progress | None = None,
) -> Dataset:
    """The dataset a user means.

    Args:
        spec: None for the embedded images, or a name of `DATASETS` (a folder of such a name needs `./` before it), or

            - a folder of images in any layout; optionally in `train/` and `test/` or `val/`
            - a folder in the layout of a known dataset
            - `.npz` with images and labels, or train_images, train_labels, test_images, test_labels, or x and y, which
              are paired data if y is float
            - `.npy` images; `images.npy,labels.npy`; `x.npy,y.npy` for paired data if y is float
            - `.txt`: pairs of adjacent sentences, for the encoder "bigru"
            - `.csv` with the columns text and label: labelled sentences, to evaluate such an encoder on;
              `train.csv,test.csv` to learn from one and test on the other
            - `.tar` shards (WebDataset: key.jpg beside key.cls): one, a folder, or a pattern, `shards/*.tar` or
              `shards/{000..009}.tar`
            - `hf:NAME` or `hf:NAME:SPLIT` from the Hugging Face hub
        data_dir: where named datasets stand or are put, before $FLATCLR_DATA and ./data.
        image_size: side of the square images; the data's own size if None, for files at most 224.
        download: whether a named dataset that is not there may be downloaded.
        test_fraction: share held out for testing where the data itself has no test part; 0 for none.
        seed: of that choice.
        labels: whether the sub-folders of a folder of images are classes: "folders", "none", or "auto", which takes
            them for classes where every image lies in one of several sub-folders and none lies deeper.
        progress: called with (what, done, total) during downloads.

    Returns:
        its training part and, where there is one, its test part.

    Raises:
        FileNotFoundError: there is nothing of this name, or its download failed.
        ValueError: what is there cannot be read, or an argument is out of range.
        ImportError: `hf:` needs a package that is not installed.

    >>> data = open_dataset(image_size=8)
    >>> data.name, len(data.train), len(data.test)
    ('fashion-mnist-small', 10000, 2000)
    """
    if image_size is not None:
        require_count("image_size", image_size, advice="pass the side of the square images in pixels.")
    require_number("test_fraction", test_fraction, below=1, advice="0.1 holds out every tenth image.")
    if test_fraction < 0:
        raise ValueError(f"test_fraction must be >= 0, got {test_fraction}; pass 0 to hold out nothing.")
    require_one_of("labels", labels, LABELS)
    split = Split(test_fraction, seed)
    text = embedded.NAME if spec is None else str(spec)
    if text == embedded.NAME:
        dataset = fashion_mnist_small(image_size=image_size)
    elif text in named.NAMED:
        splits = named.load(text, data_folders(data_dir), download=download, progress=progress)
        dataset = from_splits(text, splits, image_size)
    elif text.startswith(PREFIX):
        dataset = open_hub(text, image_size, split, download=download)
    else:
        dataset = open_path(text, image_size, split, labels)
    if len(dataset.train) < 2:
        kind = "sentences" if isinstance(dataset.train, Sentences) else "images"
        raise ValueError(f"{dataset.name} must have at least 2 training {kind}, got {len(dataset.train)}; add more.")
    return dataset


def from_anywhere(spec: str | None) -> str | None:
    """What names the same data in every folder: paths that lead somewhere become absolute, all else stays.

    >>> from_anywhere("cifar10"), from_anywhere("no-such-folder")
    ('cifar10', 'no-such-folder')
    """
    if spec is None or spec in DATASETS or spec.startswith(PREFIX):
        return spec
    whole = Path(spec).expanduser()
    parts = [whole] if whole.exists() else [Path(part.strip()).expanduser() for part in spec.split(",")]
    if whole.suffix == ".tar" and any(any(part.parent.glob(part.name)) for part in map(Path, expanded(str(whole)))):
        return str(whole.absolute())
    if all(part.exists() or any(part.parent.glob(part.name)) for part in parts):
        return ",".join(str(part.absolute()) for part in parts)
    return spec
