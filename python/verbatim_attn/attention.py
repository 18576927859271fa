"""attention() and attention_backward(): one call, plans kept by problem."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ._arrays import NAMES, Arrays, Key, arrays_of, check_dimensions
from ._calls import Call, kept
from ._library import DTYPES
from .masks import Full, Mask
from .plan import Plan, Problem

# scale, softcap, dropout, order, forward_order, level, deterministic, arithmetic: as attention()
# takes them
Settings = tuple[float | None, float, float, str, str, str, bool, str]
_FULL = Full()
_operators: Any = None  # the module _torch, once a tensor has come


class _Text(Mask):
    """A mask whose JSON is at hand."""

    def __init__(self, spec: str) -> None:
        object.__setattr__(self, "spec", spec)


def _any_order_is_allowed() -> bool:
    """What torch.use_deterministic_algorithms(True) ends."""
    torch = sys.modules.get("torch")
    return torch is None or not torch.are_deterministic_algorithms_enabled()


def make_plan(
    shapes: Sequence[Sequence[int]], dtype: str, device: str, mask: str, how: Settings,
    any_order: bool,
) -> Plan:  # fmt: skip
    """The plan for q, k and v of these shapes; `mask` is Mask.spec."""
    scale, softcap, dropout, order, forward_order, level, deterministic, arithmetic = how
    order, level = resolve_order(order, level, deterministic, any_order)
    q, k, v = shapes
    scale = None if scale is None else float(scale)
    problem = Problem(
        q[0], q[2], k[2], q[1], k[1], q[3], v[3], dtype, scale, softcap, dropout
    )  # fmt: skip
    return Plan(
        problem, _Text(mask), order=order, forward_order=forward_order, level=level,
        arithmetic=arithmetic, device=device,
    )  # fmt: skip


def _plan_for(
    arrays: Arrays, keys: Sequence[Key], mask: str, how: Settings, any_order: bool
) -> Plan:
    for name, key in zip(NAMES[:3], keys, strict=False):
        check_dimensions(name, key)
    dtype = DTYPES[arrays.dtype(keys[0][2])]
    return make_plan([key[0] for key in keys[:3]], dtype, arrays.device, mask, how, any_order)


def plan_of(q: Any, k: Any, v: Any, mask: str, settings: Settings) -> Plan:
    """The plan for these tensors."""
    arrays = arrays_of(q)
    keys = arrays.keys((q, k, v))
    return kept(_plan_for, arrays, keys, mask, settings, _any_order_is_allowed())


def _prepare(
    arrays: Arrays, keys: tuple[Key, ...], mask: str, settings: Settings, any_order: bool
) -> Call:
    return _plan_for(arrays, keys, mask, settings, any_order).prepare(arrays, keys)


def call_of(tensors: tuple[Any, ...], mask: str, settings: Settings) -> Call:
    """The prepared call of a forward for (q, k, v), of a backward for (q, k, v, o, dout, lse)."""
    arrays = arrays_of(tensors[0])
    keys = arrays.keys(tensors)
    return kept(_prepare, arrays, keys, mask, settings, _any_order_is_allowed())


def resolve_order(
    order: str, level: str, deterministic: bool, any_order: bool = True
) -> tuple[str, str]:
    """Order and level of a plan. Order "none" adds in any order, at level not_guaranteed; it is
    what "auto" means when nobody asks for determinism and `any_order` is allowed."""
    if order == "none" and deterministic:
        raise ValueError(
            "[attention] order 'none' adds in any order; got deterministic=True, expected "
            "deterministic=False (nearest: order='auto')"
        )
    if order == "none" and not any_order:
        raise RuntimeError(
            "[attention] torch.use_deterministic_algorithms(True) forbids adding in any order; got "
            "order='none', expected the name of an order (nearest: order='auto')"
        )
    if order == "none" or (order == "auto" and not deterministic and any_order):
        return "auto", "not_guaranteed"
    return order, level


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
    spec = (mask or _FULL).spec
    settings = (
        scale, float(softcap), float(dropout), order, forward_order, level, deterministic,
        arithmetic,
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
    spec = (mask or _FULL).spec
    tensors = (q, k, v, o, dout, lse)
    settings = (
        scale, float(softcap), float(dropout), order, forward_order, level, deterministic,
        arithmetic,
    )  # fmt: skip
    return call_of(tensors, spec, settings)(tensors, _numpy_seed(dropout, seed), 0)


def _import_operators() -> None:
    """Which import PyTorch, that only callers with tensors need."""
    global _operators
    from . import _torch as _operators


def _numpy_seed(dropout: float, seed: int | None) -> int | None:
    if dropout and seed is None:
        raise ValueError(
            "[attention] dropout needs a seed; got None, expected an integer (nearest: seed=0)"
        )
    return None if seed is None else int(seed)
