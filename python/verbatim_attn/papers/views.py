"""What an entry shows: a picture or table in the paper's axes, and its result in a line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from .._page import escape
from ..bench import page
from . import parallel
from .evidence import Part, rows
from .registry import Entry, Row

AXES = {
    "forward": "forward, TFLOP/s by exact area",
    "backward": "backward, TFLOP/s by exact area",
    "memory forward": "forward, peak GiB allocated",
    "memory backward": "backward, peak GiB allocated",
    "block": "block, forward and backward",
}
_GRADIENTS = ("dq", "dk", "dv")
_MODEL = {"plan": (2, 3.0, 1.0)}  # heads, compute and reduction of a visit in registry._plan


class View(NamedTuple):
    html: Callable[[Entry, list[Part]], str]
    line: Callable[[Entry, list[Part]], str]  # "" without a result


def value(row: Row, axis: str) -> float:
    """What an axis shows of a row; NaN where it has none."""
    kind, _, which = axis.rpartition(" ")
    if axis == "block":
        return 1 / row["block"]["ms"] if row.get("block") else math.nan
    if kind == "memory":
        return (row.get("peak_bytes") or {}).get(which, {}).get("allocated", math.nan) / 2**30
    return row[which]["tflops"] if row.get(which) else math.nan


def of_case(row: Row) -> str:
    """The problem in words that a panel or a line may carry, without its length."""
    p, mask = row["problem"], row["mask"]
    params = mask.get("params") or {}
    share = f" {params['density']}" if "density" in params else ""
    block = f", block {params['block_q']}" if isinstance(params.get("block_q"), int) else ""
    return f"{mask['name']}{share}{block}, {p['q_heads']}:{p['kv_heads']} heads of {p['head_dim']}"


# Curves over the length, or dots by case


def _curves(entry: Entry, of: list[Part]) -> str:
    found = rows(of)
    colours = page.colours_of(row["provider"] for row in found)
    over_length = entry.view == "lines" and len({row["problem"]["q_len"] for row in found}) > 1
    cards = {_card(row["run"]) for row in found}
    panels: dict[str, list[Row]] = {}  # of one card each
    by: dict[tuple[str, int, tuple[str, str]], dict[str, Row]] = {}
    for row in found:
        title = [of_case(row)] * over_length + [_card(row["run"])] * (len(cards) > 1)
        panels.setdefault(", ".join(title), []).append(row)
        key = of_case(row), row["problem"]["q_len"], row["run"]
        by.setdefault(key, {})[row["provider"]] = row
    draw = page.chart if over_length else page.dots
    charts = [draw(f"{title}: {AXES[entry.axis]}" if title else AXES[entry.axis], members, colours,
                   lambda row: value(row, entry.axis)) for title, members in panels.items()]  # fmt: skip
    lines = [[case, str(length), f"{_card(run)}, {run[1]}",
              *(_cell(of_run.get(name), entry.axis) for name in colours)]
             for (case, length, run), of_run in sorted(by.items())]  # fmt: skip
    heads = ["case", "length", "card, commit", *colours]
    return page.key(colours) + page.figures(charts) + page.numbers(heads, lines)


def _card(run: tuple[str, str]) -> str:
    return run[0].removeprefix("NVIDIA ")


def _cell(row: Row | None, axis: str) -> str:
    if row is None:
        return "-"
    if row["status"] != "ok":
        return row["status"]
    return "-" if math.isnan(y := value(row, axis)) else f"{y:.4g}"


def compared(entry: Entry, of: list[Part]) -> str:
    """Of each pair the first over the second, on cases that one run has of both: the least, the
    greatest, the mean. Where nothing is to compare, what the first alone reaches."""
    cases: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows(of):
        if row["status"] == "ok" and not math.isnan(y := value(row, entry.axis)):
            model = row["name"] if entry.view == "blocks" else ""
            key = (row["run"], of_case(row), row["problem"]["q_len"], model)
            cases.setdefault(key, {})[row["provider"]] = y
    memory = entry.axis.startswith("memory")
    which = f"{entry.axis.removeprefix('memory ')} {'memory' if memory else 'rate'}"
    said = []
    for mine, theirs in entry.over:
        ratios = [
            case[mine] / case[theirs] for case in cases.values() if {mine, theirs} <= case.keys()
        ]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            among = f", mean {mean:.2f}" if len(ratios) > 1 else ""
            said.append(f"{which} of {mine} over {theirs} {_range(ratios, '.2f')}{among},"
                        f" {_cases(ratios)}")  # fmt: skip
    alone = [case["verbatim"] for case in cases.values() if "verbatim" in case]
    if not said and alone and entry.axis != "block":
        said.append(f"{which} of verbatim {_range(alone, '.3g')}"
                    f" {'GiB' if memory else 'TFLOP/s'}, {_cases(alone)}")  # fmt: skip
    return "; ".join(said)


def _range(found: list[float], form: str) -> str:
    least, most = format(min(found), form), format(max(found), form)
    return least if least == most else f"{least} to {most}"


def _cases(found: list[float]) -> str:
    return f"{len(found)} case" + "s" * (len(found) != 1)


# A block and its parts


_PARTS = ("attention_forward", "attention_backward", "ffn", "other")


def _blocks(entry: Entry, of: list[Part]) -> str:
    found = [row for row in rows(of) if row.get("block")]
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


# Plans, masks, lengths, perplexity


def _drawn(entry: Entry, of: list[Part]) -> str:
    return page.figures(f"<figure><figcaption>{escape(' '.join(part['words']))}</figcaption>"
                        f"{part['drawn']}</figure>" for part in of)  # fmt: skip


def formula(words: list[str], tiles: int) -> float:
    """DASH's time of an order for m heads of n tiles: sections 3.2 to 3.4."""
    m, c, r = _MODEL["plan"]
    n, order = tiles, words[words.index("--order") + 1]
    if order == "ascending":
        return m * n * (c + r) + (n - 1) * r
    if order == "shift":
        return m * n * (c + r)
    optimal = m * (n + 1) * (c + r) / 2
    return optimal + (n - 1) * r if order == "descending" else optimal


def _plan_line(entry: Entry, of: list[Part]) -> str:
    said = []
    for part in of:
        words, result = part["words"], part["result"]
        found = result["plan"]["makespan"]
        paper = formula(words, result["problem"]["q_len"] // result["plan"]["tile"]["q"])
        said.append(f"{result['mask']['name']} {result['plan']['order']} takes {found:g},"
                    f" the formula {paper:g}, the bound {result['plan']['lower_bound']:g}")  # fmt: skip
    return "; ".join(said)


def _mask_line(entry: Entry, of: list[Part]) -> str:
    shares = [part["result"]["mask"]["density"] for part in of]
    return (
        f"{len(of)} masks, {min(shares):.2f} to {max(shares):.2f} of the plane visible"
        if of
        else ""
    )


def _length_html(entry: Entry, of: list[Part]) -> str:
    shares = [(part["result"], int(n)) for part in of for n in part["result"]["share_of_documents"]]
    colours = page.colours_of(result["source"] for result, _ in shares)
    charts = []
    for kind in ("documents", "tokens"):
        points = [{"provider": result["source"], "problem": {"q_len": 2**n},
                   "y": result[f"share_of_{kind}"][str(n)]} for result, n in shares]  # fmt: skip
        title = f"share of {kind}, by length from n to 2 n - 1 tokens"
        charts.append(page.chart(title, points, colours, lambda point: point["y"]))
    lines = [[result["source"], str(2**n), f"{result['share_of_documents'][str(n)]:.4f}",
              f"{result['share_of_tokens'][str(n)]:.4f}"] for result, n in shares]  # fmt: skip
    columns = ["distribution", "tokens from", "share of documents", "share of tokens"]
    return page.key(colours) + page.figures(charts) + page.numbers(columns, lines)


def _length_line(entry: Entry, of: list[Part]) -> str:
    said = []
    for part in of:
        r = part["result"]
        short = sum(share for n, share in r["share_of_documents"].items() if int(n) < 13)
        long = sum(share for n, share in r["share_of_tokens"].items() if int(n) >= 13)
        said.append(f"{r['source']} to {r['total']}: {short:.1%} of documents below 8,192 tokens,"
                    f" {long:.0%} of tokens in longer ones")  # fmt: skip
    return "; ".join(said)


def _epochs(of: list[Part]) -> dict[str, list[float]]:
    return {name: runs[0]["perplexities"] for part in of for name, runs in part["result"].items()}


def _epoch_html(entry: Entry, of: list[Part]) -> str:
    curves = _epochs(of)
    points = [{"provider": name, "problem": {"q_len": epoch + 1}, "y": y}
              for name, curve in curves.items() for epoch, y in enumerate(curve)]  # fmt: skip
    colours = page.colours_of(curves)
    lines = [[str(epoch + 1), *(f"{curve[epoch]:.4f}" for curve in curves.values())]
             for epoch in range(max(map(len, curves.values()), default=0))]  # fmt: skip
    drawn = page.chart("validation perplexity by epoch", points, colours, lambda point: point["y"])
    return page.key(colours) + page.figures([drawn]) + page.numbers(["epoch", *curves], lines)


def _epoch_line(entry: Entry, of: list[Part]) -> str:
    said = [
        f"{name} {curve[0]:.3f} to {curve[-1]:.3f}" for name, curve in _epochs(of).items() if curve
    ]
    return "perplexity a byte, first to last epoch: " + ", ".join(said) if said else ""


_WITH, _WITHOUT = "with scores", "without"


def _activations(of: list[Part]) -> dict[int, dict[str, float]]:
    """GiB by length, with what of it grows as its square and without."""
    found = {}
    for part in of:
        for length, kept in part["result"]["bytes"].items():
            rest = kept["rest"] / 2**30
            found[int(length)] = {_WITH: rest + kept["scores"] / 2**30, _WITHOUT: rest}
    return found


def _activation_html(entry: Entry, of: list[Part]) -> str:
    kept = _activations(of)
    points = [{"provider": name, "problem": {"q_len": length}, "y": y}
              for length, by in kept.items() for name, y in by.items()]  # fmt: skip
    colours = page.colours_of((_WITH, _WITHOUT))
    drawn = page.chart("GiB kept for the backward, by the formula", points, colours,
                       lambda point: point["y"])  # fmt: skip
    lines = [[str(length), *(f"{y:.3g}" for y in by.values())] for length, by in kept.items()]
    return (
        page.key(colours) + page.figures([drawn]) + page.numbers(["length", _WITH, _WITHOUT], lines)
    )


def _activation_line(entry: Entry, of: list[Part]) -> str:
    said = (f"{by[_WITH]:.3g} ({by[_WITHOUT]:.3g}) at {length:,}"
            for length, by in _activations(of).items())  # fmt: skip
    heads = {f"{part['result']['q_heads']} heads of {part['result']['head_dim']}" for part in of}
    return f"GiB of {', '.join(heads)} with scores (without), by tokens: " + ", ".join(said)


# Support, deviation, memory, tuning


def _support(of: list[Part]) -> tuple[list[str], dict[str, dict[str, str]]]:
    found = rows(of)
    names = list(dict.fromkeys(row["provider"] for row in found))
    cases: dict[str, dict[str, str]] = {}
    for row in found:
        text = "yes" if row["status"] == "ok" else row["status"]
        if row["status"] == "ok" and not row["backward"]:
            text = "forward only"
        cases.setdefault(of_case(row), {})[row["provider"]] = text
    return names, cases


def _support_html(entry: Entry, of: list[Part]) -> str:
    names, cases = _support(of)
    return page.numbers(["mask", *names], [[case, *(has.get(name, "-") for name in names)]
                                    for case, has in cases.items()])  # fmt: skip


def _support_line(entry: Entry, of: list[Part]) -> str:
    names, cases = _support(of)
    counts = {name: sum(has.get(name) in ("yes", "forward only") for has in cases.values())
              for name in names}  # fmt: skip
    return (
        f"of {len(cases)} masks: " + ", ".join(f"{n} {c}" for n, c in counts.items())
        if cases
        else ""
    )


def _deviation_html(entry: Entry, of: list[Part]) -> str:
    lines = []
    for part in of:
        for row in part["result"]["results"]:
            if bits := row.get("bits"):
                lines.append(
                    [
                        row["name"],
                        row["provider"],
                        str(bits["repeats"]),
                        *(f"{bits['deviation'].get(g, math.nan):.2g}" for g in _GRADIENTS),
                    ]
                )
    return page.numbers(["case", "provider", "passes", "dQ", "dK", "dV"], lines)


def _deviation_line(entry: Entry, of: list[Part]) -> str:
    """Of every provider its gradients' largest, by the number of passes."""
    most: dict[str, dict[int, float]] = {}
    for part in of:
        for row in part["result"]["results"]:
            if (bits := row.get("bits")) and row["status"] == "ok":
                largest = max(bits["deviation"][gradient] for gradient in _GRADIENTS)
                found = most.setdefault(row["provider"], {})
                found[bits["repeats"]] = max(found.get(bits["repeats"], 0.0), largest)
    said = (name + " " + ", ".join(f"{x:.2g} in {n}" for n, x in sorted(found.items()))
            for name, found in most.items())  # fmt: skip
    return "largest of a gradient, by passes: " + "; ".join(said) if most else ""


def _memory_html(entry: Entry, of: list[Part]) -> str:
    lines = []
    for row in rows(of):
        for which, peak in (row.get("peak_bytes") or {}).items():
            lines.append([of_case(row), str(row["problem"]["q_len"]), row["provider"], which,
                          *(f"{peak[kind] / 2**30:.3f}" for kind in ("allocated", "reserved"))])  # fmt: skip
    return page.numbers(
        ["case", "length", "provider", "pass", "allocated, GiB", "reserved, GiB"], lines
    )


def _tuned(of: list[Part]) -> list[Row]:
    return [row for part in of for row in part["result"]["results"]]


def _tuned_html(entry: Entry, of: list[Part]) -> str:
    lines = [[row["name"], row["pass"], str(len(row["ms"])), row["auto"], row["best"],
              f"{row['ms'][row['auto']] / row['ms'][row['best']]:.3f}"] for row in _tuned(of)]  # fmt: skip
    return page.numbers(["problem", "pass", "tried", "auto", "best", "gain"], lines)


def _tuned_line(entry: Entry, of: list[Part]) -> str:
    gains = [row["ms"][row["auto"]] / row["ms"][row["best"]] for row in _tuned(of)]
    if not gains:
        return ""
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return f"measured placements gain {mean:.3f}, {max(gains):.2f} at most, {_cases(gains)}"


VIEWS = {
    "lines": View(_curves, compared),
    "dots": View(_curves, compared),
    "blocks": View(_blocks, compared),
    "plans": View(_drawn, _plan_line),
    "masks": View(_drawn, _mask_line),
    "lengths": View(_length_html, _length_line),
    "perplexity": View(_epoch_html, _epoch_line),
    "activations": View(_activation_html, _activation_line),
    "support": View(_support_html, _support_line),
    "deviation": View(_deviation_html, _deviation_line),
    "memory": View(_memory_html, compared),
    "tuned": View(_tuned_html, _tuned_line),
    "devices": View(parallel.rates_html, parallel.rates_line),
    "volumes": View(parallel.volumes_html, parallel.volumes_line),
}
