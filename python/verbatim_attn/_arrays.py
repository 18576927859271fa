"""NumPy arrays and PyTorch tensors as the library sees them: an address, a dtype, strides."""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import numpy as np

from . import _library

NAMES = ("q", "k", "v", "o", "dout", "lse")  # of a backward's inputs; a forward's are the first
Key = tuple[Any, ...]  # (shape, strides, dtype, ...): all of an array or tensor but its address


class Arrays:
    """What both kinds share. `address` and `key` of an array or tensor are asked in every call."""

    kind: type[Any]
    device: str
    rows_dtype: Any  # f32
    alignment = 1  # of addresses that the library reads, in bytes
    address: Callable[[Any], int]
    key: Callable[[Any], Key]
    stream: Callable[[], int]  # the current one's address

    def are_traced(self) -> bool:
        """Whether torch.compile follows the call."""
        return False

    def run_native(self, *_call: Any) -> tuple[Any, ...] | None:
        """A plan's pass as _native.py's module does it (address, tensors of the plan, tensors, seed,
        threads); None where it is not built, or leaves the call to Python."""
        return None

    def memory(self, size: int) -> Any:
        """Bytes on the device for one call, which hold anything."""
        raise NotImplementedError

    def _code(self, dtype: Any) -> int | None:
        raise NotImplementedError

    def _strides(self, key: Key) -> Sequence[int] | None:
        """In elements; None when they are no whole ones, or negative."""
        raise NotImplementedError

    def dense(self, x: Any, dtype: Any) -> Any:
        """A dense copy on this device."""
        raise NotImplementedError

    def maker(self, shape: Sequence[int], dtype: Any) -> Callable[[], Any]:
        """Makes dense ones on this device that hold anything."""
        raise NotImplementedError

    def dtype(self, dtype: Any) -> int:
        """Into DTYPES."""
        code = self._code(dtype)
        if code is None:
            raise ValueError(
                f"[tensors] no kernel for this dtype; got {dtype}, expected float32, bfloat16 or "
                "float16 (nearest: float32)"
            )
        return code

    def result_dtype(self, dtype: Any) -> Any:
        """Of what is made from tensors of `dtype`: bfloat16 from e4m3."""
        return dtype

    def scales(self, name: str, scales: Any, heads: int) -> Any:
        """Those of a tensor in e4m3, as the library reads them; None stays None."""
        if scales is None:
            return None
        key = self.key(scales) if isinstance(scales, self.kind) else None
        if key is None or key[2] != self.rows_dtype or tuple(key[0]) != (heads,):
            got = type(scales).__name__ if key is None else f"{key[2]} of {list(key[0])}"
            raise ValueError(
                f"[tensors] scales of {name} are one number a head; got {got}, expected "
                f"{self.rows_dtype} of [{heads}], a {self.kind.__name__} like {name}"
            )
        return self.dense(scales, self.rows_dtype)

    def keys(self, tensors: Sequence[Any]) -> tuple[Key, ...]:
        """Of the first of NAMES; refuses what is not of this kind."""
        try:
            return tuple(map(self.key, tensors))
        except (AttributeError, TypeError):
            for name, x in zip(NAMES, tensors, strict=False):
                if not isinstance(x, self.kind):
                    raise not_of_one_kind(name, x, self.kind) from None
            raise

    def layout(self, name: str, key: Key) -> bytes | None:
        """What verbatim_tensor holds behind the address; None when the library cannot read such
        rows."""
        check_dimensions(name, key)
        shape, code, strides = key[0], self.dtype(key[2]), self._strides(key)
        if (
            strides is None
            or (strides[-1] != 1 and shape[-1] > 1)
            or not rows_are_aligned(shape, strides, key[2].itemsize, self.alignment)
        ):
            return None
        return _library.LAYOUT.pack(code, *shape, *strides)

    def dense_layout(self, shape: Sequence[int], dtype: Any) -> bytes:
        return _library.LAYOUT.pack(self.dtype(dtype), *shape, *dense_strides(shape))

    def row_layout(self, key: Key, shape: Sequence[int]) -> bytes | None:
        """Nothing, which is what the library keeps of an LSE; None when it is not dense f32."""
        if key[0] != shape:
            raise ValueError(
                f"[tensors] wrong shape of lse; got {list(key[0])}, expected {list(shape)}"
            )
        is_dense = key[2] == self.rows_dtype and self._strides(key) == dense_strides(shape)
        return b"" if is_dense else None


class NumpyArrays(Arrays):
    """f32 and f16, and bf16 and e4m3 where a package (ml_dtypes) gives NumPy them."""

    kind = np.ndarray
    device = "cpu"
    rows_dtype = np.dtype(np.float32)
    stream = staticmethod(int)  # 0

    @staticmethod
    def key(x: np.ndarray) -> Key:
        return x.shape, x.strides, x.dtype

    @staticmethod
    def address(x: Any) -> int:
        try:  # three times as fast as x.ctypes, for writable dense arrays that are not empty
            return ctypes.addressof(ctypes.c_char.from_buffer(x))
        except (BufferError, TypeError, ValueError):
            return x.ctypes.data

    def _code(self, dtype: np.dtype) -> int | None:
        codes = {"float32": 0, "bfloat16": 1, "float16": 2, "float8_e4m3fn": 3}
        return codes.get(dtype.name) if dtype.isnative else None

    def result_dtype(self, dtype: Any) -> Any:
        if dtype.name != "float8_e4m3fn":
            return dtype
        import ml_dtypes  # which the array's dtype is of

        return np.dtype(ml_dtypes.bfloat16)

    def _strides(self, key: Key) -> Sequence[int] | None:
        _shape, strides, dtype = key
        if any(s < 0 or s % dtype.itemsize for s in strides):
            return None
        return tuple(s // dtype.itemsize for s in strides)

    def dense(self, x: np.ndarray, dtype: Any) -> np.ndarray:
        return np.array(x, dtype, order="C")

    def maker(self, shape: Sequence[int], dtype: Any) -> Callable[[], np.ndarray]:
        return functools.partial(np.empty, shape, dtype)


class TorchTensors(Arrays):
    """f32, bf16 and f16 on the CPU and on CUDA devices. Kernels of a GPU move 16 bytes at a time:
    there every row starts at a multiple of them."""

    def __init__(self, device: Any) -> None:
        import torch

        from . import _native

        self._native = _native  # whose `module` tests replace
        self.kind = torch.Tensor
        self.device = str(device)
        self.rows_dtype = torch.float32
        self.address = torch.Tensor.data_ptr
        self._torch = torch
        self._device = device
        self._codes = {
            torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float8_e4m3fn: 3,
        }  # fmt: skip
        self.stream = int  # 0
        if device.type == "cuda":
            self.alignment = 16
            # torch.cuda.current_stream(device).cuda_stream, without making the object
            current = torch._C._cuda_getCurrentRawStream
            self.stream = functools.partial(current, device.index)

    @staticmethod
    def key(x: Any) -> Key:
        return x.shape, x.stride(), x.dtype, x.device, x.is_neg()

    def _code(self, dtype: Any) -> int | None:
        return self._codes.get(dtype)

    def result_dtype(self, dtype: Any) -> Any:
        return self._torch.bfloat16 if dtype == self._torch.float8_e4m3fn else dtype

    def are_traced(self) -> bool:
        return self._torch.compiler.is_dynamo_compiling()

    def run_native(self, *call: Any) -> tuple[Any, ...] | None:
        module = self._native.module
        return None if module is None else module.run(*call)

    def layout(self, name: str, key: Key) -> bytes | None:
        if key[3] != self._device:
            raise ValueError(different_devices(key[3], self.device))
        ready = super().layout(name, key)
        return None if key[4] else ready  # its memory has the other sign

    def _strides(self, key: Key) -> Sequence[int] | None:
        return key[1]

    def row_layout(self, key: Key, shape: Sequence[int]) -> bytes | None:
        ready = super().row_layout(key, shape)
        return ready if key[3] == self._device and not key[4] else None

    def dense(self, x: Any, dtype: Any) -> Any:
        return self.maker(x.shape, dtype)().copy_(x)

    def maker(self, shape: Sequence[int], dtype: Any) -> Callable[[], Any]:
        return functools.partial(self._make, tuple(shape), dense_strides(shape), dtype)

    def memory(self, size: int) -> Any:
        return self._make((size,), (1,), self._torch.uint8)

    def _make(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        torch = self._torch
        if not torch.are_deterministic_algorithms_enabled():  # half the time of torch.empty
            return torch.empty_strided(shape, strides, dtype=dtype, device=self._device)
        # Which would be filled first; kernels write all of it.
        memory = torch.UntypedStorage(math.prod(shape) * dtype.itemsize, device=self._device)
        empty = torch.tensor([], dtype=dtype, device=self._device)
        return empty.set_(memory, 0, shape, strides)


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
    return arrays_of_device(x.device)


def arrays_of_device(device: Any) -> TorchTensors:
    """The same for tensors of PyTorch on `device`."""
    found = _torch.get(device)
    if found is None:
        found = _torch.setdefault(device, TorchTensors(device))
    return found


def not_of_one_kind(name: str, x: Any, kind: type[Any]) -> TypeError:
    return TypeError(
        f"[tensors] {name} is no {kind.__name__}; got {type(x).__name__}, expected q, k and v of "
        "one kind"
    )


def different_devices(got: Any, expected: Any) -> str:
    return f"[tensors] the tensors are on different devices; got {got}, expected {expected} as q"


def check_dimensions(name: str, key: Key) -> None:
    if len(key[0]) != 4:
        raise ValueError(
            f"[tensors] wrong number of dimensions of {name}; got shape {list(key[0])}, expected "
            "(batch, length, heads, dim)"
        )


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Of a dense array, in elements."""
    strides = [1]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(length, 1))
    return tuple(reversed(strides))


def rows_are_aligned(
    shape: Sequence[int], stride: Sequence[int], size: int, alignment: int
) -> bool:
    """Whether rows of elements of `size` bytes lie multiples of `alignment` bytes apart."""
    steps = zip(shape[:-1], stride[:-1], strict=True)
    return all(n == 1 or s * size % alignment == 0 for n, s in steps)


def seed_of(seed: Any) -> Any:
    """A tensor of one int64 as it is, another integer as Python's; refuses what is neither."""
    if isinstance(seed, int):
        return _in_64_bits(seed)
    if not hasattr(seed, "data_ptr"):
        try:
            return _in_64_bits(index(seed))
        except TypeError:
            got = repr(seed) if isinstance(seed, float) else type(seed).__name__
    elif str(seed.dtype) in ("torch.int64", "torch.uint64") and seed.numel() == 1:
        return seed.resolve_neg()
    else:
        got = f"{seed.dtype} {list(seed.shape)}"
    raise ValueError(
        f"[tensors] no seed; got {got}, expected an integer, or a tensor of one int64 (nearest: "
        "int(seed))"
    )


def _in_64_bits(seed: int) -> int:
    if not -(2**63) <= seed < 2**64:
        raise ValueError(
            f"[tensors] seed is out of range; got {seed}, expected 64 bits (nearest: seed % 2**64)"
        )
    return seed


def seed_address(seed: Any, device: str) -> int:
    """Of a tensor that holds a seed on the plan's device."""
    if str(seed.device) != device:
        raise ValueError(
            f"[tensors] the seed is on another device; got {seed.device}, expected {device} "
            "(nearest: int(seed))"
        )
    return seed.data_ptr()
