"""Bad input on the command line: what was given, what would do, and the nearest of it."""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn


class Refused(Exception):
    """Ends the command with exit code 2."""

    def __init__(self, what: str, argument: str, got: object, expected: str, nearest: object = ""):
        text = f"{what}; {argument} got {got}, expected {expected}"
        super().__init__(text + (f" (nearest: {nearest})" if nearest != "" else ""))


def one_of(argument: str, got: str, known: Iterable[str]) -> str:
    """`got`, refused when it is none of `known`."""
    names = list(known)
    if got not in names:
        nearest = difflib.get_close_matches(got, names, 1, cutoff=0) or names[:1]
        raise Refused("there is no such name", argument, got, ", ".join(names), *nearest)
    return got


def run(main: Callable[[], int]) -> NoReturn:
    """Ends the process with what main() returns. Where nobody reads its output any more (| head), by
    the signal that ends other programs there, which Python ignores."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
        raise
    sys.exit(code)


class Parser(argparse.ArgumentParser):
    """Refuses what it cannot parse as everything else is refused."""

    def error(self, message: str) -> NoReturn:
        raise Refused(message, "the command line", shlex.join(sys.argv[1:]), "see --help")
