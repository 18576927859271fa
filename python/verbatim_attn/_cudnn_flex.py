"""Masks as cudnn.flex_attention takes them, for the benchmark and the auditor."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from ._intervals import Blocks, blocks_of, merged, most_of
from .masks import Mask

Shape = tuple[int, ...]


def lacks(head_dim: int, head_dim_v: int, dtype: str) -> str | None:
    """None, or what its documentation does not offer ("f32", "bf16" or "f16")."""
    if dtype == "f32":
        return "takes bf16 and f16 only"
    by_eight = all(8 <= dim <= 128 and dim % 8 == 0 for dim in (head_dim, head_dim_v))
    if by_eight or (head_dim, head_dim_v) in ((192, 128), (256, 256)):
        return None
    return "takes head dims of 8 to 128 by 8, 192 with 128 of V, and 256"


def endpoints(mask: Mask, q_len: int, kv_len: int, *, kv_heads: int = 1) -> np.ndarray:
    """Each query sees the keys [0, F0) + [F1, F2) + [F3, F4) + ...: int32 F of (heads, an odd
    number, batch * q_len), with one head and one batch entry where all share a mask. Rows of fewer
    intervals end in empty ones."""
    if blocks := blocks_of(mask, q_len, kv_len, kv_heads):  # as JSON they would take minutes
        return np.repeat(_of_blocks(blocks), blocks.q_sizes, axis=2)
    described = json.loads(mask.to_json(q_len, kv_len, kv_heads=kv_heads))
    rows = [merged(variant["slices"], q_len, kv_len) for variant in described["variants"]]
    count = max(len(begins) for begins, _ in rows)
    variants = []
    for begins, ends in rows:
        both = np.full((2 * count, q_len), kv_len, np.int32)
        both[0 : 2 * len(begins) : 2], both[1 : 2 * len(ends) : 2] = begins, ends
        variants.append(both[1:])  # every row begins with an interval at key 0
    of = np.array(described["variant_of"]).reshape(described["batch"], described["kv_heads"])
    found = [np.concatenate([variants[i] for i in entries], axis=1) for entries in of.T]
    return np.ascontiguousarray(np.stack(found))


def _most_intervals(shown: np.ndarray) -> int:
    """Of a row of blocks: that at key 0, which may be empty, and those behind a hidden block."""
    return 1 + int((shown[..., 1:] & ~shown[..., :-1]).sum(-1).max(initial=0))


def _of_blocks(blocks: Blocks) -> np.ndarray:
    """endpoints() of (heads, an odd number, q_blocks)."""
    shown = blocks.shown
    edges = np.append(0, blocks.k_sizes.cumsum()).astype(np.int32)
    before, after = (np.zeros_like(shown) for _ in range(2))
    before[..., 1:], after[..., :-1] = shown[..., :-1], shown[..., 1:]
    begins, ends = shown & ~before, shown & ~after
    # A row's first interval begins at key 0: an empty one where its first block is hidden.
    interval = begins.cumsum(-1, dtype=np.int32) - shown[..., :1]
    count = 2 * _most_intervals(shown)
    found = np.full((len(shown), count, shown.shape[1]), edges[-1], np.int32)
    found[:, 0] = 0
    found[:, 1] = np.where(shown[..., 0], found[:, 1], 0)
    for which, at, offset in ((begins, 0, 0), (ends, 1, 1)):
        head, row, column = which.nonzero()
        found[head, 2 * interval[which] + at, row] = edges[column + offset]
    return found[:, 1:]


def endpoint_bytes(
    mask: Mask, q_len: int, kv_len: int, *, batch: int, kv_heads: int, group: int
) -> int:
    """At most, on a device, where a mask that differs by head is one of each query head."""
    if blocks := blocks_of(mask, q_len, kv_len, kv_heads):
        heads, most = kv_heads, _most_intervals(blocks.shown) - 1  # behind the first
    else:
        described = json.loads(mask.to_json(q_len, kv_len, kv_heads=kv_heads))
        heads = described["kv_heads"]
        most = max(most_of(variant["slices"], q_len) for variant in described["variants"])
    return 4 * (heads * group if heads > 1 else 1) * (2 * most + 1) * batch * q_len


def plan(
    mask: Mask, shapes: tuple[Shape, Shape, Shape], dtype: Any, device: Any,
    doc_lengths: Sequence[int] = (),
) -> Any:  # fmt: skip
    """The MaskPlan, with a backward, for q, k and v of these shapes: (batch, length, heads, dim)
    under `mask`; with documents (tokens, heads, dim), `mask` inside each."""
    import torch
    from cudnn import create_mask_plan

    (*_, q_heads, _), (*_, kv_heads, _), _ = shapes
    sequences: dict[str, Any] = {}
    if doc_lengths:
        alone = {n: endpoints(mask, n, n, kv_heads=kv_heads) for n in set(doc_lengths)}
        most = max(found.shape[1] for found in alone.values())
        padded = (
            np.pad(alone[n], ((0, 0), (0, most - alone[n].shape[1]), (0, 0)), constant_values=n)
            for n in doc_lengths
        )
        found = np.concatenate(list(padded), axis=2)
        edges = torch.tensor([0, *doc_lengths]).cumsum(0).to(device, torch.int32)
        sequences = {
            "cu_seqlens_q": edges, "cu_seqlens_k": edges,
            "max_seqlen_q": max(doc_lengths), "max_seqlen_k": max(doc_lengths),
        }  # fmt: skip
    else:
        batch, q_len, kv_len = shapes[0][0], shapes[0][1], shapes[1][1]
        found = endpoints(mask, q_len, kv_len, kv_heads=kv_heads)
        if (times := batch * q_len // found.shape[2]) > 1:
            found = np.tile(found, (1, 1, times))
    mask_func = torch.from_numpy(found).to(device)
    if len(found) > 1:
        mask_func = mask_func.repeat_interleave(q_heads // kv_heads, dim=0)
    like = (torch.empty(shape, dtype=dtype, device=device) for shape in shapes)
    return create_mask_plan(mask_func, *like, build_backward=True, **sequences)
