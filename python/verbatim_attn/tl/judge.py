"""What is wrong with what a model wrote: the checker's word, then the translator's, the
interpreter's or the GPU's."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from .._errors import Refused
from . import check, cuda, emit, format, sandbox
from .spec import Spec

_SHOWN = 12  # faults that go back
_SECONDS = 300.0  # of the interpreter, and of nvcc


class Verdict(NamedTuple):
    right: bool
    text: str  # what is said of it: to the model when it is wrong
    kept: str = ""  # the program as it is kept
    unjudged: bool = False  # nothing here can tell


def program_in(answer: str) -> str:
    """The last fenced block of an answer, also one that nothing closes; without one, all of it."""
    block: list[str] | None = None
    found = answer
    for line in answer.splitlines():
        if line.lstrip().startswith("```"):
            if block is not None:
                found = "\n".join(block) + "\n"
            block = [] if block is None else None
        elif block is not None:
            block.append(line)
    return "\n".join(block) + "\n" if block else found


class Judge:
    """Of programs for a spec on a target. The tool is `verbatim`, or what VERBATIM_TOOL names.
    `compiler` compiles and runs CUDA; with `translates` TL code must become CUDA, which the tool
    compiles where there is a `compiler`."""

    def __init__(
        self, spec: Spec, target: str, compiler: cuda.Compiler | None, translates: bool
    ) -> None:
        self._spec, self._target = spec, target
        self._compiler, self._translates = compiler, translates

    def sketch(self, answer: str) -> Verdict:
        return self._checked(program_in(answer), {"pass": self._spec.pass_}, sketch=True)

    def code(self, answer: str) -> Verdict:
        problem = self._spec.problem
        named = {
            "pass": self._spec.pass_,
            "target": self._target,
            "dtype": problem.dtype,
            "HeadDim": problem.head_dim,
            "HeadDimV": problem.head_dim_v,
        }
        verdict = self._checked(program_in(answer), named, sketch=False)
        if not verdict.right:
            return verdict
        refused = self._translated(verdict.kept) if self._translates else None
        found = refused or self._interpreted(verdict.kept)
        if found.right and self._translates and self._compiler is not None:
            return self._built(found)
        return found

    def cuda(self, answer: str) -> Verdict:
        program = program_in(answer)
        if self._compiler is None:
            return Verdict(False, "neither compiled nor run: that takes --run", program, True)
        return Verdict(*self._compiler.judge(program, self._spec))

    def _checked(self, program: str, named: dict[str, object], sketch: bool) -> Verdict:
        try:
            faults = check(program, self._target, sketch=sketch)
            if faults:
                shown = "\n".join(fault.shown for fault in faults[:_SHOWN])
                more = f"\n{len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
                return Verdict(False, shown + more)
            kept = format(program)
        except ValueError as error:
            return Verdict(False, str(error))
        said = _parameters(kept)
        other = [
            f"param {name} is {said.get(name, 'missing')}; it must be {value}"
            for name, value in named.items()
            if said.get(name) != str(value)
        ]
        return Verdict(not other, "\n".join(other) or "no fault", kept)

    def _translated(self, program: str) -> Verdict | None:
        """What the translation refuses of it."""
        try:
            emit(program)
        except (ValueError, NotImplementedError) as error:
            return Verdict(False, f"it is not translated:\n{error}")
        return None

    def _built(self, found: Verdict) -> Verdict:
        """Of a right program, whether nvcc compiles its translation."""
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "program.tl").write_text(found.kept)
            words = [tool(), "tl", "build", "program.tl", "--output", "made"]
            code, output = sandbox.run(words, Path(name), _SECONDS)
        if code == 0:
            return found._replace(text=found.text + "\nnvcc compiles its translation")
        if code == sandbox.TOO_LONG:
            return Verdict(False, f"nvcc did not end in {_SECONDS:g} seconds")
        if "nvcc ends with" in output:
            return Verdict(False, output)
        return found._replace(right=False, text=output, unjudged=True)  # no nvcc, no headers

    def _interpreted(self, program: str) -> Verdict:
        """Runs it along a plan, every element against double precision."""
        p, said = self._spec.problem, _parameters(program)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "kernel.tl").write_text(program)
            (folder / "mask.json").write_text(self._spec.definition)
            words = ["--kernel", "kernel.tl", "--mask", "@mask.json", "--pass", self._spec.pass_]
            for option in ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim",
                           "head_dim_v", "dtype", "scale", "seed"):  # fmt: skip
                if (value := getattr(p, option)) is not None:
                    words += ["--" + option.replace("_", "-"), str(value)]
            words += ["--tile-q", said["BM"], "--tile-kv", said["BN"], "--repeats", "2"]
            words += ["--check", "full", "--json", "run.json"]
            code, output = sandbox.run([tool(), "run", *words], folder, _SECONDS)
            if code == sandbox.TOO_LONG:
                return Verdict(False, f"the interpreter did not end in {_SECONDS:g} seconds")
            if code not in (0, 1):
                return Verdict(False, output)
            found = json.loads((folder / "run.json").read_text())
        return Verdict(code == 0, _differences(found), program)


def tool() -> str:
    """The command-line tool. Raises Refused when there is none."""
    found = shutil.which(os.environ.get("VERBATIM_TOOL") or "verbatim")
    if found is None:
        raise Refused("the tool is not on the path", "VERBATIM_TOOL",
                      os.environ.get("VERBATIM_TOOL", "nothing"),
                      "the path of the command-line tool", "build/verbatim")  # fmt: skip
    return str(Path(found).resolve())


def _parameters(program: str) -> dict[str, str]:
    """Of a program in the one layout."""
    return dict(re.findall(r"^param (\w+) = (\S+)", program, re.M))


def _differences(found: dict) -> str:
    """What the interpreter found, for each result."""
    lines = []
    for name, result in found["check"]["outputs"].items():
        strange = result["nonfinite_mismatches"]
        ratio = math.inf if result["ratio"] is None else result["ratio"]  # as JSON has it
        line = f"{name}: error ratio {ratio:.4g}, 2 allowed"
        if strange:
            line = f"{name}: {strange} NaN or infinite, or finite where they must be infinite"
        if strange or ratio > 2:
            line += (f"; worst at (batch, position, head, dim) {result['worst']}: got "
                     f"{result['got']}, expected {result['expected']}")  # fmt: skip
        lines.append(line)
    if not found["bits"]["identical"]:
        lines.append("two runs gave other bits")
    return "\n".join(lines)
