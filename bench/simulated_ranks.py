#!/usr/bin/env python3
"""What `verbatim plan` simulates of the rows that bench/ranks.py measured.

VERBATIM_TOOL=build/verbatim python3 bench/simulated_ranks.py ranks.json --json simulated.json

Each row is dealt again, and both passes are played on the cluster h200x8, with transfers in turn or,
of peers, overlapped. Beside them one of its devices makes the whole, by the order of the row or by
"auto", whichever is faster: so bench/ranks.py counts, too. Rates compare, times are of that
cluster's machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import verbatim_attn as va
from verbatim_attn.bench import results, workloads

CLUSTER = "h200x8"
Said = tuple[dict[str, Any], str]  # a row of the result, and what is printed of it


def plan(words: list[Any], folder: str) -> Any:
    """A result of `verbatim plan` on that cluster (docs/schema.md)."""
    out = Path(folder, "plan.json")
    tool = os.environ.get("VERBATIM_TOOL", "verbatim")
    of = ["--machine", "h200", "--cluster", CLUSTER, "--json", out]
    command = [str(word) for word in (tool, "plan", *words, *of)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(out.read_text())


def simulate(doc: str | None, of: str, play: Callable[..., Iterator[Said]], **options: Any) -> int:
    """The script: play(file, folder) makes the rows of each file, and takes what each option says.
    `options`: how argparse takes each."""
    p = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("files", nargs="+", metavar="FILE", help=f"of {of}")
    p.add_argument("--commit", default="", help="recorded: what was built")
    p.add_argument("--json", required=True, metavar="FILE")
    for name, how in options.items():
        p.add_argument(f"--{name}", **how)
    a = p.parse_args()
    said_of = {name: getattr(a, name) for name in options}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for file in a.files:
            for row, said in play(file, folder, **said_of):
                rows.append(row)
                print(said, file=sys.stderr)
    command = f"bench/{Path(sys.argv[0]).stem}"
    result = {"command": command, "version": va.__version__, "commit": a.commit,
              "cluster": CLUSTER, "results": rows}  # fmt: skip
    results.write("--json", a.json, json.dumps(result, indent=1) + "\n")
    return 0


def simulated(row: dict[str, Any], folder: str, which: str, order: str, world: int) -> Any:
    """`simulated` of docs/schema.md, of one pass."""
    p = row["problem"]
    words = [
        "--mask", f"@{folder}/mask.json", "--pass", which, "--seqlen", p["q_len"],
        "--q-heads", p["q_heads"], "--kv-heads", p["kv_heads"], "--head-dim", p["head_dim"],
        "--dtype", p["dtype"], "--world", f"replay:{world}", "--strategy", row["strategy"],
        "--shard", row["shard"],
    ]  # fmt: skip
    if which == "backward":
        words += ["--order", order]
    return plan(words, folder)["dist"]["passes"][0]["simulated"]


def played(row: dict[str, Any], folder: str, world: int) -> dict[str, Any]:
    """A row of the result."""
    p = row["problem"]
    choice = workloads.Choice(
        seqlens=(p["q_len"],), heads=((p["q_heads"], p["kv_heads"]),), head_dims=(p["head_dim"],),
        dtype=p["dtype"],
    )  # fmt: skip
    cases = [case for case in workloads.cases("longca", choice) if case.name == row["name"]]
    if not cases:
        raise SystemExit(f"no case of --set longca is called {row['name']}")
    mask = cases[0].mask.to_json(p["q_len"], p["kv_len"], kv_heads=p["kv_heads"])
    Path(folder, "mask.json").write_text(mask)
    forward = simulated(row, folder, "forward", "auto", world)
    orders = [simulated(row, folder, "backward", o, world) for o in {row["order"]: 0, "auto": 0}]
    transport = row.get("transport", "group")
    total = "overlapped_ms" if transport == "peers" else "in_turn_ms"
    step = forward[total] + orders[0][total]
    alone = forward["device_ms"] + min(backward["device_ms"] for backward in orders)
    return {
        **{key: row[key] for key in ("name", "strategy", "shard", "order")}, "transport": transport,
        "step_ms": step, "one_device_ms": alone, "rate": alone / step / world,
    }  # fmt: skip


def read(file: str) -> Any:
    """A result of bench/ranks.py."""
    try:
        found = json.loads(Path(file).read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"{file}: {error}; expected a result of bench/ranks.py") from None
    if not isinstance(found, dict) or found.get("command") != "bench/ranks":
        raise SystemExit(f"{file} is no result of bench/ranks.py")
    return found


def play(file: str, folder: str) -> Iterator[Said]:
    measured = read(file)
    for row in measured["results"]:
        found = played(row, folder, measured["world"])
        words = ", ".join(found[key] for key in ("name", "strategy", "shard"))
        yield found, f"{words}: {found['rate']:.0%}"


if __name__ == "__main__":
    sys.exit(simulate(__doc__, "bench/ranks.py", play))
