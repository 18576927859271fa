"""What a result depends on besides the call: versions, devices, PyTorch's settings."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

# Each has torch.get_NAME and torch.set_NAME.
_SETTINGS = ("num_threads", "deterministic_debug_mode", "float32_matmul_precision")
_PACKAGES = (
    "numpy", "torch", "triton", "flash-attn", "flash_attn_3", "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl", "verbatim-attn",
)  # fmt: skip


def settings() -> dict[str, Any]:
    """PyTorch's settings that may change bits; empty while it is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    found = {name: getattr(torch, f"get_{name}")() for name in _SETTINGS}
    return {**found, "cudnn_benchmark": torch.backends.cudnn.benchmark}


def restore(saved: dict[str, Any]) -> None:
    """Makes what settings() found so again, in another process."""
    if not saved:
        return
    import torch

    for name in _SETTINGS:
        getattr(torch, f"set_{name}")(saved[name])
    torch.backends.cudnn.benchmark = saved["cudnn_benchmark"]


def describe(device: Any) -> dict[str, Any]:
    """Names, versions and settings as plain data. `device` is a torch.device or None."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "cpu_threads": os.cpu_count() or 1,
        "device": "cpu" if device is None else str(device),
        "packages": _packages(),
        "settings": settings(),
    }
    if device is not None and device.type == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "driver": _driver(),
            "cuda": torch.version.cuda or "",
            "cudnn": str(torch.backends.cudnn.version()),
        }
    return found


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    match = re.search(r"model name\s*:\s*(.+)", _text("/proc/cpuinfo"))
    return match[1] if match else platform.processor() or platform.machine()


def _driver() -> str:
    """Of the kernel module, where Linux tells it."""
    match = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", _text("/proc/driver/nvidia/version"))
    return match[1] if match else "unknown"


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
