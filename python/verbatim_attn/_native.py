"""The native way of PyTorch tensors to the library, as native.py has built it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import struct
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import torch

from . import _library
from ._compiled import file_of, source_file
from ._handles import Handle, Settings, kept, problem_of, specification
from ._library import DTYPES

_NAME = "verbatim_torch"
SOURCE = source_file("torch_call.cpp")


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
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    seen = [str(torch.version.git_version)]
    return file_of(_NAME, SOURCE, torch.__version__, seen, suffix)


module: Any = load()
