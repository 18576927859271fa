"""The C interface (include/verbatim/c.h) through ctypes; its statuses become exceptions."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import numpy as np

# In the order of verbatim_status.
_EXCEPTIONS: tuple[type[Exception], ...] = (
    ValueError,
    NotImplementedError,
    ValueError,  # a plan that cannot be, which the caller gave
    RuntimeError,  # the device
    OSError,
    RuntimeError,
)

LAYOUT = struct.Struct("@i4q4q")  # of a verbatim_tensor, behind its data: dtype, shape, stride
_TENSOR = f"P{LAYOUT.size}s"
_ROWS = "P0s"  # an address with no layout
FORWARD = struct.Struct("@" + 4 * _TENSOR + 4 * _ROWS)  # LSE, then the scales of q, k and v
BACKWARD = struct.Struct("@" + 5 * _TENSOR + _ROWS + 3 * _TENSOR)
RUN = struct.Struct("@PiPPdPq")
_BLOCKS = struct.Struct("@4q2P4qPqPq")
SELECTED = struct.Struct("@P4q")  # a verbatim_selected_blocks

wait_limit = ctypes.c_double(0)  # of all calls; where _native.py's module reads it, too

DTYPES = ("f32", "bf16", "f16", "e4m3")  # in the order of verbatim_dtype


def _load() -> ctypes.CDLL:
    """The library beside this file, or the one that VERBATIM_LIBRARY names."""
    beside = Path(__file__).with_name("libverbatim_c.so")
    try:
        return ctypes.CDLL(os.environ.get("VERBATIM_LIBRARY", str(beside)))
    except OSError as error:
        raise ImportError(
            f"[verbatim_attn] the library cannot be loaded; got {error}, expected libverbatim_c.so "
            "beside the package (nearest: pip install ., or VERBATIM_LIBRARY=build/libverbatim_c.so)"
        ) from None


def _function(name: str, *arguments: type) -> Callable[..., int]:
    function = getattr(_library, name)
    function.argtypes = arguments
    return function


_library = _load()
last_error = _library.verbatim_last_error
last_error.restype = ctypes.c_char_p

_text, _int = ctypes.c_char_p, ctypes.c_int64
_text_out = ctypes.POINTER(ctypes.c_char_p)
_sizes = (_int, _int, _int)

create = _function("verbatim_attention_create", _text, ctypes.POINTER(ctypes.c_void_p))
destroy = _function("verbatim_attention_destroy", ctypes.c_void_p)
destroy.restype = None  # type: ignore[attr-defined]
forward = _function("verbatim_attention_forward", ctypes.c_void_p, _text, _text)
backward = _function("verbatim_attention_backward", ctypes.c_void_p, _text, _text)
workspace = _function(
    "verbatim_attention_workspace", ctypes.c_void_p, ctypes.c_int, _text, ctypes.POINTER(_int)
)
bytes_of = _function("verbatim_attention_bytes", ctypes.c_void_p, ctypes.POINTER(_int))
# Of verbatim_transport: user, rank, message, address and size to the address of a text, or NULL.
MOVE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, _int, ctypes.c_void_p, _int
)


# Of verbatim_transport's room: user and size to an address, or NULL.
ROOM = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, _int)


# Of verbatim_transport's settle: user to the address of a text, or NULL.
SETTLE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class Transport(ctypes.Structure):
    _fields_ = (
        ("user", ctypes.c_void_p),
        ("room", ROOM),
        ("send", MOVE),
        ("receive", MOVE),
        ("on_device", ctypes.c_int32),
        ("settle", SETTLE),
    )


dist_create = _function(
    "verbatim_dist_create", _text, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(Transport),
    ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip
peers_open = _function(
    "verbatim_peers_open", _text, ctypes.c_int32, ctypes.c_int32, _text, ctypes.c_double,
    ctypes.c_double, ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip
peers_close = _function("verbatim_peers_close", ctypes.c_void_p)
peers_close.restype = None  # type: ignore[attr-defined]
dist_create_over_peers = _function(
    "verbatim_dist_create_over_peers", _text, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
)
dist_destroy = _function("verbatim_dist_destroy", ctypes.c_void_p)
dist_destroy.restype = None  # type: ignore[attr-defined]
dist_forward = _function("verbatim_dist_forward", ctypes.c_void_p, _text, _text)
dist_backward = _function("verbatim_dist_backward", ctypes.c_void_p, _text, _text)
_dist_record = _function("verbatim_dist_record", ctypes.c_void_p, _text)
_dist_recorded = _function("verbatim_dist_recorded", ctypes.c_void_p, _text_out)
_dist_describe = _function("verbatim_dist_describe", ctypes.c_void_p, _text_out)
_check_waits = _function("verbatim_check", _text)
_plan = _function("verbatim_attention_plan", ctypes.c_void_p, ctypes.c_int, _text_out)
_describe = _function("verbatim_attention_describe", ctypes.c_void_p, _text_out)
_info = _function("verbatim_info", _text_out)
_mask_json = _function("verbatim_mask_json", _text, *_sizes, _text_out)
_mask_mod = _function("verbatim_mask_mod", _text, *_sizes, _text_out)
_mask_to_dense = _function("verbatim_mask_to_dense", _text, _int, *_sizes, ctypes.c_void_p)
_mask_area = _function("verbatim_mask_area", _text, _int, _int, *_sizes, ctypes.POINTER(_int))
_mask_from_dense = _function("verbatim_mask_from_dense", ctypes.c_void_p, _int, *_sizes, _text_out)
_mask_from_rows = _function(
    "verbatim_mask_from_rows", *[ctypes.c_void_p] * 3, _int, _int, *_sizes, _text_out
)
_mask_from_blocks = _function("verbatim_mask_from_blocks", _text, _text_out)
_mask_release = _function("verbatim_mask_release", _text)
selected_create = _function("verbatim_selected_create", _text, ctypes.POINTER(ctypes.c_void_p))
selected_destroy = _function("verbatim_selected_destroy", ctypes.c_void_p)
selected_destroy.restype = None  # type: ignore[attr-defined]
selected_forward = _function("verbatim_selected_forward", ctypes.c_void_p, _text, _text, _text)
_selected_describe = _function("verbatim_selected_describe", ctypes.c_void_p, _text_out)
_tl_check = _function("verbatim_tl_check", _text, _text, _text_out)
_tl_fix = _function("verbatim_tl_fix", _text, _text, _text_out)
_tl_reason = _function("verbatim_tl_reason", _text, _text, _text_out)
_tl_format = _function("verbatim_tl_format", _text, _text_out)
_tl_emit = _function("verbatim_tl_emit", _text, _text, _text_out)
_tl_build = _function("verbatim_tl_build", _text, _text, _text, _text_out)


def _fail(status: int) -> NoReturn:
    raise _EXCEPTIONS[status - 1](last_error().decode())


def check(status: int) -> None:
    if status:
        _fail(status)


def _answer(function: Callable[..., int], *arguments: Any) -> str:
    text = ctypes.c_char_p()
    check(function(*arguments, ctypes.byref(text)))
    assert text.value is not None
    return text.value.decode()


def info() -> dict[str, Any]:
    return json.loads(_answer(_info))


def check_waits(device: str) -> None:
    check(_check_waits(device.encode()))


def plan_of(handle: ctypes.c_void_p, number: int) -> dict[str, Any]:
    """Of the forward, 0, or the backward, 1."""
    return json.loads(_answer(_plan, handle, number))


def describe(handle: ctypes.c_void_p) -> dict[str, Any]:
    return json.loads(_answer(_describe, handle))


def dist_record(handle: ctypes.c_void_p, stream: int) -> None:
    check(_dist_record(handle, RUN.pack(stream, 0, 0, 0, 0, 0, 0)))


def dist_recorded(handle: ctypes.c_void_p) -> list[dict[str, Any]]:
    return json.loads(_answer(_dist_recorded, handle))


def dist_describe(handle: ctypes.c_void_p) -> dict[str, Any]:
    return json.loads(_answer(_dist_describe, handle))


def selected_describe(handle: ctypes.c_void_p) -> dict[str, Any]:
    return json.loads(_answer(_selected_describe, handle))


def mask_json(spec: str, q_len: int, kv_len: int, kv_heads: int) -> str:
    return _answer(_mask_json, spec.encode(), q_len, kv_len, kv_heads)


def mask_mod(spec: str, q_len: int, kv_len: int, kv_heads: int) -> str:
    return _answer(_mask_mod, spec.encode(), q_len, kv_len, kv_heads)


def mask_to_dense(
    spec: str, batch: int, kv_heads: int, q_len: int, kv_len: int, address: int
) -> None:
    check(_mask_to_dense(spec.encode(), batch, kv_heads, q_len, kv_len, address))


def mask_area(spec: str, batch: int, q_heads: int, kv_heads: int, q_len: int, kv_len: int) -> int:
    area = ctypes.c_int64()
    check(_mask_area(spec.encode(), batch, q_heads, kv_heads, q_len, kv_len, ctypes.byref(area)))
    return area.value


def mask_from_dense(address: int, batch: int, kv_heads: int, q_len: int, kv_len: int) -> str:
    return _answer(_mask_from_dense, address, batch, kv_heads, q_len, kv_len)


def mask_from_rows(
    row_begin: np.ndarray, begins: np.ndarray, ends: np.ndarray, heads: tuple[int, int], kv_len: int
) -> str:
    """row_begin: int64 (batch * kv_heads * q_len + 1), begins and ends: int32, `heads`: batch and
    kv_heads."""
    batch, kv_heads = heads
    q_len = (row_begin.size - 1) // (batch * kv_heads)
    addresses = (x.ctypes.data for x in (row_begin, begins, ends))
    return _answer(_mask_from_rows, *addresses, begins.size, batch, kv_heads, q_len, kv_len)


def mask_from_blocks(
    row_begin: np.ndarray,
    columns: np.ndarray,
    block: tuple[int, int],
    lengths: tuple[int, int],
    edges: tuple[np.ndarray, ...] | None,
) -> str:
    """row_begin: int64 (batch, kv_heads, q_blocks + 1), columns: int32, edges: int64."""
    batch, kv_heads = row_begin.shape[:2]
    addresses = (0, 0) if edges is None else tuple(axis.ctypes.data for axis in edges)
    counts = (0, 0) if edges is None else tuple(axis.size - 1 for axis in edges)
    blocks = _BLOCKS.pack(
        *lengths, *block, *addresses, *counts, batch, kv_heads,
        row_begin.ctypes.data, row_begin.size, columns.ctypes.data, columns.size,
    )  # fmt: skip
    return _answer(_mask_from_blocks, blocks)


def mask_release(spec: str) -> None:
    check(_mask_release(spec.encode()))


def tl_check(program: bytes, options: str) -> list[dict[str, Any]]:
    return json.loads(_answer(_tl_check, program, options.encode()))


def tl_fix(program: bytes, options: str) -> str:
    return _answer(_tl_fix, program, options.encode())


def tl_reason(sketch: bytes, spec: str) -> str:
    return _answer(_tl_reason, sketch, spec.encode())


def tl_format(program: bytes) -> str:
    return _answer(_tl_format, program)


def tl_emit(program: bytes, options: str) -> dict[str, str]:
    return json.loads(_answer(_tl_emit, program, options.encode()))


def tl_build(program: bytes, folder: bytes, options: str) -> str:
    return _answer(_tl_build, program, folder, options.encode())
