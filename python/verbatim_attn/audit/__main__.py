"""python -m verbatim_attn.audit: audits an attention function from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import math
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import _files, masks
from .._errors import run as run_command
from . import audit
from .checks import CHECKS
from .targets import LAYOUT, TARGETS, Target, installed

_MASKS = {
    mask.name: mask
    for mask in (masks.Full, masks.Causal, masks.FullSlidingWindow, masks.CausalSlidingWindow)
}
_DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_EPILOG = """\
Targets beside MODULE:FUNCTION, which is called with q, k and v of (batch, length, heads, dim):
see --list. Inputs are normal deviates.
Exit codes: 0 everything that was checked is the same; 1 a difference; 2 bad input; 3 the target
could not run here, or nothing could be checked.
Example: python -m verbatim_attn.audit --target torch:flash --dtype bf16 --html audit.html"""


class CannotRun(Exception):
    """The target cannot run here."""


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog="python -m verbatim_attn.audit",
        description="Audit the bits of an attention function: what must not matter does not.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = found.add_argument
    add("--target", metavar="NAME", help=f"{', '.join(TARGETS)} or MODULE:FUNCTION")
    add("--packed", metavar="MODULE:FUNCTION", help="its form that takes doc_lengths= as well")
    add("--list", action="store_true", help="list the targets and whether each can run here")
    add("--batch", type=int, default=2, metavar="N", help="batch entries (default: 2)")
    add("--q-heads", type=int, default=4, metavar="N", help="query heads (default: 4)")
    add("--kv-heads", type=int, metavar="N", help="KV heads (default: the query heads)")
    add("--head-dim", type=int, default=64, metavar="N", help="elements a head (default: 64)")
    add("--seqlen", type=int, default=512, metavar="N", help="queries and keys (default: 512)")
    add("--dtype", default="f32", metavar="NAME", help="f32, bf16 or f16 (default: f32)")
    add("--mask", default="causal", metavar="NAME", help=f"{', '.join(_MASKS)} (default: causal)")
    add("--window", type=int, metavar="N", help="sliding windows: positions to each visible side")
    add("--doc-lengths", metavar="A,B,..", help="documents to pack (default: three unequal ones)")
    add("--seed", type=int, default=0, metavar="N", help="of inputs and dout (default: 0)")
    add("--order", default="auto", metavar="NAME", help="target verbatim: order of the backward")
    add(
        "--deterministic",
        action="store_true",
        help="torch.use_deterministic_algorithms(True); deterministic=True of flash_attn, cudnn:flex",
    )
    add("--forward", action="store_true", help="compare no gradients")
    add("--repeats", type=int, default=20, metavar="N", help="runs idle and loaded (default: 20)")
    add("--processes", type=int, default=3, metavar="N", help="new processes (default: 3)")
    add("--timeout", type=float, default=300, metavar="S", help="seconds of each (default: 300)")
    add("--checks", metavar="A,B,..", help=f"of {', '.join(c.name for c in CHECKS)} (default: all)")
    add("--device", metavar="NAME", help="cpu, cuda or cuda:N (default: cuda where there is one)")
    add("--commit", default="", metavar="TEXT", help="recorded: what was built")
    add("--json", metavar="FILE", help="write the certificate as JSON (docs/schema.md)")
    add("--html", metavar="FILE", help="write the certificate as one page")
    return found


def bad(argument: str, message: str, got: Any, expected: str, nearest: str = "") -> ValueError:
    nearest = f" (nearest: {nearest})" if nearest else ""
    return ValueError(f"{argument}: {message}; got {got}, expected {expected}{nearest}")


def one_of(argument: str, got: str, known: Iterable[str], besides: str = "") -> str:
    """`got` when it is known. Raises ValueError with the nearest."""
    names = list(known)
    if got in names:
        return got
    near = difflib.get_close_matches(got, names, 1, 0) or names
    raise bad(argument, "there is no such name", repr(got), ", ".join(names) + besides, near[0])


def list_targets(device: str) -> str:
    """A line for each target: available here, or why not."""
    lines = []
    for name, make in TARGETS.items():
        missing = make(masks.Full()).missing(device)
        lines.append(f"{name:<16} {'not here: ' + missing if missing else 'available'} ({device})")
    return "\n".join(lines)


def default_device() -> str:
    if not installed("torch"):
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def user_function(argument: str, name: str) -> Any:
    """The function that MODULE:FUNCTION names."""
    module_name, _, path = name.partition(":")
    try:
        found = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise CannotRun(f"{module_name}: {error}") from error
        raise bad(argument, "no such module", repr(name), "MODULE:FUNCTION") from error
    except (AttributeError, ValueError) as error:
        raise bad(argument, f"no such function ({error})", repr(name), "MODULE:FUNCTION") from error
    return found


def make_inputs(options: argparse.Namespace, target: Any, device: str) -> dict[str, Any]:
    """q, k, v and, for the NumPy form of `verbatim`, dout."""
    tokens, dim = (options.batch, options.seqlen), options.head_dim
    shapes = {
        "q": (*tokens, options.q_heads, dim),
        "k": (*tokens, options.kv_heads, dim),
        "v": (*tokens, options.kv_heads, dim),
    }
    dtype = _DTYPES[options.dtype]
    if not installed("torch"):
        if dtype == "bfloat16":
            raise bad("--dtype", "NumPy has no such type", "bf16", "f32 or f16", "f16")
        if isinstance(target, Target) and not options.forward:
            shapes["dout"] = shapes["q"]
        rng = np.random.default_rng(options.seed)
        return {n: rng.standard_normal(shape).astype(dtype) for n, shape in shapes.items()}
    import torch

    generator = torch.Generator().manual_seed(options.seed)
    grad = not options.forward and (not isinstance(target, Target) or target.gradients(device))
    return {
        n: torch.randn(shape, generator=generator)
        .to(device, getattr(torch, dtype))
        .requires_grad_(grad)
        for n, shape in shapes.items()
    }


def document_lengths(options: argparse.Namespace) -> list[int]:
    length = options.seqlen
    if options.doc_lengths is None:
        first, second = length * 3 // 7, length * 2 // 7
        return [first, second, length - first - second]
    try:
        found = [int(n) for n in options.doc_lengths.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 0 or sum(found) != length:
        raise bad("--doc-lengths", "not the lengths of documents", repr(options.doc_lengths),
                  f"A,B,.. that sum to {length}")  # fmt: skip
    return found


def make_target(options: argparse.Namespace, device: str) -> Any:
    """The named target or the user's function. Raises ValueError or CannotRun."""
    if options.mask.endswith("window") != (options.window is not None):
        expected = "a number" if options.window is None else "none"
        raise bad("--window", "it belongs to sliding windows", options.window,
                  f"{expected} with --mask {options.mask}")  # fmt: skip
    window = [] if options.window is None else [options.window]
    mask = _MASKS[options.mask](*window)
    name = options.target
    if name not in TARGETS and ":" in name and not name.startswith(("torch:", "cudnn:")):
        return user_function("--target", name)
    one_of("--target", name, TARGETS, " or MODULE:FUNCTION")
    how = {"order": options.order} if name == "verbatim" else {}
    target = TARGETS[name](mask, options.deterministic, **how)
    if missing := target.missing(device):
        raise CannotRun(f"{name}: {missing}")
    return target


def packed_form(options: argparse.Namespace, target: Any) -> Any:
    """The target's form for packed documents; None when a function comes without one."""
    if options.packed is None:
        return target.packed if isinstance(target, Target) else None
    if isinstance(target, Target):
        raise bad("--packed", f"{options.target} has its own packed form", repr(options.packed),
                  "--target MODULE:FUNCTION beside it")  # fmt: skip
    return user_function("--packed", options.packed)


def check_options(options: argparse.Namespace) -> None:
    if options.target is None:
        raise bad("--target", "nothing to audit", "none", "a name", "--list")
    for name in ("batch", "q_heads", "kv_heads", "head_dim", "seqlen", "repeats", "processes",
                 "timeout"):  # fmt: skip
        if not 1 <= getattr(options, name) < math.inf:
            argument = "--" + name.replace("_", "-")
            raise bad(argument, "too small, or none", getattr(options, name), "1 or more", "1")
    if options.q_heads % options.kv_heads:
        raise bad("--kv-heads", "it divides no query heads evenly", options.kv_heads,
                  f"a divisor of {options.q_heads}", str(options.q_heads))  # fmt: skip
    if not re.fullmatch(r"cpu|cuda(:\d+)?", options.device or "cpu"):
        raise bad("--device", "there is no such name", repr(options.device), "cpu, cuda or cuda:N")
    one_of("--dtype", options.dtype, _DTYPES)
    one_of("--mask", options.mask, _MASKS)
    if options.order != "auto" and options.target != "verbatim":
        raise bad("--order", "only verbatim has orders", repr(options.order), "auto", "auto")
    if options.order == "none" and options.deterministic:
        raise bad("--order", "it adds in any order, which --deterministic forbids", "none",
                  "the name of an order", "auto")  # fmt: skip
    for argument, path in (("--json", options.json), ("--html", options.html)):
        try:
            if path:
                _files.try_to_write(path)
        except OSError as error:
            said = error.strerror or str(error)
            raise bad(argument, said, repr(path), "a file that can be written") from None
    for name in options.checks or ():
        one_of("--checks", name, [check.name for check in CHECKS])


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    device = options.device or default_device()
    if options.list:
        print(list_targets(device))
        return 0
    options.kv_heads = options.q_heads if options.kv_heads is None else options.kv_heads
    options.checks = options.checks.split(",") if options.checks else None
    check_options(options)
    doc_lengths = document_lengths(options)
    target = make_target(options, device)
    if options.deterministic and installed("torch"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else matrix products refuse
        import torch

        torch.use_deterministic_algorithms(True)
    ours = isinstance(target, Target)
    packed = packed_form(options, target)

    def progress(name: str) -> None:
        if sys.stderr.isatty():
            print(f"auditing {name} ...", file=sys.stderr)

    found = audit(
        target,
        tuple(make_inputs(options, target, device).values()),
        layout=LAYOUT,
        repeats=options.repeats,
        processes=options.processes,
        timeout=options.timeout,
        checks=options.checks,
        dout_seed=options.seed,
        packed=packed,
        doc_lengths=doc_lengths if packed else None,
        padded=target.padded if ours else None,
        name=options.target,
        progress=progress,
    )
    ours_only = {"mask": options.mask, "window": options.window, "order": options.order}
    problem = {**found.problem, **(ours_only if ours else {})}
    found = dataclasses.replace(found, arguments=arguments, commit=options.commit, problem=problem)
    if options.json:
        _files.write(options.json, found.to_json())
    if options.html:
        _files.write(options.html, found.to_html())
    print(found)
    differs = any(finding.status == "differs" for finding in found.findings)
    return 1 if differs else 0 if found.passed else 3


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(arguments)
    try:
        return run(options, arguments)
    except BrokenPipeError:
        raise
    except (ValueError, OSError) as error:
        print(f"audit: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # noqa: BLE001
        print(f"audit: cannot run: {type(error).__name__}: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    run_command(main)
