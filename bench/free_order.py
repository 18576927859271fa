#!/usr/bin/env python3
"""The error of gradients by world, with orders and without (`--order none`).

VERBATIM_TOOL=build/verbatim python3 bench/free_order.py --commit COMMIT --json free_order.json

One causal problem on a CPU, which plays the ranks (`verbatim run --world replay:N`). Each run compares
all outputs with double precision. A row of the result is what a run said of errors, bytes and bits.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from verbatim_attn.bench import results

ORDERS = ("auto", "descending", "none")
WORLDS = (1, 2, 4, 8, 16, 32)
PROBLEM = (
    "run --seqlen 4096 --q-heads 2 --kv-heads 1 --head-dim 128 --dtype f32"
    " --check full --shard contiguous"
)


def run(problem: str, order: str, world: int, folder: str) -> Any:
    """A result of `verbatim run` (docs/schema.md)."""
    out = Path(folder, "run.json")
    words = [os.environ.get("VERBATIM_TOOL", "verbatim"), *problem.split(), "--order", order,
             "--world", f"replay:{world}", "--json", str(out)]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr or done.stdout)  # 1: what was printed says what is wrong
    return json.loads(out.read_text())


def row(found: Any) -> dict[str, Any]:
    backward = found["dist"]["passes"][1]
    return {
        "order": found["plan"]["order"], "level": found["level"], "world": found["dist"]["world"],
        "backward_sent_bytes": sum(rank["sent_bytes"] for rank in backward["ranks"]),
        "error": {name: of["error"] for name, of in found["check"]["outputs"].items()},
        "sha256": found["bits"]["sha256"],
    }  # fmt: skip


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--problem", default=PROBLEM, help="what every run has (default: %(default)s)")
    p.add_argument("--commit", default="", help="recorded: what was built")
    p.add_argument("--json", required=True, metavar="FILE")
    a = p.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for order in ORDERS:
            for world in WORLDS:
                found = run(a.problem, order, world, folder)
                rows.append(row(found))
                said = ", ".join(f"{name} {of:.2e}" for name, of in rows[-1]["error"].items())
                print(f"{rows[-1]['order']}, {world} ranks: {said}", file=sys.stderr)
    result = {
        "command": "bench/free_order", "version": found["version"], "contract": found["contract"],
        "commit": a.commit, "arguments": a.problem.split(),
        **{name: found[name] for name in ("device", "problem")},
        "mask": found["mask"]["name"], "strategy": found["dist"]["strategy"],
        "shard": found["dist"]["shard"], "results": rows,
    }  # fmt: skip
    results.write("--json", a.json, json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
