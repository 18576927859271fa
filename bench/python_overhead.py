#!/usr/bin/env python3
"""What a call from Python costs besides the C function it ends in.

Every row is the lowest tenth of many calls on one tiny problem, in CPU time of this thread, so that
a busy machine shows little. "C call" is verbatim_attention_forward or _backward through ctypes with
structs packed beforehand. The rows that begin with "C call" add what no caller can do without: the
outputs' memory, and where gradients are wanted PyTorch's formula in Python that keeps the tensors.
What is above those is Verbatim's own. "native" rows take the way of verbatim_attn.native, which has to
be built before. Needs NumPy; PyTorch where it is there. With --device cuda the C call is the
enqueueing of its kernels.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import verbatim_attn as va
from verbatim_attn import _library
from verbatim_attn._arrays import arrays_of, dense_strides
from verbatim_attn.audit import environment

_kept: list[Any] = []  # what packed addresses point to
_TURN = 20  # calls
NATIVE = ", native"  # ends the names of rows that take the way of verbatim_attn.native
SHAPE = (1, 16, 1, 16)  # (batch, length, heads, dim): one tile, so one thread


def costs_of(
    rows: dict[str, Callable[[], Any]], calls: int, begin_turn: Callable[[str], Any]
) -> dict[str, float]:
    """Of each row the microseconds of CPU time of this thread that a tenth of its calls stay
    under. Not the least: single readings of 0 have been seen. Rows take turns, so that what the
    machine does meanwhile meets all of them."""
    clock = time.thread_time_ns
    costs: dict[str, list[int]] = {row: [] for row in rows}
    for _ in range(calls // _TURN):
        for row, call in rows.items():
            begin_turn(row)
            for _ in range(_TURN):
                begin = clock()
                call()
                costs[row].append(clock() - begin)
    return {row: sorted(of_row)[len(of_row) // 10] / 1000 for row, of_row in costs.items()}


def c_calls(plan: va.Plan, dout: Any, q: Any, k: Any, v: Any) -> dict[str, Callable[[], Any]]:
    """Both passes with prepared arguments, on one thread as every other row."""
    o, lse = plan.forward(q, k, v)
    again, rows = plan.forward(q, k, v)
    gradients = plan.backward(dout, q, k, v, o, lse)
    _kept.extend([q, k, v, dout, o, lse, again, rows, gradients])
    arrays = arrays_of(q)

    def packed(tensors: tuple[Any, ...], rows: int) -> list[Any]:
        """Addresses and layouts; the LSE, at position `rows`, has none."""
        fields = []
        for at, x in enumerate(tensors):
            fields += [arrays.address(x), b"" if at == rows else arrays.layout("x", arrays.key(x))]
        return fields

    no_scales = 3 * [0, b""]
    forward = _library.FORWARD.pack(*packed((q, k, v, again, rows), 4), *no_scales)
    backward = _library.BACKWARD.pack(*packed((q, k, v, o, dout, lse, *gradients), 5))
    run = _library.RUN.pack(arrays.stream(), 1, 0, 0, 0, 0, 0)
    handle = plan._handle.pointer
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
            "C call and outputs": lambda: (c["forward"](), np.empty_like(o), np.empty_like(lse)),
            "Plan.forward": lambda: plan.forward(q, k, v, threads=1),
            "attention": lambda: va.attention(q, k, v, mask=mask),
        },
        "backward": {
            "C call": c["backward"],
            "C call and outputs": lambda: (c["backward"](), *map(np.empty_like, (q, k, v))),
            "Plan.backward": lambda: plan.backward(dout, q, k, v, o, lse, threads=1),
            "attention_backward": lambda: va.attention_backward(dout, q, k, v, o, lse, mask=mask),
        },
    }


def torch_rows(
    device: str,
) -> tuple[dict[str, dict[str, Callable[[], Any]]], Callable[[str], Any]]:
    """And what begins a turn of a row: it takes the row's way, and waits for a GPU, whose queue would
    fill."""
    import torch
    from verbatim_attn import _native

    built = _native.module

    def begin_turn(row: str) -> None:
        _native.module = built if row.endswith(NATIVE) else None
        if device != "cpu":
            torch.cuda.synchronize()

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

    strides = dense_strides(SHAPE)

    def make() -> Any:
        return torch.empty_strided(SHAPE, strides, dtype=dtype, device=device)

    def make_rows() -> Any:
        rows = (batch, heads, length)
        return torch.empty_strided(rows, dense_strides(rows), dtype=torch.float32, device=device)

    class Formula(torch.autograd.Function):
        """What PyTorch asks for a formula in Python, around the C calls."""

        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            c["forward"]()
            o, lse = make(), make_rows()
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        def backward(ctx: Any, dout: Any) -> Any:
            _q, _k, _v, _o, _lse = ctx.saved_tensors
            c["backward"]()
            return make(), make(), make()

    formula, copy = Formula.apply(*leaves), leaves[0].clone()
    attention: dict[str, Callable[[], Any]] = {
        "attention": lambda: va.attention(q, k, v, mask=mask),
        "flash_attn_func": lambda: va.flash_attn_func(q, k, v, causal=True),
        "attention, with graph": lambda: va.attention(*leaves, mask=mask),
    }

    def gradients(o: Any) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(o, leaves, dout, retain_graph=True)

    forward: dict[str, Callable[[], Any]] = {}
    backward: dict[str, Callable[[], Any]] = {}
    for way in ("", NATIVE) if built else ("",):
        begin_turn(way)
        forward |= {row + way: call for row, call in attention.items()}
        forward["Plan.forward" + way] = lambda: plan.forward(q, k, v, threads=1)
        backward |= {"autograd" + way: gradients(va.attention(*leaves, mask=mask))}
        backward["Plan.backward" + way] = lambda: plan.backward(dout, q, k, v, o, lse, threads=1)
    rows: dict[str, dict[str, Callable[[], Any]]] = {
        "forward": {
            "C call": c["forward"],
            "C call and outputs": lambda: (c["forward"](), make(), make_rows()),
            "C call in an autograd.Function": lambda: Formula.apply(*leaves),
            **forward,
        },
        "backward": {
            "C call": c["backward"],
            "C call and outputs": lambda: (c["backward"](), make(), make(), make()),
            "C call and autograd of a clone": lambda: (
                c["backward"](),
                torch.autograd.grad(copy, leaves[0], dout, retain_graph=True),
            ),
            "C call in an autograd.Function": gradients(formula),
            **backward,
        },
    }
    return rows, begin_turn


def measure(
    title: str, rows: dict[str, Any], begin_turn: Callable[[str], Any], args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Prints the passes' tables: the lowest and the highest of all runs; also as plain data."""
    found = []
    for name, row_calls in rows.items():
        print(f"{title + ', ' + name:<40} {'us':>13} {'above C':>13}")
        runs = [costs_of(row_calls, args.calls, begin_turn) for _ in range(args.runs)]
        for row in row_calls:
            us = [run[row] for run in runs]
            above = [run[row] - run["C call"] for run in runs]
            print(f"  {row:<38} {_range(us):>13} {_range(above):>13}")
            found.append({"tensors": title, "pass": name, "row": row, "us": us})
    return found


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--calls", type=int, default=20000, help="of each row in a run")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="of PyTorch's rows: cpu or cuda")
    parser.add_argument("--commit", default="", help="recorded: what was built")
    parser.add_argument("--json", metavar="FILE", help="writes every run's microseconds")
    args = parser.parse_args()
    gc.disable()
    found: dict[str, Any] = {
        "schema": "verbatim.python_overhead.v1", "environment": environment.describe(None),
        "commit": args.commit, "shape": SHAPE, "calls": args.calls, "results": [],
    }  # fmt: skip
    if args.device == "cpu":
        found["results"] += measure("NumPy", numpy_rows(), lambda _row: None, args)
    try:
        import torch
    except ModuleNotFoundError:
        print("no PyTorch: its rows are left out")
    else:
        with torch.autograd.set_multithreading_enabled(False):  # this thread's time is all of it
            found["results"] += measure(f"PyTorch, {args.device}", *torch_rows(args.device), args)
        found["environment"] = environment.describe(torch.device(args.device))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
