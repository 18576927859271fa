"""NumPy arrays and PyTorch tensors as the library sees them: an address, a dtype, strides."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._library import DTYPES

View = tuple[int, ...]  # address, dtype, 4 lengths, 4 strides in elements: _library._TENSOR


class Arrays:
    """What both kinds share."""

    kind: type[Any]
    device: str

    def _code(self, dtype: Any) -> int | None:
        raise NotImplementedError

    def dtype(self, x: Any) -> int:
        """Into DTYPES."""
        code = self._code(x.dtype)
        if code is None:
            raise unknown_dtype(x.dtype)
        return code

    def dtype_name(self, x: Any) -> str:
        return DTYPES[self.dtype(x)]

    def read(self, x: Any) -> tuple[Any, View]:
        """The array or tensor itself when the library can read it, else a dense copy; and its
        view."""
        raise NotImplementedError

    def check(self, name: str, x: Any) -> None:
        """That x is of this kind and has four dimensions; the library checks the rest."""
        if not isinstance(x, self.kind):
            raise TypeError(
                f"[tensors] {name} is no {self.kind.__name__}; got {type(x).__name__}, expected "
                "q, k and v of one kind"
            )
        if x.ndim != 4:
            raise ValueError(
                f"[tensors] wrong number of dimensions of {name}; got shape {list(x.shape)}, "
                "expected (batch, length, heads, dim)"
            )


class NumpyArrays(Arrays):
    """f32 and f16, and bf16 where a package (ml_dtypes) gives NumPy one."""

    kind = np.ndarray
    device = "cpu"

    @staticmethod
    @functools.cache  # NumPy takes microseconds to make a name
    def _code(dtype: np.dtype) -> int | None:
        codes = {"float32": 0, "bfloat16": 1, "float16": 2}
        return codes.get(dtype.name) if dtype.isnative else None

    def read(self, x: np.ndarray) -> tuple[np.ndarray, View]:
        if not x.flags.c_contiguous:
            size = x.itemsize
            if x.strides[-1] != size or any(s < 0 or s % size for s in x.strides):
                x = np.ascontiguousarray(x)
        return x, self.view(x)

    def ready_rows(self, lse: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        _check_lse(lse, shape)
        return np.ascontiguousarray(lse, np.float32)

    def empty(self, like: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        return np.empty(shape, like.dtype)

    def empty_rows(self, like: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        return np.empty(shape, np.float32)

    def address(self, x: np.ndarray) -> int:
        return x.ctypes.data

    def stream(self, x: np.ndarray) -> int:
        return 0

    def view(self, x: np.ndarray) -> View:
        size = x.itemsize
        return (x.ctypes.data, self.dtype(x), *x.shape, *[s // size for s in x.strides])


class TorchTensors(Arrays):
    """f32, bf16 and f16 on the CPU and on CUDA devices."""

    def __init__(self, device: Any) -> None:
        import torch

        self.device = str(device)
        self._torch = torch
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._layout = functools.lru_cache(maxsize=1024)(self._find_layout)
        self._codes = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
        self.kind = torch.Tensor

    def _code(self, dtype: Any) -> int | None:
        return self._codes.get(dtype)

    def _find_layout(self, dtype: Any, shape: Any, stride: Any) -> tuple[int, ...] | None:
        """A View without its address; None when the library cannot read such rows. Kernels move 16
        bytes at a time: on a GPU every row starts at a multiple of them."""
        code = self._codes.get(dtype)
        if code is None:
            raise unknown_dtype(dtype)
        if stride[-1] != 1 and shape[-1] > 1:
            return None
        if self._is_cuda and not rows_are_aligned(shape, stride, dtype.itemsize):
            return None
        return (code, *shape, *stride)

    def read(self, x: Any) -> tuple[Any, View]:
        if x.device != self._device:
            raise ValueError(
                f"[tensors] the tensors are on different devices; got {x.device}, "
                f"expected {self.device} as q"
            )
        layout = self._layout(x.dtype, x.shape, x.stride())
        address = x.data_ptr()
        if layout is None or (self._is_cuda and address % 16):
            x = x.clone(memory_format=self._torch.contiguous_format)
            return x, self.view(x)
        return x, (address, *layout)

    def ready_rows(self, lse: Any, shape: Sequence[int]) -> Any:
        _check_lse(lse, shape)
        return lse.to(self._device, self._torch.float32).contiguous()

    def empty(self, like: Any, shape: Sequence[int]) -> Any:
        return like.new_empty(shape)

    def empty_rows(self, like: Any, shape: Sequence[int]) -> Any:
        return like.new_empty(shape, dtype=self._torch.float32)

    def address(self, x: Any) -> int:
        return x.data_ptr()

    def stream(self, x: Any) -> int:
        if not self._is_cuda:
            return 0
        # torch.cuda.current_stream(device).cuda_stream, without making the object
        return self._torch._C._cuda_getCurrentRawStream(self._device.index)

    def view(self, x: Any) -> View:
        return (x.data_ptr(), self.dtype(x), *x.shape, *x.stride())


_numpy = NumpyArrays()
_torch: dict[Any, TorchTensors] = {}  # by device


def arrays_of(x: Any) -> NumpyArrays | TorchTensors:
    """How to look at arrays of x's kind, on x's device."""
    if isinstance(x, np.ndarray):
        return _numpy
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        raise TypeError(
            f"[tensors] q is neither a NumPy array nor a PyTorch tensor; got {type(x).__name__}, "
            "expected one of them (nearest: numpy.asarray(q))"
        )
    found = _torch.get(x.device)
    if found is None:
        found = _torch.setdefault(x.device, TorchTensors(x.device))
    return found


def rows_are_aligned(shape: Sequence[int], stride: Sequence[int], size: int) -> bool:
    """Whether rows of elements of `size` bytes lie multiples of 16 bytes apart."""
    steps = zip(shape[:-1], stride[:-1], strict=True)
    return all(n == 1 or s * size % 16 == 0 for n, s in steps)


def unknown_dtype(dtype: Any) -> ValueError:
    return ValueError(
        f"[tensors] no kernel for this dtype; got {dtype}, expected float32, bfloat16 or float16 "
        "(nearest: float32)"
    )


def seed_address(seed: Any, device: str) -> int:
    """Of a tensor that holds a seed on the plan's device."""
    if seed.numel() != 1 or seed.element_size() != 8 or str(seed.device) != device:
        raise ValueError(
            f"[tensors] no seed; got {seed.dtype} {list(seed.shape)} on {seed.device}, expected one "
            f"int64 on {device} (nearest: int(seed))"
        )
    return seed.data_ptr()


def _check_lse(lse: Any, shape: Sequence[int]) -> None:
    if lse.shape != shape:
        raise ValueError(
            f"[tensors] wrong shape of lse; got {list(lse.shape)}, expected {list(shape)}"
        )
