"""FlashAttention's functions by name and meaning: `from verbatim_attn import flash_attn_func`.

One default differs: deterministic=True. False lets "auto" give up the order of the sums.
"""

from __future__ import annotations

from typing import Any

from . import masks
from .attention import attention

Window = tuple["int | None", "int | None"]
_FULL, _CAUSAL = masks.Full(), masks.Causal()


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = True,
    return_attn_probs: bool = False,
    *,
    return_lse: bool = False,
) -> Any:
    """Attention of q (batch, q_len, heads, dim) over k, v (batch, kv_len, kv_heads, dim).

    window_size counts the visible keys to the left and right of the query's position, which is
    aligned bottom-right; -1 or None: all. Returns o, or (o, lse f32 (batch, heads, q_len)).
    """
    _refuse(alibi_slopes, return_attn_probs)
    _check_dimensions(
        "flash_attn_func", "batch, length, heads, dim", "flash_attn_varlen_func of packed ones",
        q, k, v,
    )  # fmt: skip
    left, right = masks.window_bounds(window_size, causal)
    return attention(
        q, k, v, mask=_mask(q.shape[1], k.shape[1], left, right), scale=softmax_scale,
        softcap=softcap, dropout=dropout_p, deterministic=deterministic, return_lse=return_lse,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    deterministic: bool = True,
    return_attn_probs: bool = False,
    block_table: Any = None,
    *,
    return_lse: bool = False,
) -> Any:
    """The same for packed sequences: q (total_q, heads, dim), k, v (total_k, kv_heads, dim),
    cumulative lengths (sequences + 1). Returns o, or (o, lse f32 (heads, total_q)).

    Plans are made on the host, so cumulative lengths on a GPU are waited for: once for all calls
    that they are given to, until PyTorch writes to them. Those on the CPU never are. The longest
    lengths are not needed.
    """
    _refuse(alibi_slopes, return_attn_probs)
    if block_table is not None:
        raise NotImplementedError(
            "[flash_attn_varlen_func] there is no paged KV cache; got block_table, expected None "
            "(nearest: k and v gathered from their pages)"
        )
    _check_dimensions(
        "flash_attn_varlen_func", "total, heads, dim", "flash_attn_func of a batch", q, k, v
    )
    left, right = masks.window_bounds(window_size, causal)
    mask = masks.windows(cu_seqlens_q, cu_seqlens_k, left, right)
    o, lse = attention(
        q[None], k[None], v[None], mask=mask, scale=softmax_scale, softcap=softcap,
        dropout=dropout_p, deterministic=deterministic, return_lse=True,
    )  # fmt: skip
    return (o[0], lse[0]) if return_lse else o[0]


def _mask(q_len: int, kv_len: int, left: int | None, right: int | None) -> masks.Mask:
    if left is None and right is None:
        return _FULL
    if left is None and right == 0:
        return _CAUSAL
    if left is not None and right == 0:
        return masks.CausalSlidingWindow(left)
    if left is not None and left == right:
        return masks.FullSlidingWindow(left)
    return masks.windows((0, q_len), (0, kv_len), left, right)


def _check_dimensions(function: str, expected: str, nearest: str, *tensors: Any) -> None:
    """Before q, k and v become others, whose shapes the caller does not know."""
    for name, x in zip("qkv", tensors, strict=True):
        shape = getattr(x, "shape", None)
        if shape is None or len(shape) != len(expected.split()):
            got = type(x).__name__ if shape is None else f"shape {list(shape)}"
            raise ValueError(
                f"[{function}] wrong number of dimensions of {name}; got {got}, expected "
                f"({expected}) (nearest: {nearest})"
            )


def _refuse(alibi_slopes: Any, return_attn_probs: bool) -> None:
    if alibi_slopes is not None:
        raise NotImplementedError(
            "[flash_attn] scores take no bias; got alibi_slopes, expected None (nearest: softcap)"
        )
    if return_attn_probs:
        raise NotImplementedError(
            "[flash_attn] the weights are never stored; got return_attn_probs=True, expected False "
            "(nearest: return_lse=True)"
        )
