"""Tables of docs/results about ranks of context parallelism, for tools/write_results.py."""

import statistics

from result_files import RESULTS, load, table
from verbatim_attn.papers import evidence, parallel, registry


def ranks(name, by):
    """Steps of context parallelism (bench/ranks.py), and what is simulated of them (`by`). The parts
    are rank 0's, of a recorded step."""
    result = load(name)
    by = load(by)

    def key_of(row):
        keys = "name", "strategy", "shard", "order"
        return *(row[key] for key in keys), row.get("transport", "group")

    simulated = {key_of(r): f"{r['rate']:.0%}" for r in by["results"]}
    # A column where some row is not over the group.
    shows_transport = any(r.get("transport", "group") != "group" for r in result["results"])
    rows = []
    for r in result["results"]:
        alone = min(r["one_device"]["ms"], r.get("one_device_auto", r["one_device"])["ms"])
        parts = {"launches": 0.0, "transfers": 0.0, "copies": 0.0, "adds": 0.0, "host": 0.0}
        for of in r["recorded"]["ranks"][0].values():
            for part in parts:
                parts[part] += (
                    of["host_ms"]
                    if part == "host"
                    else sum(of.get(part, {"each_ms": []})["each_ms"])
                )
        row = {
            "case": r["name"],
            "strategy": f"`{r['strategy']}`",
            "shards": r["shard"],
            **({"transport": f"`{r['transport']}`"} if shows_transport else {}),
            "order": "/".join(r["orders"]),
            "MiB sent": f"{r['sent_bytes'] / 2**20:,.0f}",
            "step ms": f"{r['step']['ms']:.1f}",
            "noise": f"{r['step']['noise']:.0%}",
            "without transfers": f"{r['compute']['ms']:.1f}",
            "one GPU ms": f"{alone:.1f}",
            "rate": f"{alone / r['step']['ms'] / result['world']:.0%}",
            "simulated": simulated.get(key_of(r), "-"),
            **{part: f"{ms:.1f}" for part, ms in parts.items()},
        }
        rows.append(row)
    differ = sum(r["differing_bytes"] for r in result["results"])
    return [
        f"`bench/results/{name}`: {result['world']} {result['device']['name']},"
        f" {result['backend']}, commit {result['commit']}. Bytes of O, dQ, dK and dV that differ"
        f" from one GPU's, all rows: {differ}. Simulated: {by['commit']}.",
        table(rows),
    ]


def alone_ms(row, number):
    """One device's time for a pass."""
    of = [deal["passes"][number] for deal in row["dist"] if deal["world"] == 1]
    return min(row[of[0]["pass"]]["ms"], statistics.median(one["compute_ms"] for one in of))


def of_ranks(row, deal):
    """What a dealt case comes to, by pass: (compute of all ranks, share of one device's rate in
    simulated time), both over one device: its timed call, or the median of the worlds of one rank,
    whichever is faster."""
    found = {}
    for i, one in enumerate(deal["passes"]):
        alone = alone_ms(row, i)
        share = alone / one["simulated"]["in_turn_ms"] / deal["world"]
        found[one["pass"]] = one["compute_ms"] / alone, share
    return found


def replayed_case(row):
    """With the order, where it is not that of `auto`."""
    p = row["problem"]
    named = f", `{row['plan']['order']}`" if " --order " in row["repro"] else ""
    return f"{row['mask']['name']} {p['q_heads']}:{p['kv_heads']} of {p['head_dim']}{named}"


def work_aims(names, world):
    """What was asked of the work of all ranks, and which strategies have more."""
    rows = []
    for r in (row for name in names for row in load(name)["results"]):
        most = 1.05 if r["mask"]["name"] in ("full", "causal") else 1.10
        found = {
            deal["strategy"]: of_ranks(r, deal) for deal in r["dist"] if deal["world"] == world
        }
        line = {"case": replayed_case(r), "asked": f"{most:.2f}"}
        for which in ("forward", "backward"):
            work = {name: passes[which][0] for name, passes in found.items()}
            above = ", ".join(f"`{name}`" for name, value in work.items() if value > most)
            line[f"{which}, all"] = f"{min(work.values()):.2f} to {max(work.values()):.2f}"
            line[f"{which}, more than asked"] = above
        rows.append(line)
    return [
        f"What was asked of work, {world} ranks together over one device, and who has more:",
        table(rows),
    ]


def replays(names, world):
    """A row a case and strategy of `verbatim bench --world replay:1,N`, for N ranks."""
    rows = []
    for r in (row for name in names for row in load(name)["results"]):
        for deal in (deal for deal in r["dist"] if deal["world"] == world):
            row = {"case": replayed_case(r), "strategy": f"`{deal['strategy']}`"}
            for name, (work, share) in of_ranks(r, deal).items():
                row |= {f"{name}, work": f"{work:.2f}", f"{name}, share": f"{share:.0%}"}
            most = max(k["peak_bytes"] for one in deal["passes"] for k in one["ranks"])
            rows.append({**row, "most MiB of a rank": f"{most / 2**20:,.0f}"})
    result = load(names[0])
    matmul = [rate for name in names for rate in load(name)["matmul_tflops"].values()]
    return [
        f"`{names[0]}` and its like: {result['device']['name']}, {result['commit']}, bf16 matmul"
        f" {min(matmul):.0f} to {max(matmul):.0f} TFLOP/s (sustained), 65,536 tokens, {world} ranks:",
        table(rows),
    ]


def replayed_masks(name):
    """A row a mask: the work of all strategies."""
    rows = []
    for r in load(name)["results"]:
        row = {"mask": r["mask"]["name"], "backward's order": r["plan"]["order"]}
        for world in (2, 4, 8):
            deals = [of_ranks(r, deal) for deal in r["dist"] if deal["world"] == world]
            for which in ("forward", "backward"):
                work = [deal[which][0] for deal in deals]
                row[f"{which}, {world}"] = f"{min(work):.2f} to {max(work):.2f}"
        rows.append(row)
    return [
        f"`{name}`: work with 8,192 tokens, 64:8 heads of 128, by ranks, the least and the most of"
        " six strategies:",
        table(rows),
    ]


def bits(names):
    """How many deals the files have, and what differs."""
    deals = [deal for name in names for r in load(name)["results"] for deal in r["dist"]]
    differing = sum(deal.get("differing_words", 0) for deal in deals)
    refused = sum("refused" in deal for deal in deals)
    return (f"{len(deals)} deals (strategies times worlds of 1, 2, 4 and 8 ranks), {refused} refused; words"
            f" of O, LSE, dQ, dK and dV that are not one device's, all together: {differing}.")  # fmt: skip


def free_order(name):
    """Errors of bench/free_order.py, and how many bits each order has."""
    result = load(name)
    rows = [
        {
            "order": f"`{r['order']}`",
            "ranks": str(r["world"]),
            "error of dK": f"{r['error']['dk']:.2e}",
            "error of dV": f"{r['error']['dv']:.2e}",
            "MiB sent": f"{r['backward_sent_bytes'] / 2**20:,.0f}",
            "SHA-256 of dK": f"{r['sha256']['dk'][:12]}...",
            "of dV": f"{r['sha256']['dv'][:12]}...",
        }
        for r in result["results"]
    ]

    def kinds(*outputs, order=None):
        of = [r["sha256"] for r in result["results"] if order in (None, r["order"])]
        return len({tuple(hashes[output] for output in outputs) for hashes in of})

    orders = dict.fromkeys(r["order"] for r in result["results"])
    said = ", ".join(f"`{order}` {kinds('dk', 'dv', order=order)}" for order in orders)
    p = result["problem"]
    return [
        f"`bench/results/{name}`: {result['device']}, commit {result['commit']}, contract"
        f" {result['contract']}, {p['q_len']:,} positions, {result['mask']},"
        f" {p['q_heads']}:{p['kv_heads']} heads of {p['head_dim']}, {p['dtype']}, strategy"
        f" `{result['strategy']}`, shards {result['shard']}.",
        f"Different bits of dK and dV together, over all worlds: {said}. Of dQ, O and LSE together, over"
        f" all rows: {kinds('dq', 'o', 'lse')}.",
        table(rows),
    ]


WAYS = {"in turn": "in_turn_ms", "overlapped": "overlapped_ms"}


def rate(row, way, *passes):
    """Of one device, in simulated time."""
    alone, taken = (sum(row[one][time] for one in passes) for time in ("device_ms", WAYS[way]))
    return alone / taken / row["world"]


def over_none(row, way):
    return row["backward"][WAYS[way]] / row["backward_none"][WAYS[way]]


def case_of(row):
    return f"{row['mask']} {row['q_heads']}:{row['kv_heads']} of {row['head_dim']}"


def best_of(row):
    """The row by the order with which both passes are fastest in turn; of those within half a percent
    by the one that takes one device least. Rates are then of one device by that order or the played
    one, whichever is faster."""
    alone = row["backward"]["device_ms"]
    rows = [{**row, "alone": 1.0, "work": 1.0}]
    for order, of in row["named"].items():
        device = of["backward"]["device_ms"]
        backward = {**of["backward"], "device_ms": min(alone, device)}
        rows.append({**row, **of, "order": order, "backward": backward, "work": device / alone})
    rates = [rate(r, "in turn", "forward", "backward") for r in rows]
    near = [r for r, found in zip(rows, rates, strict=True) if found >= max(rates) - 0.005]
    return min(near, key=lambda r: r["alone"])


def aims(rows):
    """Two rows a case, by the order of `auto` and by the best: what was asked of both passes and of the
    order, and how far strategies are."""
    lines = []
    for case in dict.fromkeys(map(case_of, rows)):
        played = {r["strategy"]: r for r in rows if case_of(r) == case}
        dense = next(iter(played.values()))["mask"] in ("full", "causal")
        least, names = (0.95, ("ring", "usp", "balanced")) if dense else (0.90, ("balanced",))
        best = {name: best_of(row) for name, row in played.items()}
        for order, of in {"of `auto`": played, "the best": best}.items():
            line = {"case": case, "asked": f"{least:.0%}", "of": ", ".join(f"`{n}`" for n in names),
                    "order": order}  # fmt: skip
            for way in WAYS:
                found = [rate(of[name], way, "forward", "backward") for name in names]
                reached = sum(value >= least for value in found)
                extent = " to ".join(dict.fromkeys(f"{f(found):.0%}" for f in (min, max)))
                line[f"both, {way}"] = f"{extent}; {reached} of {len(found)}"
            for way in WAYS:
                found = [over_none(row, way) for row in of.values()]
                reached = sum(value <= 1.05 for value in found)
                extent = " to ".join(dict.fromkeys(f"{f(found):.2f}" for f in (min, max)))
                line[f"over no order, {way}"] = f"{extent}; {reached} of {len(found)}"
            lines.append(line)
    return table(lines)


def timed(case, world):
    """What aims() takes, of launches that were timed: rows of the strategies that were played by
    `auto`, by a named order and by none."""
    played = {}
    for kind in ("", "_named", "_none"):
        (row,) = load(f"h200_replay_64k.{case}{kind}.json")["results"]
        played[kind] = row, {
            deal["strategy"]: {
                one["pass"]: {**{way: one["simulated"][way] for way in WAYS.values()},
                              "device_ms": alone_ms(row, i)}
                for i, one in enumerate(deal["passes"])
            }
            for deal in row["dist"] if deal["world"] == world
        }  # fmt: skip
    (row, own), (other, named), (_, none) = played.values()
    for strategy, passes in named.items():
        for which, found in passes.items():
            found["device_ms"] = min(found["device_ms"], own[strategy][which]["device_ms"])
    return [
        {"mask": row["mask"]["name"],
         **{key: row["problem"][key] for key in ("q_heads", "kv_heads", "head_dim")},
         "world": world, "strategy": name, "order": row["plan"]["order"], **own[name],
         "backward_none": none[name]["backward"],
         "named": {other["plan"]["order"]: {
             **named[name], "backward_none": none[name]["backward"],
             "alone": alone_ms(other, 1) / alone_ms(row, 1)}}}
        for name in none
    ]  # fmt: skip


def timed_aims(cases, world):
    """The same verdict by launches that were timed."""
    return [
        "What was asked, by the launches that were timed: of one device's rate, and of every backward that"
        " an order makes it at most 1.05 times as long as none; the least and the most found, and how many"
        " reach it. The best is the faster of `auto`'s order and a named one, `right_to_left` in chunks of"
        " 8,192 rows (full, window), 4,096 (causal) or 2,048 (documents):",
        aims([row for case in cases for row in timed(case, world)]),
    ]


def shares(row):
    """What is said of both tables' rows."""
    found = {}
    for name, of in {"forward": ("forward",), "backward": ("backward",),
                     "both": ("forward", "backward")}.items():  # fmt: skip
        found |= {f"{name}, {way}": f"{rate(row, way, *of):.0%}" for way in WAYS}
    return found


def simulated_replays(name):
    """Of bench/simulated_replays.py: a row a case and strategy, by the order that was played and by the
    best."""
    result = load(name)
    rows = result["results"]
    first = [
        {"case": case_of(r), "strategy": f"`{r['strategy']}`", **shares(r),
         **{f"over no order, {way}": f"{over_none(r, way):.2f}" for way in WAYS}}
        for r in rows
    ]  # fmt: skip
    best = [
        {"case": case_of(r), "strategy": f"`{r['strategy']}`", "order": f"`{r['order']}`", **shares(r),
         "one device, work": f"{r['work']:.3f}", "with waits": f"{r['alone']:.3f}"}
        for r in map(best_of, rows)
    ]  # fmt: skip
    tried = ", ".join(f"`{order}`" for order in rows[0]["named"])
    return [
        f"`bench/results/{name}`: predicted launches, dealt at {result['commit']}, cluster"
        f" {result['cluster']}, {rows[0]['world']} ranks, the order of `auto`. Rates are of one such"
        " device, predicted alike; over no order is a backward's time over its time with `--order none`.",
        table(first),
        f"The same by the order with which both passes are fastest in turn, of `auto`'s and {tried}; of"
        " those within half a percent by the one that takes one device least. Rates are of one device by"
        " that order or `auto`'s, whichever is faster. Behind them what the backward takes one device"
        " by that order over `auto`'s, by the model: its work, as the cluster has it, and the whole with"
        " waits between chains.",
        table(best),
        "What was asked, of one device's rate, and of every strategy's backward that an order makes it at"
        " most 1.05 times as long; the least and the most found, and how many reach it:",
        aims(rows),
    ]


def clusters(*names):
    """Simulated rates of entries of the papers, by devices: in turn and overlapped."""
    parts = []
    for name in names:
        entry = registry.ENTRIES[name]
        of = evidence.parts(entry, RESULTS)
        contracts = {str(part["result"]["contract"]) for part in of}
        rows = []
        for which in entry.axes:
            ways = [
                {(p["provider"], p["problem"]["q_len"]): parallel.cell(p["y"])
                 for p in parallel.points(of, which, way)}
                for way in WAYS.values()
            ]  # fmt: skip
            for strategy in registry.STRATEGIES:
                row = {"pass": which, "strategy": f"`{strategy}`"}
                for devices in registry.DEVICES:
                    both = [way.get((strategy, devices), "-") for way in ways]
                    row[str(devices)] = ", ".join(dict.fromkeys(both))
                rows.append(row)
        parts += [
            f"`{name}`, {entry.title}, dealt at contract {', '.join(contracts)}:",
            table(rows),
        ]
    return parts
