"""What an entry shows: a picture or table in the paper's axes, and its result in a line."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .._page import escape
from ..bench import page
from . import parallel
from .evidence import Part, rows, tried
from .rates import blocks_html, curves_html, of_case, sizes_html
from .ratios import cases_of, compared
from .registry import Entry, Row

_GRADIENTS = ("dq", "dk", "dv")
_MODEL = {"plan": (2, 3.0, 1.0)}  # heads, compute and reduction of a visit in registry._plan


class View(NamedTuple):
    html: Callable[[Entry, list[Part]], str]
    line: Callable[[Entry, list[Part]], str]  # "" without a result


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


_TAKES, _NOT_TRIED = ("yes", "forward only"), "not tried"
_BEST_FIRST = (*_TAKES, "differs", "wrong", "unsupported", "out of memory", _NOT_TRIED)


def _support(of: list[Part]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Of every case what each provider does with it: the best that any run showed."""
    found = rows(of)
    names = list(dict.fromkeys(row["provider"] for row in found))
    cases: dict[str, dict[str, str]] = {}
    for row in found:
        has = cases.setdefault(of_case(row), dict.fromkeys(names, _NOT_TRIED))
        name = row["provider"]
        has[name] = min(has[name], _taken(row), key=_BEST_FIRST.index)
    return names, cases


def _taken(row: Row) -> str:
    if row["status"] == "ok":
        return "yes" if row["backward"] else "forward only"
    return row["status"] if tried(row) else _NOT_TRIED


def _support_html(entry: Entry, of: list[Part]) -> str:
    names, cases = _support(of)
    lines = [[case, *has.values()] for case, has in cases.items()]
    return page.numbers(["mask", *names], lines)


def _support_line(entry: Entry, of: list[Part]) -> str:
    names, cases = _support(of)
    said = []
    for name in names:
        texts = [has[name] for has in cases.values()]
        untried = f" ({n} not tried)" if (n := texts.count(_NOT_TRIED)) else ""
        said.append(f"{name} {sum(text in _TAKES for text in texts)}{untried}")
    return f"of {len(cases)} masks: " + ", ".join(said) if cases else ""


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
    """Of every provider its gradients' largest in any pass, by the number of passes."""
    most: dict[str, dict[int, float]] = {}
    for part in of:
        for row in part["result"]["results"]:
            if (bits := row.get("bits")) and row["status"] == "ok":
                largest = max(bits["deviation"][gradient] for gradient in _GRADIENTS)
                found = most.setdefault(row["provider"], {})
                found[bits["repeats"]] = max(found.get(bits["repeats"], 0.0), largest)
    said = (name + " " + ", ".join(f"{x:.2g} in {n}" for n, x in sorted(found.items()))
            for name, found in most.items())  # fmt: skip
    head = "largest of a gradient in any of so many passes, of which the paper has the average: "
    return head + "; ".join(said) if most else ""


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
    return f"measured placements gain {mean:.3f}, {max(gains):.2f} at most, {cases_of(gains)}"


VIEWS = {
    "lines": View(curves_html, compared),
    "dots": View(curves_html, compared),
    "sizes": View(sizes_html, compared),
    "blocks": View(blocks_html, compared),
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
