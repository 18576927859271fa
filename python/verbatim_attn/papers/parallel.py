"""LongCA-bench's tables of context parallelism: what plans of ranks send, and what a cluster makes of
them. Bytes are counted, times are simulated and said to be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..bench import page
from .evidence import Part
from .registry import DEVICES, RANK_TOKENS, STRATEGIES, Entry
from .tables import Table

_WAYS = {"in_turn_ms": "in turn", "overlapped_ms": "overlapped"}

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
    charts = [page.chart(f"{which}, transfers {said}: simulated TFLOP/s a device, by devices",
                         points(of, which, way), colours, lambda point: point["y"])
              for which in entry.axes for way, said in _WAYS.items()]  # fmt: skip
    return page.key(colours) + page.figures(charts)


def rates_tables(entry: Entry, of: list[Part]) -> list[Table]:
    lines = []
    for which in entry.axes:
        for way, said in _WAYS.items():
            by = {(point["provider"], point["problem"]["q_len"]): point["y"]
                  for point in points(of, which, way)}  # fmt: skip
            lines += [[f"{which}, {said}, {name}",
                       *(cell(by.get((name, devices), math.nan)) for devices in DEVICES)]
                      for name in STRATEGIES]  # fmt: skip
    clusters = {part["result"]["dist"]["passes"][0]["simulated"]["cluster"] for part in of}
    orders = dict.fromkeys(part["words"][part["words"].index("--order") + 1] for part in of)
    title = f"TFLOP/s a device, simulated on {', '.join(sorted(clusters))}"
    title += f" by the best of {', '.join(orders)}"
    return [Table([title, *(f"{devices} devices" for devices in DEVICES)], lines)]


def cell(y: float) -> str:
    """A rate as tables show it."""
    return "does not divide" if math.isnan(y) else f"{y:.0f}"


def rates_line(entry: Entry, of: list[Part]) -> str:
    """Of the most devices, those that lead first."""
    most = max(part["result"]["dist"]["world"] for part in of)
    by: dict[str, list[float]] = {}
    for which in entry.axes:
        for point in points(of, which, "in_turn_ms"):
            if point["problem"]["q_len"] == most:
                by.setdefault(point["provider"], []).append(point["y"])
    rates = sorted(by.items(), key=lambda of: (math.isnan(of[1][0]), -of[1][0]))
    said = ", ".join(f"{name} {_slashed(map(cell, of))}" for name, of in rates)
    return f"simulated TFLOP/s a device on {most}, {' / '.join(entry.axes)}: {said}"


def _slashed(cells: Iterable[str]) -> str:
    """Of passes; what has no number once."""
    told = list(cells)
    return " / ".join(told) if any(map(str.isdigit, told)) else told[0]


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


def volumes_tables(entry: Entry, of: list[Part]) -> list[Table]:
    return [Table(["strategy", "pass", "MiB a device sends", "by the paper's A.8"],
                  [[name, which, _mib(sent), _mib(formula)]
                   for name, which, sent, formula in _volumes(of)])]  # fmt: skip


def volumes_line(entry: Entry, of: list[Part]) -> str:
    by: dict[str, list[tuple[float, float]]] = {}
    for name, _, sent, formula in _volumes(of):
        by.setdefault(name, []).append((sent, formula))
    said = (f"{name} {_slashed(_mib(sent) for sent, _ in passes)}"
            f" ({_slashed(_mib(formula) for _, formula in passes)})"
            for name, passes in by.items())  # fmt: skip
    return "MiB a device sends, forward / backward (by A.8): " + ", ".join(said)
