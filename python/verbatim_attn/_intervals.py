"""The visible positions of each row of a mask, as intervals, from its slices (docs/masks.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .masks import Mask, UniformBlockSparse, VariableBlockSparse


def most_of(slices: Sequence[Any], q_len: int) -> int:
    """Slices that share a row."""
    steps = np.zeros(q_len + 1, np.int64)
    for begin, end, *_ in slices:
        steps[begin] += 1
        steps[end] -= 1
    return int(steps.cumsum().max())


def merged(slices: Sequence[Any], q_len: int, kv_len: int) -> tuple[np.ndarray, np.ndarray]:
    """Begins and ends, both (intervals, q_len), of every row's visible keys: the first interval
    begins at key 0 and may be empty, the others follow it with gaps between."""
    begins = np.full((most_of(slices, q_len) + 1, q_len), kv_len, np.int32)
    ends = begins.copy()
    begins[0] = ends[0] = 0
    every, last = np.arange(q_len), np.zeros(q_len, np.int64)
    for q0, q1, k0, k1, low, high in slices:
        q = every[q0:q1]
        begin = np.full(len(q), k0) if low is None else np.maximum(k0, q + low)
        end = np.full(len(q), k1) if high is None else np.minimum(k1, q + high + 1)
        shown = begin < end
        q = q[shown]
        last[q] += 1
        begins[last[q], q], ends[last[q], q] = begin[shown], end[shown]
    order = np.lexsort((ends, begins), axis=0)  # the empty one stands before another at key 0
    begins, ends = (np.take_along_axis(x, order, 0) for x in (begins, ends))
    last[:] = 0
    for begin, end in zip(begins[1:].copy(), ends[1:].copy(), strict=True):
        shown = begin < end
        apart = shown & (begin > ends[last, every])
        last += apart
        begins[last[apart], every[apart]] = begin[apart]
        ends[last[shown], every[shown]] = end[shown]
    used = np.arange(len(begins))[:, None] <= last
    count = int(last.max()) + 1
    return np.where(used, begins, kv_len)[:count], np.where(used, ends, kv_len)[:count]


def turned(slices: Iterable[Any]) -> list[Any]:
    """Of the mask in which queries and keys have changed places."""
    return [[k0, k1, q0, q1, None if high is None else -high, None if low is None else -low]
            for q0, q1, k0, k1, low, high in slices]  # fmt: skip


class Blocks(NamedTuple):
    """What a block-sparse mask shows."""

    shown: np.ndarray  # bool (KV heads, q_blocks, k_blocks)
    q_sizes: np.ndarray  # positions of every block
    k_sizes: np.ndarray


def blocks_of(mask: Mask, q_len: int, kv_len: int, kv_heads: int) -> Blocks | None:
    """Of a block-sparse mask. Which blocks are visible is the mask's choice for blocks of one
    position on a plane of as many positions."""
    if isinstance(mask, UniformBlockSparse):
        edges = (
            np.append(np.arange(0, q_len, mask.block_q), q_len),
            np.append(np.arange(0, kv_len, mask.block_k), kv_len),
        )
    elif isinstance(mask, VariableBlockSparse):
        edges = np.array(mask.q_edges), np.array(mask.k_edges)
    else:
        return None
    small = UniformBlockSparse(1, 1, density=mask.density, seed=mask.seed, blocks=mask.blocks)
    grid = (len(axis) - 1 for axis in edges)
    return Blocks(small.dense(*grid, kv_heads=kv_heads)[0], *map(np.diff, edges))
