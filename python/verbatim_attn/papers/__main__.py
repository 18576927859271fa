"""The command: python -m verbatim_attn.papers --help."""

from __future__ import annotations

import argparse
import difflib
import shlex
import sys
from pathlib import Path

from .._errors import Refused
from .._errors import run as run_command
from ..bench import results
from . import document, evidence, pages, run
from .registry import ENTRIES

_RESULTS = Path(__file__).parents[3] / "bench" / "results"


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m verbatim_attn.papers", description=__doc__)
    add = p.add_argument
    add("entry", nargs="?", help="PAPER:figN or PAPER:tableN; without one: the list")
    add("--json", metavar="FILE", help="run what makes it, or what of it FILE lacks")
    add("--page", metavar="FILE", help="its picture or table, of --json's FILE or of the results")
    add(
        "--commands",
        action="store_true",
        help="print what would run, and stop: first what makes libraries",
    )
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--commit", default="", help="recorded: what was built")
    add("--also", default="", metavar="WORDS", help="other options of what measures, for a trial")
    add("--results", type=Path, default=_RESULTS, metavar="FOLDER",
        help="what was measured (default: bench/results)")  # fmt: skip
    add("--markdown", metavar="FILE",
        help="write docs/papers.md, and beside NAME.md in a folder NAME a page for each paper")  # fmt: skip
    return p


def main() -> int:
    a = parser().parse_args()
    try:
        if not a.results.is_dir():
            raise Refused("no results", "--results", a.results, "a folder", "bench/results")
        for name in ("json", "page", "markdown"):
            if path := getattr(a, name):
                results.try_to_write(f"--{name}", path)
        if a.markdown:
            for path, text in pages.pages(a.results, Path(a.markdown)).items():
                path.parent.mkdir(exist_ok=True)
                results.write("--markdown", str(path), text)
        if a.entry is None:
            if not a.markdown:
                print(document.listing(a.results))
            return 0
        if a.entry not in ENTRIES:
            nearest = difflib.get_close_matches(a.entry, ENTRIES, 1, cutoff=0)
            raise Refused(
                "there is no such name", "the entry", a.entry, "a name of the list", *nearest
            )
        entry = ENTRIES[a.entry]
        if a.commands:
            print(*run.lines(entry), sep="\n")
            return 0
        if a.json:
            of = run.make(entry, a.json, a.device, a.commit, shlex.split(a.also))["parts"]
        else:
            of = evidence.parts(entry, a.results)
        if a.page:
            results.write("--page", a.page, document.html(entry, of))
        print(f"{entry.name}: {entry.title}. {document.summary(entry, of)}")
        print(*(f"\n{table.markdown()}" for table in document.tables(entry, of)), sep="\n", end="")
    except Refused as error:
        print(f"verbatim_attn.papers: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    run_command(main)
