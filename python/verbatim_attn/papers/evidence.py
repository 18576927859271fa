"""What has been measured of an entry: the files in bench/results that belong to it, as rows.

All of papers/NAME.json and papers/NAME.*.json belong to it, the colon of the name written "_":
results of this command, of the tool or of bench. Of the files that it shares, which may be those of
other entries, rows of its cases do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .._errors import Refused
from ..bench import report
from .registry import Entry, Row

Part = dict[str, Any]


def own_files(entry: Entry, folder: Path) -> list[Path]:
    stem = entry.name.replace(":", "_")
    return sorted([*folder.glob(f"papers/{stem}.json"), *folder.glob(f"papers/{stem}.*.json")])


def parts(entry: Entry, folder: Path) -> list[Part]:
    """Every command's words and result; those of shared files are cut to the entry's cases."""
    own = own_files(entry, folder)
    found = [part for path in own for part in _parts(path)]
    for path in shared_files(entry, folder):
        for part in _parts(path) if path not in own else ():
            chosen = [row for row in part["result"]["results"] if entry.cases(row)]
            if chosen:
                found.append({**part, "result": {**part["result"], "results": chosen}})
    return found


def shared_files(entry: Entry, folder: Path) -> list[Path]:
    return [path for name in entry.files for path in sorted(folder.glob(name))]


def _parts(path: Path) -> list[Part]:
    result = _read(path)
    if isinstance(result, dict) and result.get("command") == "papers":
        parts: list[Part] = result["parts"]
        return parts
    return [{"words": result.get("arguments", []), "result": result}]


def rows(of: list[Part]) -> list[Row]:
    """Rows of all benchmarks, under the name that a curve has: the provider, and of ours the order
    where the command chose one, or "TL" where it gave kernels; "run" says card and commit, for only
    rows of one are compared. What was measured again counts as first measured."""
    found: dict[tuple[Any, ...], Row] = {}
    for part in of:
        result = part["result"]
        if result.get("command") != "bench":
            continue
        words = part["words"]
        order = words[words.index("--order") + 1] if "--order" in words else ""
        of_ours = " TL" if "--kernel" in words else f" {order}" if order else ""
        for row in report.rows_of([result]):
            name = row["provider"] + (of_ours if row["provider"] == "verbatim" else "")
            problem, run = row["problem"], _run(result)
            key = (
                run,
                name,
                row["mask"]["name"],
                json.dumps(row["mask"].get("params")),
                tuple(problem[k] for k in ("batch", "q_heads", "kv_heads", "q_len", "head_dim")),
            )
            if key not in found or (found[key]["status"] != "ok" and row["status"] == "ok"):
                found[key] = {**row, "provider": name, "run": run}
    return list(found.values())


def _run(result: dict[str, Any]) -> tuple[str, str]:
    return result["device"]["name"], result.get("commit", "")


def cards(of: list[Part]) -> str:
    """Each card with the commits that ran on it."""
    seen: dict[str, dict[str, None]] = {}
    for part in of:
        if part["result"].get("command") == "bench":
            card, commit = _run(part["result"])
            seen.setdefault(card, {})[commit] = None
    return "; ".join(f"{card}, {', '.join(filter(None, of_card)) or 'commit not recorded'}"
                     for card, of_card in seen.items())  # fmt: skip


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Refused(str(error), "bench/results", path.name, "JSON of a result") from None
