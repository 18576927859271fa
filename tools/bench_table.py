#!/usr/bin/env python3
"""Renders GPU results of `verbatim bench` (bench/results/*.json) as the tables of docs/benchmarks.md."""
import json
import sys


def table(path):
    run = json.load(open(path))
    matmul = run["matmul_tflops"]
    known = [rate for rate in (matmul["before"], matmul["after"]) if rate]  # a run may be cut
    yardstick = sum(known) / len(known)
    after = f" and {matmul['after']:.0f} after" if matmul["after"] else "; the run was cut"
    device = run["device"]
    print(f"`{path}`: {device['name']}, {device['multiprocessors']} multiprocessors, commit"
          f" {run['commit']}, {run['protocol']} protocol, 8192^3 bf16 matmul"
          f" {matmul['before']:.0f} TFLOP/s before{after}.\n")
    print("| case | forward TFLOP/s | backward ms | backward TFLOP/s | of the matmul |"
          " without order ms | ratio | order | noise |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r in run["results"]:
        back, none = r["backward"], r["unordered"]
        price = "- | -"
        if none:
            ratio = r.get("order_ratio") or none["ms"] / back["ms"]  # before: not in turn
            price = f"{none['ms']:.3f} | {ratio:.2f}"
        name = r["name"] + (f", {r['provider']}" if r.get("provider", "verbatim") != "verbatim" else "")
        print(f"| {name} | {r['forward']['tflops']:.0f} | {back['ms']:.3f} |"
              f" {back['tflops']:.0f} | {back['tflops'] / yardstick:.2f} | {price} |"
              f" {r['plan']['order'] if r.get('plan') else '-'} | {back['noise']:.1%} |")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        table(name)
