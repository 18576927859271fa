"""The PyTorch operators verbatim::forward and verbatim::backward.

All that fixes the bits is in their schema, so that no entry point (eager, autograd, torch.compile,
checkpointing) can lose it: the order, the level and `deterministic` are arguments of both, and
autograd hands the forward's to the backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from .attention import Settings, call_of
from .native import load

SETTINGS = (
    "str mask, float? scale, float softcap, float dropout, str order, str forward_order, "
    "str level, bool deterministic"
)
_library = torch.library.Library("verbatim", "DEF")
_library.define(
    f"forward(Tensor q, Tensor k, Tensor v, Tensor? seed, {SETTINGS}) -> (Tensor o, Tensor lse)"
)
_library.define(
    "backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, Tensor? seed, "
    f"{SETTINGS}) -> (Tensor dq, Tensor dk, Tensor dv)"
)


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: str, seed: Any, settings: Settings, return_lse: bool
) -> Any:
    if not settings[2]:  # no dropout
        seed = None
    elif seed is None:
        # A tensor, so that neither a graph break nor a wait for the GPU is needed.
        seed = torch.randint(2**63 - 1, (), dtype=torch.int64, device=q.device)
    elif not isinstance(seed, Tensor):
        seed = torch.tensor((seed + 2**63) % 2**64 - 2**63, dtype=torch.int64, device="cpu")
    if native is not None and not is_dynamo_compiling():
        made = native.attention(q, k, v, seed, mask, settings, return_lse)
        if made is not None:  # nobody observes
            return made
    if forward_ad._current_level >= 0:
        _refuse_tangents(q, k, v)
    if _is_observed(q, k, v):
        o, lse = torch.ops.verbatim.forward(q, k, v, seed, mask, *settings)
        return (o, lse) if return_lse else o
    if torch._C._is_any_autocast_enabled():
        kind = q.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    if (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled():
        return _apply(q, k, v, (seed, mask, settings), return_lse)
    o, lse = _run((q, k, v), seed, mask, settings)
    return (o, lse) if return_lse else o


def _is_observed(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether somebody between Python and the kernels (a compiler, a mode, a transform, a tensor of
    another class or device) has to see an operator. The way through PyTorch's dispatcher to a
    formula in Python costs more than all the rest of a call."""
    return (
        is_dynamo_compiling()  # other tracers are modes
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or not (q.is_cuda or q.is_cpu)
        or not (type(q) is type(k) is type(v) is Tensor)
        or any(map(Tensor.is_neg, (q, k, v)))  # a minus sign that is not in memory
    )


def _refuse_tangents(*tensors: Tensor) -> None:
    for name, x in zip("qkv", tensors, strict=True):
        if forward_ad.unpack_dual(x).tangent is not None:
            raise NotImplementedError(
                f"[attention] there are no forward-mode derivatives; got a tangent of {name}, "
                "expected none (nearest: torch.autograd.grad)"
            )


class _Attention(torch.autograd.Function):
    """The operator's formula, for calls that nobody observes."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, how: tuple, return_lse: bool) -> Any:
        o, lse = _run((q, k, v), *how)
        seed, *ctx.how = how
        ctx.save_for_backward(q, k, v, o, lse, seed)
        if not return_lse:  # every output costs
            return o
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # no zeros for the LSE
        return o, lse

    @staticmethod
    def backward(ctx: Any, dout: Any, *_dlse: Any) -> tuple:
        if dout is None:
            return (None,) * 5
        q, k, v, o, lse, seed = ctx.saved_tensors
        return *gradients_of((q, k, v, o, dout, lse), seed, *ctx.how), None, None


def gradients_of(tensors: tuple[Tensor, ...], seed: Any, mask: str, settings: Settings) -> Any:
    """(dq, dk, dv) of (q, k, v, o, dout, lse)."""
    if torch.is_grad_enabled():  # create_graph=True
        return _Gradients.apply(seed, mask, settings, *tensors)
    return _run(tensors, seed, mask, settings)


# torch.autograd.Function.apply without its care for functorch, which costs 4 microseconds: under its
# transforms an operator is called instead.
_apply = super(torch.autograd.Function, _Attention).apply


class _Gradients(torch.autograd.Function):
    """The backward where somebody may differentiate it: who does is told."""

    @staticmethod
    def forward(_ctx: Any, seed: Any, mask: str, settings: Settings, *tensors: Tensor) -> Any:
        return _run(tensors, seed, mask, settings)

    @staticmethod
    def backward(_ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "[attention] there are no second derivatives; got a gradient of dq, dk or dv, expected "
            "gradients of o alone (nearest: torch.nn.functional.scaled_dot_product_attention on "
            "SDPBackend.MATH)"
        )


def _run(tensors: tuple[Tensor, ...], seed: Any, mask: str, settings: Settings) -> Any:
    """The forward of (q, k, v), the backward of (q, k, v, o, dout, lse)."""
    if seed is not None and seed.device != tensors[0].device:
        seed = int(seed) % 2**64  # a GPU reads a seed of its own when it runs
    return call_of(tensors, mask, settings)(tensors, seed, torch.get_num_threads())


def _forward(
    q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None, mask: str, *settings: Any
) -> Any:
    return _run((q, k, v), seed, mask, settings)


def _backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, seed: Tensor | None,
    mask: str, *settings: Any,
) -> Any:  # fmt: skip
    return _run((q, k, v, o, dout, lse), seed, mask, settings)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    batch, length, heads, _dim = q.shape
    o = q.new_empty((batch, length, heads, v.shape[-1]))
    return o, q.new_empty((batch, heads, length), dtype=torch.float32)


def _backward_fake(_dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, seed, *ctx.settings = inputs
    o, lse = output
    ctx.save_for_backward(q, k, v, o, lse, seed)
    ctx.mark_non_differentiable(lse)


def _gradients(ctx: Any, dout: Tensor, _dlse: Any) -> tuple:
    gradients = torch.ops.verbatim.backward(dout, *ctx.saved_tensors, *ctx.settings)
    return (*gradients, None, *[None] * len(ctx.settings))


def _autocast(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """Inputs in autocast's dtype, as for matrix products."""
    kind = q.device.type
    dtype = torch.get_autocast_dtype(kind)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    with torch.autocast(kind, enabled=False):
        return torch.ops.verbatim.forward(q, k, v, *rest)


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)
    _library.impl("forward", _autocast, f"Autocast{_device}")
torch.library.register_fake("verbatim::forward", _forward_fake, lib=_library)
torch.library.register_fake("verbatim::backward", _backward_fake, lib=_library)
torch.library.register_autograd("verbatim::forward", _gradients, setup_context=_save, lib=_library)
torch.library.register_autograd("verbatim::backward", _Gradients.backward, lib=_library)

native = load(gradients_of)
