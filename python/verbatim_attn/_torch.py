"""The PyTorch operators verbatim::forward and verbatim::backward.

All that fixes the bits is in their schema, so that no entry point (eager, autograd, torch.compile,
checkpointing) can lose it: the order, the level and `deterministic` are arguments of both, and
autograd hands the forward's to the backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_gradtrackingtensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from . import _native
from ._arrays import not_of_one_kind
from ._handles import Settings
from ._traced import backward_fake, forward_fake, seed_for, seed_tensor
from .plan import call_of

SETTINGS = (
    "str mask, float? scale, float softcap, float dropout, str order, str forward_order, "
    "str level, bool deterministic, str arithmetic"
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
    else:
        seed = seed_tensor(seed)
    if not is_dynamo_compiling() and _native.module is not None:
        made = _native.module.attention(q, k, v, seed, mask, settings, return_lse)
        if made is not None:  # nobody observes
            return made
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):  # the operator would print all of it
            raise not_of_one_kind(name, x, Tensor)
        if x.layout != torch.strided or x.is_nested:
            got, nearest = str(x.layout), f"{name}.to_dense()"
            if x.is_nested:
                got = f"a nested one, {got}"
                nearest = f"{name}.values()[None] under from_cu_seqlens({name}.offsets())"
            raise ValueError(
                f"[tensors] {name} is no dense tensor; got {got}, expected one with strides "
                f"(nearest: {nearest})"
            )
    if forward_ad._current_level >= 0:
        _refuse_tangents(q, k, v)
    if not is_dynamo_compiling() and any(map(is_gradtrackingtensor, (q, k, v))):
        raise NotImplementedError(
            "[attention] torch.func takes no gradients of it; got a tensor of torch.func.grad, vjp "
            "or jacrev, expected a plain one (nearest: torch.autograd.grad)"
        )
    o, lse = torch.ops.verbatim.forward(q, k, v, seed, mask, *settings)
    return (o, lse) if return_lse else o


def _refuse_tangents(*tensors: Tensor) -> None:
    for name, x in zip("qkv", tensors, strict=True):
        if forward_ad.unpack_dual(x).tangent is not None:
            raise NotImplementedError(
                f"[attention] there are no forward-mode derivatives; got a tangent of {name}, "
                "expected none (nearest: torch.autograd.grad)"
            )


def _run(tensors: tuple[Tensor, ...], seed: Any, mask: str, settings: Settings) -> Any:
    """The forward of (q, k, v), the backward of (q, k, v, o, dout, lse)."""
    seed = seed_for(tensors[0], seed)
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


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    q, k, v, seed, *ctx.settings = inputs
    o, lse = output
    ctx.save_for_backward(q, k, v, o, lse, seed)
    ctx.mark_non_differentiable(lse)


def _gradients(ctx: Any, dout: Tensor, _dlse: Any) -> tuple:
    gradients = torch.ops.verbatim.backward(dout, *ctx.saved_tensors, *ctx.settings)
    return (*gradients, None, *[None] * len(ctx.settings))


def _refuse_second_derivatives(_ctx: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "[attention] there are no second derivatives; got a gradient of dq, dk or dv, expected "
        "gradients of o alone (nearest: torch.nn.functional.scaled_dot_product_attention on "
        "SDPBackend.MATH)"
    )


def _autocast(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Any:
    """Inputs in autocast's dtype where matrix products' are: float64 and integers stay."""
    kind = q.device.type
    dtype = torch.get_autocast_dtype(kind)
    q, k, v = (
        x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v)
    )
    with torch.autocast(kind, enabled=False):
        return torch.ops.verbatim.forward(q, k, v, *rest)


for _device in ("CPU", "CUDA"):
    _library.impl("forward", _forward, _device)
    _library.impl("backward", _backward, _device)
    _library.impl("forward", _autocast, f"Autocast{_device}")
torch.library.register_fake("verbatim::forward", forward_fake, lib=_library)
torch.library.register_fake("verbatim::backward", backward_fake, lib=_library)
torch.library.register_autograd("verbatim::forward", _gradients, setup_context=_save, lib=_library)
torch.library.register_autograd("verbatim::backward", _refuse_second_derivatives, lib=_library)
