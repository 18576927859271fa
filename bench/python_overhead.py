#!/usr/bin/env python3
"""What a call from Python costs besides the C function it ends in.

Every row is the lowest tenth of many calls on one tiny problem, in CPU time of this thread, so that
a busy machine shows little. "C call" is verbatim_attention_forward or _backward through ctypes with
structs packed beforehand; the rows under it do the same work and more. PyTorch's own price, of an
operator that does nothing in Python, is beside ours. Needs NumPy; PyTorch where it is there. With
--device cuda the C call is the enqueueing of its kernels.
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


def cost_of(call: Callable[[], Any], calls: int, wait: Callable[[], Any]) -> float:
    """Microseconds of CPU time of this thread, of which a tenth of the calls take less. Not the
    least: single readings of 0 have been seen. `wait` keeps a GPU's queue from filling."""
    clock, costs = time.thread_time_ns, []
    for number in range(calls):
        if number % 32 == 0:
            wait()
        begin = clock()
        call()
        costs.append(clock() - begin)
    return sorted(costs)[calls // 10] / 1000


def c_calls(plan: va.Plan, dout: Any, q: Any, k: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """Both passes with prepared arguments, on one thread as every other row."""
    o, lse = plan.forward(q, k, v)
    again, rows = plan.forward(q, k, v)
    gradients = plan.backward(dout, q, k, v, o, lse)
    _kept.extend([q, k, v, dout, o, lse, again, rows, gradients])
    arrays = arrays_of(q)
    view, address = arrays.view, arrays.address
    forward = _library.FORWARD.pack(*view(q), *view(k), *view(v), *view(again), address(rows))
    dq, dk, dv = gradients
    backward = _library.BACKWARD.pack(
        *view(q), *view(k), *view(v), *view(o), *view(dout), address(lse),
        *view(dq), *view(dk), *view(dv),
    )  # fmt: skip
    run = _library.RUN.pack(arrays.stream(q), 1, 0, 0)
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
            "Plan.forward": lambda: plan.forward(q, k, v, threads=1),
            "attention": lambda: va.attention(q, k, v, mask=mask),
        },
        "backward": {
            "C call": c["backward"],
            "Plan.backward": lambda: plan.backward(dout, q, k, v, o, lse, threads=1),
            "attention_backward": lambda: va.attention_backward(dout, q, k, v, o, lse, mask=mask),
        },
    }


def torch_rows(device: str) -> dict[str, dict[str, Callable[[], Any]]]:
    import torch
    from verbatim_attn._torch import SETTINGS

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    dout, q, k, v = (torch.randn(SHAPE, generator=generator).to(device, dtype) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    mask = va.masks.Causal()
    batch, length, heads, dim = SHAPE
    kind = "f32" if device == "cpu" else "bf16"
    problem = va.Problem(batch, heads, heads, length, length, dim, dim, kind)
    plan = va.Plan(problem, mask, device=device)
    c = c_calls(plan, dout, q, k, v)
    o, lse = plan.forward(q, k, v)
    graph = va.attention(*leaves, mask=mask)

    library = torch.library.Library("verbatim_overhead", "DEF")
    _kept.append(library)
    results = "-> (Tensor o, Tensor lse)"
    key = "CPU" if device == "cpu" else "CUDA"
    for name, settings in (("plain", ""), ("differentiable", f", {SETTINGS}")):
        library.define(f"{name}(Tensor q, Tensor k, Tensor v{settings}) {results}")
        library.impl(name, lambda q, *_: (q.new_empty(o.shape), q.new_empty(lse.shape)), key)
    torch.library.register_autograd(
        "verbatim_overhead::differentiable", lambda ctx, *_: (None,) * 11, lib=library
    )
    ops = torch.ops.verbatim_overhead

    class Ready(torch.autograd.Function):
        """What PyTorch asks for a formula in Python that saves six tensors and only allocates."""

        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            ctx.save_for_backward(q, k, v, o, lse, None)
            return q.new_empty(o.shape), q.new_empty(lse.shape)

        @staticmethod
        def backward(ctx: Any, dout: Any, _dlse: Any) -> Any:
            q, k, v, *_ = ctx.saved_tensors
            return q.new_empty(q.shape), q.new_empty(k.shape), q.new_empty(v.shape)

    ready = Ready.apply(*leaves)[0]
    arguments = (mask.spec, None, 0.0, 0.0, "auto", "auto", "invariant", True)
    return {
        "forward": {
            "C call": c["forward"],
            "PyTorch: operator that only allocates": lambda: ops.plain(q, k, v),
            "PyTorch: with settings and a formula": lambda: ops.differentiable(q, k, v, *arguments),
            "PyTorch: Function that only allocates": lambda: Ready.apply(*leaves),
            "Plan.forward": lambda: plan.forward(q, k, v, threads=1),
            "attention": lambda: va.attention(q, k, v, mask=mask),
            "attention, with graph": lambda: va.attention(*leaves, mask=mask),
        },
        "backward": {
            "C call": c["backward"],
            "PyTorch: Function that only allocates": lambda: torch.autograd.grad(
                ready, leaves, dout, retain_graph=True
            ),
            "Plan.backward": lambda: plan.backward(dout, q, k, v, o, lse, threads=1),
            "autograd": lambda: torch.autograd.grad(graph, leaves, dout, retain_graph=True),
        },
    }


def idle() -> None:
    """A CPU has no queue."""


def measure(title: str, rows: dict[str, Any], calls: int, wait: Callable[[], Any] = idle) -> None:
    for name, row_calls in rows.items():
        print(f"{title + ', ' + name:<40} {'us':>7} {'above C':>8}")
        base = None
        for row, call in row_calls.items():
            cost = cost_of(call, calls, wait)
            base = cost if base is None else base
            print(f"  {row:<38} {cost:>7.1f} {cost - base:>8.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--device", default="cpu", help="of PyTorch's rows: cpu or cuda")
    args = parser.parse_args()
    gc.disable()
    if args.device == "cpu":
        measure("NumPy", numpy_rows(), args.calls)
    try:
        import torch
    except ModuleNotFoundError:
        print("no PyTorch: its rows are left out")
        return
    wait = idle if args.device == "cpu" else torch.cuda.synchronize
    with torch.autograd.set_multithreading_enabled(False):  # this thread's time is all of it
        measure(f"PyTorch, {args.device}", torch_rows(args.device), args.calls, wait)


if __name__ == "__main__":
    main()
