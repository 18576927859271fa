#!/usr/bin/env python3
"""Small causal f32 attention with its gradients on a CPU, ours and PyTorch's, in turns.

A round is three calls of each with a pause behind them, of which the third is timed: the caches are
warm, and threads are as awake as a call leaves them. Prints a Markdown table: medians, and the median
of PyTorch's time over ours in the same round. "others" is what other processes took meanwhile, in
cores. Needs torch, VERBATIM_LIBRARY=build/libverbatim_c.so and PYTHONPATH=python; ours goes through
C++ where `python -m verbatim_attn.native build` was run before.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
import verbatim_attn as va

SHAPES = ((4, 64, 8, 8), (4, 64, 8, 64), (1, 128, 4, 64), (2, 128, 8, 32), (2, 256, 8, 64))
PAUSE = 0.003  # seconds
COLUMNS = ("(batch, length, heads, dim)", "threads", "ours, us", "SDPA, us", "over SDPA", "others")


def calls(batch, length, heads, dim):
    """A forward and its gradients: of ours and of PyTorch's, each in the layout that it takes."""
    q, k, v, dout = (torch.rand(batch, length, heads, dim).mul_(2).sub_(1) for _ in range(4))
    ours_in = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs_in = [x.transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    theirs_dout = dout.transpose(1, 2).contiguous()
    mask = va.masks.Causal()

    def ours():
        torch.autograd.grad(va.attention(*ours_in, mask=mask), ours_in, dout)

    def theirs():
        out = F.scaled_dot_product_attention(*theirs_in, is_causal=True)
        torch.autograd.grad(out, theirs_in, theirs_dout)

    return ours, theirs


def microseconds(call):
    """Of the third of three calls."""
    call()
    call()
    begin = time.perf_counter_ns()
    call()
    took = (time.perf_counter_ns() - begin) / 1000
    time.sleep(PAUSE)
    return took


def busy_seconds():
    """Of all cores since the machine started."""
    with open("/proc/stat") as stat:
        user, nice, system, _, _, *interrupts = map(int, stat.readline().split()[1:8])
    return (user + nice + system + sum(interrupts)) / 100


def run_case(shape, threads, seconds):
    torch.set_num_threads(threads)
    both = calls(*shape)
    for _ in range(20):
        for call in both:
            call()
    begin, busy, own = time.monotonic(), busy_seconds(), time.process_time()
    rounds = []
    while time.monotonic() < begin + seconds:
        rounds.append([microseconds(call) for call in both])
    wall = time.monotonic() - begin
    others = max(0.0, busy_seconds() - busy - (time.process_time() - own)) / wall
    ours, theirs = (statistics.median(column) for column in zip(*rounds))
    over = statistics.median(their / our for our, their in rounds)
    print(
        f"| {shape} | {threads} | {ours:,.0f} | {theirs:,.0f} | {over:.2f} | {others:.1f} |",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=1, help="per row")
    args = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|")
    for shape in SHAPES:
        for threads in map(int, args.threads.split(",")):
            run_case(shape, threads, args.seconds)


if __name__ == "__main__":
    main()
