"""Hugging Face transformers: attn_implementation="verbatim" after register()."""

from __future__ import annotations

import functools
import sys
from typing import Any

from . import masks
from ._untraced import untraced
from .attention import attention

_NAME = "verbatim"


def register() -> None:
    """Makes attn_implementation="verbatim" known to transformers, with the masks it needs. Models
    that compute their attention themselves are refused where they ask transformers for a mask
    (Bloom, MPNet); the few that ask for nothing (DeBERTa) ignore the name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, _mask)


@untraced
@functools.cache
def _asks(config: type) -> bool:
    """Whether models of that configuration ask transformers' interface for their attention."""
    from transformers import MODEL_MAPPING

    model = MODEL_MAPPING.get(config, None)
    flags = ("_supports_sdpa", "_supports_attention_backend")
    if not isinstance(model, type) or any(getattr(model, flag, True) for flag in flags):
        return True
    return hasattr(sys.modules[model.__module__], "ALL_ATTENTION_FUNCTIONS")  # without a flag


def _mask(q_length: int, kv_length: int, allow_is_causal_skip: bool = True, **how: Any) -> Any:
    """A mask of ours, made once for all layers, or where nothing is trained the tensor, which
    generate() needs; None: the layer says whether it is causal."""
    import torch
    from transformers.masking_utils import sdpa_mask

    kind: Any = type(how.get("config"))
    if not _asks(kind):
        raise NotImplementedError(
            "[huggingface] this model computes its attention itself; got "
            f'attn_implementation="{_NAME}" for {kind.__name__}, expected a model that '
            'asks transformers\' interface (nearest: attn_implementation="eager")'
        )
    # transformers aligns skipped causal masks top-left: the same as ours for equal lengths only.
    visible = sdpa_mask(
        q_length=q_length, kv_length=kv_length,
        allow_is_causal_skip=allow_is_causal_skip and q_length == kv_length, **how,
    )  # fmt: skip
    if visible is None:
        return visible
    if not torch.compiler.is_compiling():
        visible._verbatim_left = _left_padding(q_length, kv_length, **how)
    return _shown(visible, q_length, kv_length) if torch.is_grad_enabled() else visible


def _shown(visible: Any, q_len: int, kv_len: int, **how: Any) -> masks.Mask:
    """Our mask of the tensor that _mask() made."""
    mask = masks.from_additive(visible, q_len, kv_len, **how)
    left = getattr(visible, "_verbatim_left", None)
    if left is None:
        return mask
    sees = visible.expand(-1, -1, q_len, -1).any(-1).any(1)  # (batch, q_len)
    queries = [q_len - blank for blank in _leading(~sees)]
    return mask.padded(queries, [kv_len - padding for padding in left], side="left")


def _left_padding(
    q_length: int, kv_length: int, attention_mask: Any = None, kv_offset: int = 0, **_: Any
) -> list[int] | None:
    """Keys of padding before each entry of a chunk that continues a cache or of a source, which what
    rows see does not tell from a window; None: there is no such padding."""
    if attention_mask is None or attention_mask.ndim != 2 or kv_offset or q_length == kv_length:
        return None
    hidden = attention_mask[:, :kv_length] == 0
    return _leading(hidden) if hidden[:, 0].any() else None


def _leading(hidden: Any) -> list[int]:
    """How many are hidden at the start of each row."""
    return hidden.int().cumprod(1).sum(1).tolist()


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """query (batch, q_heads, q_len, dim), key and value (batch, kv_heads, kv_len, dim) to
    (batch, q_len, q_heads, dim)."""
    for name in ("position_bias", "s_aux", "head_mask", "cache"):
        if others.get(name) is not None:
            raise NotImplementedError(
                f"[huggingface] attention takes no {name}; got a {type(others[name]).__name__}, "
                'expected None (nearest: attn_implementation="eager")'
            )
    mask = attention_mask
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = masks.Causal() if causal else masks.Full()
    documents = _documents(query, key, others.get("cu_seq_lens_q"), others.get("cu_seq_lens_k"))
    how: dict[str, Any] = {"scale": scaling, "softcap": softcap or 0.0, "dropout": dropout}
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if not isinstance(mask, masks.Mask):
        return _attention_under_tensor(q, k, v, mask, documents, **how), None
    return attention(q, k, v, mask=_within(documents, mask), **how), None


def _documents(query: Any, key: Any, cu_seq_lens_q: Any, cu_seq_lens_k: Any) -> masks.Mask | None:
    """Those that FlashAttention's arguments tell: transformers' masks come of position_ids alone.
    None: there is one at most."""
    if cu_seq_lens_q is None and cu_seq_lens_k is None:
        return None
    told = masks.from_cu_seqlens(
        cu_seq_lens_k if cu_seq_lens_q is None else cu_seq_lens_q, cu_seq_lens_k
    )
    (batch, _, q_len, _), kv_len = query.shape, key.shape[2]  # key (batch, kv_heads, kv_len, dim)
    edges_q, edges_k = told.cu_seqlens_q, told.cu_seqlens_k
    if batch > 1:
        raise NotImplementedError(
            f"[huggingface] cu_seq_lens_q is of one row; got {batch} rows, expected all documents "
            "in one (nearest: DataCollatorWithFlattening(return_flash_attn_kwargs=True))"
        )
    if (edges_q, edges_k) == ((0, q_len), (0, kv_len)):
        return None
    if edges_q != edges_k:
        raise NotImplementedError(
            "[huggingface] queries and keys are of the same documents; got a cu_seq_lens_k that "
            "differs from cu_seq_lens_q, expected equal ones (nearest: "
            "cu_seq_lens_k=cu_seq_lens_q, and no cache of earlier tokens)"
        )
    if not edges_q[-1] == q_len == kv_len:
        raise ValueError(
            f"[huggingface] documents fill the row; got cu_seq_lens_q that ends at {edges_q[-1]} for "
            f"{q_len} queries and {kv_len} keys, expected the length of both (nearest: padding "
            "as a last document, with labels of -100)"
        )
    return told


def _within(documents: masks.Mask | None, mask: masks.Mask) -> masks.Mask:
    return mask if documents is None else mask & documents


@untraced  # masks of later tokens are others, for which it would be compiled anew
def _attention_under_tensor(
    q: Any, k: Any, v: Any, visible: Any, documents: masks.Mask | None, **how: Any
) -> Any:
    mask = _shown(visible, q.shape[1], k.shape[1], group=q.shape[2] // k.shape[2])
    return attention(q, k, v, mask=_within(documents, mask), **how)
