#!/usr/bin/env python3
"""Writes bench/results/papers/orders.json: the order that `auto` takes today of every problem that the
papers' rows timed. Their cards are Hopper's; an order depends on nothing else of a card. What the file
has of today's contract stays: the contract fixes it. Without the file all is planned.

VERBATIM_LIBRARY=build/libverbatim_c.so VERBATIM_TOOL=build/verbatim PYTHONPATH=python \\
    python3 tools/write_orders.py
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from result_files import RESULTS
from verbatim_attn import _library
from verbatim_attn.papers import evidence, registry

CONTRACT = _library.info()["contract"]
_SIZES = ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim", "head_dim_v", "dtype")
_OPTIONS = {"prefixes": "prefix", "global_": "global"}


def problems():
    """A row of each problem that ours was timed on, by its key."""
    found = {}
    for entry in registry.ENTRIES.values():
        for part in evidence.parts(entry, RESULTS):
            if part["result"].get("command") == "bench":
                found |= {evidence.problem_key(row): row
                          for row in part["result"]["results"] if row.get("plan")}  # fmt: skip
    return dict(sorted(found.items()))


def planned(row):
    """The order that the tool takes."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["plan", "--arithmetic", "sm90", "--placement", "queue", "--json", "plan.json"]
        for size in _SIZES:
            words += [f"--{size.replace('_', '-')}", str(row["problem"][size])]
        words += ["--mask", row["mask"]["name"]]
        for name, value in (row["mask"].get("params") or {}).items():
            if name.endswith("_edges"):
                name, value = "block_" + name[0], [b - a for a, b in zip(value, value[1:])]
            if isinstance(value, list):  # too long for a command line
                Path(folder, name).write_text(json.dumps(value))
                value = "@" + name
            words += [f"--{_OPTIONS.get(name, name).replace('_', '-')}", str(value)]
        tool = Path(os.environ["VERBATIM_TOOL"]).resolve()
        subprocess.run([tool, *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        made = json.loads(Path(folder, "plan.json").read_text())
    assert made["contract"] == CONTRACT, made["contract"]
    return made["plan"]["order"]


def known(path):
    """What the file has, if it is of today's contract."""
    has = json.loads(path.read_text()) if path.exists() else {"contract": 0}
    return has["orders"] if has["contract"] == CONTRACT else {}


if __name__ == "__main__":
    path = RESULTS / "papers" / "orders.json"
    before = known(path)
    orders = {key: before.get(key) or planned(row) for key, row in problems().items()}
    path.write_text(json.dumps({"contract": CONTRACT, "orders": orders}, indent=0) + "\n")
