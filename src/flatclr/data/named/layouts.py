"""How the files of a known dataset are arranged, and where they come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flatclr.data.named.reading import existing
from flatclr.data.named.splits import Splits


@dataclass(frozen=True)
class Remote:
    """One file at its official address; the later addresses are mirrors."""

    file: str
    sha256: str
    size: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """One way in which a dataset's files are arranged.

    `files` are what must be there, each given by its accepted names; `folders` where they stand below a data folder.
    Where other datasets use the same file names (`ambiguous`), only a folder of a known name is taken for this one.
    """

    folders: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]
    read: Callable[[Path], Splits]
    ambiguous: bool = False

    def missing_from(self, folder: Path) -> list[str]:
        """Which files a folder lacks, by their first names."""
        return [names[0] for names in self.files if existing(folder, names) is None]

    def candidates(self, base: Path) -> list[Path]:
        """Where below a data folder the files may stand."""
        own_name = any(base.resolve().parts[-len(Path(name).parts) :] == Path(name).parts for name in self.folders)
        itself = [base] if own_name or not self.ambiguous else []
        return itself + [base / folder for folder in self.folders]

    def complete_in(self, base: Path) -> Path | None:
        """The folder at or below a data folder that has all files."""
        return next((folder for folder in self.candidates(base) if not self.missing_from(folder)), None)


@dataclass(frozen=True)
class NamedDataset:
    """A dataset known by name; the first layout is that of its downloads."""

    name: str
    layouts: tuple[Layout, ...]
    remotes: tuple[Remote, ...]
    home: str  # the folder below a data folder that downloads fill
    archived: bool  # the one remote file is an archive of `home`

    def complete_in(self, base: Path) -> tuple[Layout, Path] | None:
        """The first layout that is complete at or below a data folder, and where."""
        for layout in self.layouts:
            if (folder := layout.complete_in(base)) is not None:
                return layout, folder
        return None


def one_name_each(*names: str) -> tuple[tuple[str, ...], ...]:
    """Files that go by one name, as a layout lists them."""
    return tuple((name,) for name in names)
