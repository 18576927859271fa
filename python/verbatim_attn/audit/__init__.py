"""Is this attention function bitwise repeatable, batch-invariant, packing-invariant, isolated?

    from verbatim_attn.audit import audit
    print(audit(my_attention, (q, k, v), layout="blhd"))

Any callable on NumPy arrays or PyTorch tensors, ours or not. `python -m verbatim_attn.audit --help`
is the same for the command line (docs/audit.md).
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _library
from . import environment
from .bits import Difference, difference, same, sha256
from .checks import CHECKS, Case, Check
from .result import Audit, Finding
from .subject import NotChecked, make_subject

__all__ = ["Audit", "Difference", "Finding", "audit"]


def audit(
    fn: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    layout: str | Mapping[str, str] = "b",
    grad: bool = True,
    repeats: int = 20,
    processes: int = 3,
    timeout: float = 300.0,
    checks: Sequence[str] | None = None,
    dout_seed: int = 0,
    packed: Callable[..., Any] | None = None,
    doc_lengths: Sequence[int] | None = None,
    padded: Callable[..., Any] | None = None,
    name: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Runs fn under everything that must not matter, and compares the bits of what it returns.

    Args:
        fn: takes the inputs and returns a tensor or array, or several in a tuple, named tuple or
            dict. Must not change its inputs. New processes import it from its module.
        inputs: a tuple or list, passed by position, or a dict, passed by name. Arrays, tensors on
            the CPU or one CUDA device, and anything else, which is passed as it is.
        layout: which axes are what, a letter each: b batch, l length, h heads, any other nothing;
            "blhd" is (batch, length, heads, dim). Of every tensor with at least so many axes, or by
            tensor name, where "*" is every other tensor: {"*": "blhd", "lse": "bhl"}. Tensors
            without an axis are passed whole when that axis is cut, and their results not compared.
        grad: also compare the gradients of all input tensors that require them, named d + name.
        repeats: runs of the checks repeats, load and graph, each.
        processes: new processes to start.
        timeout: seconds after which a new process is stopped, and `processes` not checked.
        checks: names of those to make, see docs/audit.md; None: all.
        dout_seed: of the normal deviates that serve as gradients of the outputs.
        packed: fn for several documents laid one after another along the axis l: takes the inputs
            and doc_lengths=. Together with `doc_lengths`, which sum to the length.
        padded: fn for entries with padding along the axis l, of queries and keys: takes the inputs,
            length= and side=. The first `length` positions exist, or with side="left" the last.
        name: of the target in the certificate; None: that of fn.
        progress: told the name of each check before it starts.

    Returns:
        an Audit: `verdicts`, `passed`, `findings`, `sha256`, to_json(), to_html(), str().

    Raises:
        ValueError, TypeError: name the argument; what fn raises in its first run, and when it is
        called in the same way again.
    """
    chosen = _chosen(checks)
    for argument, value in (("repeats", repeats), ("processes", processes), ("timeout", timeout)):
        kind = numbers.Real if argument == "timeout" else numbers.Integral
        if not isinstance(value, kind) or not 1 <= value < math.inf:
            raise ValueError(
                f"[audit] {argument} is too small, or none; got {value!r}, expected 1 or more"
            )
    if (packed is None) != (doc_lengths is None):
        raise ValueError(
            f"[audit] packed and doc_lengths come together; got packed={packed}, "
            f"doc_lengths={doc_lengths}, expected both or none"
        )
    doc_lengths = None if doc_lengths is None else [int(n) for n in doc_lengths]
    if min(doc_lengths or (0,)) < 0:
        raise ValueError(f"[audit] doc_lengths are lengths; got {doc_lengths}, expected 0 or more")
    subject = make_subject(fn, inputs, layout=layout, grad=grad, dout_seed=dout_seed)
    arrays = {n: x for n, x in subject.inputs.items() if hasattr(x, "shape")}
    before = {n: _facts(x) for n, x in arrays.items()}
    expected = subject.run_to_keep()
    if not any(math.prod(x.shape) for x in expected.values()):
        raise ValueError(
            f"[audit] fn returned nothing to compare; got {', '.join(expected) or 'None, or {}'}, "
            "without an element, expected a tensor or array, or several"
        )
    case = Case(subject, expected, repeats, processes, timeout, packed, doc_lengths, padded)
    for n, x in arrays.items():
        if _facts(x) != before[n]:
            raise ValueError(
                f"[audit] fn changes its inputs; got other bits in {n} after the first run, "
                "expected the same (nearest: a function that copies what it writes)"
            )
    hashes = {n: sha256(x) for n, x in expected.items()}
    findings: list[Finding] = []
    unstable: set[str] = set()  # without any change: says nothing about what is varied later
    for check in chosen:
        if progress:
            progress(check.name)
        finding, differed = _make(check, case, unstable)
        findings.append(finding)
        if check.name == "repeats":
            unstable = differed
    return Audit(
        target=name or f"{fn.__module__}:{getattr(fn, '__qualname__', type(fn).__qualname__)}",
        version=_library.info()["version"],
        arguments=[],
        commit="",
        problem={
            "repeats": repeats,
            "processes": processes,
            "dout_seed": dout_seed,
            "layout": subject.layout,
            "doc_lengths": doc_lengths,
        },
        inputs=before,
        environment=environment.describe(subject.device),
        sha256=hashes,
        findings=findings,
    )


def _chosen(names: Sequence[str] | None) -> list[Check]:
    known = [check.name for check in CHECKS]
    for name in names or ():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0) or known
            raise ValueError(
                f"[audit] there is no such check; got {name!r}, expected {', '.join(known)} "
                f"(nearest: {near[0]})"
            )
    return [check for check in CHECKS if names is None or check.name in names]


def _facts(x: Any) -> dict[str, Any]:
    return {"shape": list(x.shape), "dtype": str(x.dtype), "sha256": sha256(x)}


def _make(check: Check, case: Case, unstable: set[str]) -> tuple[Finding, set[str]]:
    """The finding, and the names of all tensors that differed in it."""
    runs = differing = 0
    seen: set[tuple[str, ...]] = set()
    compared: set[str] = set()
    differed: set[str] = set()
    first: Difference | None = None
    reason = ""
    try:
        for got, expected in check.runs(case):
            runs += 1
            names = [n for n in expected if n not in unstable]
            compared.update(names)
            apart = [n for n in names if n not in got or not same(got[n], expected[n])]
            if more := [n for n in got if n not in expected]:
                raise ValueError(f"[audit] fn returned {more[0]} only when called again")
            if not apart:
                continue
            differing += 1
            differed.update(apart)
            lost = [n for n in apart if n not in got]
            if lost:
                raise ValueError(f"[audit] fn returned no {lost[0]} when called again")
            seen.add(tuple(sha256(got[n]) for n in apart))
            first = first or difference(apart[0], got[apart[0]], expected[apart[0]])
    except NotChecked as why:
        reason = str(why)
    if unstable and not reason:
        reason = f"differing without any change: {', '.join(sorted(unstable))}"
    status = "differs" if first else "not checked" if reason or not runs else "same"
    finding = Finding(
        check.name, check.verdict, check.varies, status, reason, sorted(compared), runs,
        differing, len(seen), first,
    )  # fmt: skip
    return finding, differed
