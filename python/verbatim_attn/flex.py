"""Masks from FlexAttention's; the other way is Mask.to_mask_mod() and Mask.to_block_mask()."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import _library
from ._planes import check_groups, different_masks, of_kv_heads
from ._untraced import untraced
from .blocks import from_block_map
from .masks import Explicit, from_dense

_POSITIONS = 1 << 24  # of partial blocks, looked at together


@untraced
def from_block_mask(block_mask: Any, *, group: int = 1) -> Explicit:
    """The positions that flex_attention shows under `block_mask`: those of its full blocks, and in
    its partial blocks what mask_mod says, which is asked about these alone. `group` query heads
    share a KV head and must share its mask. A mask on a GPU is waited for. Without partial blocks,
    or without a mask_mod, it goes block by block, as from_block_map()."""
    from torch.nn.attention.flex_attention import BlockMask, noop_mask

    if not isinstance(block_mask, BlockMask):
        raise ValueError(
            f"[masks.from_block_mask] no mask of FlexAttention; got {type(block_mask).__name__}, "
            "expected a BlockMask (nearest: masks.from_dense(visible), of which True is seen)"
        )
    q_len, kv_len = block_mask.seq_lengths
    size = block_mask.BLOCK_SIZE
    columns = -(-kv_len // size[1])
    shows_all = block_mask.mask_mod is noop_mask
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, columns)
    full = partial & shows_all
    if block_mask.full_kv_indices is not None:
        full = full | _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
    partial &= ~full
    if not partial.any():
        blocks = of_kv_heads(full, group)
        return from_block_map(blocks, block=size, lengths=(q_len, kv_len))

    heads = block_mask.shape[1]
    edges = [_edges_of_full(full.cpu().numpy(), size, q_len, kv_len)]
    for blocks, shown in _shown(block_mask.mask_mod, partial, size, q_len, kv_len):
        edges.append(_edges_of_partial(blocks, shown, size, heads, q_len, kv_len))
    begins, ends = (np.concatenate(side) for side in zip(*edges, strict=True))
    # Where one interval ends and another begins they are one.
    begins, ends = np.setdiff1d(begins, ends), np.setdiff1d(ends, begins)
    row = begins // (kv_len + 1)
    counts = np.bincount(row, minlength=block_mask.shape[0] * heads * q_len)
    keys = np.stack([begins, ends]) - row * (kv_len + 1)
    return _of_rows(counts.reshape(-1, heads, q_len), keys.astype(np.int32), kv_len, group)


def _of_rows(counts: np.ndarray, keys: np.ndarray, kv_len: int, group: int) -> Explicit:
    """counts: (batch, heads, q_len) intervals of every row. keys: (2, intervals) begins and ends."""
    batch, heads, q_len = counts.shape
    share = 1 if heads == 1 else group
    if share != 1:
        check_groups(heads, share)
        of_head = np.split(keys, counts.sum(-1).cumsum()[:-1], axis=1)
        flat = counts.reshape(batch * heads, q_len)
        same = all(
            np.array_equal(each[x], each[x - x % share])
            for each in (flat, of_head)
            for x in range(batch * heads)
        )
        if not same:
            raise different_masks(heads, group)
        counts = counts[:, ::share]
        keys = np.concatenate(of_head[::share], axis=1)
    row_begin = np.append(0, counts.cumsum()).astype(np.int64)
    begins, ends = np.ascontiguousarray(keys)
    return Explicit(_library.mask_from_rows(row_begin, begins, ends, counts.shape[:2], kv_len))


# Below, a begin or an end is a key behind all rows before: kv_len + 1 numbers a row, heads in turn.
Edges = tuple[np.ndarray, np.ndarray]


def _edges_of_full(full: np.ndarray, size: tuple[int, int], q_len: int, kv_len: int) -> Edges:
    """Of every row of what is full, (batch, heads, q_blocks, k_blocks)."""
    steps = np.diff(full.reshape(-1, *full.shape[2:]).astype(np.int8), prepend=0, append=0)
    head, block, begin = np.nonzero(steps == 1)
    end = np.nonzero(steps == -1)[2]
    row = block[:, None] * size[0] + np.arange(size[0])  # (intervals, rows of a block)
    first = (head[:, None] * q_len + row) * (kv_len + 1)
    begins, ends = (first + np.minimum(at * size[1], kv_len)[:, None] for at in (begin, end))
    return begins[row < q_len], ends[row < q_len]


def _edges_of_partial(
    blocks: np.ndarray,
    shown: np.ndarray,
    size: tuple[int, int],
    heads: int,
    q_len: int,
    kv_len: int,
) -> Edges:
    """blocks: (n, 4) batch entry, head, row and column of blocks. shown: (n, queries, keys)."""
    steps = np.diff(shown.astype(np.int8), prepend=0, append=0)
    at, query, begin = np.nonzero(steps == 1)
    end = np.nonzero(steps == -1)[2]
    entry, head, row, column = blocks[at].T
    of_row = (entry * heads + head) * q_len + row * size[0] + query
    first = of_row * (kv_len + 1) + column * size[1]
    return first + begin, first + end


def _shown(
    mask_mod: Any, partial: Any, size: tuple[int, int], q_len: int, kv_len: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What mask_mod shows of the blocks of a map, some at a time, as _edges_of_partial() has it."""
    from torch.nn.attention.flex_attention import create_mask

    device = partial.device
    for blocks in partial.nonzero().split(max(_POSITIONS // (size[0] * size[1]), 1)):
        entry, head, row, column = blocks.unbind(1)

        def of_block(n: Any, _: Any, q: Any, k: Any, of: Any = (entry, head, row, column)) -> Any:
            entry, head, row, column = (each[n] for each in of)
            q, k = row * size[0] + q, column * size[1] + k
            inside = (q < q_len) & (k < kv_len)
            q, k = q.clamp(max=q_len - 1), k.clamp(max=kv_len - 1)  # of what mask_mod reads
            return mask_mod(entry, head, q, k) & inside

        shown = create_mask(of_block, len(blocks), 1, *size, device=device)
        yield blocks.cpu().numpy(), shown[:, 0].cpu().numpy()


def _listed(counts: Any, indices: Any, columns: int) -> Any:
    """The blocks of lists, `counts` of each row in use, as a map: bool (batch, heads, rows,
    columns)."""
    import torch

    device = indices.device
    unused = torch.arange(indices.shape[-1], device=device) >= counts[..., None]
    blocks = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=device)
    blocks.scatter_(-1, indices.long().masked_fill(unused, columns), True)
    return blocks[..., :-1]


@untraced
def from_mask_mod(
    mask_mod: Callable[[Any, Any, Any, Any], Any],
    q_len: int,
    kv_len: int | None = None,
    *,
    batch: int = 1,
    q_heads: int = 1,
    group: int = 1,
    device: Any = "cpu",
) -> Explicit:
    """The positions that FlexAttention's mask_mod(b, h, q_idx, kv_idx), h a query head, shows; its
    own tensors lie on `device`. `group` query heads share a KV head and must share its mask."""
    from torch.nn.attention.flex_attention import create_mask

    kv_len = q_len if kv_len is None else kv_len
    visible = create_mask(mask_mod, batch, q_heads, q_len, kv_len, device=device)
    return from_dense(of_kv_heads(visible, group).cpu().numpy())
