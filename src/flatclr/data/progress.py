"""How long tasks say how far they are."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""A function that is called with (file or task, done, total)."""
