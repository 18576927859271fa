"""What has been measured of an entry: the files in bench/results that belong to it, as rows.

All of papers/NAME.json and papers/NAME.*.json belong to it, the colon of the name written "_":
results of this command, of the tool or of bench. Of the files that it shares, which may be those of
other entries, rows of its cases do.

papers/orders.json says which order `auto` takes today of every problem that was timed there
(tools/write_orders.py).
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .._errors import Refused
from ..bench import __main__ as bench
from ..bench import registry, report, workloads
from .generated import GENERATED
from .registry import Entry, Row

Part = dict[str, Any]
_OUR_REFUSAL = "cannot be made dense"  # of FlashMask's earlier adapter, which wanted a dense mask
DAGGER = "\N{DAGGER}"
EARLIER = f"verbatim {DAGGER}"  # timed under an order that `auto` no longer takes


class Run(NamedTuple):
    """Only rows of one are compared."""

    card: str
    commit: str
    source: str  # a file; the files of an entry that the tool made, an order each


class Sizes(NamedTuple):
    """Of a row's problem."""

    batch: int
    q_heads: int
    kv_heads: int
    q_len: int
    head_dim: int


def patterns(entry: Entry) -> tuple[str, ...]:
    """Of its own files and of those that it shares, in bench/results."""
    return (f"papers/{entry.name.replace(':', '_')}.*json", *entry.files)


def parts(entry: Entry, folder: Path) -> list[Part]:
    """Every command's words and result, cut to the entry's cases: a run may be of several entries."""
    orders = folder / "papers" / "orders.json"
    today = _read(orders)["orders"] if orders.exists() else {}
    found = []
    paths: dict[Path, str] = {}
    for pattern in patterns(entry):
        for path in sorted(folder.glob(pattern)):
            paths.setdefault(path, pattern)
    for path in paths:
        for part in _parts(path, today):
            part["pattern"] = paths[path]
            if part["result"].get("command") != "bench":
                found.append(part)
            elif chosen := [row for row in part["result"]["results"] if entry.cases(row)]:
                found.append({**part, "result": {**part["result"], "results": chosen}})
    return found


def _parts(path: Path, today: dict[str, str]) -> list[Part]:
    result = _read(path)
    if isinstance(result, dict) and result.get("command") == "papers":
        parts: list[Part] = result["parts"]
    else:
        parts = [{"words": result.get("arguments", []), "result": result}]
    for part in parts:
        an_order = part["words"][:1] == ["bench"] and "--order" in part["words"]
        part["source"] = path.name.partition(".")[0] if an_order else path.name
        for row in part["result"]["results"] if part["result"].get("command") == "bench" else ():
            row["earlier"] = row.get("plan") and row["plan"]["order"] != today.get(
                problem_key(row), row["plan"]["order"]
            )
    return parts


def problem_key(row: Row) -> str:
    """A problem and its mask in orders.json: what its order depends on."""
    p, mask = row["problem"], row["mask"]
    sizes = [p[k] for k in ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim",
                            "head_dim_v", "dtype")]  # fmt: skip
    whole = json.dumps([sizes, mask["name"], mask.get("params") or {}])
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{mask['name']} {p['q_heads']}:{p['kv_heads']} {p['q_len']} hd{p['head_dim']} {digest}"


def rows(of: list[Part]) -> list[Row]:
    """Rows of all benchmarks, under the name that a curve has: the provider, and of ours the order
    where the command chose one, or "TL" for its libraries. What a run measured again counts as
    first measured."""
    found: dict[tuple[Any, ...], Row] = {}
    for part in of:
        result = part["result"]
        if result.get("command") != "bench":
            continue
        for row in report.rows_of([result]):
            name, run = _named(row, part["words"]), _run(part)
            key = (run, *_kind(row["mask"], row["problem"], name))
            if key not in found or (found[key]["status"] != "ok" and row["status"] == "ok"):
                found[key] = {**row, "provider": name, "run": run}
    return list(found.values())


def dated(found: list[Row], axis: str) -> list[Row]:
    """`rows` for an axis. On one with a backward, ours under an order that `auto` no longer takes is
    left out where that card has the case under today's, and else called EARLIER."""
    if axis.endswith("forward"):
        return found

    def case(row: Row) -> tuple[Any, ...]:
        return row["run"].card, *_kind(row["mask"], row["problem"], row["provider"])

    today = {case(row) for row in found if row["status"] == "ok" and not row.get("earlier")}
    kept = []
    for row in found:
        if row["provider"] != "verbatim" or not row.get("earlier"):
            kept.append(row)
        elif case(row) not in today:
            kept.append({**row, "provider": EARLIER})
    return kept


def tried(row: Row) -> bool:
    """Whether a row tells what its provider does with a case: a time, or that it does not take it."""
    refused_here = row["provider"] == "flashmask" and _OUR_REFUSAL in row["reason"]
    return row["status"] not in ("error", "not installed") and not refused_here


def counts(entry: Entry, of: list[Part]) -> tuple[int, int]:
    """How much of an entry has been tried, and how much its commands ask for: a row of a benchmark
    counts, and a whole other command."""
    has_tried = _tried(entry, of)
    has = wants = 0
    for words, asked in _wanted(entry):
        wants += len(asked) or 1
        whole = any(part["words"][: len(words)] == words for part in of)
        has += len(asked & has_tried) if asked else whole
    return has, wants


def missing(entry: Entry, of: list[Part]) -> dict[str, list[Sizes]]:
    """The rows that its commands ask for and nobody tried: their sizes, by provider."""
    asked = set().union(*(asked for _, asked in _wanted(entry)))
    found: dict[str, list[Sizes]] = {}
    for provider, _mask, _params, sizes, _times in sorted(asked - _tried(entry, of)):
        found.setdefault(provider, []).append(Sizes(*sizes))
    return found


def _by_repeats(entry: Entry) -> bool:
    """Whether its rows differ by the number of passes alone."""
    return entry.view == "deviation"


def _wanted(entry: Entry) -> list[tuple[list[str], set[Any]]]:
    """The words of every command and the rows that it makes."""
    commands = (itertools.takewhile(lambda word: word != "DEVICE", command)
                for command in entry.commands)  # fmt: skip
    return [(words, _asked(words, _last(words, "--repeats", "") if _by_repeats(entry) else ""))
            for words in map(list, commands)]  # fmt: skip


def _tried(entry: Entry, of: list[Part]) -> set[Any]:
    found: set[Any] = set()
    for part in of:
        words, result = part["words"], part["result"]
        if result.get("command") == "bench":
            times = _last(words, "--repeats", "") if _by_repeats(entry) else ""
            found |= {(*_kind(r["mask"], r["problem"], _named(r, words)), times)
                      for r in report.rows_of([result]) if tried(r)}  # fmt: skip
    return found


def untried(entry: Entry, of: list[Part]) -> list[str]:
    """Whom the commands ask for, and no row tried."""
    asked = {name for command in entry.commands for name in _asked_names(command)}
    return sorted(asked - {row["provider"] for row in rows(of) if tried(row)})


def _asked(words: list[str], times: str) -> set[Any]:
    """The rows that a benchmark makes; none of another command."""
    kind, *rest = words
    if not (names := _asked_names(words)):
        return set()
    if kind == "bench":
        cases = {"--set": _last(rest, "--set", ""), "--match": _last(rest, "--match", "")}
        rest = [word for pair in cases.items() for word in pair]
    chosen = bench.chosen_cases(bench.parser().parse_args(rest))
    return {(*_kind(_described(case), case.problem._asdict(), name), times)
            for case in chosen for name in names}  # fmt: skip


def _asked_names(words: Sequence[str]) -> list[str]:
    """Of the curves that a benchmark makes; none of another command."""
    if words[0] == "bench.py":
        return list(map(_curve, registry.names(_last(words, "--providers", "verbatim"))))
    return [_of_ours(words)] if words[0] == "bench" else []


def _last(words: Sequence[str], option: str, otherwise: str) -> str:
    """The value of an option, the last where there are several."""
    values = [value for name, value in itertools.pairwise(words) if name == option]
    return values[-1] if values else otherwise


def _described(case: workloads.Case) -> dict[str, Any]:
    spec = json.loads(case.mask.spec)
    return {"name": case.mask.name, "params": spec.get("params", spec)}


def _named(row: Row, words: list[str]) -> str:
    return _of_ours(words) if row["provider"] == "verbatim" else _curve(row["provider"])


def _curve(provider: str) -> str:
    return GENERATED.get(provider, provider)


def _of_ours(words: Sequence[str]) -> str:
    """The name of what a command measured of this library."""
    order = _last(words, "--order", "auto")
    return "verbatim" if order == "auto" else f"verbatim {order}"


def _kind(mask: dict[str, Any], problem: dict[str, Any], provider: str) -> tuple[Any, ...]:
    """What makes two rows the same measurement, whatever ran it."""
    sizes = tuple(problem[k] for k in Sizes._fields)
    return provider, mask["name"], json.dumps(mask.get("params")), sizes


def _run(part: Part) -> Run:
    result = part["result"]
    return Run(result["device"]["name"], result.get("commit", ""), part.get("source", ""))


def read_from(of: list[Part]) -> list[str]:
    """The patterns of files that have parts."""
    return list(dict.fromkeys(part["pattern"] for part in of))


def cards(of: list[Part]) -> str:
    """Each card with the commits that ran on it."""
    seen: dict[str, dict[str, None]] = {}
    for part in of:
        if part["result"].get("command") in ("bench", "tune"):
            card, commit, _ = _run(part)
            seen.setdefault(card, {})[commit] = None
    return "; ".join(f"{card}, {', '.join(filter(None, of_card)) or 'commit not recorded'}"
                     for card, of_card in seen.items())  # fmt: skip


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Refused(str(error), "bench/results", path.name, "JSON of a result") from None
