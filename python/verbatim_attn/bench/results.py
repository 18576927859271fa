"""Result files: JSON of a whole run, and JSON Lines that grow by one row and survive being cut."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .. import _files
from .._errors import Refused

SCHEMA = "verbatim.bench.v2"
_SAME = ("schema", "version", "device", "commit", "protocol", "software")
_AGAIN = ("error", "not installed")  # rows that a resumed run tries once more


def read(path: str, argument: str = "--from") -> dict[str, Any]:
    """A result of this command or of `verbatim bench`, from JSON or JSON Lines."""
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(str(error), argument, path, "a result of a benchmark") from None
    try:
        result = _of_lines(_whole_lines(text)) if path.endswith(".jsonl") else json.loads(text)
    except ValueError as error:
        raise Refused(str(error), argument, path, "JSON, or JSON Lines in *.jsonl") from None
    if not isinstance(result, dict) or not isinstance(result.get("results"), list):
        raise Refused("no result of a benchmark", argument, path, "an object with results")
    return result


def _whole_lines(text: str) -> list[str]:
    """Without a last line that was cut."""
    return text[: text.rfind("\n") + 1].splitlines()


def _of_lines(lines: list[str]) -> dict[str, Any]:
    """A line without a provider adds to the header; the last row of a kind counts."""
    header: dict[str, Any] = {}
    rows: dict[tuple[str, ...], Any] = {}
    for line in lines:
        entry = json.loads(line)
        if "provider" in entry:
            rows[key(entry)] = entry
        else:
            header.update(entry)
    return {**header, "results": list(rows.values())}


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """What makes two rows the same measurement."""
    return (row["repro"],)


class Log:
    """The JSON Lines file of a run; without a path it only remembers."""

    def __init__(self, path: str | None, header: dict[str, Any]):
        self._file: Any = None
        self.done: dict[tuple[str, ...], Any] = {}
        if path is None:
            return
        try:
            begun = Path(path).exists() and b"\n" in Path(path).read_bytes()
            if begun:
                old = self._resume(path, header)
                self.done = {key(r): r for r in old["results"] if r["status"] not in _AGAIN}
                for rate in ("matmul_tflops", "copy_tb_per_s"):
                    header[rate]["before"] = old[rate]["before"]
            self._file = open(path, "a" if begun else "w")  # stays open while it runs
        except OSError as error:
            raise Refused(str(error), "--resume", path, "a file that can be written") from None
        if not begun:
            self.add(header)

    def _resume(self, path: str, header: dict[str, Any]) -> dict[str, Any]:
        old = read(path, "--resume")
        for name in _SAME:
            if old.get(name) != header[name]:
                raise Refused(
                    f"the file is of another run: its {name} is {old.get(name)!r}", "--resume",
                    path, f"{name} {header[name]!r}", "a new file",
                )  # fmt: skip
        whole = "".join(line + "\n" for line in _whole_lines(Path(path).read_text()))
        os.truncate(path, len(whole.encode()))
        return old

    def add(self, entry: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())


@contextlib.contextmanager
def _refusing(argument: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        raise Refused(said, argument, path, "a file that can be written") from None


def try_to_write(argument: str, path: str) -> None:
    """Refuses what write() would refuse; before anything runs."""
    with _refusing(argument, path):
        _files.try_to_write(path)


def write(argument: str, path: str, text: str) -> None:
    with _refusing(argument, path):
        _files.write(path, text)
