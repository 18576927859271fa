"""Makes an entry: runs its commands one after another and keeps what each wrote.

A result file is {"command": "papers", "entry", "parts": [{"words", "result"}]}. It is written after
every command, so a run that was cut goes on with the next one, on the same card and commit; bench
keeps its rows itself.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from .._errors import Refused
from ..bench import results, sampling
from . import generated
from .registry import Command, Entry

_EXAMPLES = Path(__file__).parents[2] / "examples"
_OF_TOOL = ("plan", "bench", "tune", "mask")
_DRAWN = {"plan": "--gantt", "mask": "--svg"}
_DRAWS = 64  # packed sequences of a length distribution


def make(entry: Entry, path: str, device: str, commit: str, trial: list[str]) -> dict[str, Any]:
    """The result of `entry`, in the file at `path`. Options in `trial` replace those of what
    measures."""
    if not entry.commands:
        raise Refused("nothing makes it here", "the entry", f"{entry.name}, {entry.needs}",
                      "one that needs a CPU or one GPU", "dash:fig8")  # fmt: skip
    if entry.needs == "gpu" and device == "cpu" and not trial:
        raise Refused(f"{entry.name} needs a GPU", "--device", device,
                      f"cuda, or for a trial {_smaller(entry)}", "--device cuda")  # fmt: skip
    found = begun(entry, path)
    done = {tuple(part["words"]) for part in found["parts"]}
    for number, command in enumerate(entry.commands):
        words = _words(command, device, trial)
        if tuple(words) in done:
            continue
        print(f"{number + 1} of {len(entry.commands)}: {' '.join(words)}", file=sys.stderr)
        _refuse_another(found, "commit", commit, path)
        part = {"words": words, **_run(words, f"{path}.{number}.jsonl", commit)}
        _refuse_another(found, "card", _measured(part, "card"), path)
        found["parts"].append(part)
        results.write("--json", path, json.dumps(found) + "\n")
    return found


def begun(entry: Entry, path: str) -> dict[str, Any]:
    """What is at `path`, refused when it is another entry's."""
    if not Path(path).exists():
        return {"command": "papers", "entry": entry.name, "parts": []}
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text())
    except ValueError as error:
        raise Refused(str(error), "--json", path, f"a new file, or one of {entry.name}") from None
    if found.get("command") != "papers" or found.get("entry") != entry.name:
        raise Refused("the file is of another run", "--json", path,
                      f"a new file, or one of {entry.name}")  # fmt: skip
    return found


def _measured(part: dict[str, Any], what: str) -> str | None:
    """The card or commit of what measures."""
    result = part["result"]
    if result.get("command") not in ("bench", "tune"):
        return None
    found: str = result["device"]["name"] if what == "card" else result.get("commit", "")
    return found


def _refuse_another(found: dict[str, Any], what: str, now: str | None, path: str) -> None:
    """A file is of one card and commit, for ratios are of the rows of a file."""
    for before in (_measured(part, what) for part in found["parts"]):
        if None not in (before, now) and before != now:
            raise Refused(f"the file is of another {what}", "--json", f"{path}, of {before!r}",
                          f"a new file for {now!r}")  # fmt: skip


def _smaller(entry: Entry) -> str:
    """Options that leave fewer or smaller cases: the tool takes no sizes beside a set, and names of
    dense cases have them."""
    named = any(command[0] in _OF_TOOL or "dense" in command for command in entry.commands)
    return (
        "--also '--match REGEX' of fewer cases" if named else "--also '--seqlen N', a smaller one"
    )


def lines(entry: Entry) -> list[str]:
    """What makes it, as one would type it: first the libraries that its commands name."""
    words = [shown(command) for command in entry.commands]
    built = [line for command in entry.commands for line in generated.builds(command)]
    return [*dict.fromkeys(built), *map(shlex.join, words)]


def shown(command: Command) -> list[str]:
    """A command as one would type it; the words alone of what is computed here."""
    kind, *rest = _words(command, "cuda", [])
    programs = {"bench.py": ["python", "-m", "verbatim_attn.bench"],
                "train": ["python", "python/examples/train_lm.py"],
                "lengths": [kind], "activations": [kind]}  # fmt: skip
    return [*programs.get(kind, ["verbatim", kind]), *rest]


def _words(command: Command, device: str, trial: list[str]) -> list[str]:
    """With the device and the options of a trial, which stand in place of the command's own: most
    programs refuse an option that is given twice."""
    if command[-1] != "DEVICE":
        return list(command)
    given = {word.partition("=")[0] for word in trial if word.startswith("--")}
    words: list[str] = []
    keep = True
    for word in (*command[:-1], "--device", device):
        if word.startswith("--"):
            keep = word.partition("=")[0] not in given
        if keep:
            words.append(word)
    return [*words, *trial]


def _run(words: list[str], rows: str, commit: str) -> dict[str, Any]:
    """What one command wrote, and what it drew."""
    kind, *rest = words
    if kind == "lengths":
        return {"result": _lengths(rest[0], int(rest[1]))}
    if kind == "activations":
        return {"result": _activations(int(rest[0]), int(rest[1]), rest[2])}
    with tempfile.TemporaryDirectory() as folder:
        out, drawn = Path(folder, "result.json"), Path(folder, "drawn.svg")
        # The tool writes its arguments into its result: names without a folder.
        of_tool = kind in _OF_TOOL
        line = [*_program(kind), *rest, "--json", out.name if of_tool else str(out)]
        if kind == "bench.py":
            line += ["--resume", rows]
        if commit and kind in ("bench", "bench.py", "tune"):
            line += ["--commit", commit]
        if kind == "tune":
            line += ["--memo", "memo.json"]
        draws = kind in _DRAWN and "--world" not in words  # a picture of 96 ranks shows nothing
        if draws:
            line += [_DRAWN[kind], drawn.name]
        done = subprocess.run(
            line, stdout=subprocess.PIPE, text=True, check=False, cwd=folder if of_tool else None
        )
        if not out.exists():
            raise Refused(f"{kind} ended with {done.returncode}", "the command", " ".join(words),
                          "a result: see above")  # fmt: skip
        part: dict[str, Any] = {"result": json.loads(out.read_text())}
        if draws:
            part["drawn"] = drawn.read_text()
        return part


def _program(kind: str) -> list[str]:
    if kind in _OF_TOOL:
        tool = os.environ.get("VERBATIM_TOOL") or shutil.which("verbatim")
        if tool is None:
            raise Refused("the tool is not on the path", "VERBATIM_TOOL", "nothing",
                          "the path of the command-line tool", "build/verbatim")  # fmt: skip
        return [str(Path(tool).resolve()), kind]
    if kind == "train":
        program = _EXAMPLES / "train_lm.py"
        if not program.exists():
            raise Refused("train_lm.py is not beside the package", "the entry", "an installation",
                          "a checkout of the repository")  # fmt: skip
        return [sys.executable, str(program)]
    return [sys.executable, "-m", "verbatim_attn.bench"]


def _lengths(source: str, total: int) -> dict[str, Any]:
    """Documents of several packed sequences: how many of each length (from 2^n on, n the key), and
    how many of all tokens lie in them; beside it the quantiles that they are drawn from."""
    drawn = [length for seed in range(_DRAWS)
             for length in sampling.document_lengths(total, source, seed)]  # fmt: skip
    documents = Counter(length.bit_length() - 1 for length in drawn)
    tokens: Counter[int] = Counter()
    for length in drawn:
        tokens[length.bit_length() - 1] += length
    known = sampling.DISTRIBUTIONS.get(source)
    return {
        "source": source, "total": total, "sequences": _DRAWS, "documents": len(drawn),
        "share_of_documents": {str(n): documents[n] / len(drawn) for n in sorted(documents)},
        "share_of_tokens": {str(n): tokens[n] / sum(drawn) for n in sorted(tokens)},
        "quantiles": dict(zip(map(str, sampling.SHARES), known, strict=True)) if known else None,
    }  # fmt: skip


def _activations(heads: int, dim: int, lengths: str) -> dict[str, Any]:
    """LongCA-bench's A.5.2, 11bshd + 5bhs^2 + 2bshd: bytes that a module keeps for its backward in 16
    bits. The terms with s^2 are of the scores; d is a head's, else h would count twice."""
    return {
        "q_heads": heads, "head_dim": dim,
        "bytes": {length: {"scores": 5 * heads * int(length) ** 2,
                           "rest": (11 + 2) * int(length) * heads * dim}
                  for length in lengths.split(",")},
    }  # fmt: skip
