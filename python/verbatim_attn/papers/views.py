"""What an entry shows: a picture in the paper's axes, its result in a line, and in tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .._page import escape
from ..bench import page
from . import lines, parallel
from .evidence import Part, rows, tried
from .pairs import named
from .rates import blocks_html, curves_html, of_case, sizes_html
from .ratios import cases_of
from .registry import Entry, Row
from .tables import Table

_GRADIENTS = ("dq", "dk", "dv")
_MODEL = {"plan": (2, 3.0, 1.0)}  # heads, compute and reduction of a visit in registry._plan


class View(NamedTuple):
    pictures: Callable[[Entry, list[Part]], str]
    line: Callable[[Entry, list[Part]], str]  # "" without a result
    tables: Callable[[Entry, list[Part]], list[Table]]  # all that the line is of


def _nothing(entry: Entry, of: list[Part]) -> str:
    return ""


def _no_tables(entry: Entry, of: list[Part]) -> list[Table]:
    return []


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
    return page.key(colours) + page.figures(charts)


def _length_tables(entry: Entry, of: list[Part]) -> list[Table]:
    columns = ["distribution", "packed to", "tokens from", "share of documents", "share of tokens"]
    return [Table(columns, [
        [r["source"], f"{r['total']:,}", f"{2 ** int(n):,}", f"{r['share_of_documents'][n]:.4f}",
         f"{r['share_of_tokens'][n]:.4f}"]
        for part in of for r in [part["result"]] for n in r["share_of_documents"]
    ])]  # fmt: skip


def _length_line(entry: Entry, of: list[Part]) -> str:
    said = []
    for part in of:
        r = part["result"]
        short = sum(share for n, share in r["share_of_documents"].items() if int(n) < 13)
        long = sum(share for n, share in r["share_of_tokens"].items() if int(n) >= 13)
        said.append(f"{r['source']} {short:.1%} ({long:.0%})")
    return "documents below 8,192 tokens (tokens in longer ones): " + ", ".join(said)


def _epochs(of: list[Part]) -> dict[str, list[float]]:
    return {name: runs[0]["perplexities"] for part in of for name, runs in part["result"].items()}


def _epoch_html(entry: Entry, of: list[Part]) -> str:
    curves = _epochs(of)
    points = [{"provider": name, "problem": {"q_len": epoch + 1}, "y": y}
              for name, curve in curves.items() for epoch, y in enumerate(curve)]  # fmt: skip
    colours = page.colours_of(curves)
    drawn = page.chart("validation perplexity by epoch", points, colours, lambda point: point["y"])
    return page.key(colours) + page.figures([drawn])


def _epoch_tables(entry: Entry, of: list[Part]) -> list[Table]:
    curves = _epochs(of)
    epochs = range(max(map(len, curves.values()), default=0))
    return [Table(["epoch", *curves],
                  [[str(epoch + 1), *(f"{curve[epoch]:.4f}" for curve in curves.values())]
                   for epoch in epochs])]  # fmt: skip


def _epoch_line(entry: Entry, of: list[Part]) -> str:
    said = [
        f"{named(name)} {curve[0]:.3f} to {curve[-1]:.3f}"
        for name, curve in _epochs(of).items()
        if curve
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
    return page.key(colours) + page.figures([drawn])


def _activation_tables(entry: Entry, of: list[Part]) -> list[Table]:
    return [Table(["tokens", f"GiB {_WITH}", f"GiB {_WITHOUT}"],
                  [[f"{length:,}", *(f"{y:.3g}" for y in by.values())]
                   for length, by in _activations(of).items()])]  # fmt: skip


def _activation_line(entry: Entry, of: list[Part]) -> str:
    kept = _activations(of)
    said = (f"{kept[length][_WITH]:.3g} ({kept[length][_WITHOUT]:.3g}) at {length:,}"
            for length in dict.fromkeys((min(kept), max(kept))))  # fmt: skip
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


def _support_tables(entry: Entry, of: list[Part]) -> list[Table]:
    names, cases = _support(of)
    counts = []
    for name in names:
        texts = [has[name] for has in cases.values()]
        takes = sum(text in _TAKES for text in texts)
        counts.append([named(name), str(takes), str(texts.count(_NOT_TRIED))])
    return [Table(["", f"takes, of {len(cases)} masks", _NOT_TRIED], counts),
            Table(["mask", *map(named, names)],
                  [[case, *has.values()] for case, has in cases.items()])]  # fmt: skip


def _support_line(entry: Entry, of: list[Part]) -> str:
    """Who takes how many; a mode that takes as many as its provider is not named."""
    names, cases = _support(of)
    takes = {}
    for name in names:
        texts = [has[name] for has in cases.values()]
        untried = f" ({n} not tried)" if (n := texts.count(_NOT_TRIED)) else ""
        takes[name] = f"{sum(text in _TAKES for text in texts)}{untried}"
    told = {
        name: said for name, said in takes.items() if takes.get(name.rpartition(":")[0]) != said
    }
    said = _by_value(sorted(told.items(), key=lambda of: -int(of[1].split()[0])), "by")
    return f"of {len(cases)} masks, {said}" if cases else ""


def _by_value(said: Iterable[tuple[str, str]], word: str) -> str:
    """Providers beside those of the same value."""
    names: dict[str, list[str]] = {}
    for name, value in said:
        names.setdefault(value, []).append(named(name))
    return "; ".join(f"{value} {word} {', '.join(of)}" for value, of in names.items())


def _deviation_tables(entry: Entry, of: list[Part]) -> list[Table]:
    """Of every provider the largest of dQ, dK and dV, by case and number of passes."""
    found: dict[str, dict[tuple[int, str], list[float]]] = {}
    for part in of:
        for row in part["result"]["results"]:
            if bits := row.get("bits"):
                new = [bits["deviation"].get(gradient, math.nan) for gradient in _GRADIENTS]
                by = found.setdefault(named(row["provider"]), {})
                key = bits["repeats"], row["name"]
                by[key] = list(map(max, new, by.get(key, new)))
    columns = sorted({key for by in found.values() for key in by})
    titles = [f"{case}, {n:,} passes: dQ, dK, dV" for n, case in columns]
    return [Table(["", *titles], [
        [name, *(", ".join(f"{y:.2g}" for y in by[key]) if key in by else "-" for key in columns)]
        for name, by in found.items()
    ])]  # fmt: skip


def _deviation_line(entry: Entry, of: list[Part]) -> str:
    """Of every provider its gradients' largest in any pass, of the most passes that it made."""
    found = [(row["bits"]["repeats"], row) for part in of for row in part["result"]["results"]
             if row.get("bits") and row["status"] == "ok"]  # fmt: skip
    if not found:
        return ""
    passes = max(n for n, _ in found)
    most: dict[str, float] = {}
    for n, row in found:
        if n == passes:
            largest = max(row["bits"]["deviation"][gradient] for gradient in _GRADIENTS)
            most[row["provider"]] = max(most.get(row["provider"], 0.0), largest)
    said = sorted(most.items(), key=lambda of: of[1])
    told = _by_value(((name, f"{x:.2g}") for name, x in said), "of")
    return f"a gradient's largest in any of {passes:,} passes: {told}"


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


def _tuned_tables(entry: Entry, of: list[Part]) -> list[Table]:
    return [Table(["problem", "pass", "tried", "auto", "best", "gain"], [
        [row["name"], row["pass"], str(len(row["ms"])), row["auto"], row["best"],
         f"{row['ms'][row['auto']] / row['ms'][row['best']]:.3f}"] for row in _tuned(of)
    ])]  # fmt: skip


def _tuned_line(entry: Entry, of: list[Part]) -> str:
    gains = [row["ms"][row["auto"]] / row["ms"][row["best"]] for row in _tuned(of)]
    if not gains:
        return ""
    mean = math.exp(sum(map(math.log, gains)) / len(gains))
    return f"measured placements gain {mean:.3f}, {max(gains):.2f} at most, {cases_of(gains)}"


VIEWS = {
    "lines": View(curves_html, lines.line, lines.tables),
    "dots": View(curves_html, lines.line, lines.tables),
    "sizes": View(sizes_html, lines.line, lines.tables),
    "blocks": View(blocks_html, lines.line, lines.tables),
    "plans": View(_drawn, _plan_line, _no_tables),
    "masks": View(_drawn, _mask_line, _no_tables),
    "lengths": View(_length_html, _length_line, _length_tables),
    "perplexity": View(_epoch_html, _epoch_line, _epoch_tables),
    "activations": View(_activation_html, _activation_line, _activation_tables),
    "support": View(_nothing, _support_line, _support_tables),
    "deviation": View(_nothing, _deviation_line, _deviation_tables),
    "memory": View(_memory_html, lines.line, lines.tables),
    "tuned": View(_nothing, _tuned_line, _tuned_tables),
    "devices": View(parallel.rates_html, parallel.rates_line, parallel.rates_tables),
    "volumes": View(_nothing, parallel.volumes_line, parallel.volumes_tables),
}
