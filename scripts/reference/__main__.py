"""Write the pages of docs/reference, and remove those that are no more."""

from __future__ import annotations

from pathlib import Path

from scripts.reference.pages import pages

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    written = pages()
    for old in FOLDER.glob("*.md"):
        if old.name not in written:
            old.unlink()
    for name, text in written.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    print(f"{FOLDER}: {len(written)} pages")


if __name__ == "__main__":
    main()
