"""Masks from FlexAttention's; the other way is Mask.to_mask_mod() and Mask.to_block_mask()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .blocks import from_block_map
from .masks import Explicit, _of_kv_heads, from_dense


def from_block_mask(block_mask: Any, *, group: int = 1) -> Explicit:
    """The positions that flex_attention shows under `block_mask`: those of its full blocks, and in
    its partial blocks what mask_mod says. `group` query heads share a KV head and must share its
    mask. A mask on a GPU is waited for. Without partial blocks, or without a mask_mod, it goes
    block by block, as from_block_map(); else position by position."""
    from torch.nn.attention.flex_attention import create_mask, noop_mask

    batch, heads = block_mask.shape[:2]
    q_len, kv_len = block_mask.seq_lengths
    size = block_mask.BLOCK_SIZE
    columns = -(-kv_len // size[1])
    shows_all = block_mask.mask_mod is noop_mask
    partial = _listed(block_mask.kv_num_blocks, block_mask.kv_indices, columns)
    full = partial & shows_all
    if block_mask.full_kv_indices is not None:
        full = full | _listed(block_mask.full_kv_num_blocks, block_mask.full_kv_indices, columns)
    if shows_all or not partial.any():
        blocks = _of_kv_heads(full, group)
        return from_block_map(blocks, block=size, lengths=(q_len, kv_len))

    def positions(blocks: Any) -> Any:
        shown = blocks.repeat_interleave(size[0], -2).repeat_interleave(size[1], -1)
        return shown[..., :q_len, :kv_len]

    device = block_mask.kv_indices.device
    visible = create_mask(block_mask.mask_mod, batch, heads, q_len, kv_len, device=device)
    visible = (visible & positions(partial)) | positions(full)
    return from_dense(_of_kv_heads(visible, group).cpu().numpy())


def _listed(counts: Any, indices: Any, columns: int) -> Any:
    """The blocks of lists, `counts` of each row in use, as a map: bool (batch, heads, rows,
    columns)."""
    import torch

    device = indices.device
    unused = torch.arange(indices.shape[-1], device=device) >= counts[..., None]
    blocks = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=device)
    blocks.scatter_(-1, indices.long().masked_fill(unused, columns), True)
    return blocks[..., :-1]


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
    return from_dense(_of_kv_heads(visible, group).cpu().numpy())
