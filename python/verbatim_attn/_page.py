"""The page that every report is written on, the tool's too: no script, no outside resource."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_PLACES = (_HERE / "report", _HERE.parents[1] / "src" / "report")  # installed; in the tree


@functools.cache
def _text(name: str) -> str:
    return next(file for place in _PLACES if (file := place / name).exists()).read_text()


def page(title: str, lead: str, body: str, version: str) -> str:
    """HTML of a page from HTML; `lead` stands under the title, `version` at the end."""
    slots = {
        "title": title,
        "lead": lead,
        "body": body,
        "version": version,
        "palette": _text("palette.css"),
    }
    return re.sub(r"{{(\w+)}}", lambda slot: slots[slot[1]], _text("page.html"))


def escape(value: Any) -> str:
    """Text for HTML, without control characters."""
    return html.escape("".join(c for c in str(value) if c.isprintable() or c == " "))


def code(value: Any) -> str:
    return f"<code>{escape(value)}</code>"


def section(title: str, lead: str, body: str) -> str:
    lead = f'<p class="lead">{lead}</p>\n' if lead else ""
    return f"<section>\n<h2>{title}</h2>\n{lead}{body}</section>\n"


def listed(items: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>\n"


def table(rows: list[list[str]], titles: Iterable[str] = (), numbers: bool = False) -> str:
    """Of cells that are HTML; without titles the first cell of a row is its name. `numbers` stand
    to the right."""
    head = "".join(f'<th scope="col">{title}</th>' for title in titles)
    lines = []
    for first, *others in rows:
        start = f"<td>{first}</td>" if head else f'<th scope="row">{first}</th>'
        lines.append(f"<tr>{start}{''.join(f'<td>{cell}</td>' for cell in others)}</tr>\n")
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    kind = ' class="numbers"' if numbers else ""
    return (
        f'<div class="panel"><table{kind}>{head}<tbody>\n{"".join(lines)}</tbody></table></div>\n'
    )
