"""LongCA-bench's tables of context parallelism: what plans of ranks send, and what a cluster makes of
them. Bytes are counted, times are simulated and said to be."""

from __future__ import annotations

import math
from typing import Any

from ..bench import page
from .evidence import Part
from .registry import DEVICES, RANK_TOKENS, STRATEGIES, Entry

# Rates by devices


def points(of: list[Part], which: str, way: str) -> list[dict[str, Any]]:
    """A strategy on so many devices, under the order that suits it best: 10^12 operations a second
    and device."""
    best: dict[tuple[str, int], float] = {}
    for part in of:
        result = part["result"]
        work = 4 * result["mask"]["total_area"] * result["problem"]["head_dim"]
        work *= 1 if which == "forward" else 2.5
        devices = result["dist"]["world"]
        for trial in result["dist"]["tried"]:
            y = math.nan
            if which in trial:
                y = work / trial[which][way] / 1e9 / devices
            at = (trial["strategy"], devices)
            best[at] = max(best.get(at, y), y)
    return [{"provider": strategy, "problem": {"q_len": devices}, "y": y}
            for (strategy, devices), y in best.items()]  # fmt: skip


def rates_html(entry: Entry, of: list[Part]) -> str:
    colours = page.colours_of(STRATEGIES)
    charts, tables = [], []
    for which in entry.axes:
        for way, said in (("in_turn_ms", "in turn"), ("overlapped_ms", "overlapped")):
            drawn = points(of, which, way)
            title = f"{which}, transfers {said}: simulated TFLOP/s a device, by devices"
            charts.append(page.chart(title, drawn, colours, lambda point: point["y"]))
            by = {(point["provider"], point["problem"]["q_len"]): point["y"] for point in drawn}
            lines = [[f"{which}, {said}, {name}",
                      *(cell(by.get((name, devices), math.nan)) for devices in DEVICES)]
                     for name in STRATEGIES]  # fmt: skip
            tables.append(page.numbers(["simulated", *map(str, DEVICES)], lines))
    return page.key(colours) + page.figures(charts) + "".join(tables)


def cell(y: float) -> str:
    """A rate as tables show it."""
    return "does not divide" if math.isnan(y) else f"{y:.0f}"


def rates_line(entry: Entry, of: list[Part]) -> str:
    said = []
    for which in entry.axes:
        most = max(part["result"]["dist"]["world"] for part in of)
        ways = [
            {point["provider"]: point["y"] for point in points(of, which, way)
             if point["problem"]["q_len"] == most}
            for way in ("in_turn_ms", "overlapped_ms")
        ]  # fmt: skip
        rates = (f"{name} {cell(ways[0][name])}" + (
                 f" ({cell(ways[1][name])})" if not math.isnan(ways[0][name]) else "")
                 for name in ways[0])  # fmt: skip
        said.append(f"{which} on {most} devices: " + ", ".join(rates))
    clusters = {part["result"]["dist"]["passes"][0]["simulated"]["cluster"] for part in of}
    orders = dict.fromkeys(part["words"][part["words"].index("--order") + 1] for part in of)
    return (
        f"simulated on {', '.join(sorted(clusters))}, TFLOP/s a device by the best of"
        f" {', '.join(orders)}, transfers in turn (overlapped): {'; '.join(said)}"
    )


# Volume


def published(strategy: str, which: str, devices: int, inner: int, window: int) -> float:
    """Bytes that a device sends by the paper's A.8, with sums in two bytes an element."""
    elements = devices * RANK_TOKENS * 128 * 2.0  # of two tensors of one head
    heads, kv_heads = 64, 8
    if strategy == "balanced":
        return math.nan
    groups = devices // inner
    shared = (inner - 1) / (groups * inner**2) * elements * (heads + kv_heads)
    ring = (groups - 1) / devices * elements * kv_heads
    back = ring
    if strategy == "loongtrain":
        back = (groups + groups // window) / devices * elements * kv_heads
    return 2 * (shared + ring + (back if which == "backward" else 0))


def _volumes(of: list[Part]) -> list[tuple[str, str, float, float]]:
    """Strategy, pass, bytes a device sends on average, and as published."""
    found = []
    for part in of:
        dist = part["result"]["dist"]
        (one,) = dist["passes"]
        sent = sum(rank["predicted_bytes"] for rank in one["ranks"]) / dist["world"]
        formula = published(dist["strategy"], one["pass"], dist["world"], dist["ulysses_size"],
                            dist["ring_window"] or 1)  # fmt: skip
        found.append((dist["strategy"], one["pass"], sent, formula))
    return found


def _mib(value: float) -> str:
    return "-" if math.isnan(value) else f"{value / 2**20:.0f}"


def volumes_html(entry: Entry, of: list[Part]) -> str:
    lines = [
        [name, which, _mib(sent), _mib(formula)] for name, which, sent, formula in _volumes(of)
    ]
    return page.numbers(["strategy", "pass", "MiB a device sends", "by the paper's A.8"], lines)


def volumes_line(entry: Entry, of: list[Part]) -> str:
    said = (f"{name} {which} {_mib(sent)} ({_mib(formula)})"
            for name, which, sent, formula in _volumes(of))  # fmt: skip
    return "MiB a device sends, full (by A.8): " + ", ".join(said)
