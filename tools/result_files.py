"""What tools/write_results.py reads, and the tables that it writes."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def load(name):
    return json.loads((RESULTS / name).read_text())


def table(rows):
    """Of rows that map columns to cells."""
    lines = [rows[0].keys(), ["---"] * len(rows[0]), *(row.values() for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
