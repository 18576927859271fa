"""What is compiled where it runs: csrc/*.cpp with the headers of the PyTorch or JAX at hand."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).parent
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt")
_INCLUDES = (_HERE / "include", _HERE.parents[1] / "include")  # installed; in the tree


def source_file(name: str) -> Path:
    """Of csrc."""
    return _HERE / "csrc" / name


def file_of(name: str, source: Path, version: str, seen: Sequence[str], suffix: str) -> Path:
    """Where the library made of `source` lies, made or not: beside the package, else in
    VERBATIM_CACHE, by default ~/.cache/verbatim_attn. It is named by all that is compiled, how, and
    all that the result is loaded into: `version`, and whatever else of it was `seen`."""
    sources = [source, *(path / "verbatim/c.h" for path in _INCLUDES)]
    texts = [path.read_text() for path in sources if path.exists()]
    digest = hashlib.sha256("".join([*texts, *_FLAGS, *seen]).encode()).hexdigest()[:12]
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = os.environ.get("VERBATIM_CACHE") or Path(home) / "verbatim_attn"
    whole = f"{name}-{version}-{digest}{suffix}"
    installed = _HERE / whole  # built with the package
    return installed if installed.exists() else Path(folder) / whole


def compile_file(
    file: Path, source: Path, headers: Sequence[str | Path], options: Sequence[str], refusal: str
) -> None:
    """Makes `file` of `source`, whole or not at all, with CXX or else c++. `options` come behind
    the source. Raises RuntimeError with `refusal`, in which {} is what the compiler says."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:  # others may build at once
        made = Path(scratch) / file.name
        command = [
            *os.environ.get("CXX", "c++").split(), *_FLAGS,
            *(f"-I{path}" for path in _INCLUDES), *(f"-isystem{path}" for path in headers),
            str(source), "-o", str(made), *options,
        ]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", error)
            raise RuntimeError(refusal.format(said)) from error
        made.replace(file)
