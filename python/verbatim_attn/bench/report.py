"""Tables of results, of this command and of `verbatim bench`, from their files alone."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from .._errors import Refused
from .providers import unordered_twin

Results = list[dict[str, Any]]
Table = tuple[str, list[str], list[list[str]]]  # title, columns, rows


def rows_of(results: Results) -> list[dict[str, Any]]:
    """Rows of all results. Those of the tool have no provider: they are ours. A backward without
    order that was timed in turn is a row of its own where nobody measured that provider."""
    rows = [row if "provider" in row else {"provider": "verbatim", "status": "ok", "reason": "", **row}
            for result in results for row in result["results"]]  # fmt: skip
    measured = {(row["set"], row["name"], row["provider"]) for row in rows}
    found = []
    for row in rows:
        found.append(row)
        twin = unordered_twin(row["provider"])
        if row.get("unordered") and (row["set"], row["name"], twin) not in measured:
            untold = dict.fromkeys(("plan", "forward", "block", "unordered", "order_ratio",
                                    "check", "bits", "workspace_bytes", "memory_bytes"))  # fmt: skip
            found.append({**row, "provider": twin, **untold, "backward": row["unordered"],
                          "repro": ""})  # fmt: skip
    return found


def one_run_each(results: Results) -> None:
    """Refuses results of which two timed the same case by the same provider: a table has room for
    one, and times of different runs do not compare."""
    seen: dict[tuple[str, str, str], int] = {}
    for number, result in enumerate(results):
        for row in result["results"]:
            key = (row["set"], row["name"], row.get("provider", "verbatim"))
            if seen.setdefault(key, number) != number:
                raise Refused(
                    "two files have a time of one case and provider", "--from",
                    f"{key[1]} by {key[2]} in both", "each case and provider in one of them",
                    "a --from for each file",
                )  # fmt: skip


def milliseconds(row: dict[str, Any], which: str) -> float:
    """NaN without a time."""
    timing = row.get(which)
    return timing["ms"] if timing and timing["ms"] else math.nan


def speed_up(row: dict[str, Any], other: dict[str, Any], which: str) -> float:
    """The time of `other` over that of `row`: above 1, `row` is faster. Of a row and its unordered
    twin, timed in turn where the row says so."""
    if which == "backward" and row.get("order_ratio"):
        if unordered_twin(row["provider"]) == other.get("provider"):
            return float(row["order_ratio"])
    return milliseconds(other, which) / milliseconds(row, which)


def tables(results: Results) -> list[Table]:
    """TFLOP/s by exact area, our speed-up over peers, what determinism costs. A speed-up is the time
    of the other over that of the first: above 1, the first is faster."""
    rows = rows_of(results)
    by_case: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_case.setdefault((row["set"], row["name"]), {})[row["provider"]] = row
    names = list(dict.fromkeys(row["provider"] for row in rows))
    found: list[Table] = []
    for which in ("forward", "backward"):
        lines = [[case[1], *(_rate(of.get(name), which) for name in names)]
                 for case, of in by_case.items()]  # fmt: skip
        found.append((f"{which}, TFLOP/s by exact area", ["case", *names], lines))
    others = [name for name in names if not name.startswith("verbatim")]
    blocks = ("block",) if any(row.get("block") for row in rows) else ()
    if blocks:
        lines = [[case[1], *(_block(of.get(name)) for name in names)]
                 for case, of in by_case.items()]  # fmt: skip
        found.append(("whole block, ms forward and backward", ["case", *names], lines))
    for which in ("forward", "backward", *blocks) if "verbatim" in names and others else ():
        pairs = {name: [(of, "verbatim", name) for of in by_case.values()] for name in others}
        found.append(_ratios(f"{which}, speed-up of verbatim over", by_case, pairs, which))
    twins = {name: twin for name in names if (twin := unordered_twin(name)) and twin in names}
    if twins:
        pairs = {a: [(of, a, b) for of in by_case.values()] for a, b in twins.items()}
        found.append(_ratios("backward, speed-up of a fixed order over none", by_case, pairs,
                             "backward"))  # fmt: skip
    if any(row.get("memory_bytes") for row in rows):
        lines = [[case[1], *(_mebibytes(of.get(name)) for name in names)]
                 for case, of in by_case.items()]  # fmt: skip
        found.append(("backward, MiB besides its inputs", ["case", *names], lines))
    return [table for table in found if any(cell != "-" for line in table[2] for cell in line[1:])]


def _ratios(title: str, by_case: Any, pairs: dict[str, list[Any]], which: str) -> Table:
    columns = []
    for entries in pairs.values():
        ratios = [speed_up(of.get(a, {}), of.get(b, {}), which) for of, a, b in entries]
        known = [math.log(ratio) for ratio in ratios if not math.isnan(ratio)]
        mean = math.exp(sum(known) / len(known)) if known else math.nan
        columns.append([_number(ratio) for ratio in [*ratios, mean]])
    titles = [case[1] for case in by_case] + ["geometric mean"]
    lines = [list(line) for line in zip(titles, *columns, strict=True)]
    return title, ["case", *pairs], lines


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _rate(row: dict[str, Any] | None, which: str) -> str:
    if row is None:
        return "-"
    if row["status"] != "ok":
        return row["status"]
    return f"{row[which]['tflops']:.4g}" if row[which] else "-"


def _block(row: dict[str, Any] | None) -> str:
    return _number(milliseconds(row or {}, "block"))


def _mebibytes(row: dict[str, Any] | None) -> str:
    bytes_ = ((row or {}).get("memory_bytes") or {}).get("backward")
    return "-" if bytes_ is None else f"{bytes_ / 2**20:.1f}"


def provenance(result: dict[str, Any]) -> str:
    """One line: where the numbers come from."""
    parts = [result["device"]["name"], f"{result['protocol']} protocol"]
    if result.get("commit"):
        parts.append(f"commit {result['commit']}")
    if result["device"]["driver"]:
        parts.append(f"driver {result['device']['driver']}")
    parts += [
        f"{name} {version}" for name, version in result.get("software", {}).items() if version
    ]
    for name, unit in (("matmul_tflops", "TFLOP/s"), ("copy_tb_per_s", "TB/s")):
        if not (yardstick := result.get(name)):
            continue
        what = f"{name.partition('_')[0]} {yardstick['before']:.3g}"
        if yardstick["after"] is None:
            parts.append(f"{what} {unit} before, the run was cut")
        else:
            parts.append(f"{what} and {yardstick['after']:.3g} {unit} before and after")
    noises = [row[which]["noise"] for row in result["results"] for which in ("forward", "backward")
              if row.get(which)]  # fmt: skip
    if noises:
        parts.append(f"noise up to {max(noises):.1%}")
    return ", ".join(parts)


def text(results: Results) -> str:
    """For a terminal."""
    lines = [provenance(result) for result in results]
    for title, columns, rows in tables(results):
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        lines += ["", title]
        lines += ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                            for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
                  for row in [columns, *rows]]  # fmt: skip
    reasons = [f"{row['name']}, {row['provider']}: {row['status']}, {row['reason']}"
               for row in rows_of(results) if row["status"] != "ok"]  # fmt: skip
    return "\n".join(lines + ([""] + reasons if reasons else []))


def markdown(results: Results, command: str) -> str:
    """The command that makes it, provenance, a table a section."""
    lines = ["# Attention beside its peers", "", "```", command, "```", ""]
    lines += [f"- {_cell(provenance(result))}" for result in results]
    for title, columns, rows in tables(results):
        lines += ["", f"## {title}", ""]
        lines += ["| " + " | ".join(map(_cell, columns)) + " |"]
        lines += ["|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def csv_text(results: Results) -> str:
    """A line a row: everything that is a number or a name."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    times = ("ms", "tflops", "tflops_nominal", "noise", "clock_mhz")
    table.writerow(
        ["device", "protocol", "set", "name", "provider", "status", "reason"]
        + list(results[0]["results"][0]["problem"] if results[0]["results"] else [])
        + ["mask", "area", *(f"{p}_{t}" for p in ("forward", "backward") for t in times)]
        + ["error_ratio", "differing_words", "memory_bytes_backward", "repro"]
    )
    for result in results:
        for row in rows_of([result]):
            passes = [(row.get(p) or {}).get(t, "") for p in ("forward", "backward") for t in times]
            table.writerow(
                [result["device"]["name"], result["protocol"]]
                + [row[name] for name in ("set", "name", "provider", "status", "reason")]
                + [*row["problem"].values(), row["mask"]["name"], row["mask"]["area"], *passes]
                + [(row.get("check") or {}).get("error_ratio", "")]
                + [(row.get("bits") or {}).get("differing_words", "")]
                + [(row.get("memory_bytes") or {}).get("backward", ""), row.get("repro", "")]
            )
    return out.getvalue()
