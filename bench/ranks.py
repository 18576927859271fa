#!/usr/bin/env python3
"""What a step of context parallelism takes, beside one device and beside computing alone.

torchrun --nproc-per-node 2 bench/ranks.py --device cuda --transport group,peers --json ranks.json

A step is attention and its gradients on every rank, between two meetings of all ranks: wall time,
of the slowest rank. "compute" is the same step with all transfers cut out: ranks compute and copy,
on whatever lies in their buffers. "one device" is va.attention of the whole problem on rank 0
alone. All are called in turn. Results are compared with one device's first, bit by bit. With
--order, one device is timed with the order "auto", too, and the rate is that of its faster one.

Then steps are recorded, and the one of median time is split into parts whose sum it is, for each
rank and pass: launches, adds of sums, transfers (waits for messages), copies (from and to messages
and shards), and host (the device had nothing to do, for the host had not asked for it). "busy" is
how long the host took to ask for all of it, beside the device. Recording itself takes some of the
host's time, so that a recorded step may be longer.
"""

import argparse
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import verbatim_attn as va
from verbatim_attn.bench import results, workloads
from verbatim_attn.bench.measure import Device, Timing

WARM_UP, CALLS = 2, 5
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
Tensors = list[torch.Tensor]
Ways = dict[str, Callable[[], Tensors]]


def draw(problem: va.Problem, device: str) -> Tensors:
    """q, k, v and dout, the same on all ranks."""
    p, generator = problem, torch.Generator(device).manual_seed(problem.seed)
    shapes = [
        (p.batch, length, heads, dim)
        for length, heads, dim in (
            (p.q_len, p.q_heads, p.head_dim),
            (p.kv_len, p.kv_heads, p.head_dim),
            (p.kv_len, p.kv_heads, p.head_dim_v),
            (p.q_len, p.q_heads, p.head_dim_v),
        )
    ]
    return [
        torch.randn(shape, generator=generator, device=device).to(DTYPES[p.dtype])
        for shape in shapes
    ]


@contextlib.contextmanager
def without_transfers(parallel: va.ContextParallel) -> Iterator[None]:
    wire = parallel._handle.wire
    wire.send = wire.receive = lambda *_: None
    yield
    del wire.send, wire.receive


def ways(
    parallel: va.ContextParallel, by_group: va.ContextParallel, mask: va.masks.Mask,
    tensors: Tensors, order: str,
) -> Ways:  # fmt: skip
    """A step of each kind; its outputs and gradients, of this rank's rows or of all. `by_group`: the
    same over the group, whose transfers can be cut out."""
    *whole, whole_dout = tensors
    local = [parallel.dispatch(x).requires_grad_() for x in whole]
    dout = parallel.dispatch(whole_dout)
    whole = [x.requires_grad_() for x in whole]

    def step(parallel: va.ContextParallel) -> Tensors:
        o = parallel.attention(*local)
        return [o, *torch.autograd.grad(o, local, dout)]

    def compute() -> Tensors:
        with without_transfers(by_group):
            return step(by_group)

    def one_device(order: str) -> Tensors:
        if parallel.rank:
            return []
        o = va.attention(*whole, mask=mask, order=order)
        return [o, *torch.autograd.grad(o, whole, whole_dout)]

    steps = {
        "step": lambda: step(parallel),
        "compute": compute,
        "one_device": lambda: one_device(order),
    }
    return steps if order == "auto" else {**steps, "one_device_auto": lambda: one_device("auto")}


def differing(parallel: va.ContextParallel, steps: Ways) -> int:
    """Bytes of O, dQ, dK and dV that are not one device's; 0 on ranks that do not have those. Of the
    second step, which launches what the first has made."""
    steps["step"]()
    found = [parallel.undispatch(x.detach()) for x in steps["step"]()]
    return sum(
        int((a.view(torch.uint8) != b.view(torch.uint8)).sum())
        for a, b in zip(found, steps["one_device"](), strict=False)
    )


def slowest(seconds: float, machine: Device) -> float:
    """Of all ranks, which meet."""
    found = torch.tensor(seconds, dtype=torch.float64, device=machine.name)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def times_in_turn(steps: Ways, machine: Device) -> dict[str, Timing]:
    """Median milliseconds of each, their noise and this rank's clock behind them."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for call in range(WARM_UP + CALLS):
        for name, step in steps.items():
            slowest(0, machine)
            begin = time.perf_counter()
            step()
            if machine.kind == "cuda":
                torch.cuda.synchronize()
            seconds = slowest(time.perf_counter() - begin, machine)
            if call >= WARM_UP:
                times[name].append(seconds * 1e3)
    return {name: machine.summary(each) for name, each in times.items()}


PARTS = {
    "launch": "launches", "add": "adds",
    "send": "transfers", "expect": "transfers", "receive": "transfers", "settle": "transfers",
}  # fmt: skip


def split(steps: list[dict[str, Any]], total: float, machine: Device) -> dict[str, Any]:
    """The parts of a recorded step of `total` ms, by pass. Work that begins when the device is done
    with that before it and the host has asked for it takes the time from there to its end."""
    passes: dict[str, Any] = {}
    at = 0.0
    for s in steps:
        parts = passes.setdefault(s["pass"], {"host_ms": 0.0, "busy_ms": 0.0})
        asked = s["issued_ms"] if machine.kind == "cuda" else s["begin_ms"]  # a CPU works itself
        begin = min(max(at, s["begin_ms"], asked), s["end_ms"])
        part = parts.setdefault(PARTS.get(s["kind"], "copies"), {"bytes": 0, "each_ms": []})
        part["bytes"] += s["bytes"]
        part["each_ms"].append(s["end_ms"] - begin)
        parts["host_ms"] += begin - at
        parts["busy_ms"] += s["issued_ms"] - s["called_ms"]
        at = s["end_ms"]
    if passes:  # a rank may have nothing to do
        parts["host_ms"] += total - at  # behind the last
    return passes


def record(parallel: va.ContextParallel, step: Callable[[], Tensors], machine: Device) -> Any:
    """By rank, the parts of the step of median time of those recorded."""
    found = []
    for _ in range(CALLS):
        slowest(0, machine)
        with parallel.recorded() as steps:
            begin = time.perf_counter()
            step()
            if machine.kind == "cuda":
                torch.cuda.synchronize()
            total = (time.perf_counter() - begin) * 1e3
        found.append((slowest(total, machine), split(steps, total, machine)))
    median = sorted(range(CALLS), key=lambda call: found[call][0])[CALLS // 2]
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, found[median][1])
    return {"ms": found[median][0], "ranks": by_rank}


def table(r: dict[str, Any]) -> list[str]:
    names = "launches", "adds", "transfers", "copies"
    lines = [
        f"{r['name']}, {r['strategy']}, {r['shard']}, {r['transport']}:"
        f" recorded {r['recorded']['ms']:.3f} ms; number and ms",
        f"{'':18}" + "".join(f"{name:>16}" for name in names) + f"{'host':>9}{'sum':>9}{'busy':>9}",
    ]
    for rank, passes in enumerate(r["recorded"]["ranks"]):
        for which, parts in passes.items():
            own = [parts.get(name, {"each_ms": []})["each_ms"] for name in names]
            total = sum(map(sum, own)) + parts["host_ms"]
            lines.append(
                f"  rank {rank} {which:<9}"
                + "".join(f"{len(part):6} {sum(part):9.3f}" for part in own)
                + f"{parts['host_ms']:9.3f}{total:9.3f}{parts['busy_ms']:9.3f}"
            )
    return lines


def row(
    case: workloads.Case, strategy: str, shard: str, transport: str, order: str, machine: Device
) -> dict[str, Any]:
    def parallel_over(transport: str) -> va.ContextParallel:
        return va.ContextParallel(
            None, case.problem, case.mask, strategy=strategy, shard=shard, order=order,
            transport=transport, device=machine.name,
        )  # fmt: skip

    begin = time.perf_counter()
    parallel = parallel_over(transport)
    dealt = time.perf_counter() - begin
    by_group = parallel if parallel.transport == "group" else parallel_over("group")
    steps = ways(parallel, by_group, case.mask, draw(case.problem, machine.name), order)
    wrong = differing(parallel, steps)
    sent = [own[name]["predicted_bytes"] for own in parallel.description["ranks"]
            for name in ("forward", "backward")]  # fmt: skip
    return {
        "name": case.name, "problem": case.problem._asdict(), "mask": case.mask.name,
        "strategy": strategy, "shard": parallel.description["shard"],
        "transport": parallel.transport, "order": order,
        "orders": parallel.description["backward"]["orders"], "differing_bytes": wrong,
        "sent_bytes": sum(sent), "deal_ms": dealt * 1e3, **times_in_turn(steps, machine),
        "recorded": record(parallel, steps["step"], machine),
    }  # fmt: skip


def line(r: dict[str, Any], world: int) -> str:
    step, compute, one_device = (r[way]["ms"] for way in ("step", "compute", "one_device"))
    one_device = min(one_device, r.get("one_device_auto", r["one_device"])["ms"])
    return (
        f"{r['name']:<40} {r['strategy']:<10} {r['shard']:<10} {r['transport']:<5}"
        f" {r['sent_bytes'] / 2**20:8.1f}"
        f" {step:9.3f} {r['step']['noise']:6.1%} {compute:9.3f} {one_device:10.3f}"
        f" {one_device / step / world:6.0%} {r['differing_bytes']:6}"
    )


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--device", default="cpu", help="cpu or cuda: each rank's own")
    p.add_argument("--set", default="longca", help="of python -m verbatim_attn.bench --list")
    p.add_argument("--match", default="", help="masks of the set; commas (default: all)")
    p.add_argument("--seqlen", type=int, default=8192, help="positions of each rank")
    p.add_argument("--heads", default="64:8")
    p.add_argument("--head-dim", type=int, default=128)
    p.add_argument("--dtype", default="bf16", choices=DTYPES)
    p.add_argument("--strategy", default="ulysses,ring,balanced", help="commas")
    p.add_argument("--shard", default="balanced", help="commas")
    p.add_argument("--transport", default="group", help="group, peers, auto; commas")
    p.add_argument("--order", default="auto", help="of the backward's sums")
    p.add_argument("--commit", default="", help="recorded: what was built")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args()
    dist.init_process_group("nccl" if a.device == "cuda" else "gloo", timeout=timedelta(minutes=2))
    rank, world = dist.get_rank(), dist.get_world_size()
    machine = Device(f"cuda:{rank}" if a.device == "cuda" else a.device)
    choice = workloads.Choice(
        seqlens=(a.seqlen * world,), heads=(tuple(map(int, a.heads.split(":"))),),
        head_dims=(a.head_dim,), dtype=a.dtype,
    )  # fmt: skip
    cases = [
        c for c in workloads.cases(a.set, choice)
        if not a.match or c.mask.name in a.match.split(",")
    ]  # fmt: skip
    if not cases:
        there = dict.fromkeys(c.mask.name for c in workloads.cases(a.set, choice))
        p.error(f"--match {a.match} names no mask of --set {a.set}, which has {', '.join(there)}")
    kinds = list(itertools.product(*(x.split(",") for x in (a.strategy, a.shard, a.transport))))
    for strategy, shard, transport in kinds:  # a wrong name is told before anything is measured
        va.ContextParallel(
            None, cases[0].problem, cases[0].mask, strategy=strategy, shard=shard, order=a.order,
            transport=transport, device=machine.name,
        )  # fmt: skip
    rows: list[dict[str, Any]] = []
    words = [Path(w).name if w == a.json else w for w in sys.argv[1:]]  # no machine's folder
    result = {"command": "bench/ranks", "version": va.__version__, "arguments": words,
              "commit": a.commit, "world": world, "backend": dist.get_backend(),
              "device": machine.facts(), "results": rows}  # fmt: skip
    for case in cases:
        for kind in kinds:
            rows.append(row(case, *kind, a.order, machine))
            if rank == 0:
                print(line(rows[-1], world), file=sys.stderr, flush=True)
                if a.json:  # after each row: a run that is cut leaves those before
                    results.write("--json", a.json, json.dumps(result, indent=1) + "\n")
    if rank == 0:
        print(f"{'':68} {'MiB sent':>8} {'step ms':>9} {'noise':>6} {'compute':>9}"
              f" {'one device':>10} {'rate':>6} {'differ':>6}")  # fmt: skip
        print(*(line(r, world) for r in rows), sep="\n")
        for r in rows:
            print("", *table(r), sep="\n")
    dist.destroy_process_group()
    return int(any(r["differing_bytes"] for r in rows))


if __name__ == "__main__":
    sys.exit(main())
