"""The page of one entry, the list for a terminal, and docs/papers.md.

Judgements are read from bench/results/papers/judged.json: {"entries": {NAME: sentence},
"objections": [{"paper", "claim", "evidence"}]}. They type no number that is measured: a name in braces
is the result of that entry.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .. import _page
from .._errors import Refused
from .._page import code, escape, listed, section
from ..bench import page, report
from . import evidence, floors, views
from .registry import ENTRIES, NEEDS, PAPERS, Entry

_HEAD = """# The four papers, table by table

```
python -m verbatim_attn.papers                      # this list
python -m verbatim_attn.papers NAME --json FILE     # makes one; again: goes on where it was cut
                                                    # on a GPU with --device cuda
python -m verbatim_attn.papers NAME --commands      # what that runs, after the lines that make
                                                    # libraries of TL, which come first by hand
python -m verbatim_attn.papers NAME --page FILE     # its picture or table, from bench/results
```

Written by `python -m verbatim_attn.papers --markdown docs/papers.md`; every number is read from \
`bench/results`. What an entry alone has is in `papers/NAME*.json` there (the colon written `_`). \
Where such a file's `command` is `papers`, `NAME --json` made it. All others were made by \
`verbatim_attn.bench` or the tool, of some of the cases or with other repeats, protocols and \
checks than `NAME --commands` prints: their `arguments` say which.

"3 of 9 (none of flex):" says how many of the rows that the commands ask for were tried, whatever \
file holds them, and whose were not at all. A case that a peer's interface does not take counts as \
tried, installed or not; else what was not installed was not tried, nor what our adapter of it \
refused. Cards differ from \
the papers', so ratios are compared, not rates: each is of two rows of one file, or of the files \
that the tool made of an entry at one commit, an order each. Each card has its own line. Where no \
file has both, the other's rate or memory stands alone. Rates of rows with a \
time whose calls spread by more than a fifth of their median (`noise` above 0.2) are left out.

"verbatim \N{DAGGER}" was timed with a backward in an order that `auto` no longer takes. Where that card has \
the case under today's, it is left out, with all ratios over it. Forwards have no such order, and \
what earlier kernels took, of either pass, is not marked. \
`tools/write_orders.py` writes the orders that `auto` takes, `papers/orders.json`.

The last column is a person's, from `bench/results/papers/judged.json`. Commands are short for \
`python -m verbatim_attn.papers NAME --json FILE` with `--device` where there is one.
"""


_FLOORS = """## What block-sparse masks were to reach

Ours over others on an H200, head dim 128, all lengths, heads and shares that were timed. A floor is \
met where every case of both passes reaches it. The dense rate is the best under a full mask of the \
same commit, heads and length; that of all others is of the same run. How long a plan takes and how \
large it is, no file of results says: [lab](lab/planning.md).
"""


_MISSING = """## What was not tried

Rows that the commands ask for and no file has, by whose they are; an entry's cases are others' too. \
Where the table above says no reason, they wait for time on a card.
"""


def state(entry: Entry, folder: Path) -> str:
    """In a few words: whether there is a result, and how much of it."""
    return state_of(entry, evidence.parts(entry, folder))


def state_of(entry: Entry, of: list[evidence.Part]) -> str:
    if not of:
        return "to be run" if entry.commands else "-"
    has, wants = evidence.counts(entry, of)
    return "made" if has == wants else f"{has} of {wants}"


def line(entry: Entry, folder: Path) -> str:
    return line_of(entry, evidence.parts(entry, folder))


def line_of(entry: Entry, of: list[evidence.Part]) -> str:
    """Its result in a line; "" without one."""
    said = views.VIEWS[entry.view].line(entry, of) if of and entry.view else ""
    where = evidence.cards(of)
    return f"{said} ({where})" if said and where else said


def summary(entry: Entry, of: list[evidence.Part]) -> str:
    """Its result in a line after what is missing of it; its state without a result."""
    made, said = state_of(entry, of), line_of(entry, of)
    if not said:
        return made
    none = evidence.untried(entry, of)
    made += f" (none of {', '.join(none)})" if none else ""
    return f"{made}: {said}" if " of " in made else said


def listing(folder: Path) -> str:
    """For a terminal."""
    cells = {entry: (entry.name, NEEDS[entry.needs], state(entry, folder))
             for entry in ENTRIES.values()}  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells.values(), strict=True)]
    lines = []
    for paper, title in PAPERS.items():
        lines += ["", title]
        for entry, of in cells.items():
            if entry.paper == paper:
                padded = (text.ljust(width) for text, width in zip(of, widths, strict=True))
                lines.append("  " + "  ".join((*padded, entry.title)))
    return "\n".join(lines[1:])


def html(entry: Entry, of: list[evidence.Part]) -> str:
    """The picture or table of one entry with ours in place of the paper's."""
    view = views.VIEWS.get(entry.view)
    if view is None or not of:
        raise Refused("there is no result to draw", "the entry", entry.name,
                      "one that was made: see the list")  # fmt: skip
    made = (code(" ".join(part["words"])) for part in of)
    benches = [part["result"] for part in of if part["result"].get("command") == "bench"]
    said = "<br>".join(map(escape, view.line(entry, of).splitlines())) or "no case to compare"
    lead = (
        f"<p>{escape(PAPERS[entry.paper])}. The paper: {escape(entry.claim)}.</p>\n"
        f"<p>Here: {said}.</p>\n"
    )
    body = view.html(entry, of) + section("Made by", "", listed(made))
    if evidence.EARLIER in body:
        lead += f"<p>{evidence.EARLIER}: under an order that auto no longer takes.</p>\n"
    lead += listed(escape(report.provenance(result)) for result in benches)
    versions = page.versions([part["result"] for part in of])
    return _page.page(escape(f"{entry.name}: {entry.title}"), lead, body, versions)


def markdown(folder: Path) -> str:
    """docs/papers.md."""
    judged = _judged(folder)
    out = [_HEAD]
    for paper, title in PAPERS.items():
        out += [f"## {title}", "", "| | the paper claims | needs, command | ours | agrees or differs |",
                "|---|---|---|---|---|"]  # fmt: skip
        for entry in ENTRIES.values():
            if entry.paper == paper:
                ours = summary(entry, evidence.parts(entry, folder))
                verdict = _filled(judged["entries"].get(entry.name, ""), folder)
                cells = [
                    f"`{entry.name}` {entry.title}",
                    entry.claim,
                    _needs(entry),
                    ours,
                    verdict,
                ]
                out.append("| " + " | ".join(map(_cell, cells)) + " |")
        out.append("")
    out += [_FLOORS, floors.table(folder), "", _MISSING, _missing_table(folder), ""]
    out += ["## What we hold to be wrong", ""]
    for one in judged["objections"]:
        out += [
            f"**{PAPERS[one['paper']]}: {one['claim']}** {_filled(one['evidence'], folder)}",
            "",
        ]
    return "\n".join(out).rstrip() + "\n"


def _missing_table(folder: Path) -> str:
    lines = ["| | rows |", "|---|---|"]
    for entry in ENTRIES.values():
        of = evidence.parts(entry, folder)
        if of and (missing := evidence.missing(entry, of)):
            said = "; ".join(f"{name} {_extent(sizes)}" for name, sizes in missing.items())
            lines.append(f"| `{entry.name}` | {said} |")
    return "\n".join(lines)


def _extent(sizes: list[evidence.Sizes]) -> str:
    """How many, of which heads and lengths."""
    heads = sorted({(of.q_heads, of.kv_heads) for of in sizes})
    lengths = sorted({of.q_len for of in sizes})
    named = ", ".join(f"{q}:{kv}" for q, kv in heads) if len(heads) < 4 else f"{len(heads)} shapes"
    ends = " to ".join(f"{n:,}" for n in dict.fromkeys((lengths[0], lengths[-1])))
    return f"{len(sizes)} ({named} heads, {ends} tokens)"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "<br>")


def _needs(entry: Entry) -> str:
    """What makes it, and the command."""
    if not entry.commands:
        return NEEDS[entry.needs]
    device = " --device cuda" if entry.needs == "gpu" else ""
    return f"{NEEDS[entry.needs]}: `papers {entry.name} --json F{device}`"


def _judged(folder: Path) -> dict[str, Any]:
    path = folder / "papers" / "judged.json"
    found: dict[str, Any] = json.loads(path.read_text())
    if unknown := set(found["entries"]) - set(ENTRIES):
        raise Refused("a judgement of no entry", path.name, min(unknown), "a name of the list")
    return found


def _filled(text: str, folder: Path) -> str:
    """With the result of every entry whose name stands in braces."""
    return re.sub(r"\{([a-z]+:\w+)\}", lambda name: line(ENTRIES[name[1]], folder), text)
