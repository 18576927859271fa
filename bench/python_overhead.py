#!/usr/bin/env python3
"""What a call from Python costs besides the C function it ends in.

Every row is the lowest tenth of many calls on one tiny problem, in CPU time of this thread, so that
a busy machine shows little. "C call" is verbatim_attention_forward or _backward through ctypes with
structs packed beforehand; the rows under it do the same work and more. PyTorch's own price, of an
operator that does nothing in Python, is beside ours. Needs NumPy; PyTorch where it is there.
"""

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import verbatim_attn as va
from verbatim_attn import _library
from verbatim_attn._arrays import arrays_of

_kept: list[Any] = []  # what packed addresses point to
SHAPE = (1, 16, 1, 16)  # (batch, length, heads, dim): one tile, so one thread


def cost_of(call: Callable[[], Any], calls: int) -> float:
    """Microseconds of CPU time of this thread, of which a tenth of the calls take less. Not the
    least: single readings of 0 have been seen."""
    clock, costs = time.thread_time_ns, []
    for _ in range(calls):
        begin = clock()
        call()
        costs.append(clock() - begin)
    return sorted(costs)[calls // 10] / 1000


def c_calls(plan: va.Plan, dout: Any, q: Any, k: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """Both passes with prepared arguments, on one thread as every other row."""
    o, lse = plan.forward(q, k, v)
    outputs = [np.empty_like(x) for x in (o, q, k, v)]
    rows = np.empty_like(lse)
    _kept.extend([q, k, v, dout, o, lse, rows, outputs])
    view = arrays_of(q).view
    forward = _library.FORWARD.pack(
        *view(q), *view(k), *view(v), *view(outputs[0]), rows.ctypes.data
    )
    backward = _library.BACKWARD.pack(
        *view(q), *view(k), *view(v), *view(o), *view(dout), lse.ctypes.data,
        *view(outputs[1]), *view(outputs[2]), *view(outputs[3]),
    )  # fmt: skip
    run = _library.RUN.pack(0, 1, 0)
    handle = plan._handle
    return {
        "forward": lambda: _library.forward(handle, forward, run),
        "backward": lambda: _library.backward(handle, backward, run),
    }


def numpy_rows() -> dict[str, dict[str, Callable[[], Any]]]:
    rng = np.random.default_rng(0)
    dout, q, k, v = (rng.standard_normal(SHAPE, np.float32) for _ in range(4))
    batch, length, heads, dim = SHAPE
    mask = va.masks.Causal()
    plan = va.Plan(va.Problem(batch, heads, heads, length, length, dim, dim, "f32"), mask)
    o, lse = plan.forward(q, k, v)
    c = c_calls(plan, dout, q, k, v)
    return {
        "forward": {
            "C call": c["forward"],
            "Plan.forward, NumPy": lambda: plan.forward(q, k, v, threads=1),
            "attention, NumPy": lambda: va.attention(q, k, v, mask=mask),
        },
        "backward": {
            "C call": c["backward"],
            "Plan.backward, NumPy": lambda: plan.backward(dout, q, k, v, o, lse, threads=1),
            "attention_backward, NumPy": lambda: va.attention_backward(
                dout, q, k, v, o, lse, mask=mask
            ),
        },
    }


def torch_rows() -> dict[str, dict[str, Callable[[], Any]]]:
    import torch
    from verbatim_attn._torch import SETTINGS

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    dout, q, k, v = (torch.randn(SHAPE, generator=generator) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    mask = va.masks.Causal()
    batch, length, heads, dim = SHAPE
    plan = va.Plan(va.Problem(batch, heads, heads, length, length, dim, dim, "f32"), mask)
    o, lse = plan.forward(q, k, v)
    graph = va.attention(*leaves, mask=mask)

    library = torch.library.Library("verbatim_overhead", "DEF")
    _kept.append(library)
    results = "-> (Tensor o, Tensor lse)"
    for name, settings in (("plain", ""), ("differentiable", f", {SETTINGS}")):
        library.define(f"{name}(Tensor q, Tensor k, Tensor v{settings}) {results}")
        library.impl(name, lambda q, *_: (q.new_empty(o.shape), q.new_empty(lse.shape)), "CPU")
    torch.library.register_autograd(
        "verbatim_overhead::differentiable", lambda ctx, *_: (None,) * 11, lib=library
    )
    ops = torch.ops.verbatim_overhead
    arguments = (mask.spec, None, 0.0, 0.0, "auto", "auto", "invariant", True)
    return {
        "forward": {
            "PyTorch: operator that only allocates": lambda: ops.plain(q, k, v),
            "PyTorch: with settings and a formula": lambda: ops.differentiable(q, k, v, *arguments),
            "Plan.forward, PyTorch": lambda: plan.forward(q, k, v, threads=1),
            "attention, PyTorch": lambda: va.attention(q, k, v, mask=mask),
            "attention, PyTorch, with graph": lambda: va.attention(*leaves, mask=mask),
        },
        "backward": {
            "Plan.backward, PyTorch": lambda: plan.backward(dout, q, k, v, o, lse, threads=1),
            "autograd, PyTorch": lambda: torch.autograd.grad(
                graph, leaves, dout, retain_graph=True
            ),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=20000)
    args = parser.parse_args()
    rows = numpy_rows()
    try:
        for name, more in torch_rows().items():
            rows[name] |= more
    except ModuleNotFoundError:
        print("no PyTorch: its rows are left out")
    gc.disable()
    for name, calls in rows.items():
        print(f"{name:<40} {'us':>7} {'above C':>8}")
        base = None
        for row, call in calls.items():
            cost = cost_of(call, args.calls)
            base = cost if base is None else base
            print(f"  {row:<38} {cost:>7.1f} {cost - base:>8.1f}")


if __name__ == "__main__":
    main()
