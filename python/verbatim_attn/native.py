"""The way of PyTorch tensors to the library in C++, taken when it is there by attention(), the
functions that call it, and Plan.

    pip install --no-build-isolation .        # builds it into the package, where PyTorch is
    python -m verbatim_attn.native build      # builds it beside one that was installed without
    python -m verbatim_attn.native            # which way calls take

csrc/torch_call.cpp is compiled for one PyTorch and one Python. Others, compilation and tracing take
the way through Python, which has the same bits and costs a call tens of microseconds.
VERBATIM_NATIVE=0 leaves the native way unused.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

from . import _native
from ._compiled import compile_file


class Status(NamedTuple):
    """Which way calls of attention() with PyTorch tensors take."""

    way: str  # "native" or "python"
    file: Path  # of the native one, there or not
    reason: str


def status() -> Status:
    """Of this process. Needs PyTorch."""
    file = _native.module_file()
    if _native.module is not None:
        return Status("native", file, "built for this PyTorch and this Python")
    if _native.is_off():
        return Status("python", file, "VERBATIM_NATIVE is 0")
    return Status("python", file, "does not load" if file.exists() else "not built")


def build(folder: Path | None = None) -> Path:
    """Compiles the native way for the PyTorch and the Python at hand, with CXX or else c++, unless
    it is in use, and takes it from now on. Its file lies in `folder`, else in VERBATIM_CACHE, by
    default ~/.cache/verbatim_attn, where later processes find it.

    Raises RuntimeError with what the compiler says.
    """
    file = _native.module_file()
    if folder is not None:
        file = folder / file.name
    if _native.module is None or not file.exists():
        _compile(file)
    if _native.module is None:
        _native.module = _native.load()
    return file


def _compile(file: Path) -> None:
    import torch

    root = Path(torch.__file__).parent
    include = root / "include"
    headers = (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))
    options = (
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10",
    )  # fmt: skip
    compile_file(
        file, _native.SOURCE, headers, options,
        "[native] compiling failed; got {}, expected a C++20 compiler and the headers of PyTorch "
        "and Python (nearest: the way through Python, which needs neither)",
    )  # fmt: skip


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m verbatim_attn.native", description=__doc__)
    parser.add_argument("command", nargs="?", choices=["status", "build"], default="status")
    parser.add_argument("--folder", type=Path, help="of what is built; default: VERBATIM_CACHE")
    args = parser.parse_args(words)
    if args.command == "build":
        build(args.folder)
    print("{}: {} ({})".format(*status()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
