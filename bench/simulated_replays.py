#!/usr/bin/env python3
"""What `verbatim plan` simulates of the cases that `verbatim bench --world` played on one GPU.

VERBATIM_TOOL=build/verbatim python3 bench/simulated_replays.py replay.json ... --json simulated.json

Each case is dealt again with every strategy that was played, for the largest world, and its passes are
played on the cluster h200x8 with predicted launches: the forward, the backward by the order that was
played, and the backward without order. Rates are of one of that cluster's devices.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from simulated_ranks import Said, plan, simulate
from verbatim_attn.bench import results

# Of a row's command: what says how it was timed, not what.
TIMED = ("--world", "--strategy", "--cluster", "--device", "--protocol", "--repeats", "--check")
PASSES = {
    "forward": ["--pass", "forward"],
    "backward": ["--pass", "backward"],
    "backward_none": ["--pass", "backward", "--order", "none"],
}


def problem_of(row: dict[str, Any]) -> list[str]:
    """The options of `verbatim plan` that are the case."""
    _tool, _command, *words = shlex.split(row["repro"])
    options = zip(words[::2], words[1::2], strict=True)
    return [word for option in options if option[0] not in TIMED for word in option]


def played(row: dict[str, Any], deal: dict[str, Any], folder: str) -> dict[str, Any]:
    """A row of the result."""
    words = [*problem_of(row), "--arithmetic", row["plan"]["arithmetic"].partition(".")[0],
             "--world", f"replay:{deal['world']}", "--strategy", deal["strategy"],
             "--shard", deal["shard"]]  # fmt: skip
    found = {name: plan([*words, *of], folder) for name, of in PASSES.items()}
    if found["backward"]["plan"]["fingerprint"] != row["plan"]["fingerprint"]:
        raise SystemExit(f"{row['name']}: what was played had another plan")
    p, times = row["problem"], ("in_turn_ms", "overlapped_ms", "device_ms")
    simulated = {name: of["dist"]["passes"][0]["simulated"] for name, of in found.items()}
    return {
        "mask": row["mask"]["name"], **{name: p[name] for name in ("q_heads", "kv_heads", "head_dim")},
        **{name: deal[name] for name in ("world", "strategy", "shard")},
        "order": found["backward"]["plan"]["order"],
        **{name: {time: of[time] for time in times} for name, of in simulated.items()},
    }  # fmt: skip


def read(file: str) -> Any:
    """A result of `verbatim bench --world`."""
    found = results.read(file)
    if not all(row.get("dist") for row in found["results"]):
        raise SystemExit(f"{file} is no result of `verbatim bench --world`")
    return found


def play(file: str, folder: str) -> Iterator[Said]:
    for row in read(file)["results"]:
        most = max(deal["world"] for deal in row["dist"])
        for deal in (deal for deal in row["dist"] if deal["world"] == most):
            found = played(row, deal, folder)
            yield found, json.dumps(found)


if __name__ == "__main__":
    sys.exit(simulate(__doc__, "`verbatim bench --world`", play))
