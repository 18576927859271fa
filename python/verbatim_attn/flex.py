"""Masks from FlexAttention's; the other way is Mask.to_mask_mod() and Mask.to_block_mask()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .masks import Explicit, _of_kv_heads, from_dense


def from_block_mask(block_mask: Any, *, group: int = 1) -> Explicit:
    """The positions that flex_attention shows under `block_mask`: those of its full blocks, and in
    its partial blocks what mask_mod says. `group` query heads share a KV head and must share its
    mask. A mask on a GPU is waited for."""
    import torch
    from torch.nn.attention.flex_attention import create_mask

    batch, heads = block_mask.shape[:2]
    q_len, kv_len = block_mask.seq_lengths
    device = block_mask.kv_indices.device

    def positions(counts: Any, indices: Any) -> Any:
        """Blocks listed per row of blocks as visible positions: (batch, heads, q_len, kv_len)."""
        q_block, kv_block = block_mask.BLOCK_SIZE
        columns = -(-kv_len // kv_block)
        unused = torch.arange(indices.shape[-1], device=device) >= counts[..., None]
        blocks = torch.zeros((*indices.shape[:-1], columns + 1), dtype=torch.bool, device=device)
        blocks.scatter_(-1, indices.long().masked_fill(unused, columns), True)
        shown = blocks[..., :-1].repeat_interleave(q_block, -2).repeat_interleave(kv_block, -1)
        return shown[..., :q_len, :kv_len]

    visible = create_mask(block_mask.mask_mod, batch, heads, q_len, kv_len, device=device)
    visible = visible & positions(block_mask.kv_num_blocks, block_mask.kv_indices)
    if block_mask.full_kv_indices is not None:
        visible = visible | positions(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    return from_dense(_of_kv_heads(visible, group).cpu().numpy())


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
