"""The native way of PyTorch tensors to the library, as native.py has built it."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import struct
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import torch

from . import _library
from ._handles import Handle, Settings, kept, problem_of, specification
from ._library import DTYPES

_NAME = "verbatim_torch"
_HERE = Path(__file__).parent
SOURCE = _HERE / "csrc" / "torch_call.cpp"
FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-plt")
INCLUDES = (_HERE / "include", _HERE.parents[1] / "include")  # installed; in the tree


def load() -> Any:
    """The built module, whose `attention` is for _torch.attention and whose `run` is for Plan; None
    when there is none that loads."""
    file = module_file()
    if is_off() or not file.exists():
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
    module.begin(*addresses, limit, kept, _handle, _gradients, _library.check)
    return module


def _handle(mask: str, settings: Settings, numbers: bytes) -> tuple[Any, ...]:
    """What csrc/torch_call.cpp asks for by the numbers of plan_for()."""
    is_deterministic, index, dtype, *sizes = struct.unpack("15q", numbers)
    shapes = sizes[:4], sizes[4:8], sizes[8:]
    device = "cpu" if index < 0 else f"cuda:{index}"
    problem, options = problem_of(shapes, DTYPES[dtype], settings, not is_deterministic)
    handle = Handle(specification(problem, mask, options={**options, "device": device}))
    return handle.pointer.value, handle, mask, settings


def _gradients(tensors: tuple[torch.Tensor, ...], seed: Any, mask: str, settings: Settings) -> Any:
    """(dq, dk, dv) of (q, k, v, o, dout, lse), for whoever observes them."""
    q, k, v, o, dout, lse = tensors
    return torch.ops.verbatim.backward(dout, q, k, v, o, lse, seed, mask, *settings)


def is_off() -> bool:
    return os.environ.get("VERBATIM_NATIVE") == "0"


def module_file() -> Path:
    """Named by all that is compiled, how, and all that the result is loaded into."""
    sources = [SOURCE, *(path / "verbatim/c.h" for path in INCLUDES)]
    seen = [path.read_text() for path in sources if path.exists()]
    seen += [*FLAGS, str(torch.version.git_version)]
    digest = hashlib.sha256("".join(seen).encode()).hexdigest()[:12]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = os.environ.get("VERBATIM_CACHE") or Path(home) / "verbatim_attn"
    name = f"{_NAME}-{torch.__version__}-{digest}{suffix}"
    installed = _HERE / name  # built with the package
    return installed if installed.exists() else Path(folder) / name


module: Any = load()
