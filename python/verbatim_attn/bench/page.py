"""One self-contained HTML page: charts as SVG, tables, provenance. No script, nothing to load."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from . import report

COLOURS = (
    "#0b6e4f", "#d1495b", "#2e86ab", "#edae49", "#7d5ba6", "#66797f", "#c26d27", "#3d5a80",
    "#9a031e", "#588157", "#b56576", "#1d7874",
)  # fmt: skip
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 460, 250, 56, 34

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2a2f; background: #fbfaf7; margin: 0 auto;
  max-width: 1120px; padding: 2rem }
h1 { font-weight: 600 } h2 { margin-top: 2.5rem; font-weight: 600 }
figure { display: inline-block; margin: 0 1rem 1rem 0; background: #fff; border: 1px solid #e4e0d6;
  border-radius: 6px; padding: .6rem } figcaption { font-weight: 600; margin-bottom: .2rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; background: #fff }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #eceae2 }
th:first-child, td:first-child { text-align: left } .scroll { overflow-x: auto }
.key span { display: inline-block; margin-right: 1.2rem } .dot { width: .8em; height: .8em;
  border-radius: 50%; margin-right: .35em !important } li, code { overflow-wrap: anywhere }
"""


def html(results: report.Results) -> str:
    """The page of one or several results."""
    rows = report.rows_of(results)
    names = list(dict.fromkeys(row["provider"] for row in rows))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    key = "".join(
        f'<span><span class="dot" style="background:{colours[name]}"></span>{escape(name)}</span>'
        for name in names
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Attention, measured</title>",
        f"<style>{STYLE}</style><h1>Attention, measured</h1><ul>",
        *(f"<li>{escape(report.provenance(result))}" for result in results),
        f'</ul><p class="key">{key}</p>',
        *_charts(rows, colours),
    ]
    for title, columns, lines in report.tables(results):
        parts.append(f"<h2>{escape(title)}</h2><div class=scroll><table><tr>")
        parts += [f"<th>{escape(cell)}" for cell in columns]
        for line in lines:
            parts.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in line))
        parts.append("</table></div>")
    reasons = [row for row in rows if row["status"] != "ok"]
    if reasons:
        parts.append("<h2>Rows without a time</h2><ul>")
        parts += [
            "<li>" + escape(f"{r['name']}, {r['provider']}: {r['status']}, {r['reason']}")
            for r in reasons
        ]
        parts.append("</ul>")
    parts.append("<h2>Run a row again</h2><details><summary>commands</summary><ul>")
    parts += [f"<li><code>{escape(row['repro'])}</code>" for row in rows if row.get("repro")]
    return "\n".join([*parts, "</ul></details></html>\n"])


def _charts(rows: list[dict[str, Any]], colours: dict[str, str]) -> list[str]:
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
    parts = []
    for title, members in groups.items():
        draw = chart if len(lengths[members[0]["set"]]) > 1 else dots
        charts = [
            draw(f"{which}, TFLOP/s", members, colours, lambda r, w=which: _rate(r, w))
            for which in ("forward", "backward")
        ]
        charts.append(draw("backward, GiB besides its inputs", members, colours, _gibibytes))
        if any(charts):
            parts += [f"<h2>{escape(title)}</h2>", *charts]
    overhead = _overhead(rows)
    draw = dots if len({row["problem"]["q_len"] for row in overhead}) == 1 else chart
    if drawn := draw("backward, speed-up of a fixed order over none", overhead, colours,
                     lambda r: r["ratio"]):  # fmt: skip
        parts += ["<h2>What determinism costs</h2>", drawn]
    return parts


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
            f'<line x1="{_LEFT}" x2="{_WIDTH - 8}" y1="{y_of(y):.1f}" y2="{y_of(y):.1f}" '
            f'stroke="#eceae2"/><text x="{_LEFT - 6}" y="{y_of(y) + 4:.1f}" '
            f'text-anchor="end">{y:.3g}</text>'
        )
    shown = lengths if len(lengths) <= 8 else lengths[:: -(-len(lengths) // 8)]
    marks += [
        f'<text x="{x_of(n):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{n}</text>' for n in shown
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
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-size="11" role="img">{"".join(marks)}</svg></figure>'
    )


def dots(title: str, rows: list[dict[str, Any]], colours: dict[str, str], value: Any) -> str:
    """A line a case, a dot a provider, values from 0 to the right. Empty without values."""
    known = [(row, y) for row in rows if not math.isnan(y := value(row))]
    if not known:
        return ""
    cases = list(dict.fromkeys(row["name"] for row, _ in known))
    top = max(y for _, y in known) * 1.08 or 1.0
    left, step, height = 8 + 6.2 * max(map(len, cases)), 22, 22 * len(cases) + 34

    def x_of(y: float) -> float:
        return left + y / top * (_WIDTH - 24)

    marks = []
    for i in range(5):
        x = x_of(top * i / 4)
        marks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 24}" stroke="#eceae2"/>'
            f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{top * i / 4:.3g}</text>'
        )
    for i, name in enumerate(cases):
        marks.append(
            f'<text x="{left - 8:.1f}" y="{step * i + 20}" text-anchor="end">{escape(name)}</text>'
        )
    for row, y in known:
        marks.append(
            f'<circle cx="{x_of(y):.1f}" cy="{step * cases.index(row["name"]) + 16}" r="4.5" '
            f'fill="{colours[row["provider"]]}"><title>{escape(row["provider"])} {y:.4g}</title>'
            "</circle>"
        )
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg width="{left + _WIDTH:.0f}" '
        f'height="{height}" font-size="11" role="img">{"".join(marks)}</svg></figure>'
    )
