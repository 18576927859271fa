"""Attention kernels as a page of text: checked, mended, completed for a GPU, translated, in one
layout.

    from verbatim_attn import tl
    code = tl.reason(sketch, va.Problem(1, 8, 2, 4096, 4096, 128, 128, "bf16"), "a100")
    for fault in tl.check(code):
        print(fault.shown)

docs/tl.md has the language. `python -m verbatim_attn.tl generate` lets a model write programs
(docs/tl-author.md).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from .. import _library
from ..plan import Problem
from .selected import SelectedAttention

__all__ = [
    "Edit",
    "Emitted",
    "Fault",
    "SelectedAttention",
    "build",
    "check",
    "emit",
    "fix",
    "format",
    "reason",
    "targets",
]


class Edit(NamedTuple):
    """Bytes [begin, end) of a program in UTF-8, and what to put in their place."""

    begin: int
    end: int
    text: str


class Fault(NamedTuple):
    """One fault of a program. docs/tl.md has the codes."""

    code: str  # "transpose"
    line: int  # from 1, as the column, which counts characters
    column: int
    begin: int  # the bytes at fault: [begin, end)
    end: int
    reason: str
    right: str  # what would be right
    shown: str  # for people: the place, the line with a caret, and what would be right
    edit: Edit | None = None  # makes it right


class Emitted(NamedTuple):
    """A program in CUDA C++: one file, to be compiled with the headers of the library."""

    name: str  # of its file: the pass and the target, "forward_a100"
    source: str
    arithmetic: str  # of the plans that it runs
    arch: str  # of the target, as nvcc names it: "80", "90a"


def check(
    program: str, target: str | None = None, *, level: str = "invariant", sketch: bool = False
) -> list[Fault]:
    """The faults of a program in the order of its text, 100 at most; of one that does not parse,
    the first. `target` None: the program's own. In a `sketch` sizes, Allocate, Reshape and Wait may
    be missing. Above level "not_guaranteed" every sum needs an order."""
    found = _library.tl_check(_bytes(program), _options(target, level, sketch))
    return [Fault(**{**fault, "edit": _edit(fault)}) for fault in found]


def fix(
    program: str, target: str | None = None, *, level: str = "invariant", sketch: bool = False
) -> str:
    """The program edited until check() finds nothing more that it can edit."""
    return _library.tl_fix(_bytes(program), _options(target, level, sketch))


def reason(
    sketch: str,
    problem: Problem,
    target: str,
    *,
    tile: tuple[int, int] = (0, 0),
    level: str = "invariant",
) -> str:
    """The whole TL code of a sketch, each choice with its reason in a comment. Of the problem only
    the dtype (bf16, f16 or e4m3) and the head dims count; a tile of 0 is what fits."""
    spec = {"problem": problem._asdict(), "target": target, "tile": tile, "level": level}
    return _library.tl_reason(_bytes(sketch), json.dumps(spec))


def format(program: str) -> str:
    """The program in its one layout, comments included."""
    return _library.tl_format(_bytes(program))


def emit(program: str, target: str | None = None, *, level: str = "invariant") -> Emitted:
    """TL code in CUDA C++. `target` None: the program's own. Raises NotImplementedError naming what
    is not translated."""
    options = json.dumps({"target": target or "", "level": level})
    return Emitted(**_library.tl_emit(_bytes(program), options))


def build(
    program: str,
    folder: str | os.PathLike[str],
    target: str | None = None,
    *,
    level: str = "invariant",
    archs: tuple[str, ...] = (),
) -> Path:
    """The library that the nvcc of the PATH makes of it in `folder`: for `kernels` of a Plan on a
    GPU. `archs` are nvcc's, sm_80 for machine code, compute_80 for PTX; none: both of the target.
    Raises NotImplementedError, before anything is written, without nvcc or the headers that the
    package was built with, and with nvcc's words when it refuses."""
    options = json.dumps({"target": target or "", "level": level, "archs": archs})
    return Path(_library.tl_build(_bytes(program), os.fsencode(folder), options))


def targets() -> dict[str, str]:
    """What each GPU is, by its name."""
    return {target["name"]: target["summary"] for target in _library.info()["tl_targets"]}


def _options(target: str | None, level: str, sketch: bool) -> str:
    return json.dumps({"target": target or "", "level": level, "sketch": sketch})


def _edit(fault: dict[str, Any]) -> Edit | None:
    return Edit(**fault["edit"]) if "edit" in fault else None


def _bytes(program: str) -> bytes:
    """For the library, to which text ends with the first zero."""
    if "\0" in program:
        at = program.index("\0")
        raise ValueError(f"program: a character is no text; got 0 at {at}, expected none")
    return program.encode()
