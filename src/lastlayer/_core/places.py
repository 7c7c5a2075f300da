"""Where files of the user lie: the data sets, and images that were decoded once. Tests: tests/_core/test_places.py."""

from __future__ import annotations

import os
from pathlib import Path


def default_root() -> Path:
    """Where data sets lie: $LASTLAYER_DATA, else $XDG_CACHE_HOME/lastlayer/data, else ~/.cache/lastlayer/data.

    Example:
        >>> import os
        >>> os.environ["LASTLAYER_DATA"] = "somewhere"
        >>> default_root().name
        'somewhere'
        >>> del os.environ["LASTLAYER_DATA"]
    """
    return _place("LASTLAYER_DATA", "data")


def image_cache() -> Path:
    """Where decoded images lie: $LASTLAYER_CACHE, else $XDG_CACHE_HOME/lastlayer/images, else ~/.cache/..."""
    return _place("LASTLAYER_CACHE", "images")


def _place(variable: str, folder: str) -> Path:
    if chosen := os.environ.get(variable):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "lastlayer" / folder
