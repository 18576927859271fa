"""What torch.compile keeps in its graphs of a plan's passes: the operators verbatim::plan_forward and
verbatim::plan_backward, outside autograd as Plan's methods are; and what all of our operators share.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arrays import check_dimensions, different_devices, seed_of
from ._handles import named

_library = torch.library.Library("verbatim", "FRAGMENT")
_library.define(
    "plan_forward(str plan, Tensor q, Tensor k, Tensor v, Tensor? seed, int threads) -> "
    "(Tensor o, Tensor lse)"
)
_library.define(
    "plan_backward(str plan, Tensor dout, Tensor q, Tensor k, Tensor v, Tensor o, Tensor lse, "
    "Tensor? seed, int threads) -> (Tensor dq, Tensor dk, Tensor dv)"
)


def run_plan(plan: str, tensors: tuple[Tensor, ...], seed: Any, threads: int) -> Any:
    """The forward of (q, k, v), the backward of (q, k, v, o, dout, lse)."""
    seed = None if seed is None else seed_tensor(seed)
    q, k, v, *rest = [x.detach() for x in tensors]
    if not rest:
        return torch.ops.verbatim.plan_forward(plan, q, k, v, seed, threads)
    o, dout, lse = rest
    return torch.ops.verbatim.plan_backward(plan, dout, q, k, v, o, lse, seed, threads)


def seed_tensor(seed: Any) -> Tensor:
    if isinstance(seed := seed_of(seed), Tensor):
        return seed
    # By a branch: compiled code has no number of more bits, for the % of a seed that changes.
    seed = seed - 2**64 if seed >= 2**63 else seed
    return torch.tensor(seed, dtype=torch.int64, device="cpu")


def seed_for(q: Tensor, seed: Tensor | None) -> Any:
    """A seed of q's device, or an integer."""
    if seed is not None and seed_of(seed).device != q.device:
        return int(seed) % 2**64  # a GPU reads a seed of its own when it runs
    return seed


def forward_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    for name, x in (("q", q), ("k", k), ("v", v)):
        check_dimensions(name, (list(x.shape),))
        if x.device != q.device:  # one of them is "meta"
            raise ValueError(different_devices(x.device, q.device))
    batch, length, heads, _dim = q.shape
    o = q.new_empty((batch, length, heads, v.shape[-1]))
    return o, q.new_empty((batch, heads, length), dtype=torch.float32)


def backward_fake(_dout: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Any:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _forward(plan: str, q: Tensor, *rest: Any) -> Any:
    *others, seed, threads = rest
    return named[plan].forward(q, *others, seed=seed_for(q, seed), threads=threads)


def _backward(plan: str, dout: Tensor, *rest: Any) -> Any:
    *others, seed, threads = rest
    return named[plan].backward(dout, *others, seed=seed_for(dout, seed), threads=threads)


def _forward_fake(_plan: str, *tensors: Any) -> Any:
    o, lse = forward_fake(*tensors)
    return o.to(torch.bfloat16) if o.dtype == torch.float8_e4m3fn else o, lse


def _backward_fake(_plan: str, *tensors: Any) -> Any:
    return backward_fake(*tensors)


for _device in ("CPU", "CUDA"):
    _library.impl("plan_forward", _forward, _device)
    _library.impl("plan_backward", _backward, _device)
torch.library.register_fake("verbatim::plan_forward", _forward_fake, lib=_library)
torch.library.register_fake("verbatim::plan_backward", _backward_fake, lib=_library)
