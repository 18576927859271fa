"""Work of a GPU that waits for other work of its call: how long, and whether a wait has expired."""

from __future__ import annotations

import numbers
import sys
from typing import Any

from . import _library

_LONGEST = 1e9


def set_wait_limit(seconds: float) -> None:
    """Lets work of later calls on GPUs wait so long for other work of its call, in graphs that are
    captured from now on too, before the call gives up; 10 seconds at first. A limit below the time
    of one task, or of what others run on the GPU meanwhile, makes calls give up for nothing.

    Raises ValueError.
    """
    if not isinstance(seconds, numbers.Real) or not 0 < seconds <= _LONGEST:
        raise ValueError(
            f"[set_wait_limit] no time that a wait can take; got {seconds!r}, expected more than 0 "
            "and at most 1e9 seconds (nearest: 10)"
        )
    _library.wait_limit.value = seconds


def check(device: Any = None) -> None:
    """Raises RuntimeError naming the tile when a call on `device` gave up because one of its waits
    expired. All results of that call are NaN, also those of a CUDA graph's replay. It is told once,
    here or by the next call on the device.

    Waits for nothing: after torch.cuda.synchronize() it has seen all that was before. `device` is
    "cpu", "cuda", "cuda:N" or a torch.device; None: PyTorch's current GPU, if it uses one.
    """
    if device is None:
        device = "cpu"
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            device = f"cuda:{torch.cuda.current_device()}"
    _library.check_waits(str(device))
