"""Block-sparse masks from arrays: lists of blocks, or maps of them, as kernels and models have them.

The arrays go to the library as they are and are copied there; equal ones are found again by their
SHA-256, with the plans made for them. Tensors on a GPU are waited for.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import index
from typing import Any, NamedTuple

import numpy as np

from . import _library
from ._planes import host
from ._reads import plain, read_once
from ._untraced import untraced
from .masks import Explicit

Pair = tuple[Any, Any]


class _Owner:
    """Ends with the last mask that has it: a mask, and masks made of it. Holds what that was made of,
    for other processes."""

    def __init__(self, spec: str, *made_of: Any) -> None:
        self.made_of = made_of
        weakref.finalize(self, _library.mask_release, spec).atexit = False


@dataclass(frozen=True)
class BlockLists(Explicit):
    """A mask that the library keeps while its owner lives."""

    owner: _Owner = field(repr=False, compare=False)

    def __copy__(self) -> BlockLists:
        return self

    def __deepcopy__(self, _memo: Any) -> BlockLists:
        return self

    def __reduce__(self) -> Any:
        return _kept, self.owner.made_of


@untraced
def from_block_lists(
    row_begin: Any,
    columns: Any,
    *,
    block: Pair | None = None,
    lengths: Pair | None = None,
    edges: Pair | None = None,
) -> Explicit:
    """Queries of row r of blocks see the key blocks columns[row_begin[r]] to columns[row_begin[r +
    1] - 1], in any sequence, each once (compressed sparse rows).

    row_begin: (q_blocks + 1), (kv_heads, q_blocks + 1) or (batch, kv_heads, q_blocks + 1); without
    a dimension, or with 1, one list serves all. Lists lie in `columns` one behind another. Blocks
    are `block` = (queries, keys) of `lengths` = (q_len, kv_len), or lie between `edges` =
    (q_edges, k_edges), which run from 0 to the lengths."""
    begin = _integers("row_begin", row_begin, np.int64)
    flat = _integers("columns", columns, np.int32)
    if not 1 <= begin.ndim <= 3 or flat.ndim != 1 or not begin.size:
        raise ValueError(
            "[masks.from_block_lists] wrong shapes; got row_begin of "
            f"{list(begin.shape)} and columns of {list(flat.shape)}, expected row_begin of 1 to 3 "
            "dimensions (batch, kv_heads, q_blocks + 1) and columns of 1"
        )
    begin = begin.reshape((1,) * (3 - begin.ndim) + begin.shape)
    _check_that_lists_follow(begin, flat.size)
    return _kept(begin, flat, _grid(block, lengths, edges))


@untraced
def from_block_map(
    selected: Any,
    *,
    block: Pair | None = None,
    lengths: Pair | None = None,
    edges: Pair | None = None,
) -> Explicit:
    """Blocks by a map of what is not 0: (q_blocks, k_blocks), (kv_heads, ...) or (batch, kv_heads,
    ...); the rest as from_block_lists()."""
    return read_once(_from_map, selected, *map(plain, (block, lengths, edges)))


def _from_map(selected: Any, block: Pair | None, lengths: Pair | None, edges: Pair | None) -> Any:
    plane = host(selected) != 0
    if not 2 <= plane.ndim <= 4:
        raise ValueError(
            f"[masks.from_block_map] wrong number of dimensions; got {plane.ndim}, expected "
            "(batch, kv_heads, q_blocks, k_blocks), the first two optional"
        )
    plane = plane.reshape((1,) * (4 - plane.ndim) + plane.shape)
    grid = _grid(block, lengths, edges)
    q_blocks, k_blocks = grid.blocks()
    if plane.shape[2:] != (q_blocks, k_blocks):
        raise ValueError(
            f"[masks.from_block_map] the map is of another grid; got {plane.shape[2]} x "
            f"{plane.shape[3]} blocks, expected {q_blocks} x {k_blocks}"
        )
    batch, heads = plane.shape[:2]
    ends = np.count_nonzero(plane, -1).cumsum().reshape(batch, heads, q_blocks)
    begin = np.zeros((batch, heads, q_blocks + 1), np.int64)
    begin[..., 1:] = ends
    begin[..., 0] = np.append(0, begin[..., -1].ravel()[:-1]).reshape(batch, heads)
    columns = (np.flatnonzero(plane) % k_blocks).astype(np.int32)
    return _kept(begin, columns, grid)


def _integers(name: str, x: Any, dtype: type) -> np.ndarray:
    found = host(x)
    if found.size and found.dtype.kind not in "iu":
        raise ValueError(
            f"[masks.from_block_lists] {name} must be integers; got {found.dtype}, expected "
            f"{np.dtype(dtype)} (nearest: {name}.astype(np.{np.dtype(dtype)}))"
        )
    bounds = np.iinfo(dtype)
    if found.size and not bounds.min <= found.min() <= found.max() <= bounds.max:
        raise ValueError(
            f"[masks.from_block_lists] {name} is out of range; got {found.min()} to "
            f"{found.max()}, expected numbers of {bounds.bits} bits"
        )
    return np.array(found, dtype, order="C")  # the caller's may change


def _check_that_lists_follow(begin: np.ndarray, columns: int) -> None:
    starts, ends = begin[..., 0].ravel(), begin[..., -1].ravel()
    expected = np.append(0, ends[:-1])
    if (starts != expected).any():
        at = int((starts != expected).argmax())
        batch, head = divmod(at, begin.shape[1])
        raise ValueError(
            "[masks.from_block_lists] lists lie in columns one behind another; got row_begin of "
            f"batch entry {batch}, KV head {head}, row 0: {starts[at]}, expected {expected[at]}"
        )
    if ends[-1] != columns:
        raise ValueError(
            f"[masks.from_block_lists] the rows do not end with columns; got {ends[-1]}, expected "
            f"{columns}, its length"
        )


class _Grid(NamedTuple):
    """Where blocks end."""

    block: tuple[int, int]
    lengths: tuple[int, int]
    edges: tuple[np.ndarray, np.ndarray] | None  # int64; None: of equal blocks

    def blocks(self) -> tuple[int, ...]:
        """Of both axes."""
        if self.edges is not None:
            return tuple(axis.size - 1 for axis in self.edges)
        sizes = zip(self.lengths, self.block, strict=True)
        return tuple(-(-length // max(size, 1)) for length, size in sizes)


def _grid(block: Pair | None, lengths: Pair | None, edges: Pair | None) -> _Grid:
    if (edges is None) == (block is None or lengths is None):
        raise ValueError(
            "[masks] blocks have a size, or edges; got "
            f"block={block}, lengths={lengths}, edges={'none' if edges is None else 'given'}, "
            "expected block= and lengths=, or edges= (nearest: block=(64, 64), "
            "lengths=(q_len, kv_len))"
        )
    if edges is not None:
        return _Grid((0, 0), (0, 0), _pair("edges", edges, _edges, "two lists from 0 to a length"))
    expected = "two integers"
    return _Grid(
        _pair("block", block, index, expected), _pair("lengths", lengths, index, expected), None
    )


def _edges(axis: Any) -> np.ndarray:
    return _integers("edges", axis, np.int64).reshape(-1)


def _pair(name: str, given: Any, each: Callable[[Any], Any], expected: str) -> Any:
    try:
        found = tuple(map(each, given))
    except TypeError:
        found = ()
    if len(found) != 2:
        raise ValueError(
            f"[masks] {name} is a pair, of queries and of keys; got {given}, expected {expected}"
        )
    return found


def _kept(begin: np.ndarray, columns: np.ndarray, grid: _Grid) -> BlockLists:
    spec = _library.mask_from_blocks(begin, columns, *grid)
    return BlockLists(spec, _Owner(spec, begin, columns, grid))
