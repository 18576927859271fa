"""What is to be written: a pass of one problem under one mask, from a JSON file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

from .. import _library
from .._errors import Refused, one_of
from .._handles import Handle, specification
from ..plan import Problem

_MEMBERS = ("pass", "problem", "mask", "notes")
_MOST_PAIRS = 1 << 26  # of queries and keys over all heads: what the interpreter is run on


class Spec(NamedTuple):
    """The file {"pass": "forward", "problem": {...}, "mask": {"name": ..., "params": {...}},
    "notes": "for the model"}: problem as verbatim_attn.Problem, mask as in docs/masks.md."""

    pass_: str  # "forward" or "backward"
    problem: Problem
    mask: str  # JSON
    notes: str

    @property
    def definition(self) -> str:
        """The whole JSON of the mask, for --mask of the tool."""
        return _library.mask_json(self.mask, *self._lengths)

    @property
    def predicate(self) -> str:
        """The mask as a Python function in FlexAttention's vocabulary."""
        return _library.mask_mod(self.mask, *self._lengths)

    @property
    def _lengths(self) -> tuple[int, int, int]:
        return self.problem.q_len, self.problem.kv_len, self.problem.kv_heads

    def as_json(self) -> dict[str, Any]:
        problem = self.problem._asdict()
        mask = json.loads(self.mask)
        return {"pass": self.pass_, "problem": problem, "mask": mask, "notes": self.notes}


def read(path: str) -> Spec:
    """The spec in a file. Raises Refused."""
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Refused(str(error), "--spec", path, "a JSON file (docs/tl-author.md)") from None
    return of(found)


def of(found: Any) -> Spec:
    """The spec that JSON describes. Raises Refused."""
    if not isinstance(found, dict) or not isinstance(found.get("problem"), dict):
        raise Refused("not a spec", "--spec", "other JSON", 'an object with a "problem"')
    for name in found:
        one_of("--spec", name, _MEMBERS)
    for name in found["problem"]:
        one_of("--spec problem", name, Problem._fields)
    pass_ = one_of("--spec pass", str(found.get("pass", "forward")), ("forward", "backward"))
    try:
        problem = Problem(**found["problem"])
        _check_size(problem)
        mask = json.dumps(found.get("mask", {"name": "causal", "params": {}}))
        Handle(specification(problem, mask, options={}))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise Refused(str(error), "--spec", "this problem", "one that the library has") from None
    one_of("--spec problem.dtype", problem.dtype, ("bf16", "f16"))
    for name in ("softcap", "dropout"):
        if value := getattr(problem, name):
            raise Refused("TL has none", f"--spec problem.{name}", value, "0", 0)
    return Spec(pass_, problem, mask, str(found.get("notes", "")))


def _check_size(p: Problem) -> None:
    sizes = p.batch, p.q_heads, p.q_len, p.kv_len
    if all(isinstance(size, int) for size in sizes) and math.prod(sizes) > _MOST_PAIRS:
        raise Refused("too large to interpret", "--spec problem", f"{math.prod(sizes):,} pairs of "
                      "a query and a key over all heads", f"at most {_MOST_PAIRS:,}",
                      "a shorter q_len")  # fmt: skip
