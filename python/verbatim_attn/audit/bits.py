"""The bits of NumPy arrays and PyTorch tensors: equal or not, their hash, how far apart they are."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Difference:
    """How one tensor of one run differs from what was expected, bit by bit."""

    tensor: str
    elements: int
    differing: int  # elements of other bits: NaNs of equal bits are equal, +0 and -0 are not
    max_abs: float | None  # None: a NaN, an infinity or another shape is among them
    max_ulps: int | None  # in units of the dtype's last place; None: a NaN, or no floating point
    worst: list[int]  # index of the largest absolute difference; empty: another shape
    got: str  # there
    expected: str
    sha256: str  # of the whole tensor that differs


def torch_of(x: Any) -> Any:
    """The module torch when x is a tensor, else None; never imports it."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else None


def as_result(name: str, x: Any) -> Any:
    """x as a tensor without a graph or a NumPy array of real numbers. Raises TypeError."""
    if torch := torch_of(x):
        bad, x = x.is_complex() or x.layout != torch.strided, x.detach().resolve_neg()
    else:
        x = np.asarray(x)
        bad = x.dtype.kind in "OSUMmc" or x.dtype.itemsize not in (1, 2, 4, 8)
    if bad:
        raise TypeError(
            f"[audit] {name} holds no plain real numbers; got {x.dtype}, expected dense arrays or "
            "tensors of at most 64 bits an element (nearest: real and imaginary parts)"
        )
    return x


def copied(x: Any) -> Any:
    return x.clone() if torch_of(x) else x.copy()


def on_host(x: Any) -> Any:
    return x.cpu() if torch_of(x) else x


def _bytes(x: Any) -> Any:
    """Row-major and one-dimensional, where x lies."""
    if torch := torch_of(x):
        return x.contiguous().reshape(-1).view(torch.uint8)
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def same(a: Any, b: Any) -> bool:
    """Whether a and b have one shape, one dtype and the same bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    torch = torch_of(a)
    return (torch.equal if torch else np.array_equal)(_bytes(a), _bytes(b))


def sha256(x: Any) -> str:
    """Of the elements in row-major order, as the tool and docs/schema.md hash them."""
    return hashlib.sha256(np.asarray(on_host(_bytes(x))).data).hexdigest()


def _values(x: Any) -> np.ndarray:
    x = x.double().numpy() if torch_of(x) else x.astype(np.float64)
    return x.reshape(-1)


def is_floating(x: Any) -> bool:
    # Extensions such as bfloat16 are of kind V.
    return x.is_floating_point() if torch_of(x) else x.dtype.kind in "fV"


def _ulps(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Steps between floats given as signed words: sign and magnitude, in any width."""
    largest = np.iinfo(a.dtype).max

    def ordered(words: np.ndarray) -> np.ndarray:
        magnitude = (words & largest).astype(np.int64)
        return np.where(words < 0, -magnitude, magnitude)

    a, b = ordered(a), ordered(b)
    # Modulo 2^64, which the distance never reaches.
    return np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)


def difference(name: str, got: Any, expected: Any) -> Difference:
    """What to say about two results of which same() is false."""
    got, expected = on_host(got), on_host(expected)
    size = int(np.prod(got.shape))
    if got.shape != expected.shape or got.dtype != expected.dtype:
        was, should = (f"{x.dtype} {list(x.shape)}" for x in (got, expected))
        return Difference(name, size, size, None, None, [], was, should, sha256(got))
    width = f"i{got.dtype.itemsize}"
    a, b = (np.asarray(_bytes(x)).view(width) for x in (got, expected))
    apart = np.flatnonzero(a != b)
    x, y = _values(got)[apart], _values(expected)[apart]
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(x - y)
    finite = bool(np.isfinite(distance).all())
    known = is_floating(got) and not np.isnan(x).any() and not np.isnan(y).any()
    at = int(np.argmax(np.where(np.isnan(distance), np.inf, distance)))
    return Difference(
        name,
        size,
        len(apart),
        float(distance[at]) if finite else None,
        int(_ulps(a[apart], b[apart]).max()) if known else None,
        [int(i) for i in np.unravel_index(apart[at], tuple(got.shape))],
        repr(float(x[at])),
        repr(float(y[at])),
        sha256(got),
    )
