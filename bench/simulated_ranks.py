#!/usr/bin/env python3
"""What `verbatim plan` simulates of the rows that bench/ranks.py measured.

VERBATIM_TOOL=build/verbatim python3 bench/simulated_ranks.py ranks.json --json simulated.json

Each row is dealt again, both passes are played on a cluster with transfers in turn, and beside them
one device of that cluster makes the whole. Rates compare, times only on that cluster's machine.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import verbatim_attn as va
from verbatim_attn.bench import results, workloads

UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
SAID = re.compile(r"transfers in turn ([\d.,]+) (us|ms|s) \(([\d.]+) % of one device's rate\)")


def played(
    row: dict[str, Any], mask: str, which: str, world: int, cluster: str
) -> tuple[float, float]:
    """Milliseconds of one pass on all ranks, and on one device."""
    p = row["problem"]
    words = [
        os.environ.get("VERBATIM_TOOL", "verbatim"), "plan", "--mask", f"@{mask}", "--pass", which,
        "--seqlen", p["q_len"], "--q-heads", p["q_heads"], "--kv-heads", p["kv_heads"],
        "--head-dim", p["head_dim"], "--dtype", p["dtype"], "--machine", "h200",
        "--cluster", cluster, "--world", f"replay:{world}", "--strategy", row["strategy"],
        "--shard", row["shard"],
    ]  # fmt: skip
    if which == "backward":
        words += ["--order", row["order"]]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    found = SAID.search(done.stdout)
    if not found:
        raise SystemExit(f"no simulated time in what this says: {' '.join(map(str, words))}")
    ms = float(found[1].replace(",", "")) * UNITS[found[2]]
    return ms, ms * float(found[3]) / 100 * world


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("files", nargs="+", metavar="FILE", help="of bench/ranks.py")
    p.add_argument("--cluster", default="h200x8")
    p.add_argument("--commit", default="", help="recorded: what was built")
    p.add_argument("--json", required=True, metavar="FILE")
    a = p.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for file in a.files:
            measured = json.loads(Path(file).read_text())
            for row in measured["results"]:
                o = row["problem"]
                choice = workloads.Choice(
                    seqlens=(o["q_len"],), heads=((o["q_heads"], o["kv_heads"]),),
                    head_dims=(o["head_dim"],), dtype=o["dtype"],
                )  # fmt: skip
                case = next(c for c in workloads.cases("longca", choice) if c.name == row["name"])
                mask = Path(folder, "mask.json")
                mask.write_text(case.mask.to_json(o["q_len"], o["kv_len"], kv_heads=o["kv_heads"]))
                both = [
                    played(row, str(mask), which, measured["world"], a.cluster)
                    for which in ("forward", "backward")
                ]
                step, alone = (sum(times) for times in zip(*both, strict=True))
                rows.append({
                    **{key: row[key] for key in ("name", "strategy", "shard", "order")},
                    "step_ms": step, "one_device_ms": alone,
                    "rate": alone / step / measured["world"],
                })  # fmt: skip
                print(f"{row['name']}, {row['strategy']}: {rows[-1]['rate']:.0%}", file=sys.stderr)
    result = {"command": "bench/simulated_ranks", "version": va.__version__, "commit": a.commit,
              "cluster": a.cluster, "results": rows}  # fmt: skip
    results.write(a.json, json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
