#!/usr/bin/env python3
"""What `verbatim plan` simulates of the cases that `verbatim bench --world` played on one GPU.

VERBATIM_TOOL=build/verbatim python3 bench/simulated_replays.py replay.json ... --json simulated.json

Each case is dealt again with every strategy that was played, for the largest world, and both passes
are played on the cluster h200x8 with predicted launches: by the order that was played, without order,
and by each of --orders, whose chunks change who holds which rows, so the forward, too. Rates are of
one of that cluster's devices.
"""

import json
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from simulated_ranks import Said, plan, simulate
from verbatim_attn.bench import results

# Of a row's command: what says how it was timed and dealt, not what.
TIMED = ("--world", "--strategy", "--shard", "--cluster", "--device", "--protocol", "--repeats",
         "--check")  # fmt: skip
ORDERS = [f"{name}/rows:{1024 * n}" for n in (2, 4, 8, 16, 32)
          for name in ("right_to_left", "descending")]  # fmt: skip
WAYS = ("in_turn_ms", "overlapped_ms")


def options_of(row: dict[str, Any]) -> dict[str, str]:
    """The options of `verbatim plan` that are the case, with the order that was played."""
    _tool, _command, *words = shlex.split(row["repro"])
    options = dict(zip(words[::2], words[1::2], strict=True))
    arithmetic = row["plan"]["arithmetic"].partition(".")[0]
    return {"--order": "auto", "--arithmetic": arithmetic} | {
        name: value for name, value in options.items() if name not in TIMED
    }


def planned(options: dict[str, str], folder: str) -> Any:
    return plan([word for option in options.items() for word in option], folder)


def simulated_of(found: Any) -> Any:
    return found["dist"]["passes"][0]["simulated"]


def dealt(options: dict[str, str], alone: float, folder: str) -> tuple[Any, dict[str, Any]]:
    """The backward's result, and of each strategy both passes. `alone`: the forward of one device."""
    found = planned(options, folder)
    devices = {"forward": alone, "backward": simulated_of(found)["device_ms"]}
    passes = {
        tried["strategy"]: {
            which: {**{way: tried[which][way] for way in WAYS}, "device_ms": ms}
            for which, ms in devices.items()
        }
        for tried in found["dist"]["tried"]
        if "refused" not in tried
    }
    return found, passes


def played(
    row: dict[str, Any], contract: int, orders: list[str], folder: str
) -> Iterator[dict[str, Any]]:
    """The rows of the result that are of this one: one a strategy."""
    most = max(deal["world"] for deal in row["dist"])
    deals = [deal for deal in row["dist"] if deal["world"] == most]
    shard = deals[0]["shard"]  # an option of the whole run
    of = {"--world": f"replay:{most}", "--strategy": "auto", "--shard": shard}
    options = options_of(row) | of
    forward = {name: value for name, value in options.items() if name != "--order"}
    alone = simulated_of(planned(forward | {"--pass": "forward"}, folder))["device_ms"]
    again, passes = dealt(options, alone, folder)
    of_played = again["plan"]
    same = "fingerprint" if again["contract"] == contract else "order"  # a contract is hashed, too
    if of_played[same] != row["plan"][same]:
        raise SystemExit(f"{row['name']}: what was played had another plan")
    _, none = dealt(options | {"--order": "none"}, alone, folder)
    named = {order: dealt(options | {"--order": order}, alone, folder) for order in orders}
    p = row["problem"]
    for strategy in (deal["strategy"] for deal in deals):
        yield {
            "mask": row["mask"]["name"], **{name: p[name] for name in ("q_heads", "kv_heads", "head_dim")},
            "world": most, "strategy": strategy, "shard": shard, "order": of_played["order"],
            **passes[strategy], "backward_none": none[strategy]["backward"],
            "named": {
                order: {**of[strategy], "alone": made["plan"]["makespan"] / of_played["makespan"]}
                for order, (made, of) in named.items()
            },
        }  # fmt: skip


def read(file: str) -> Any:
    """A result of `verbatim bench --world`."""
    found = results.read(file, "FILE")
    if not all(row.get("dist") for row in found["results"]):
        raise SystemExit(f"{file} is no result of `verbatim bench --world`")
    return found


def play(file: str, folder: str, orders: list[str]) -> Iterator[Said]:
    measured = read(file)
    for row in measured["results"]:
        for found in played(row, measured["contract"], orders, folder):
            yield found, json.dumps(found)


if __name__ == "__main__":
    orders = {"nargs": "*", "default": ORDERS, "metavar": "ORDER", "help": "beside the played one"}
    sys.exit(simulate(__doc__, "`verbatim bench --world`", play, orders=orders))
