"""The command: python -m verbatim_attn.bench --help."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import sys
import time
from typing import Any

from .. import __version__, masks
from .._errors import Parser, Refused, one_of
from .._errors import run as run_command
from . import providers, registry, results, sampling, workloads
from .models import MODELS

BLOCKS = [name for name, model in MODELS.items() if model.ffn]


def parser() -> argparse.ArgumentParser:
    p = Parser(prog="python -m verbatim_attn.bench", description=__doc__)
    add = p.add_argument
    add("what", nargs="?", default="run", help="run (attention) or block (transformer blocks)")
    add("--list", action="store_true", help="sets, and providers with what keeps them from running")
    add("--dry-run", action="store_true", help="print the cases and stop")
    add("--set", default="given", help="of " + ", ".join(workloads.SETS) + "; commas")
    add("--match", default="", help="cases whose name matches a regular expression")
    add("--providers", default="verbatim", help="of --list, verbatim:FILE (TL), commas, or all")
    add("--device", default="cpu", help="cpu, cuda or cuda:N")
    add("--protocol", default="rested", help="rested, sustained or brief")
    add("--repeats", type=int, default=10, help="runs whose bits are compared before timing")
    add("--check", default="sampled", help="against double precision: sampled or none")
    add("--passes", default="both", help="both or forward, of training")
    add("--preset", default="all", help="of block: " + ", ".join(BLOCKS) + "; commas, or all")
    add("--mask", help='of the set "given": a name, or JSON {"name": ..., "params": {...}}')
    add("--seqlen", help="lengths instead of the set's, commas")
    add("--heads", help="query:KV heads instead of the set's, commas")
    add("--head-dim", help="head dims instead of the set's, commas")
    add("--batch", type=int, help="batch entries instead of the set's")
    add("--dtype", default="bf16", help="bf16, f16 or f32")
    add("--seed", type=int, default=0, help="of inputs, document lengths and drawn parameters")
    add("--samples", type=int, default=1, help="draws of each mask that is drawn")
    add("--documents", default="auto", help=", ".join(sampling.SOURCES))
    add("--lengths", help="a file of document lengths to draw from")
    add("--commit", default="", help="recorded: what was built")
    add("--resume", metavar="FILE.jsonl", help="append rows as they finish; skip those it has")
    add("--from", dest="source", nargs="+", metavar="FILE", help="run nothing: report results")
    add("--json", metavar="FILE", help="the whole result; after --from FILE.jsonl, that one's")
    add("--csv", metavar="FILE")
    add("--markdown", metavar="FILE")
    add("--html", metavar="FILE", help="one page, with charts")
    add("--repro", action="store_true", help="print the line that runs each row alone")
    return p


def _numbers(argument: str, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word) < 2**31):
            raise Refused("not a positive number", argument, word or "nothing", "1 or more", 1024)
    return tuple(map(int, words))


def _heads(text: str | None) -> tuple[tuple[int, int], ...] | None:
    if text is None:
        return None
    pairs = []
    for word in text.split(","):
        pair = _numbers("--heads", word.replace(":", ",")) or ()
        if len(pair) != 2 or pair[0] % pair[1]:
            raise Refused("KV heads do not divide query heads", "--heads", word, "Q:KV", "8:2")
        pairs.append((pair[0], pair[1]))
    return tuple(pairs)


def _mask(text: str | None) -> masks.Mask | None:
    if text is None:
        return None
    spec: Any = {"name": text}
    if text.startswith("{"):
        try:
            spec = json.loads(text)
        except ValueError as error:
            raise Refused(str(error), "--mask", text, "JSON of a mask", "causal") from None
    by_name = {c.name: c for c in masks.Mask.__subclasses__() if c.__module__ == masks.__name__}
    make = by_name[one_of("--mask", str(spec.get("name")), by_name)]
    fields = {field.name.rstrip("_"): field.name for field in dataclasses.fields(make)}
    params = spec.get("params", {})
    if not isinstance(params, dict):
        raise Refused("params is no object", "--mask", text, '{"name": ..., "params": {...}}')
    try:
        return make(**{fields.get(k, str(k)): v for k, v in params.items()})
    except (TypeError, ValueError) as error:
        raise Refused(str(error), "--mask", text, "parameters of docs/masks.md") from None


def choice_of(a: argparse.Namespace) -> workloads.Choice:
    for name, value in (("--repeats", a.repeats), ("--samples", a.samples), ("--batch", a.batch)):
        if value is not None and value < 1:
            raise Refused("a count is not positive", name, value, "1 or more", 1)
    return workloads.Choice(
        seqlens=_numbers("--seqlen", a.seqlen), heads=_heads(a.heads),
        head_dims=_numbers("--head-dim", a.head_dim), batch=a.batch,
        dtype=one_of("--dtype", a.dtype, ("bf16", "f16", "f32")), seed=a.seed, samples=a.samples,
        documents=one_of("--documents", a.documents, sampling.SOURCES),
        lengths=sampling.read_lengths(a.lengths) if a.lengths else (), mask=_mask(a.mask),
    )  # fmt: skip


def chosen_cases(a: argparse.Namespace) -> list[workloads.Case]:
    try:
        pattern = re.compile(a.match)
    except re.error as error:
        raise Refused(str(error), "--match", a.match, "a regular expression", "causal") from None
    sets = "models" if one_of("the command", a.what, ("run", "block")) == "block" else a.set
    found = [c for c in workloads.cases(sets, choice_of(a)) if pattern.search(c.name)]
    if a.what == "block":
        presets = BLOCKS if a.preset == "all" else a.preset.split(",")
        presets = [one_of("--preset", name, BLOCKS) for name in presets]
        found = [case for case in found if case.name.split()[0] in presets]
    if not found:
        raise Refused("no case has such a name", "--match", a.match, "part of a name", ".*")
    if a.mask:
        for case in found:
            _check(a.mask, case)
    return found


def _check(text: str, case: workloads.Case) -> None:
    """Refuses a mask that is none, or not of the case's lengths."""
    try:
        case.area  # noqa: B018
    except (ValueError, NotImplementedError) as error:
        raise Refused(str(error), "--mask", text, "parameters of docs/masks.md") from None


_REPEATED = ("device", "protocol", "repeats", "check", "passes", "mask", "seqlen", "heads", "head_dim",
             "batch", "dtype", "seed", "samples", "documents", "lengths")  # fmt: skip


def repro(a: argparse.Namespace, case: workloads.Case, provider: str) -> str:
    """The line that runs one row alone."""
    words = ["python", "-m", "verbatim_attn.bench"]
    words += ["block"] if a.what == "block" else ["--set", case.set]
    words += ["--match", f"^{re.escape(case.name)}$", "--providers", provider]
    plain = parser().parse_args([])
    for name in _REPEATED:
        if getattr(a, name) != getattr(plain, name):
            words += ["--" + name.replace("_", "-"), str(getattr(a, name))]
    return shlex.join(words)


def arguments() -> list[str]:
    """As typed, with absolute paths cut to their last part: results are shown to others."""
    return [os.path.basename(word) if os.path.isabs(word) else word for word in sys.argv[1:]]


def run(a: argparse.Namespace) -> dict[str, Any]:
    cases, chosen = chosen_cases(a), registry.chosen(a.providers)
    one_of("--protocol", a.protocol, workloads.LISTS["protocols"])
    one_of("--check", a.check, ("sampled", "none"))
    one_of("--passes", a.passes, ("both",) if a.what == "block" else ("both", "forward"))
    if reason := providers.missing("torch"):
        raise Refused("PyTorch runs the benchmark", "torch", reason, "PyTorch 2.5 or newer")
    # cuBLAS is deterministic only with a workspace of its own.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    from .measure import Device
    from .run import Bench, Settings

    try:
        device = Device(a.device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise Refused(str(error).splitlines()[0], "--device", a.device, "a device", "cpu") from None
    rates = device.yardsticks(a.protocol)
    header = {
        "command": "bench", "schema": results.SCHEMA, "version": __version__,
        "arguments": arguments(), "device": device.facts(), "commit": a.commit,
        "protocol": a.protocol,
        "software": {"python": sys.version.split()[0], "torch": torch.__version__,
                     "cuda": torch.version.cuda or ""},
        **{name: {"before": rate, "after": rate} for name, rate in rates.items()},
    }  # fmt: skip
    log = results.Log(a.resume, header)
    settings = Settings(a.protocol, a.repeats, a.check == "sampled", a.passes == "both")
    rows, begun = [], time.monotonic()
    for number, case in enumerate(cases, 1):
        bench = Bench(case, device, settings)
        for provider in chosen:
            line = repro(a, case, provider.name)
            row = log.done.get((line,))
            if row is None:
                at = f"{time.monotonic() - begun:6.1f} s, {number} of {len(cases)}"
                print(f"{at}: {case.name}, {provider.name}", file=sys.stderr, flush=True)
                row = {**bench.row(provider), "repro": line}
                if a.what == "block" and row["backward"]:
                    _add_block(row, case, provider, device, a.protocol)
                log.add(row)
            rows.append(row)
    after = device.yardsticks(a.protocol)
    for name, rate in after.items():
        header[name]["after"] = rate
    log.add({name: header[name] for name in after})
    return {**header, "results": rows}


def _add_block(row: dict[str, Any], case: Any, provider: Any, device: Any, protocol: str) -> None:
    from . import block
    from .run import explain

    try:
        model = MODELS[case.name.split()[0]]
        row["block"] = block.measure(model, case, provider, device, protocol, row)
    except Exception as error:  # as for attention: the row says what happened
        row["status"], row["reason"] = explain(error)


def _list() -> None:
    print("sets")
    for name in workloads.SETS:
        print(f"  {name:<10} {' '.join(workloads.about(name).split())}")
    print("providers")
    for name, provider in registry.known().items():
        print(f"  {name:<24} {provider.available() or 'available'}")


def main() -> int:
    try:
        a = parser().parse_args()
        if a.list:
            _list()
            return 0
        if a.dry_run:
            for case in chosen_cases(a):
                print(f"{case.set:<8} {case.name:<36} {tuple(case.problem)} {case.mask.name}")
            return 0
        if a.json and a.source and len(a.source) > 1:
            raise Refused("a file holds one result", "--json", a.json, "one FILE after --from")
        for name in ("resume", "json", "csv", "markdown", "html"):
            if path := getattr(a, name):
                results.try_to_write(f"--{name}", path)
        found = [results.read(path) for path in a.source] if a.source else [run(a)]
        from . import page, report

        report.one_run_each(found)
        command = shlex.join(["python", "-m", "verbatim_attn.bench", *arguments()])
        for name, render in (
            ("json", lambda found: json.dumps(found[0], indent=1) + "\n"),
            ("csv", report.csv_text),
            ("markdown", lambda found: report.markdown(found, command)),
            ("html", page.html),
        ):
            if path := getattr(a, name):
                results.write(f"--{name}", path, render(found))
        print(report.text(found))
        if a.repro:
            print(*(r["repro"] for f in found for r in f["results"]), sep="\n")
    except Refused as error:
        print(f"verbatim_attn.bench: {error}", file=sys.stderr)
        return 2
    rows = [row for result in found for row in result["results"]]
    if rows and all(row.get("status") == "error" for row in rows):
        return 3
    ours = [row for row in rows if row.get("provider", "verbatim").startswith("verbatim")]
    return int(any(row.get("status") in ("wrong", "differs") for row in ours))


if __name__ == "__main__":
    run_command(main)
