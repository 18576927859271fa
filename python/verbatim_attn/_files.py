"""Files of results: whole or not at all, and tried before anything runs. A device or a pipe is
written as it is, never replaced."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def _beside(path: str) -> Path:
    return Path(f"{path}.part")


def _is_special(path: str) -> bool:
    return Path(path).exists() and not Path(path).is_file()


def try_to_write(path: str) -> None:
    """Raises OSError where write() would; leaves nothing."""
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return
    _beside(path).touch()
    _beside(path).unlink()


def write(path: str, text: str) -> None:
    if _is_special(path):
        Path(path).write_text(text)
        return
    beside = _beside(path)
    try:
        beside.write_text(text)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
