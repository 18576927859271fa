"""What an entry has in words: its state, its line, its page, and the list for a terminal."""

from __future__ import annotations

from pathlib import Path

from .. import _page
from .._errors import Refused
from .._page import code, escape, listed, section
from ..bench import page, report
from . import evidence, views
from .registry import ENTRIES, NEEDS, PAPERS, Entry
from .tables import Table


def state(entry: Entry, folder: Path) -> str:
    """In a few words: whether there is a result, and how much of it."""
    return state_of(entry, evidence.parts(entry, folder))


def state_of(entry: Entry, of: list[evidence.Part]) -> str:
    if not of:
        return "to be run" if entry.commands else "-"
    has, wants = evidence.counts(entry, of)
    return "made" if has == wants else f"{has} of {wants}"


def line(entry: Entry, of: list[evidence.Part]) -> str:
    """Its result in a line; "" without one."""
    return views.VIEWS[entry.view].line(entry, of) if of and entry.view else ""


def tables(entry: Entry, of: list[evidence.Part]) -> list[Table]:
    """All that the line is of."""
    return views.VIEWS[entry.view].tables(entry, of) if of and entry.view else []


def summary(entry: Entry, of: list[evidence.Part]) -> str:
    """Its result in a line, and how much was tried where not all was; without one its state."""
    made, said = state_of(entry, of), line(entry, of)
    if not said:
        return made
    return f"{said}; {made} tried" if " of " in made else said


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
    said = escape(view.line(entry, of)) or "no case to compare"
    lead = (
        f"<p>{escape(PAPERS[entry.paper])}. The paper: {escape(entry.claim)}.</p>\n"
        f"<p>Here: {said}.</p>\n"
    )
    numbers = "".join(table.html() for table in view.tables(entry, of))
    body = view.pictures(entry, of) + numbers + section("Made by", "", listed(made))
    if evidence.DAGGER in body:
        lead += f"<p>{evidence.DAGGER}: under an order that auto no longer takes.</p>\n"
    lead += listed(escape(report.provenance(result)) for result in benches)
    versions = page.versions([part["result"] for part in of])
    return _page.page(escape(f"{entry.name}: {entry.title}"), lead, body, versions)
