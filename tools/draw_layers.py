#!/usr/bin/env python3
"""Draws docs/layers.svg, the table of check_layers.py as a picture: python3 tools/draw_layers.py.

`python3 tools/draw_layers.py CHECKOUT FILE` draws what another tree includes on the same places, in
red what the table forbids today.
"""

import pathlib
import sys

import check_layers
from draw_docs import ROOT, Svg

# Where a folder stands (column, row from the bottom), and what it does.
BOXES = {
    "apps": (2.2, 9, "the command line"),
    "bench": (1, 8, "times plans"),
    "c_api": (4.6, 8, "C; Python by it"),
    "context_parallel": (4.5, 7, "a rank's facade"),
    "backend/cuda": (0.9, 6, "GPUs"),
    "backend/cpu": (1.9, 6, "threads"),
    "verbatim": (2.9, 6, "the facade"),
    "dist": (3.9, 6, "ranks"),
    "backend/tl": (6.6, 6, "interprets TL"),
    "backend": (3.2, 5, "runs plans"),
    "tl": (5.6, 5, "kernels as text"),
    "schedule": (4, 4, "makes plans"),
    "plan": (4, 3, "the waist: sums"),
    "backend/reference": (0, 2, "double precision"),
    "contract": (4, 2, "what fixes bits"),
    "report": (7.3, 2, "pages, charts"),
    "mask": (4, 1, "slices and tiles"),
    "core": (4, 0, "dtypes, files"),
}
WIDTH, HEIGHT, ACROSS, DOWN = 116, 46, 122, 78
LEFT, TOP, ROWS = 10, 12, 9
RED = "#d9483b"


def folder_of(row):
    """The box of a row of the table."""
    for prefix in ("backend/cuda", "schedule", "bench"):
        if row.startswith(prefix):
            return prefix
    return "c_api" if row.startswith("c_") else row


def allowed():
    """What each folder may include; those above come first, as in the table."""
    direct = {}
    for row, allowed in check_layers.SOURCES.items():
        own = direct.setdefault(folder_of(row), set())
        own.update(folder_of(other) for other in allowed)
        own.discard(folder_of(row))
    return direct


def included(root):
    """What each folder of a tree includes, in the order of the table."""
    found = {folder: set() for folder in allowed()}
    for _file, own, _other_file, other in check_layers.sources(root):
        start, end = (folder_of(check_layers.row_of(check_layers.SOURCES, x)) for x in (own, other))
        found[start] |= {end} - {start}
    return {folder: below for folder, below in found.items() if below or folder == "core"}


def shortest(direct):
    """`direct` less what a folder reaches through another that it includes."""
    reached = {}
    for folder, below in direct.items():
        reached[folder] = set(below).union(*(reached[other] for other in below))
    return {
        folder: {one for one in below if not any(one in reached[other] for other in below)}
        for folder, below in direct.items()
    }


def corner(folder):
    column, row, _ = BOXES[folder]
    return LEFT + column * ACROSS, TOP + (ROWS - row) * DOWN


def arrows():
    """What each folder includes, less what it reaches through another that it includes."""
    return shortest(allowed())


def draw_arrow(svg, start, end, colour=""):
    (x, y), (to_x, to_y) = corner(start), corner(end)
    to_x += WIDTH / 2
    if BOXES[start][1] - BOXES[end][1] > 2:  # past the boxes between, beside them
        side = x if to_x < x + WIDTH / 2 else x + WIDTH
        way = f"M{side:g} {y + HEIGHT / 2:g}H{to_x:g}V{to_y - 6:g}"
    else:
        way = f"M{x + WIDTH / 2:g} {y + HEIGHT:g}L{to_x:g} {to_y - 6:g}"
    svg.path(way, "mark", f"stroke-width:1.2{colour and ';stroke:' + colour}")
    svg.path(f"M{to_x - 4:g} {to_y - 7:g}h8l-4 7z", "word", colour and f"fill:{colour}")


def draw(lines, forbidden):
    """A picture of `lines` and, in red, `forbidden`: both map folders to those that they include."""
    svg = Svg(1028, TOP + ROWS * DOWN + HEIGHT + 12, "Which folder includes which")
    for colour, kind in (("", lines), (RED, forbidden)):
        for start, below in kind.items():
            for end in sorted(below):
                draw_arrow(svg, start, end, colour)
    for folder in BOXES:
        if folder not in lines:
            continue
        x, y = corner(folder)
        svg.rect(x, y, WIDTH, HEIGHT, "empty")
        svg.text(
            x + WIDTH / 2,
            y + 19,
            folder,
            "word small" if len(folder) < 15 else "word tiny",
            "middle",
        )
        svg.text(x + WIDTH / 2, y + 36, BOXES[folder][2], "tiny", "middle")
    return svg.document()


def draw_table():
    if folders := set(arrows()) ^ set(BOXES):
        raise SystemExit(f"draw_layers.py and check_layers.py differ in {sorted(folders)}")
    return draw(arrows(), {})


def draw_tree(root):
    found, may = included(root), allowed()
    kept = {folder: below & may[folder] for folder, below in found.items()}
    return draw(shortest(kept), {folder: below - may[folder] for folder, below in found.items()})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        pathlib.Path(sys.argv[2]).write_text(draw_tree(pathlib.Path(sys.argv[1])))
    else:
        (ROOT / "docs" / "layers.svg").write_text(draw_table())
