#!/usr/bin/env python3
"""Prints the tables of docs/lab/regret.md from what bench/regret measured."""

import collections
import json
import statistics
import sys


def short(key):
    order, placement = key.split(" | ")
    return f"`{order}`, `{placement}`"


def main():
    study = json.load(open(sys.argv[1]))
    rows = study["results"]
    print(
        f"{len(rows)} problems of seed {study['seed']}, {study['device']['name']}, driver "
        f"{study['device']['driver']}, contract {study['contract']}, {study['commit']}.\n"
    )
    print("| level | mean regret | median | worst |\n|---|---|---|---|")
    levels = {"invariant": rows}
    if "gpu_to_gpu" in rows[0]:
        levels["gpu_to_gpu"] = [row["gpu_to_gpu"] for row in rows]
    for level, of in levels.items():
        regrets = [100 * row["regret"] for row in of]
        print(
            f"| {level} | {statistics.mean(regrets):.1f} % | {statistics.median(regrets):.1f} % | "
            f"{max(regrets):.0f} % |"
        )
    print()
    print(
        "| rule | problems it decides | time without it, mean | least | most |\n|---|---|---|---|---|"
    )
    gains = collections.defaultdict(list)
    for row in rows:
        for rule, other in row["without"].items():
            gains[rule].append(other["ms"] / row["ms"])
    for rule, ratios in gains.items():
        print(
            f"| {rule} | {len(ratios)} | {statistics.geometric_mean(ratios):.2f} | "
            f"{min(ratios):.2f} | {max(ratios):.2f} |"
        )
    print("\n| problem | auto | ms | best | ms | regret |\n|---|---|---|---|---|---|")
    for row in sorted(rows, key=lambda row: -row["regret"]):
        print(
            f"| {row['name'].split(' ', 1)[1]} | {short(row['choice'])} | {row['ms']:.3f} | "
            f"{short(row['best'])} | {row['best_ms']:.3f} | {100 * row['regret']:.1f} % |"
        )


if __name__ == "__main__":
    main()
