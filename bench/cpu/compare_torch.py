#!/usr/bin/env python3
"""Our CPU attention, PyTorch's and oneDNN's sgemm, in turns in one process.

A round is one call of each, so that the clock and the neighbours of a shared machine are the same
for all three. GFLOP/s of a forward and a backward are of the fastest call and count the exact area;
ratios are the median over the rounds. Prints a Markdown table. Needs torch, libdnnl,
VERBATIM_LIBRARY=build/libverbatim_c.so and PYTHONPATH=python.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
import verbatim_attn as va

HEADS = 8
GEMM_SIZE = 1024


def gemm_call():
    """oneDNN's sgemm of square matrices."""
    dnnl = ctypes.CDLL("libdnnl.so.2")
    matrices = [torch.rand(GEMM_SIZE, GEMM_SIZE) for _ in range(3)]
    a, b, c = (ctypes.c_void_p(x.data_ptr()) for x in matrices)
    as_is, size = ctypes.c_char(b"N"), ctypes.c_int64(GEMM_SIZE)
    one, zero = ctypes.c_float(1), ctypes.c_float(0)

    def call():
        status = dnnl.dnnl_sgemm(
            as_is, as_is, size, size, size, one, a, size, b, size, zero, c, size
        )
        assert status == 0 and matrices

    return call


def attention_calls(length, dim, causal, dtype_name, threads):
    """One forward plus one backward: of ours and of PyTorch's, on the same tensors."""
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype_name]
    q, k, v = (
        torch.rand(1, HEADS, length, dim, dtype=dtype).mul_(2).sub_(1).requires_grad_()
        for _ in range(3)
    )
    dout = torch.rand_like(q)
    problem = va.Problem(1, HEADS, HEADS, length, length, dim, dim, dtype_name)
    plan = va.Plan(problem, va.masks.Causal() if causal else va.masks.Full())
    ours_in = [x.detach().transpose(1, 2) for x in (q, k, v)]
    ours_dout = dout.transpose(1, 2)

    def ours():
        o, lse = plan.forward(*ours_in, threads=threads)
        plan.backward(ours_dout, *ours_in, o, lse, threads=threads)

    def theirs():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.autograd.grad(out, (q, k, v), dout)

    return ours, theirs


def cost(call):
    """CPU and wall seconds of one call."""
    wall, cpu = time.monotonic(), time.process_time()
    call()
    cost_cpu, cost_wall = time.process_time() - cpu, time.monotonic() - wall
    time.sleep(0.01)  # OpenMP's threads spin on for a while
    return cost_cpu, cost_wall


def run_case(mask, length, dim, dtype_name, threads, seconds):
    torch.set_num_threads(threads)
    calls = [*attention_calls(length, dim, mask == "causal", dtype_name, threads), gemm_call()]
    for call in calls:
        call()
    rounds, end = [], time.monotonic() + seconds
    while len(rounds) < 5 or time.monotonic() < end:
        rounds.append([cost(call) for call in calls])
    area = length * (length + 1) // 2 if mask == "causal" else length * length
    flops = [3.5 * 4 * area * HEADS * dim] * 2 + [2 * GEMM_SIZE**3]
    row = {
        "mask": mask,
        "length": length,
        "head_dim": dim,
        "dtype": dtype_name,
        "threads": threads,
        "rounds": len(rounds),
    }
    for clock, name in enumerate(("cpu", "wall")):
        rates = [
            [amount / each[clock] * 1e-9 for each, amount in zip(turn, flops)] for turn in rounds
        ]
        best = [max(column) for column in zip(*rates)]
        row[name] = {
            "ours": best[0],
            "torch": best[1],
            "gemm": best[2],
            "over_torch": statistics.median(r[0] / r[1] for r in rates),
            "over_gemm": statistics.median(r[0] / r[2] for r in rates),
        }
    return row


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seqlen", default="512,2048,8192")
    parser.add_argument("--head-dim", default="64,128")
    parser.add_argument("--mask", default="causal,full")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=10, help="per case; at least 5 rounds")
    parser.add_argument("--clock", default="cpu", choices=["cpu", "wall"], help="of the table")
    parser.add_argument("--json", metavar="FILE", help="append a line per case")
    args = parser.parse_args()
    print(
        "| mask | length | hd | dtype | threads | ours | PyTorch | sgemm | over PyTorch | "
        "over sgemm |\n" + "|---" * 10 + "|"
    )
    for threads in map(int, args.threads.split(",")):
        for mask in args.mask.split(","):
            for length in map(int, args.seqlen.split(",")):
                for dim in map(int, args.head_dim.split(",")):
                    row = run_case(mask, length, dim, args.dtype, threads, args.seconds)
                    got = row[args.clock]
                    print(
                        f"| {mask} | {length} | {dim} | {args.dtype} | {threads} "
                        f"| {got['ours']:.0f} | {got['torch']:.0f} | {got['gemm']:.0f} "
                        f"| {got['over_torch']:.2f} | {got['over_gemm']:.2f} |"
                    )
                    sys.stdout.flush()
                    if args.json:
                        with open(args.json, "a") as out:
                            out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
