"""The page of results: charts as SVG, tables, provenance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

from .. import _page
from .._page import code, escape, listed, section, table
from . import report

COLOURS = (
    "#0b6e4f", "#d1495b", "#2e86ab", "#edae49", "#7d5ba6", "#66797f", "#c26d27", "#3d5a80",
    "#9a031e", "#588157", "#b56576", "#1d7874", "#5f0f8f", "#b8b000", "#202020", "#ff7aa8",
    "#8c564b", "#17becf", "#aa4499", "#5b8c00",
)  # fmt: skip
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 460, 250, 56, 34


def html(results: report.Results) -> str:
    """The page of one or several results."""
    rows = report.rows_of(results)
    colours = colours_of(row["provider"] for row in rows)
    body = key(colours) + _charts(rows, colours)
    for title, columns, lines in report.tables(results):
        body += section(escape(title), "", numbers(columns, lines))
    reasons = [row for row in rows if row["status"] != "ok"]
    if reasons:
        said = (f"{r['name']}, {r['provider']}: {r['status']}, {r['reason']}" for r in reasons)
        body += section("Rows without a time", "", listed(map(escape, said)))
    commands = listed(code(row["repro"]) for row in rows if row.get("repro"))
    again = f"<details><summary>commands</summary>{commands}</details>\n"
    body += section("Run a row again", "", again)
    lead = listed(escape(report.provenance(result)) for result in results)
    return _page.page("Attention, measured", lead, body, versions(results))


def versions(results: report.Results) -> str:
    """Of Verbatim, that results were made with."""
    return escape(
        ", ".join(sorted({result["version"] for result in results if "version" in result}))
    )


def numbers(columns: list[str], lines: list[list[str]]) -> str:
    """A table of text cells, the first of a line its name."""
    cells = [[escape(cell) for cell in line] for line in lines]
    return table(cells, map(escape, columns), numbers=True)


def colours_of(names: Iterable[str]) -> dict[str, str]:
    return dict(zip(dict.fromkeys(names), itertools.cycle(COLOURS)))


def key(colours: dict[str, str]) -> str:
    return '<p class="key">' + "".join(
        f'<span><span class="dot" style="background:{colour}"></span>{escape(name)}</span>'
        for name, colour in colours.items()
    ) + "</p>\n"  # fmt: skip


def figures(drawn: Iterable[str]) -> str:
    return f'<div class="figures">{"".join(drawn)}</div>\n'


def _charts(rows: list[dict[str, Any]], colours: dict[str, str]) -> str:
    """TFLOP/s and memory: by length per set, mask and heads, or by case where a set has one length;
    then what determinism costs."""
    lengths: dict[str, set[int]] = {}
    for row in rows:
        lengths.setdefault(row["set"], set()).add(row["problem"]["q_len"])
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        p, title = row["problem"], row["set"]
        if len(lengths[title]) > 1:
            title += f": {row['mask']['name']}, {p['q_heads']}:{p['kv_heads']} heads"
            title += f" of {p['head_dim']}"
        groups.setdefault(title, []).append(row)
    body = ""
    for title, members in groups.items():
        draw = chart if len(lengths[members[0]["set"]]) > 1 else dots
        charts = [
            draw(f"{which}, TFLOP/s", members, colours, lambda r, w=which: _rate(r, w))
            for which in ("forward", "backward")
        ]
        charts.append(draw("backward, GiB besides its inputs", members, colours, _gibibytes))
        if any(charts):
            body += section(escape(title), "", figures(charts))
    overhead = _overhead(rows)
    draw = dots if len({row["problem"]["q_len"] for row in overhead}) == 1 else chart
    if drawn := draw("backward, speed-up of a fixed order over none", overhead, colours,
                     lambda r: r["ratio"]):  # fmt: skip
        body += section("What determinism costs", "", figures([drawn]))
    return body


def _rate(row: dict[str, Any], which: str) -> float:
    return row[which]["tflops"] if row.get(which) else math.nan


def _gibibytes(row: dict[str, Any]) -> float:
    return (row.get("memory_bytes") or {}).get("backward", math.nan) / 2**30


def _overhead(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by_kind = {(row["set"], row["name"], row["provider"]): row for row in rows}
    found = []
    for row in rows:
        twin = by_kind.get((row["set"], row["name"], report.unordered_twin(row["provider"])))
        if twin:
            found.append({**row, "ratio": report.speed_up(row, twin, "backward")})
    return found


def chart(title: str, rows: list[dict[str, Any]], colours: dict[str, str], value: Any) -> str:
    """Values over the length (logarithmic), a line a provider; the median where a length has
    several. Empty without values."""
    points: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        if not math.isnan(y := value(row)):
            of = points.setdefault(row["provider"], {})
            of.setdefault(row["problem"]["q_len"], []).append(y)
    if not points:
        return ""
    lengths = sorted({length for of in points.values() for length in of})
    top = max(y for of in points.values() for ys in of.values() for y in ys) * 1.08 or 1.0
    low, span = math.log2(lengths[0]), math.log2(lengths[-1] / lengths[0])

    def x_of(length: int) -> float:
        share = (math.log2(length) - low) / span if span else 0.5
        return _LEFT + share * (_WIDTH - _LEFT - 24)

    def y_of(y: float) -> float:
        return _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _BOTTOM - 12)

    marks = []
    for i in range(5):
        y = top * i / 4
        marks.append(
            f'<line class="hair" x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y_of(y):.1f}" '
            f'y2="{y_of(y):.1f}"/><text class="label" x="{_LEFT - 6}" y="{y_of(y) + 4:.1f}" '
            f'text-anchor="end">{y:.3g}</text>'
        )
    shown = lengths if len(lengths) <= 8 else lengths[:: -(-len(lengths) // 8)]
    marks += [
        f'<text class="label" x="{x_of(n):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{_short(n)}</text>'
        for n in shown
    ]
    for name, of in points.items():
        line = [(x_of(n), y_of(sorted(ys)[len(ys) // 2])) for n, ys in sorted(of.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in line)
        marks.append(
            f'<g fill="{colours[name]}"><title>{escape(name)}</title><polyline points="{path}" '
            f'fill="none" stroke="{colours[name]}" stroke-width="2"/>'
            + "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>' for x, y in line)
            + "</g>"
        )
    return _figure(title, _WIDTH, _HEIGHT, marks)


def _short(length: int) -> str:
    return f"{length // 1024}K" if length and length % 1024 == 0 else str(length)


def dots(title: str, rows: list[dict[str, Any]], colours: dict[str, str], value: Any) -> str:
    """A line a case, a dot a provider, values from 0 to the right. Empty without values."""
    known = [(row, y) for row in rows if not math.isnan(y := value(row))]
    if not known:
        return ""
    cases = list(dict.fromkeys(row["name"] for row, _ in known))
    top = max(y for _, y in known) * 1.08 or 1.0
    left, step, height = 8 + 6.8 * max(map(len, cases)), 22, 22 * len(cases) + 34

    def x_of(y: float) -> float:
        return left + y / top * (_WIDTH - 24)

    marks = []
    for i in range(5):
        x = x_of(top * i / 4)
        marks.append(
            f'<line class="hair" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 24}"/>'
            f'<text class="label" x="{x:.1f}" y="{height - 8}" text-anchor="middle">'
            f"{top * i / 4:.3g}</text>"
        )
    for i, name in enumerate(cases):
        marks.append(
            f'<text class="label" x="{left - 8:.1f}" y="{step * i + 20}" '
            f'text-anchor="end">{escape(name)}</text>'
        )
    for row, y in known:
        marks.append(
            f'<circle cx="{x_of(y):.1f}" cy="{step * cases.index(row["name"]) + 16}" r="4.5" '
            f'fill="{colours[row["provider"]]}"><title>{escape(row["provider"])} {y:.4g}</title>'
            "</circle>"
        )
    return _figure(title, left + _WIDTH, height, marks)


def stacks(title: str, bars: dict[str, dict[str, float]], colours: dict[str, str]) -> str:
    """A bar a case, its parts side by side, from 0 to the right. Empty without bars."""
    if not bars:
        return ""
    top = max(sum(parts.values()) for parts in bars.values()) or 1.0
    left, step, height = 8 + 6.8 * max(map(len, bars)), 22, 22 * len(bars) + 8
    marks = []
    for i, (name, parts) in enumerate(bars.items()):
        x = left
        marks.append(
            f'<text class="label" x="{left - 8:.1f}" y="{step * i + 20}" '
            f'text-anchor="end">{escape(name)}</text>'
        )
        for part, y in parts.items():
            width = y / top * (_WIDTH - 24)
            marks.append(
                f'<rect x="{x:.1f}" y="{step * i + 8}" width="{width:.1f}" height="16" '
                f'fill="{colours[part]}"><title>{escape(part)} {y:.4g}</title></rect>'
            )
            x += width
    return _figure(title, left + _WIDTH, height, marks)


def _figure(title: str, width: float, height: int, marks: list[str]) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg width="{width:.0f}" '
        f'height="{height}" viewBox="0 0 {width:.0f} {height}" '
        f'role="img" aria-label="{escape(title)}">{"".join(marks)}</svg></figure>\n'
    )
