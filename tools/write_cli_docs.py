#!/usr/bin/env python3
"""Writes docs/cli.md from the tool's own help: python3 tools/write_cli_docs.py build/verbatim."""

import pathlib
import subprocess
import sys

COMMANDS = "run verify plan mask trace bench calibrate tune tl".split()
COMMANDS += [f"tl {command}" for command in ("fmt", "check", "reason", "emit", "build")]
COMMANDS += ["report", "info"]
INTRODUCTION = """\
# The command line

`verbatim COMMAND --help` is the document; this page is its text, written by \
`tools/write_cli_docs.py` and compared by the tests.

Lists are written `5,9,2` or `@file.json` with an array of integers. Names are matched \
exactly; a misspelt one is answered with the nearest. Results go to stdout as one table, and \
whole to `--json FILE` (docs/schema.md). Files are written whole or not at all. Progress \
appears on stderr while a terminal watches.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a promised bit differs, or a result is wrong |
| 2 | bad input or something unsupported: message on stderr, no output file touched |
| 3 | the device or the system failed |
"""


def page(tool):
    text = INTRODUCTION
    for command in COMMANDS:
        shown = subprocess.check_output([tool, *command.split(), "--help"], text=True)
        lines = [line.rstrip() for line in shown.strip().splitlines()]
        text += f"\n## {command}\n\n```text\n" + "\n".join(lines) + "\n```\n"
    return text


if __name__ == "__main__":
    target = pathlib.Path(__file__).resolve().parents[1] / "docs" / "cli.md"
    target.write_text(page(sys.argv[1]))
