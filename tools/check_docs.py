#!/usr/bin/env python3
"""Fails when a reference page is too long to read, or when a link of the docs leads nowhere."""

import pathlib
import re
import sys

MOST_LINES = {"README.md": 120, "docs/papers.md": 200}  # of a page; of the others of the reference:
MOST_LINES_OF_REFERENCE = 150
MOST_WORDS = 100  # of a paragraph, an item of a list or a cell of a table
# Generated from the tool and from results, schemas that tests read, and what was tried.
EXEMPT = ("docs/cli.md", "docs/schema.md", "CHANGELOG.md")
EXEMPT += ("docs/results/", "docs/papers/", "docs/lab/")

SKIPPED = ("build", ".cache", ".venv", ".git", "bench/results")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
COMMIT = re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7}\b")
MENTION = re.compile(r"\bdocs/[\w./-]+\.(?:md|svg)\b")  # in code


def prose(text):
    """The text without code blocks, line by line as before."""
    return FENCE.sub(lambda block: "\n" * block.group().count("\n"), text)


def anchors(text):
    """Of the headings of a page, as GitHub names them."""
    headings = re.findall(r"^#+ +(.*)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def readability(name, text):
    lines = text.splitlines()
    most = MOST_LINES.get(name, MOST_LINES_OF_REFERENCE)
    if len(lines) > most:
        yield f"{name}: {len(lines)} lines, at most {most}"
    for number, line in enumerate(prose(text).splitlines(), 1):
        longest = max(
            len(part.split()) for part in (line.split("|") if line[:1] == "|" else [line])
        )
        if longest > MOST_WORDS:
            yield f"{name}:{number}: {longest} words in one piece, at most {MOST_WORDS}"
        if found := COMMIT.search(line):
            yield f"{name}:{number}: commit {found.group()}: what is dated goes to docs/lab"


def links(root, page, text):
    for number, line in enumerate(prose(text).splitlines(), 1):
        for link in LINK.findall(line):
            if "://" in link or link.startswith("mailto:"):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            where = f"{page.relative_to(root)}:{number}"
            if not target.exists() or not target.is_relative_to(root):
                yield f"{where}: {link} leads nowhere"
            elif anchor and anchor not in anchors(target.read_text()):
                yield f"{where}: {link}: the page has no such heading"


def files(root, *endings):
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix in endings and not name.startswith(SKIPPED) and path.is_file():
            yield name, path


def violations(root):
    for name, page in files(root, ".md"):
        text = page.read_text()
        if not name.startswith(EXEMPT):
            yield from readability(name, text)
        yield from links(root, page, text)
    for name, path in files(root, ".h", ".cpp", ".cuh", ".cu", ".py", ".sh"):
        for mention in sorted(set(MENTION.findall(path.read_text()))):
            if not (root / mention).exists():
                yield f"{name}: {mention} is not there"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = list(violations(root))
    for line in found:
        print(line)
    print(f"docs: {len(found)} to mend")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
