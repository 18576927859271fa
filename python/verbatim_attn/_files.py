"""Files of results: whole or not at all, and tried before anything runs. A symbolic link stays. A
device, a pipe, and what is open through a link of /proc (/dev/stdout) are added to, never replaced."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path


def _replaced(path: str) -> Path | None:
    """The file whose place a new one takes; None: `path` is added to."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)  # raises OSError for a circle of links
    file = Path(path)
    if file.exists() and not file.is_file():
        return None
    while file.is_symlink():
        if file.parent.resolve().is_relative_to("/proc"):
            return None
        file = file.parent / os.readlink(file)
    return file


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.part")


def try_to_write(path: str) -> None:
    """Raises OSError where write() would; leaves nothing."""
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    file = _replaced(path)
    if file is None:
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return
    _beside(file).touch()
    _beside(file).unlink()


def write(path: str, text: str) -> None:
    file = _replaced(path)
    if file is None:
        return _add(path, text)
    beside = _beside(file)
    try:
        beside.write_text(text)
        beside.replace(file)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def _add(path: str, text: str) -> None:
    """Where `path` is what this process prints to: behind what was printed, before what will be."""
    sys.stdout.flush()
    with open(path, "a") as stream:
        stream.write(text)
    for printed in (1, 2):
        with contextlib.suppress(OSError):  # closed, or a pipe, which has no such place
            if os.path.samestat(os.fstat(printed), os.stat(path)):
                os.lseek(printed, 0, os.SEEK_END)
