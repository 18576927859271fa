#!/usr/bin/env python3
"""Our CPU attention and PyTorch's, in turns over the same shapes. Prints one line per shape.

Needs torch and the built bench_cpu; layout bhld, which is PyTorch's own memory order.
"""
import argparse
import json
import subprocess
import sys
import time

import torch
import torch.nn.functional as F


def torch_cost(length, dim, causal, dtype, seconds):
    """Fewest CPU seconds and wall seconds of one forward plus one backward."""
    shape = (1, 8, length, dim)
    q, k, v = (torch.rand(shape, dtype=dtype).mul_(2).sub_(1).requires_grad_() for _ in range(3))
    dout = torch.rand(shape, dtype=dtype)
    best_cpu = best_wall = float("inf")
    end, rounds = time.monotonic() + seconds, 0
    while rounds < 3 or time.monotonic() < end:
        rounds += 1
        wall, cpu = time.monotonic(), time.process_time()
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        torch.autograd.grad(out, (q, k, v), dout)
        best_cpu = min(best_cpu, time.process_time() - cpu)
        best_wall = min(best_wall, time.monotonic() - wall)
    return best_cpu, best_wall


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bench", default="build/bench_cpu")
    parser.add_argument("--seqlen", default="512,2048,8192")
    parser.add_argument("--head-dim", default="64,128")
    parser.add_argument("--mask", default="causal,full")
    parser.add_argument("--dtype", default="f32", choices=["f32", "bf16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=2, help="turns that the two take")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    print("GFLOP/s of forward + backward by exact area, best of all turns")
    print(f"{'mask':7} {'length':>6} {'hd':>4}  {'ours':>11} {'torch':>11} {'ours/torch':>11}"
          "   (CPU time / wall time)")
    for mask in args.mask.split(","):
        for length in map(int, args.seqlen.split(",")):
            for dim in map(int, args.head_dim.split(",")):
                area = length * (length + 1) / 2 if mask == "causal" else length * length
                flops = 3.5 * 4 * area * 8 * dim * 1e-9
                ours, theirs = [0, 0], [0, 0]
                for _ in range(args.rounds):
                    text = subprocess.run(
                        [args.bench, "--json", "--layout", "bhld", "--seqlen", str(length),
                         "--head-dim", str(dim), "--mask", mask, "--dtype", args.dtype,
                         "--threads", str(args.threads), "--seconds", str(args.seconds)],
                        check=True, capture_output=True, text=True).stdout
                    row = json.loads(text)
                    cpu, wall = torch_cost(length, dim, mask == "causal", dtype, args.seconds)
                    ours = [max(ours[0], row["cpu_gflops"]["both"]),
                            max(ours[1], row["wall_gflops"]["both"])]
                    theirs = [max(theirs[0], flops / cpu), max(theirs[1], flops / wall)]
                ratio = [a / b for a, b in zip(ours, theirs)]
                print(f"{mask:7} {length:6} {dim:4}  {ours[0]:5.0f} {ours[1]:5.0f} "
                      f"{theirs[0]:5.0f} {theirs[1]:5.0f} {ratio[0]:5.2f} {ratio[1]:5.2f}")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
