"""The author loop: a model writes, checker, interpreter and GPU judge, and what they find goes back
until the kernel is right or the tries run out. After QiMeng-Attention (Zhou et al. 2025): its two
steps are mode `tl`; `direct` leaves out the sketch (its appendix B), `cot` and `vanilla` ask for
CUDA with and without a chain of thought (its tables 1 and 5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from . import prompts
from .endpoint import Messages, Source
from .judge import Judge, Verdict
from .spec import Spec

MODES = ("tl", "direct", "cot", "vanilla")
TRANSLATORS = ("ours", "model")
RIGHT, WRONG, UNJUDGED = 0, 1, 3  # exit codes

_MOST_ECHO = 16 << 10  # characters of a refused answer that go back with what is wrong with it


class Settings(NamedTuple):
    """What fixes a run besides the answers: the first line of a transcript."""

    spec: Spec
    target: str
    model: str
    mode: str
    translate: str
    translate_model: str
    tries: int  # exchanges, those that fail included
    max_tokens: int  # of an answer
    total_tokens: int  # of all questions and answers

    def as_json(self) -> dict[str, Any]:
        return {**self._asdict(), "spec": self.spec.as_json()}


class Ended(Exception):
    """The run is over without a right kernel: why, and the exit code."""

    def __init__(self, why: str, code: int = WRONG) -> None:
        super().__init__(why)
        self.code = code


class Author:
    """One run, which is made once."""

    def __init__(self, settings: Settings, source: Source, judge: Judge) -> None:
        self._settings, self._source, self._judge = settings, source, judge
        self._folder = Path()
        self._exchanges = self._tokens = 0
        self._seconds = 0.0
        self._files: list[str] = []
        self._said = ""

    def run(self, folder: Path) -> int:
        """The exit code. Makes `folder` and writes into it transcript.jsonl, a line for the settings
        and one for each exchange; of what was right sketch.tl, kernel.tl, kernel.cu; result.json. No
        other name is ever written, and none comes from a model. Raises Refused, before anything is
        written, when nobody is there to answer."""
        self._folder = folder
        try:
            self._write()
            code, why = RIGHT, self._said
        except Ended as ended:
            code, why = ended.code, str(ended)
        result = {
            "command": "tl.generate",
            "version": __version__,
            "outcome": {RIGHT: "right", WRONG: "wrong", UNJUDGED: "not judged"}[code],
            "reason": why,
            "exchanges": self._exchanges,
            "tokens": self._tokens,
            "seconds": round(self._seconds, 3),  # of waiting for answers
            "files": self._files,
        }
        self._save("result.json", json.dumps(result, indent=2) + "\n")
        return code

    def _write(self) -> None:
        s = self._settings
        if s.mode in ("cot", "vanilla"):
            task = prompts.cuda(s.spec, s.target, think=s.mode == "cot")
            self._make("cuda", s.model, task, self._judge.cuda, "kernel.cu")
            return
        if s.mode == "tl":
            sketch = self._make(
                "sketch", s.model, prompts.sketch(s.spec), self._judge.sketch, "sketch.tl"
            )
            task = prompts.reasoning(s.spec, s.target, sketch)
        else:
            task = prompts.direct(s.spec, s.target)
        code = self._make("code", s.model, task, self._judge.code, "kernel.tl")
        if s.translate == "model":
            task = prompts.translation(s.spec, s.target, code)
            self._make("translation", s.translate_model, task, self._judge.cuda, "kernel.cu")

    def _make(
        self, step: str, model: str, task: str, judge: Callable[[str], Verdict], file: str
    ) -> str:
        """The right program of a step, which is then in `file`. Raises Ended."""
        opening = [
            {"role": "system", "content": prompts.ROLE},
            {"role": "user", "content": task},
        ]
        messages = opening
        while True:
            verdict, answer = self._exchange(step, model, messages, judge)
            if verdict.right or verdict.unjudged:
                self._said = verdict.text
                self._files.append(file)
                self._save(file, verdict.kept)
                if verdict.unjudged:
                    raise Ended(verdict.text, UNJUDGED)
                return verdict.kept
            messages = [*opening, *_again(answer, verdict)]

    def _exchange(
        self, step: str, model: str, messages: Messages, judge: Callable[[str], Verdict]
    ) -> tuple[Verdict, str]:
        s = self._settings
        if self._exchanges == s.tries:
            raise Ended(f"no right {step} after {s.tries} tries; the last: {self._said}")
        if self._tokens >= s.total_tokens:
            raise Ended(f"no right {step} within {s.total_tokens} tokens; the last: {self._said}")
        reply = self._source.answer(model, messages)
        if self._exchanges == 0:
            self._folder.mkdir(exist_ok=True)
            self._note({"version": __version__, "settings": s.as_json()})
        verdict = Verdict(False, reply.problem) if reply.problem else judge(reply.text)
        self._exchanges += 1
        self._tokens += reply.tokens
        self._seconds += reply.seconds
        self._said = verdict.text
        asked = {"exchange": self._exchanges, "step": step, "model": model, "messages": messages}
        self._note({**asked, **reply._asdict(), "right": verdict.right, "verdict": verdict.text})
        if reply.hopeless:
            raise Ended(reply.problem)
        return verdict, "" if reply.problem else reply.text

    def _note(self, line: dict[str, Any]) -> None:
        with open(self._folder / "transcript.jsonl", "a") as transcript:
            transcript.write(json.dumps(line) + "\n")

    def _save(self, file: str, text: str) -> None:
        (self._folder / file).write_text(text)


def _again(answer: str, verdict: Verdict) -> Messages:
    """What is said after the task: the refused answer, where it is of use, and what was wrong."""
    if not answer:
        return [{"role": "user", "content": prompts.broken(verdict.text)}]
    echo = [{"role": "assistant", "content": answer}] if len(answer) <= _MOST_ECHO else []
    return [*echo, {"role": "user", "content": prompts.wrong(verdict.text)}]
