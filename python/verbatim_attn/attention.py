"""attention() and attention_backward(): one call, plans kept by problem."""

from __future__ import annotations

from typing import Any

from ._arrays import seed_of
from ._handles import number
from .masks import Mask, spec_of
from .plan import call_of

_operators: Any = None  # the module _torch, once a tensor has come


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: Any = None,
    order: str = "auto",
    forward_order: str = "auto",
    level: str = "invariant",
    deterministic: bool = True,
    arithmetic: str = "",
    return_lse: bool = False,
) -> Any:
    """Exact attention whose gradients are the same bits every time.

    Args:
        q: (batch, q_len, q_heads, head_dim), a NumPy array or a PyTorch tensor on the CPU or a
            CUDA device; float32 (CPU), bfloat16 or float16. Any strides.
        k: (batch, kv_len, kv_heads, head_dim); kv_heads divides q_heads.
        v: (batch, kv_len, kv_heads, head_dim_v).
        mask: one of verbatim_attn.masks; None: every query sees every key.
        scale: of the scores; None: 1 / sqrt(head_dim).
        softcap: scores become softcap * tanh(score / softcap); 0: they stay.
        dropout: probability that a weight is dropped; the others grow by 1 / (1 - dropout).
        seed: of the dropout, an integer or a tensor of one int64. The same seed drops the same
            weights, whatever the tiling or device. A tensor on q's device is read when the work
            runs, so that a CUDA graph replays with what it holds then. None: the next of PyTorch's
            generator of that device.
        order: of the sums of the backward: a name of verbatim_attn.orders(), "auto": chosen by a
            fixed rule that keeps `level`, or "none": any, which needs deterministic=False.
        forward_order: of the forward's sums.
        level: "invariant", "gpu_to_gpu" or "run_to_run": what stays equal (docs/determinism.md).
        deterministic: False lets "auto" give up the order. Ignored while
            torch.use_deterministic_algorithms(True) holds, which also forbids order "none".
        arithmetic: "sm80" takes the portable kernels on Hopper, too; "": the device's.
        return_lse: also return the row logarithms of the softmax sums.

    Returns:
        o (batch, q_len, q_heads, head_dim_v), or (o, lse) with lse f32 (batch, q_heads, q_len),
        which carries no gradient. A query without a visible key: o = 0, lse = -inf.

    Raises:
        ValueError, NotImplementedError: name the argument, what was passed and what would do.
    """
    spec = spec_of(mask)
    settings = (
        *_numbers(scale, softcap, dropout), order, forward_order, level, deterministic, arithmetic,
    )  # fmt: skip
    if hasattr(q, "requires_grad"):
        if _operators is None:
            _import_operators()
        return _operators.attention(q, k, v, spec, seed, settings, return_lse)
    tensors = (q, k, v)
    o, lse = call_of(tensors, spec, settings)(tensors, _numpy_seed(dropout, seed), 0)
    return (o, lse) if return_lse else o


def attention_backward(
    dout: Any,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: int | None = None,
    order: str = "auto",
    forward_order: str = "auto",
    level: str = "invariant",
    deterministic: bool = True,
    arithmetic: str = "",
) -> tuple[Any, ...]:
    """(dQ, dK, dV) for dout, like o, given what attention(..., return_lse=True) took and returned.

    For NumPy, and for tensors outside autograd; tensors that require gradients get the same from
    o.backward(dout).
    """
    spec = spec_of(mask)
    tensors = (q, k, v, o, dout, lse)
    settings = (
        *_numbers(scale, softcap, dropout), order, forward_order, level, deterministic, arithmetic,
    )  # fmt: skip
    return call_of(tensors, spec, settings)(tensors, _numpy_seed(dropout, seed), 0)


def _import_operators() -> None:
    """Which import PyTorch, that only callers with tensors need."""
    global _operators
    from . import _torch as _operators


def _numbers(scale: Any, softcap: Any, dropout: Any) -> tuple[float | None, float, float]:
    scale = None if scale is None else number("scale", scale)
    return scale, number("softcap", softcap), number("dropout", dropout)


def _numpy_seed(dropout: float, seed: int | None) -> int | None:
    if dropout and seed is None:
        raise ValueError(
            "[attention] dropout needs a seed; got None, expected an integer (nearest: "
            "attention(..., seed=0))"
        )
    return None if seed is None else int(seed_of(seed))
