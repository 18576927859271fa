"""docs/papers.md, a line for each table and figure, and a page for each paper with the numbers
behind its lines.

Judgements are read from bench/results/papers/judged.json: {"entries": {NAME: sentence}, "why":
{NAME: what it rests on, on the paper's page}, "objections": [{"paper", "claim", "evidence"}],
"code": {PAPER: the commit of its code}}. They type no number that is measured: a name in braces is
the line of that entry.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from .._errors import Refused
from . import document, evidence, floors, tables
from .pairs import NAMES, named
from .registry import ENTRIES, NEEDS, PAPERS, Entry

Parts = dict[Entry, list[evidence.Part]]

_HEAD = """# The four papers, table by table

A row for each table and figure of four papers: what it claims, what makes it here, our result \
in a line, and whether that agrees. The numbers behind the lines, by card, with commits and \
files, are on a page for each paper: {pages}.

```
python -m verbatim_attn.papers                      # this list
python -m verbatim_attn.papers NAME --json FILE     # makes one; again: goes on where it was cut
                                                    # on a GPU with --device cuda
python -m verbatim_attn.papers NAME --commands      # what that runs, after the lines that make
                                                    # libraries of TL, which come first by hand
python -m verbatim_attn.papers NAME --page FILE     # its picture or table, from bench/results
```

"forward / backward rate over FA3 a / b (c to d)": our forward has a times the rate of FA3 in \
the mean of all cases and cards, our backward b, and c and d are the lowest and the highest case \
of both. Above 1 ours is faster. A memory is read alike: below 1 ours holds less.

A line names the peers that the claim is about, and every peer that is ahead of ours in a mean. \
"at worst X y" is the case of the others that is further behind than any of these. "96 of 108 \
tried" counts the rows that the commands ask for. [Who is who](#who-is-who) and [how ratios are \
made](#how-ratios-are-made) stand at the end.

The last column is a person's. `papers` is short for `python -m verbatim_attn.papers`.
"""

_FLOORS = """## What block-sparse masks were to reach

Ours over others on an H200, head dim 128, all lengths, heads and shares that were timed. A \
floor is met where every case of both passes reaches it. The dense rate is the best under a full \
mask of the same commit, heads and length; that of all others is of the same run. How long a \
plan takes and how large it is, no file of results says: [lab](lab/planning.md).
"""

_MISSING = """## What was not tried

Rows that the commands ask for and no file has, by whose they are; an entry's cases are others' \
too. Where no reason is given above, they wait for time on a card. Their heads and lengths are \
on the pages of the papers.
"""

_MADE = """## How ratios are made

Written by `python -m verbatim_attn.papers --markdown docs/papers.md`; every number is read from \
[bench/results](../bench/results).

- Cards differ from the papers', so ratios are compared, not rates.
- A ratio is of two rows of one file, or of the files that the tool made of an entry at one \
commit, an order each. Where no file has both, a rate or memory stands alone.
- Rates of rows with a time whose calls spread by more than a fifth of their median (`noise` \
above 0.2) are left out.
- "ours \N{DAGGER}" was timed with a backward in an order that `auto` no longer takes. It is on \
the papers' pages, in a line only where nothing else is, and left out where that card has the \
case under today's order. \
Forwards have no such order, and what earlier kernels took, of either pass, is not marked. \
`tools/write_orders.py` writes the orders that `auto` takes, `papers/orders.json`.
- A case that a peer's interface does not take counts as tried, installed or not. Else what was \
not installed was not tried, nor what our adapter of it refused.
- What an entry alone has is in `papers/NAME*.json`, the colon written `_`. Where such a file's \
`command` is `papers`, `NAME --json` made it. All others were made by `verbatim_attn.bench` or \
the tool, of some of the cases or with other repeats, protocols and checks than `NAME \
--commands` prints: their `arguments` say which.
- Judgements are in `papers/judged.json`.
"""

_WHO = """## Who is who

What `--providers` calls them; [benchmarks.md](benchmarks.md#beside-peers) says how they were \
built. "X deterministic" is X with its switch for that. "shift", "descending" and their like are \
ours in that order, "TL" is a kernel of ours made from a page of TL.
"""

_PAPER = """# {title}

The numbers behind the lines of [the list](../papers.md): the least and the greatest ratio, the \
mean and the cases. Above 1 ours, or what stands first, is faster or holds more. [How ratios are \
made](../papers.md#how-ratios-are-made), [who is who](../papers.md#who-is-who).
"""


def pages(folder: Path, path: Path) -> dict[Path, str]:
    """The list at `path`, and the papers' pages in a folder of its name if that is NAME.md: of what
    is no such file, as /dev/stdout, the list alone."""
    judged = _judged(folder)
    of = {entry: evidence.parts(entry, folder) for entry in ENTRIES.values()}
    if path.suffix != ".md":
        return {path: _list(judged, of, folder, "papers")}
    found = {path: _list(judged, of, folder, path.stem)}
    for paper in PAPERS:
        found[path.with_suffix("") / f"{paper}.md"] = _paper(judged, of, paper)
    return found


def _list(judged: dict[str, Any], of: Parts, folder: Path, details: str) -> str:
    named_pages = [f"[{_short(paper)}]({details}/{paper}.md)" for paper in PAPERS]
    out = [_HEAD.format(pages=", ".join(named_pages))]
    for paper, title in PAPERS.items():
        rows = [[f"`{entry.name}` {entry.title}", entry.claim, _needs(entry),
                 _ours(entry, parts, details), _filled(judged["entries"].get(entry.name, ""), of)]
                for entry, parts in of.items() if entry.paper == paper]  # fmt: skip
        heads = ["", "the paper claims", "needs, command", "ours", "agrees or differs"]
        out += [f"## {title}", "", tables.Table(heads, rows).markdown(), ""]
    out += [_FLOORS, floors.table(folder), "", _MISSING, _missing_table(of), ""]
    out += ["## What we hold to be wrong", ""]
    for one in judged["objections"]:
        out += [f"**{_short(one['paper'])}: {one['claim']}** {_filled(one['evidence'], of)}", ""]
    who = [[name, f"`{provider}`"] for provider, name in NAMES.items()]
    out += [_MADE, _WHO, tables.Table(["in a line", "provider"], who).markdown()]
    return "\n".join(out).rstrip() + "\n"


def _ours(entry: Entry, parts: list[evidence.Part], details: str) -> str:
    """Its line with the place of its numbers."""
    said = document.summary(entry, parts)
    anchor = entry.name.replace(":", "")
    return f"{said} ([details]({details}/{entry.paper}.md#{anchor}))" if parts else said


def _short(paper: str) -> str:
    return PAPERS[paper].partition(":")[0].removeprefix("[Re] ")


def _missing_table(of: Parts) -> str:
    """Entries that lack the same share a line."""
    lacking: dict[str, list[str]] = {}
    for entry, parts in of.items():
        if parts and (missing := evidence.missing(entry, parts)):
            said = ", ".join(f"{named(name)} {len(sizes)}" for name, sizes in missing.items())
            lacking.setdefault(said, []).append(f"`{entry.name}`")
    rows = [[", ".join(names), said] for said, names in lacking.items()]
    return tables.Table(["", "rows"], rows).markdown()


def _paper(judged: dict[str, Any], of: Parts, paper: str) -> str:
    out = [_PAPER.format(title=PAPERS[paper])]
    if commit := judged["code"].get(paper):
        out += [f"Its public code was read at commit {commit}.", ""]
    for entry, parts in of.items():
        if entry.paper == paper and parts:
            title = entry.title[0].upper() + entry.title[1:]
            out += [f"## {entry.name}", "", f"{title}. The paper: {entry.claim}.", ""]
            told = [table.markdown() for table in document.tables(entry, parts)]
            for text in told or [f"Here: {document.line(entry, parts)}."]:
                out += [text, ""]
            if why := judged["why"].get(entry.name):
                out += [_filled(why, of), ""]
            out += [_provenance(entry, parts), ""]
    return "\n".join(out).rstrip() + "\n"


def _provenance(entry: Entry, parts: list[evidence.Part]) -> str:
    """Its files, cards and commits, and what was not tried."""
    files = ", ".join(f"`{name}`" for name in evidence.read_from(parts))
    said = [f"From {files} of bench/results"]
    if cards := evidence.cards(parts):
        said.append(cards)
    if missing := evidence.missing(entry, parts):
        told = "; ".join(f"{named(name)} {_extent(sizes)}" for name, sizes in missing.items())
        said.append(f"Not tried: {told}")
    return ". ".join(said) + "."


def _extent(sizes: list[evidence.Sizes]) -> str:
    """How many, of which heads and lengths."""
    heads = sorted({(of.q_heads, of.kv_heads) for of in sizes})
    lengths = sorted({of.q_len for of in sizes})
    told = ", ".join(f"{q}:{kv}" for q, kv in heads) if len(heads) < 4 else f"{len(heads)} shapes"
    ends = " to ".join(f"{n:,}" for n in dict.fromkeys((lengths[0], lengths[-1])))
    return f"{len(sizes)} ({told} heads, {ends} tokens)"


def _needs(entry: Entry) -> str:
    """What makes it, and the command."""
    if not entry.commands:
        return NEEDS[entry.needs]
    device = " --device cuda" if entry.needs == "gpu" else ""
    return f"{NEEDS[entry.needs]}: `papers {entry.name} --json F{device}`"


def _judged(folder: Path) -> dict[str, Any]:
    path = folder / "papers" / "judged.json"
    found: dict[str, Any] = json.loads(path.read_text())
    if unknown := {*found["entries"], *found["why"]} - set(ENTRIES):
        raise Refused("a judgement of no entry", path.name, min(unknown), "a name of the list")
    return found


def _filled(text: str, of: Parts) -> str:
    """With the line of every entry whose name stands in braces."""

    def told(name: re.Match[str]) -> str:
        entry = ENTRIES[name[1]]
        return document.line(entry, of[entry])

    return re.sub(r"\{([a-z]+:\w+)\}", told, text)
