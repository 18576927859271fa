"""Plans: everything about an attention that is known before its tensors are."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import _library
from ._arrays import NAMES, Arrays, Key, arrays_of, check_dimensions
from ._calls import Call
from ._handles import Handle, Problem, Settings, kept, named, problem_of, specification
from ._untraced import untraced
from .masks import Mask, spec_of

_PASSES = ("forward", "backward")  # in the order of verbatim_pass
_numbers = itertools.count()


class PassPlan(NamedTuple):
    """How one pass runs. `fingerprint` is of the order of every sum (docs/glossary.md): scale, softcap,
    dropout and seed are not in it."""

    orders: list[str]  # distinct, over all heads
    tile: list[int]  # queries, keys
    placement: str
    workers: int
    residency: int  # workers that must run at once
    arithmetic: str  # what happens to a sum inside a tile: "cpu.2", "sm80.2", "sm90.2"
    fingerprint: str
    kernel: str
    workspace_bytes: int


class Plan:
    """Forward and backward of one problem under one mask, planned once and run many times.

    Orders, placements and levels are named in docs/scheduling.md and docs/determinism.md;
    `verbatim_attn.orders()` lists the orders. `device` is "cpu", "cuda", "cuda:N" or a
    torch.device. `arithmetic` "sm80" takes the portable kernels on Hopper, too; "": the device's.
    `kernels` take the place of the device's own, at most one a pass: on a CPU texts of TL code, on
    a GPU paths of libraries (docs/tl.md). `plans` take the place of those by rule, at most one a
    pass: what dump() returns, edited or not (docs/own-orders.md); what is named is of the other.
    `defer_backward`: the backward is planned when it is first needed, where nothing of it is named
    here. Plans are immutable and may be used by several threads; a copy is the plan itself, and a
    pickle plans again. torch.compile takes one for a constant of its graph.
    """

    def __init__(
        self,
        problem: Problem,
        mask: Mask | None = None,
        *,
        order: str = "auto",
        forward_order: str = "auto",
        level: str = "invariant",
        placement: str = "auto",
        tile: tuple[int, int] = (0, 0),
        workers: int = 0,
        arithmetic: str = "",
        kernels: Sequence[str] = (),
        plans: Sequence[dict[str, Any]] = (),
        device: Any = "cpu",
        defer_backward: bool = False,
    ) -> None:
        options = {
            "order": order,
            "forward_order": forward_order,
            "level": level,
            "placement": placement,
            "tile": tile,
            "workers": workers,
            "arithmetic": arithmetic,
            # The library says that a text is no list; list() would make one of its letters.
            "kernels": kernels if isinstance(kernels, str) else list(kernels),
            "plans": plans if isinstance(plans, (dict, str)) else list(plans),
            "device": str(device),  # a torch.device, too
            "defer_backward": defer_backward,
        }
        device = options["device"]
        self.problem = problem
        self._made_of = problem, mask, copy.deepcopy(options)  # lists may change
        self._device = "cuda:0" if device == "cuda" else device  # as tensors spell it
        self._handle = Handle(specification(problem, spec_of(mask), options=options))
        p = problem
        q = (p.batch, p.q_len, p.q_heads, p.head_dim)
        k = (p.batch, p.kv_len, p.kv_heads, p.head_dim)
        self._shapes = q, k, (*k[:3], p.head_dim_v)
        dtype = _library.DTYPES.index(p.dtype)
        index = -1 if device == "cpu" else int(self._device.rpartition(":")[2])
        self._name = str(next(_numbers))  # a text, of which torch.compile makes no variable
        named[self._name] = self
        # For _native.py, in the order of PlannedTensors in csrc/torch_call.cpp.
        self._native = (
            self._handle.pointer.value,
            struct.pack("14q", *q, *k, *self._shapes[2], dtype, index),
        )

    def __copy__(self) -> Plan:
        return self

    def __deepcopy__(self, _memo: Any) -> Plan:
        return self

    def __reduce__(self) -> Any:
        return _planned, self._made_of

    def forward(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        seed: Any = None,
        threads: int = 0,
        scales: Sequence[Any] | None = None,
    ) -> tuple[Any, ...]:
        """(O, LSE) of arrays or tensors on the plan's device, in the current stream.

        q (batch, q_len, q_heads, head_dim), k (batch, kv_len, kv_heads, head_dim),
        v (batch, kv_len, kv_heads, head_dim_v); o (batch, q_len, q_heads, head_dim_v),
        lse f32 (batch, q_heads, q_len). Rows without a visible key: o = 0, lse = -inf. Outside
        autograd: attention() has gradients.
        `seed` of the dropout: an integer, or a tensor of one int64 on the plan's device, which is
        read when the work runs; None: the problem's. Of e4m3, whose o is bfloat16: `scales` of q, k
        and v, each f32 (heads) beside its tensor, or None, which is 1; they break torch.compile's
        graph.
        """
        tensors = (q, k, v)
        if scales is None:
            return self._run(tensors, seed, threads)
        if self.problem.dtype != "e4m3" or len(scales) != 3:
            raise ValueError(
                f"[tensors] scales are of q, k and v in e4m3; got {len(scales)} for "
                f"{self.problem.dtype}, expected 3 for e4m3 (nearest: scales=None)"
            )
        arrays, threads = arrays_of(q), _threads(threads)
        held = [
            arrays.scales(name, each, shape[2])
            for name, each, shape in zip(NAMES[:3], scales, self._shapes, strict=True)
        ]
        return kept(Plan.prepare, self, arrays, arrays.keys(tensors))(tensors, seed, threads, held)

    def backward(
        self,
        dout: Any,
        q: Any,
        k: Any,
        v: Any,
        o: Any,
        lse: Any,
        *,
        seed: Any = None,
        threads: int = 0,
    ) -> tuple[Any, ...]:
        """(dQ, dK, dV), shaped like q, k and v, from the forward's tensors and dout, like o."""
        return self._run((q, k, v, o, dout, lse), seed, threads)

    def _run(self, tensors: tuple[Any, ...], seed: Any, threads: int) -> tuple[Any, ...]:
        arrays = arrays_of(tensors[0])
        threads = _threads(threads)
        if arrays.are_traced():
            from . import _traced

            return _traced.run_plan(self._name, tensors, seed, threads)
        made = arrays.run_native(*self._native, tensors, seed, threads)
        return made or kept(Plan.prepare, self, arrays, arrays.keys(tensors))(
            tensors, seed, threads
        )

    def prepare(self, arrays: Arrays, keys: tuple[Key, ...]) -> Call:
        """Of the forward for q, k and v, of the backward for q, k, v, o, dout and lse."""
        if arrays.device != self._device:
            raise ValueError(
                f"[tensors] q is on another device than the plan; got {arrays.device}, expected "
                f"{self._device} (nearest: a plan with device='{arrays.device}')"
            )
        q, _k, v = self._shapes
        outputs = [(*q[:3], v[3])] if len(keys) == 3 else self._shapes
        return Call(self._handle, arrays, keys, outputs, (q[0], q[2], q[1]))

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """Device, level, problem, mask (with its visible area) and both passes, as plain data."""
        return _library.describe(self._handle.pointer)

    def dump(self, which: str = "backward") -> dict[str, Any]:
        """The whole plan of a pass, "forward" or "backward", as plain data: its runs, chains, tasks
        and placement (docs/own-orders.md)."""
        if which not in _PASSES:
            raise ValueError(
                f"[plan] there is no such pass; got {which!r}, expected forward or backward "
                "(nearest: backward)"
            )
        return _library.plan_of(self._handle.pointer, _PASSES.index(which))

    @property
    def level(self) -> str:
        """What stays equal when the problem runs again (docs/determinism.md)."""
        return self.description["level"]

    @property
    def contract(self) -> int:
        """The version of the contract, which counts the changes of default bits."""
        return self.description["contract"]

    @functools.cached_property
    def forward_pass(self) -> PassPlan:
        return PassPlan(**self.description["forward"])

    @functools.cached_property
    def backward_pass(self) -> PassPlan:
        """Raises NotImplementedError where there is none: of e4m3, and where `kernels` are a forward
        alone and the device has no kernel of its own for the problem."""
        described = self.description["backward"]
        if described is None:
            raise NotImplementedError(
                f"[backward] nothing runs it here; got {self.problem.dtype}, head dims "
                f"{self.problem.head_dim} and {self.problem.head_dim_v}, expected f32, bf16 or "
                "f16, and a kernel that takes the head dims (nearest: bf16)"
            )
        return PassPlan(**described)

    def explain(self) -> str:
        """A few lines for people: what will run, where, and what it promises."""
        mask = self.description["mask"]
        lines = [f"{mask['name']} on {self.description['device']}, level {self.level}"]
        for name in ("forward", "backward"):
            if self.description[name] is None:
                continue
            each = PassPlan(**self.description[name])
            lines.append(
                f"{name:<9} {each.kernel}, order {' and '.join(each.orders) or 'none'}, tiles "
                f"{each.tile[0]} x {each.tile[1]}, placement {each.placement} over {each.workers} "
                f"workers, workspace {each.workspace_bytes:,} bytes, {each.arithmetic}, plan "
                f"{each.fingerprint}"
            )
        return "\n".join(lines)


def _planned(problem: Problem, mask: Mask | None, options: dict[str, Any]) -> Plan:
    return Plan(problem, mask, **options)


def _threads(count: Any) -> int:
    """What a C int holds."""
    try:
        found = operator.index(count)
    except TypeError:
        found = -1
    if not 0 <= found < 2**31:
        raise ValueError(
            f"[run] threads is out of range; got {count!r}, expected 0 to 2147483647 (nearest: 0)"
        )
    return found


class _Text(Mask):
    """A mask whose JSON is at hand."""

    def __init__(self, spec: str) -> None:
        object.__setattr__(self, "spec", spec)


def _any_order_is_allowed() -> bool:
    """What torch.use_deterministic_algorithms(True) ends."""
    torch = sys.modules.get("torch")
    return torch is None or not torch.are_deterministic_algorithms_enabled()


def _plan_for(
    arrays: Arrays, keys: Sequence[Key], mask: str, settings: Settings, any_order: bool
) -> Plan:
    for name, key in zip(NAMES[:3], keys, strict=False):
        check_dimensions(name, key)
    dtype = _library.DTYPES[arrays.dtype(keys[0][2])]
    problem, options = problem_of([key[0] for key in keys[:3]], dtype, settings, any_order)
    return Plan(problem, _Text(mask), device=arrays.device, **options)


class _Nothing:
    """Plan and calls of an empty batch, whose results have no elements: the library has none."""

    def forward(self, q: Any, k: Any, v: Any, **_: Any) -> tuple[Any, ...]:
        return self((q, k, v))

    def backward(self, dout: Any, *tensors: Any, **_: Any) -> tuple[Any, ...]:
        return self((*tensors[:4], dout, *tensors[4:]))

    @untraced
    def __call__(self, tensors: Sequence[Any], *_: Any) -> tuple[Any, ...]:
        """As a Call's."""
        arrays = arrays_of(tensors[0])
        keys = arrays.keys(tensors)
        for name, key in zip(NAMES[:3], keys, strict=False):
            check_dimensions(name, key)
        q, k, v = (tuple(key[0]) for key in keys[:3])
        for name, got, expected in (("k", k, (0, *k[1:3], q[3])), ("v", v, (0, *k[1:3], v[3]))):
            if got != expected:
                raise ValueError(
                    f"[tensors] wrong shape of {name}; got {list(got)}, expected {list(expected)}"
                )
        arrays.dtype(dtype := keys[0][2])
        if len(keys) > 3:
            return tuple(arrays.maker(shape, dtype)() for shape in (q, k, v))
        lse = arrays.maker((0, q[2], q[1]), arrays.rows_dtype)
        return arrays.maker((*q[:3], v[3]), dtype)(), lse()


_NOTHING = _Nothing()


def _is_empty(keys: Sequence[Key]) -> bool:
    return keys[0][0][:1] == (0,)


def plan_of(q: Any, k: Any, v: Any, mask: str, settings: Settings) -> Plan | _Nothing:
    """The plan for these tensors."""
    arrays = arrays_of(q)
    keys = arrays.keys((q, k, v))
    if _is_empty(keys):
        return _NOTHING
    return kept(_plan_for, arrays, keys, mask, settings, _any_order_is_allowed())


def _prepare(
    arrays: Arrays, keys: tuple[Key, ...], mask: str, settings: Settings, any_order: bool
) -> Call:
    return _plan_for(arrays, keys, mask, settings, any_order).prepare(arrays, keys)


@untraced
def call_of(tensors: tuple[Any, ...], mask: str, settings: Settings) -> Call | _Nothing:
    """The prepared call of a forward for (q, k, v), of a backward for (q, k, v, o, dout, lse)."""
    arrays = arrays_of(tensors[0])
    keys = arrays.keys(tensors)
    if _is_empty(keys):
        return _NOTHING
    return kept(_prepare, arrays, keys, mask, settings, _any_order_is_allowed())
