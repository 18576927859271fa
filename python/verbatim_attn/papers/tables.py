"""A table of text, for a page in HTML or in Markdown."""

from __future__ import annotations

from typing import NamedTuple

from ..bench import page


class Table(NamedTuple):
    titles: list[str]
    lines: list[list[str]]

    def html(self) -> str:
        return page.numbers(self.titles, self.lines)

    def markdown(self) -> str:
        return "\n".join(map(line, (self.titles, ["---"] * len(self.titles), *self.lines)))


def line(cells: list[str]) -> str:
    """Of a table in Markdown."""
    return (
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in cells) + " |"
    )
