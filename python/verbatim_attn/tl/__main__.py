"""python -m verbatim_attn.tl generate: a model writes a kernel, and what is wrong goes back to it."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .._errors import Parser, Refused, one_of, run
from . import cuda, spec, targets
from .author import MODES, TRANSLATORS, Author, Settings
from .endpoint import Endpoint, Recording, Source
from .judge import Judge, tool

_EPILOG = """\
The key is read from the environment and is written nowhere. Model-written CUDA (--mode cot and
vanilla, --translate model) is compiled and run only with --run: it is foreign code under your name.
Exit codes: 0 the kernel is right; 1 no right kernel; 2 bad input, nothing written; 3 nothing here
can tell. docs/tl-author.md has the spec and the files.
Example: python -m verbatim_attn.tl generate --spec spec.json --target a100 \\
  --base-url http://localhost:8000/v1 --model NAME --output made"""

_FIXED = ("spec", "target", "base_url", "model", "mode", "translate", "translate_model", "tries",
          "max_tokens", "total_tokens")  # fmt: skip


def parser() -> Parser:
    p = Parser(
        prog="python -m verbatim_attn.tl",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = p.add_argument
    add("what", help="generate")
    add("--spec", metavar="FILE", help="JSON: pass, problem, mask, notes")
    add("--target", metavar="NAME", help="GPU: " + ", ".join(targets()))
    add("--base-url", metavar="URL", help="of an endpoint that is compatible with OpenAI's")
    add("--model", metavar="NAME", help="who writes")
    add("--mode", metavar="NAME",
        help="tl (sketch, then TL code; the default), direct (TL code at once), cot or vanilla "
        "(CUDA, with and without a chain of thought)")  # fmt: skip
    add("--translate", metavar="NAME",
        help="ours (ends with TL code, which our compiler translates; the default) or model")  # fmt: skip
    add("--translate-model", metavar="NAME", help="another model for that (default: --model)")
    add("--output", metavar="FOLDER", help="new or empty; gets the kernel and the transcript")
    add("--run", action="store_true",
        help="compile what is translated, too; compile and run model-written CUDA")  # fmt: skip
    add("--replay", metavar="FILE", help="a transcript: its run again, without an endpoint")
    add("--key-env", metavar="NAME", default="OPENAI_API_KEY",
        help="environment variable with the key (default: OPENAI_API_KEY)")  # fmt: skip
    add("--tries", type=int, metavar="N", help="most exchanges (default: 12)")
    add("--max-tokens", type=int, metavar="N", help="of an answer (default: 8192)")
    add("--total-tokens", type=int, metavar="N", help="of the whole run (default: 200000)")
    add("--timeout", type=float, default=120, metavar="S", help="of an exchange (default: 120)")
    add("--pause", type=float, default=1, metavar="S",
        help="after an exchange that failed; doubles each time (default: 1)")  # fmt: skip
    return p


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = parser().parse_args(arguments)
        settings, source = _replayed(options) if options.replay else _asked(options)
        judge = _judge(settings, options.run)
        folder = _folder(options.output)
        code = _run(Author(settings, source, judge), folder, bool(options.replay))
    except Refused as error:
        print(f"tl: {error}", file=sys.stderr)
        return 2
    result = json.loads((folder / "result.json").read_text())
    print(f"{result['outcome']} after {result['exchanges']} exchanges: {result['reason']}")
    return code


def _run(made: Author, folder: Path, replays: bool) -> int:
    """The exit code. A live run writes as it goes, from its first answer on; a replay, which may be
    refused, when it is over."""
    if not replays:
        return made.run(folder)
    with tempfile.TemporaryDirectory() as aside:
        code = made.run(Path(aside))
        shutil.copytree(aside, folder, dirs_exist_ok=True)
    return code


def _asked(options: argparse.Namespace) -> tuple[Settings, Source]:
    one_of("the command", options.what, ("generate",))
    for name, nearest in (("spec", "--spec FILE"), ("target", "--target a100"),
                          ("base_url", "--base-url http://localhost:8000/v1"),
                          ("model", "--model NAME")):  # fmt: skip
        if not getattr(options, name):
            raise Refused("it is missing", _argument(name), "nothing", "a value", nearest)
    settings = _settings(
        {
            "mode": "tl",
            "translate": "ours",
            "translate_model": options.model,
            "tries": 12,
            "max_tokens": 8192,
            "total_tokens": 200_000,
            **{name: x for name in _FIXED if (x := getattr(options, name)) is not None},
            "spec": spec.read(options.spec),
        }
    )
    for name in ("timeout", "pause"):
        if not 0 <= getattr(options, name) < 1e6:
            raise Refused("no such time", _argument(name), getattr(options, name), "seconds", 1)
    return settings, _endpoint(options, settings)


def _endpoint(options: argparse.Namespace, settings: Settings) -> Endpoint:
    url = urlsplit(options.base_url)
    if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query:
        raise Refused("not the address of an endpoint", "--base-url", "another text",
                      "http(s)://HOST/PATH without a user or a query",
                      "http://localhost:8000/v1")  # fmt: skip
    key = os.environ.get(options.key_env, "")
    # A short one would stand in programs, too, where it could not be blotted out.
    if not re.fullmatch(r"[!-~]{8,}", key):
        raise Refused("there is no key", options.key_env, f"{len(key)} characters",
                      "8 or more in the environment, any for an endpoint without keys")  # fmt: skip
    if key in json.dumps(settings.as_json()):
        raise Refused("the key is in the arguments", options.key_env, "a key", "one kept apart")
    if find_spec("openai") is None:
        raise Refused("the client is not installed", "openai", "nothing",
                      "the extra `author`: pip install verbatim-attn[author]", "--replay")  # fmt: skip
    return Endpoint(options.base_url, key, timeout=options.timeout,
                    max_tokens=settings.max_tokens, pause=options.pause)  # fmt: skip


def _replayed(options: argparse.Namespace) -> tuple[Settings, Source]:
    one_of("the command", options.what, ("generate",))
    for name in _FIXED:
        if getattr(options, name) is not None:
            raise Refused("the transcript has it", _argument(name), getattr(options, name),
                          "nothing beside --replay")  # fmt: skip
    try:
        first, *lines = map(json.loads, Path(options.replay).read_text().splitlines())
        found = {**first["settings"], "spec": spec.of(first["settings"]["spec"])}
        return _settings(found), Recording(options.replay, lines)
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Refused(str(error), "--replay", options.replay, "a transcript.jsonl") from None


def _settings(found: dict[str, Any]) -> Settings:
    settings = Settings(**{name: found[name] for name in Settings._fields})
    one_of("--target", settings.target, targets())
    one_of("--mode", settings.mode, MODES)
    one_of("--translate", settings.translate, TRANSLATORS)
    writes_cuda = settings.mode in ("cot", "vanilla")
    if writes_cuda and settings.translate == "model":
        raise Refused("nothing to translate", "--translate", "model",
                      "ours with --mode " + settings.mode, "ours")  # fmt: skip
    if settings.spec.pass_ == "backward" and (writes_cuda or settings.translate == "model"):
        raise Refused("model-written CUDA is run as a forward", "--spec pass", "backward",
                      "forward, or TL code alone", "--mode tl")  # fmt: skip
    for name in ("tries", "max_tokens", "total_tokens"):
        value = getattr(settings, name)
        if not 0 < value < 1 << 31:
            raise Refused("not a positive number", _argument(name), value, "1 or more", 1)
    return settings


def _judge(settings: Settings, run: bool) -> Judge:
    writes_cuda = settings.mode in ("cot", "vanilla")
    if not writes_cuda:
        tool()
    compiler = cuda.Compiler(settings.target) if run else None
    return Judge(settings.spec, settings.target, compiler, settings.translate == "ours")


def _folder(path: str | None) -> Path:
    """New or empty. Raises Refused when something is in it or it cannot be made."""
    if not path:
        raise Refused("it is missing", "--output", "nothing", "a folder", "--output made")
    folder = Path(path)
    beside = folder if folder.is_dir() else folder.parent
    if (folder.exists() and not folder.is_dir()) or not os.access(beside, os.W_OK | os.X_OK):
        raise Refused("it cannot be made", "--output", path, "a folder in one that exists")
    if folder.exists() and any(folder.iterdir()):
        raise Refused("something is in it", "--output", path, "a new or empty folder")
    return folder


def _argument(name: str) -> str:
    return "--" + name.replace("_", "-")


if __name__ == "__main__":
    run(main)
