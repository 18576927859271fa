#!/usr/bin/env python3
"""Renders certificates of the auditor, one a line (bench/results/*_audits.jsonl), as the table of
docs/audit.md."""

import json
import sys
from typing import Any

VERDICTS = ("repeatable", "batch_invariant", "packing_invariant")


def row(certificate: dict[str, Any]) -> str:
    target = certificate["target"]
    if certificate["environment"]["settings"].get("deterministic_debug_mode"):
        target += ", deterministic"
    differs = [
        f"`{c['check']}`: {c['difference']['tensor']}, {c['differing']} of {c['runs']} runs"
        for c in certificate["checks"]
        if c["status"] == "differs"
    ]
    verdicts = [certificate["verdicts"][name] for name in VERDICTS]
    repeats = certificate["problem"]["repeats"]
    return f"| {target} | {repeats} | {' | '.join(verdicts)} | {'; '.join(differs) or '-'} |"


def main() -> None:
    print("| target | repeats | repeatable | batch-invariant | packing-invariant | what differs |")
    print("|---|---|---|---|---|---|")
    for path in sys.argv[1:]:
        with open(path) as lines:
            print(*(row(json.loads(line)) for line in lines), sep="\n")


if __name__ == "__main__":
    main()
