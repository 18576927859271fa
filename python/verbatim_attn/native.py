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
import ctypes
import hashlib
import importlib.util
import os
import struct
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from . import _library
from ._calls import kept
from ._library import DTYPES
from .attention import Settings, make_plan

_NAME = "verbatim_torch"
_HERE = Path(__file__).parent
_SOURCE = _HERE / "csrc" / "torch_call.cpp"
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt")
_INCLUDES = (_HERE / "include", _HERE.parents[1] / "include")  # installed; in the tree


class Status(NamedTuple):
    """Which way calls of attention() with PyTorch tensors take."""

    way: str  # "native" or "python"
    file: Path  # of the native one, there or not
    reason: str


def status() -> Status:
    """Of this process. Needs PyTorch."""
    from . import _torch

    file = _file()
    if _torch.native is not None:
        return Status("native", file, "built for this PyTorch and this Python")
    if _is_off():
        return Status("python", file, "VERBATIM_NATIVE is 0")
    return Status("python", file, "does not load" if file.exists() else "not built")


def build(folder: Path | None = None) -> Path:
    """Compiles the native way for the PyTorch and the Python at hand, with CXX or else c++, unless
    it is in use, and takes it from now on. Its file lies in `folder`, else in VERBATIM_CACHE, by
    default ~/.cache/verbatim_attn, where later processes find it.

    Raises RuntimeError with what the compiler says.
    """
    from . import _torch

    file = _file() if folder is None else folder / _file().name
    if _torch.native is None or not file.exists():
        _compile(file)
    if _torch.native is None:
        _torch.native = load(_torch.gradients_of)
    return file


def _compile(file: Path) -> None:
    import torch

    root = Path(torch.__file__).parent
    file.parent.mkdir(parents=True, exist_ok=True)
    include = root / "include"
    theirs = (include, include / "torch/csrc/api/include", sysconfig.get_path("include"))
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch:  # others may build at once
        made = Path(scratch) / file.name
        command = [
            *os.environ.get("CXX", "c++").split(), *_FLAGS,
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(f"-I{path}" for path in _INCLUDES), *(f"-isystem{path}" for path in theirs),
            str(_SOURCE), "-o", str(made),
            f"-L{root / 'lib'}", "-ltorch_python", "-ltorch_cpu", "-lc10",
        ]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(
                f"[native] compiling failed; got {getattr(error, 'stderr', error)}, expected a C++20 "
                "compiler and the headers of PyTorch and Python (nearest: the way through Python, "
                "which needs neither)"
            ) from error
        made.replace(file)


def load(gradients_of: Callable[..., Any]) -> Any:
    """The built module, whose `attention` is for _torch.attention and whose `run` is for Plan; None
    when there is none that loads."""
    file = _file()
    if _is_off() or not file.exists():
        return None
    try:
        spec = importlib.util.spec_from_file_location(_NAME, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
    except ImportError as error:
        warnings.warn(
            f"[native] {file} does not load; got {error} (nearest: python -m verbatim_attn.native "
            "build)",
            stacklevel=2,
        )
        return None
    functions: tuple[Any, ...] = (_library.forward, _library.backward, _library.workspace)
    addresses = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    limit = ctypes.addressof(_library.wait_limit)
    module.begin(*addresses, limit, kept, _plan, gradients_of, _library.check)
    return module


def _plan(mask: str, settings: Settings, numbers: bytes) -> tuple[Any, ...]:
    """What csrc/torch_call.cpp asks for by the numbers of plan_for()."""
    is_deterministic, index, dtype, *sizes = struct.unpack("15q", numbers)
    shapes = sizes[:4], sizes[4:8], sizes[8:]
    device = "cpu" if index < 0 else f"cuda:{index}"
    plan = make_plan(shapes, DTYPES[dtype], device, mask, settings, not is_deterministic)
    return plan._handle.pointer.value, plan._handle, mask, settings


def _is_off() -> bool:
    return os.environ.get("VERBATIM_NATIVE") == "0"


def _file() -> Path:
    """Named by all that is compiled, how, and all that the result is loaded into."""
    import torch

    sources = [_SOURCE, *(path / "verbatim/c.h" for path in _INCLUDES)]
    seen = [path.read_text() for path in sources if path.exists()]
    seen += [*_FLAGS, str(torch.version.git_version)]
    digest = hashlib.sha256("".join(seen).encode()).hexdigest()[:12]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = os.environ.get("VERBATIM_CACHE") or Path(home) / "verbatim_attn"
    name = f"{_NAME}-{torch.__version__}-{digest}{suffix}"
    installed = _HERE / name  # built with the package
    return installed if installed.exists() else Path(folder) / name


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
