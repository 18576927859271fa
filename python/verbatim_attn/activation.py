"""activate(): PyTorch's own scaled_dot_product_attention and varlen_attn run on Verbatim."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor

from . import masks
from .plan import plan_of

_NAME = "VERBATIM"


class _Kernels:
    """PyTorch's flash-attention operators, overridden for as long as this holds the library."""

    def __init__(self) -> None:
        self._library: torch.library.Library | None = torch.library.Library("aten", "IMPL")
        for name, function, device in (
            ("_flash_attention_forward", _flash_forward, "CUDA"),
            ("_flash_attention_backward", _flash_backward, "CUDA"),
            ("_scaled_dot_product_flash_attention", _sdpa_forward, "CUDA"),
            ("_scaled_dot_product_flash_attention_backward", _sdpa_backward, "CUDA"),
            ("_scaled_dot_product_flash_attention_for_cpu", _cpu_forward, "CPU"),
            ("_scaled_dot_product_flash_attention_for_cpu_backward", _cpu_backward, "CPU"),
        ):
            with warnings.catch_warnings():  # of what was asked for
                warnings.simplefilter("ignore")
                self._library.impl(name, function, device, allow_override=True)

    def remove(self) -> None:
        self._library = None


class Activation:
    """What activate() began; remove(), or the end of its `with` block, ends it. Of several, in any
    sequence, the last to end gives the kernels back."""

    _active: ClassVar[set[Activation]] = set()
    _previous: ClassVar[str | None] = None  # before the first of them

    def __init__(self) -> None:
        registry = torch.nn.attention
        current = registry.current_flash_attention_impl()
        if current != _NAME:
            registry.register_flash_attention_impl(_NAME, register_fn=_Kernels)
            registry.activate_flash_attention_impl(_NAME)
            Activation._active.clear()  # others have replaced ours since
            Activation._previous = current
        Activation._active.add(self)

    def remove(self) -> None:
        """Gives PyTorch back the kernels it had before, unless others have replaced ours or another
        activation lasts."""
        if self not in Activation._active:
            return
        Activation._active.remove(self)
        registry = torch.nn.attention
        if Activation._active or registry.current_flash_attention_impl() != _NAME:
            return
        registry.restore_flash_attention_impl()
        if Activation._previous is not None:
            registry.activate_flash_attention_impl(Activation._previous)

    def __enter__(self) -> Activation:
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()


def activate() -> Activation:
    """Makes Verbatim PyTorch's flash attention, on CUDA and CPU, for code that nobody changes.

    Which calls reach flash attention is PyTorch's choice; torch.nn.attention.sdpa_kernel(
    SDPBackend.FLASH_ATTENTION) leaves it no other. What reaches Verbatim and is not supported
    raises: there is no silent way back to other kernels.
    """
    if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
        raise NotImplementedError(
            "[activate] PyTorch has no registry of attention kernels before 2.11; got "
            f"{torch.__version__}, expected 2.11 or newer (nearest: verbatim_attn.attention)"
        )
    return Activation()


def _plan(q: Tensor, k: Tensor, v: Tensor, mask: masks.Mask, scale: Any, dropout: float) -> Any:
    """For (batch, length, heads, dim) tensors, always deterministic."""
    settings = (scale, 0.0, dropout, "auto", "auto", "invariant", True, "")
    return plan_of(q, k, v, mask.spec, settings)


def _top_left(q_len: int, kv_len: int, is_causal: bool) -> masks.Mask:
    """SDPA aligns causal masks top-left."""
    if not is_causal:
        return masks.Full()
    if q_len == kv_len:
        return masks.Causal()
    return masks.windows((0, q_len), (0, kv_len), None, q_len - kv_len)


def _swapped(*tensors: Tensor) -> list[Tensor]:
    """Between (batch, heads, length, dim) and (batch, length, heads, dim)."""
    return [x.transpose(1, 2) for x in tensors]


def _like(x: Tensor, layout: Tensor) -> Tensor:
    """x with the strides that PyTorch expects: those of a tensor made like `layout`."""
    expected = torch.empty_like(layout, memory_format=torch.preserve_format)
    return x if x.stride() == expected.stride() else expected.copy_(x)


def _draw(q: Tensor, dropout: float) -> Tensor:
    """What PyTorch saves for the backward, shaped as its own: a dropout seed of q's generator."""
    if not dropout:
        return torch.zeros(2, dtype=torch.uint64, device=q.device)
    return torch.randint(2**63 - 1, (2,), dtype=torch.int64, device=q.device).view(torch.uint64)


# PyTorch 2.11's signatures (native_functions.yaml) from here on.


def _cpu_forward(q, k, v, dropout_p=0.0, is_causal=False, *, attn_mask=None, scale=None):
    mask = _cpu_mask(q, k, dropout_p, is_causal, attn_mask)
    o, lse = _plan(*_swapped(q, k, v), mask, scale, 0.0).forward(
        *_swapped(q, k, v), threads=torch.get_num_threads()
    )
    return _like(o.transpose(1, 2), q), lse.transpose(1, 2).contiguous().transpose(1, 2)


def _cpu_backward(
    dout, q, k, v, o, lse, dropout_p, is_causal, *, attn_mask=None, scale=None
):  # fmt: skip
    mask = _cpu_mask(q, k, dropout_p, is_causal, attn_mask)
    plan = _plan(*_swapped(q, k, v), mask, scale, 0.0)
    return tuple(
        _swapped(*plan.backward(*_swapped(dout, q, k, v, o), lse, threads=torch.get_num_threads()))
    )


def _cpu_mask(q: Tensor, k: Tensor, dropout: float, is_causal: bool, attn_mask: Any) -> masks.Mask:
    if dropout:
        raise NotImplementedError(
            "[activate] PyTorch's CPU operator has no dropout; got "
            f"{dropout}, expected 0 (nearest: verbatim_attn.attention(dropout=...))"
        )
    if attn_mask is None:
        return _top_left(q.shape[2], k.shape[2], is_causal)
    return masks.from_additive(attn_mask, q.shape[2], k.shape[2], group=q.shape[1] // k.shape[1])


def _sdpa_forward(
    q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
):  # fmt: skip
    _no_debug_mask(return_debug_mask)
    state = _draw(q, dropout_p)
    mask = _top_left(q.shape[2], k.shape[2], is_causal)
    plan = _plan(*_swapped(q, k, v), mask, scale, dropout_p)
    o, lse = plan.forward(*_swapped(q, k, v), seed=state[0])
    o = _like(o.transpose(1, 2), q)
    return o, lse, None, None, q.shape[2], k.shape[2], state, state[1], q.new_empty(0)


def _sdpa_backward(
    dout, q, k, v, o, lse, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state,
    unused, *, scale=None,
):  # fmt: skip
    mask = _top_left(q.shape[2], k.shape[2], is_causal)
    plan = _plan(*_swapped(q, k, v), mask, scale, dropout_p)
    gradients = plan.backward(*_swapped(dout, q, k, v, o), lse, seed=rng_state[0])
    return tuple(_swapped(*gradients))


def _flash_forward(
    q, k, v, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask, *,
    scale=None, window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None,
):  # fmt: skip
    _no_debug_mask(return_debug_mask)
    for name, value in (("seqused_k", seqused_k), ("alibi_slopes", alibi_slopes)):
        if value is not None:
            raise NotImplementedError(
                f"[activate] {name} is not supported; got a tensor, expected None "
                "(nearest: verbatim_attn.attention with a mask)"
            )
    state = _draw(q, dropout_p)
    mask = _flash_mask(q, k, cum_seq_q, cum_seq_k, is_causal, window_size_left, window_size_right)
    q, k, v = _batched(cum_seq_q, q, k, v)
    o, lse = _plan(q, k, v, mask, scale, dropout_p).forward(q, k, v, seed=state[0])
    if cum_seq_q is not None:
        o, lse = o[0], lse[0]
    return o, lse, state, state[1], q.new_empty(0)


def _flash_backward(
    dout, q, k, v, o, lse, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, rng_state,
    unused, *, scale=None, window_size_left=None, window_size_right=None,
):  # fmt: skip
    mask = _flash_mask(q, k, cum_seq_q, cum_seq_k, is_causal, window_size_left, window_size_right)
    dout, q, k, v, o, lse = _batched(cum_seq_q, dout, q, k, v, o, lse)
    plan = _plan(q, k, v, mask, scale, dropout_p)
    gradients = plan.backward(dout, q, k, v, o, lse, seed=rng_state[0])
    return gradients if cum_seq_q is None else tuple(x[0] for x in gradients)


def _flash_mask(q, k, cum_seq_q, cum_seq_k, is_causal, left, right) -> masks.Mask:
    """Aligned bottom-right, as this operator's causal masks and windows are."""
    if cum_seq_q is None:
        cum_seq_q, cum_seq_k = (0, q.shape[1]), (0, k.shape[1])
    return masks.windows(cum_seq_q, cum_seq_k, *masks.window_bounds((left, right), is_causal))


def _batched(cum_seq_q: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors if cum_seq_q is None else tuple(x[None] for x in tensors)


def _no_debug_mask(asked: bool) -> None:
    if asked:
        raise NotImplementedError(
            "[activate] the weights are never stored; got return_debug_mask=True, expected False "
            "(nearest: verbatim_attn.attention(return_lse=True))"
        )
