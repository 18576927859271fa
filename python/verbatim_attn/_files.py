"""Files of results: whole or not at all, and tried before anything runs."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def _beside(path: str) -> Path:
    return Path(f"{path}.part")


def try_to_write(path: str) -> None:
    """Raises OSError where write() would; leaves nothing."""
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    _beside(path).touch()
    _beside(path).unlink()


def write(path: str, text: str) -> None:
    beside = _beside(path)
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
