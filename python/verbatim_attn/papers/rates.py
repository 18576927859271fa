"""Rates and memory of an entry's cases, one axis after another: curves over the length, dots by case,
tables as LongCA-bench prints them, and blocks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from .._page import section
from ..bench import page
from .evidence import Part, Run, dated, rows
from .registry import Entry, Row

AXES = {
    "forward": "forward, TFLOP/s",
    "backward": "backward, TFLOP/s",
    "memory forward": "forward, peak GiB allocated",
    "memory backward": "backward, peak GiB allocated",
    "block": "block, forward and backward",
}
_AREA, _COUNT, _BOTH = "by exact area", "by the paper's count", "by either count"
_TOGETHER = 0.01  # closer than this the two counts are one


def value(row: Row, axis: str, count: str = "tflops") -> float:
    """What an axis shows of a row; NaN where it has none."""
    kind, _, which = axis.rpartition(" ")
    if axis == "block":
        return 1 / row["block"]["ms"] if row.get("block") else math.nan
    if kind == "memory":
        return (row.get("peak_bytes") or {}).get(which, {}).get("allocated", math.nan) / 2**30
    return row[which].get(count, math.nan) if row.get(which) else math.nan


def published(row: Row, axis: str) -> float:
    """The rate by the published count of operations, where that differs; else NaN."""
    exact, found = value(row, axis), value(row, axis, "tflops_nominal")
    return found if abs(found / exact - 1) > _TOGETHER else math.nan


def of_case(row: Row) -> str:
    """The problem in words that a panel or a line may carry, without its length."""
    p, mask = row["problem"], row["mask"]
    params = mask.get("params") or {}
    share = f" {params['density']}" if "density" in params else ""
    block = f", block {params['block_q']}" if isinstance(params.get("block_q"), int) else ""
    return f"{mask['name']}{share}{block}, {p['q_heads']}:{p['kv_heads']} heads of {p['head_dim']}"


def card_of(run: Run) -> str:
    return run.card.removeprefix("NVIDIA ").removesuffix(" 80GB HBM3")


def _cell(row: Row | None, axis: str) -> str:
    if row is None:
        return "-"
    if row["status"] != "ok":
        return row["status"]
    other = published(row, axis)
    said = "-" if math.isnan(y := value(row, axis)) else f"{y:.4g}"
    return said if math.isnan(other) else f"{said} ({other:.4g})"


def _lead(axis: str) -> str:
    return (
        ""
        if " " in axis
        else f"{_AREA.capitalize()}; in parentheses {_COUNT}, if 1 % or more apart."
    )


def _numbers(
    titles: tuple[str, ...],
    lines: Mapping[Any, dict[str, Row]],
    names: Collection[str],
    axis: str,
) -> str:
    """A line a run's case, whose last word, the file, is not shown, a column a provider; none that
    says nothing."""
    cells = [(line[:-1], [_cell(by.get(name), axis) for name in names])
             for line, by in lines.items()]  # fmt: skip
    told = [i for i in range(len(names)) if any(of[i] != "-" for _, of in cells)]
    kept = [[*line, *(of[i] for i in told)] for line, of in cells if set(of) != {"-"}]
    return page.numbers([*titles, *(list(names)[i] for i in told)], kept)


def _ours_first(found: list[Row]) -> list[str]:
    names = dict.fromkeys(row["provider"] for row in found)
    return sorted(names, key=lambda name: not name.startswith("verbatim"))


# Curves over the length, or dots by case


def curves_html(entry: Entry, of: list[Part]) -> str:
    """A picture a case and card, and the numbers below: a line is of one run."""
    found = rows(of)
    shown = {axis: dated(found, axis) for axis in entry.axes}
    colours = page.colours_of(_ours_first([row for drawn in shown.values() for row in drawn]))
    over_length = entry.view == "lines" and len({row["problem"]["q_len"] for row in found}) > 1
    several = len({card_of(row["run"]) for row in found}) > 1
    body = page.key(colours)
    for axis, drawn in shown.items():
        panels: dict[str, list[Row]] = {}
        lines: dict[tuple[str, int, Run], dict[str, Row]] = {}
        for row in drawn:
            title = [of_case(row)] * over_length + [card_of(row["run"])] * several
            panels.setdefault(", ".join(title), []).append(row)
            key = of_case(row), row["problem"]["q_len"], row["run"]
            lines.setdefault(key, {})[row["provider"]] = row
        charts = [chart for title, members in panels.items()
                  for chart in _charts(title, members, colours, axis, over_length)]  # fmt: skip
        named = {(case, str(length), f"{card_of(run)}, {run.commit}", run.source): by
                 for (case, length, run), by in sorted(lines.items())}  # fmt: skip
        numbers = _numbers(("case", "length", "card, commit"), named, colours, axis)
        body += section(AXES[axis], _lead(axis), page.figures(charts) + numbers)
    return body


def _charts(
    title: str, members: list[Row], colours: dict[str, str], axis: str, over_length: bool
) -> list[str]:
    """By exact area and, where that differs, by the paper's count."""
    draw = page.chart if over_length else page.dots
    if " " in axis:
        return [draw(title or AXES[axis], members, colours, lambda row: value(row, axis))]
    differ = not all(math.isnan(published(row, axis)) for row in members)
    counts = {_AREA: "tflops", _COUNT: "tflops_nominal"} if differ else {_BOTH: "tflops"}
    return [draw(f"{title}, {said}" if title else said.capitalize(), members, colours,
                 lambda row, count=count: value(row, axis, count))
            for said, count in counts.items()]  # fmt: skip


# Tables of block-sparse masks


def sizes_html(entry: Entry, of: list[Part]) -> str:
    """A table a pass, card and heads: a line a size of blocks, length, share and run, a column a
    provider."""
    body = ""
    for axis in entry.axes:
        tables: dict[str, list[Row]] = {}
        for row in dated(rows(of), axis):
            heads = f"{row['problem']['q_heads']}:{row['problem']['kv_heads']} heads"
            tables.setdefault(f"{AXES[axis]}, {heads}, {card_of(row['run'])}", []).append(row)
        for title, members in sorted(tables.items()):
            body += section(title, _lead(axis), _sizes(members, axis))
    return body


def _sizes(members: list[Row], axis: str) -> str:
    names = _ours_first(members)
    lines: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in members:
        params = row["mask"]["params"]
        block = params.get("block_q", math.inf)
        key = block, row["problem"]["q_len"], params["density"], row["run"]
        lines.setdefault(key, {})[row["provider"]] = row
    named = {("variable" if block == math.inf else str(block), str(length), str(share), run.commit,
              run.source): by for (block, length, share, run), by in sorted(lines.items())}  # fmt: skip
    return _numbers(("blocks", "length", "share", "commit"), named, names, axis)


# A block and its parts


_PARTS = ("attention_forward", "attention_backward", "ffn", "other")


def blocks_html(entry: Entry, of: list[Part]) -> str:
    found = [row for row in dated(rows(of), "block") if row.get("block")]
    slowest: dict[str, float] = {}
    for row in found:
        slowest[row["name"]] = max(slowest.get(row["name"], 0.0), row["block"]["ms"])

    def gain(row: Row) -> float:
        return slowest[row["name"]] / row["block"]["ms"]

    colours, parts = page.colours_of(row["provider"] for row in found), page.colours_of(_PARTS)
    gains = page.dots("speed-up of a block over the slowest attention", found, colours, gain)
    bars = {f"{row['name']}, {row['provider']}": row["block"]["parts_ms"] for row in found}
    lines = [[row["name"], row["provider"], f"{gain(row):.3f}",
              *(f"{row['block']['parts_ms'][part] / row['block']['ms']:.2f}" for part in _PARTS)]
             for row in found]  # fmt: skip
    return (
        page.key(colours) + page.figures([gains])
        + page.key(parts) + page.figures([page.stacks("ms of a block", bars, parts)])
        + page.numbers(["block", "attention", "speed-up", *_PARTS], lines)
    )  # fmt: skip
