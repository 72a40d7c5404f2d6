"""plotly.js for pages that open offline: the whole library, compressed; the browser unpacks it."""

from __future__ import annotations

import base64
import gzip
from functools import lru_cache

from flatclr.extras import needed


@lru_cache(maxsize=1)
def plotly_gzipped() -> bytes:
    """The library as plotly's Python package ships it.

    Raises:
        ImportError: plotly is not installed.
    """
    plotly = needed("plotly.offline", by="a report page")
    return gzip.compress(plotly.get_plotlyjs().encode(), compresslevel=6, mtime=0)


@lru_cache(maxsize=1)
def plotly_inline() -> str:
    """The same as text for a page."""
    return base64.b64encode(plotly_gzipped()).decode()
