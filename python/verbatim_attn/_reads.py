"""Tensors on a GPU whose values the host needs, each read once: reading waits for the GPU.

What was read is kept by the tensor's memory and PyTorch's version of it, which every write through
PyTorch changes. All layers of a training step, and its backward, so share one read.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from operator import index
from typing import Any

# By storage, while it lives: its version, and what was read of that by function and layout.
_known: weakref.WeakKeyDictionary[Any, tuple[int, dict[Any, Any]]] = weakref.WeakKeyDictionary()


def _is_remote(x: Any) -> bool:
    return hasattr(x, "untyped_storage") and x.device.type != "cpu" and not x.is_inference()


def _found(x: Any) -> dict[Any, Any]:
    storage, version = x.untyped_storage(), x._version
    known = _known.get(storage)
    if known is None or known[0] != version:
        known = _known[storage] = (version, {})
    return known[1]


def _key(read: Any, x: Any, *arguments: Any) -> Any:
    return read, x.storage_offset(), x.shape, x.stride(), x.dtype, x.is_neg(), arguments


def read_once(read: Callable[..., Any], x: Any, *arguments: Any) -> Any:
    """read(x, *arguments), or what it returned for the same values of a tensor on a GPU."""
    if not _is_remote(x):
        return read(x, *arguments)
    found, key = _found(x), _key(read, x, *arguments)
    if key not in found:
        found[key] = read(x, *arguments)
    return found[key]


def numbers_of(x: Any) -> Any:
    """x.tolist(), read once."""
    return read_once(_to_list, x)


def _to_list(x: Any) -> Any:
    return x.tolist()


def read_together(*vectors: Any) -> None:
    """Reads at once what numbers_of() would read in turn, where all are vectors on one GPU."""
    missing: list[Any] = []
    for x in vectors:
        if _is_remote(x) and _key(_to_list, x) not in _found(x):
            missing += [] if any(x is other for other in missing) else [x]
    if len(missing) < 2 or any(x.dim() != 1 or x.device != missing[0].device for x in missing):
        return
    import torch

    numbers = torch.cat(missing).tolist()
    for x in missing:
        _found(x)[_key(_to_list, x)], numbers = numbers[: len(x)], numbers[len(x) :]


def plain(value: Any) -> Any:
    """Lists, arrays and tensors as nested tuples of Python numbers."""
    if isinstance(value, int) and not isinstance(value, bool):
        return index(value)  # torch.compile may have a symbol in its place
    if hasattr(value, "tolist"):
        value = numbers_of(value)
    is_list = isinstance(value, Iterable) and not isinstance(value, (str, Mapping, Set))
    return tuple(map(plain, value)) if is_list else value


def one_each(name: str, lengths: Any) -> None:
    """Refuses an array of lengths that is no vector."""
    if getattr(lengths, "ndim", 1) != 1:
        raise ValueError(
            f"[mask] {name} is one number an entry; got shape {list(lengths.shape)}, expected "
            "(batch,) (nearest: of a mask that is 1 where tokens are, mask.sum(1))"
        )
