"""Problems, and what the library keeps of them: made once, found again by what they are made of."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _library
from ._json import json_of

# scale, softcap, dropout, order, forward_order, level, deterministic, arithmetic: as attention()
# takes them
Settings = tuple[float | None, float, float, str, str, str, bool, str]


# Of a generation. Masks that change in every step and layer fill the second long before the first.
_MOST, _MOST_BYTES = 128, 256 << 20


class Problem(NamedTuple):
    """One attention problem: for batch b, query head h and its KV head h // (q_heads / kv_heads)
    S = softcap(scale Q K^T), P = softmax(S over visible keys), O = dropout(P) V."""

    batch: int
    q_heads: int
    kv_heads: int  # divides q_heads
    q_len: int
    kv_len: int
    head_dim: int  # 1 to 256
    head_dim_v: int
    dtype: str  # "f32", "bf16", "f16", or "e4m3" of a forward by a kernel of the caller
    scale: float | None = None  # None: 1 / sqrt(head_dim)
    softcap: float = 0.0  # 0: none; else S = softcap tanh(scale Q K^T / softcap)
    dropout: float = 0.0  # probability that an element of P is dropped
    seed: int = 0  # of the dropout, when a run names no other


class _Generations:
    """What was used since the last change of generations, and in the one before. A change, when the
    younger is full, forgets what is in the older alone: what was not used for longest."""

    def __init__(self) -> None:
        self._younger: dict[tuple[Any, ...], Any] = {}
        self._older: dict[tuple[Any, ...], Any] = {}
        self._bytes = 0  # of the younger
        self._lock = threading.RLock()  # what is forgotten may call something of here

    def get(self, make: Callable[..., Any], *arguments: Any) -> Any:
        key = make, *arguments
        made = self._older.get(key) or make(*arguments)
        with self._lock:
            more = handle_of(made).bytes
            if len(self._younger) == _MOST or self._bytes + more > _MOST_BYTES:
                self._younger, self._older, self._bytes = {}, self._younger, 0
                kept.cache_clear()
            self._younger[key] = made
            self._bytes += more
        return made


# kept(make, *arguments): make(*arguments), or what it returned for equal arguments before: plans
# with their library handles, and calls prepared for the layouts of tensors. There is no other cache
# of either here; what is expensive about a plan the library keeps itself. What the younger
# generation has is found without Python.
kept = functools.lru_cache(maxsize=None)(_Generations().get)


def number(name: str, value: Any) -> float:
    """An argument of attention() that is one, as Python's: plans are kept by what it is now."""
    if isinstance(value, (float, int)):
        return float(value)
    if getattr(value, "requires_grad", False):
        nearest = "q * scale, with scale=1" if name == "scale" else f"{name}.detach()"
        raise NotImplementedError(
            f"[attention] {name} gets no gradient; got a tensor that requires one, expected a "
            f"number (nearest: {nearest})"
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"[attention] {name} is no number; got {value!r}, expected a number"
        ) from None


def specification(problem: Problem, mask: str, **members: Any) -> str:
    """What the library makes a plan of, as JSON. `mask` is Mask.spec."""
    if not isinstance(problem, Problem):
        raise ValueError(
            f"[problem] not a problem; got {type(problem).__name__}, expected verbatim_attn.Problem"
        )
    described = {"problem": problem._asdict(), **members}
    return f'{{"mask": {mask}, {json_of(described, "", "")[1:]}'


# Plans while they live, by the names that operators in compiled code have for them.
named: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()


class Handle:
    """Owns a verbatim_attention, for the plans and calls that share it."""

    functions = _library.forward, _library.backward
    takes_workspace = True

    def __init__(self, spec: str) -> None:
        self.pointer = ctypes.c_void_p()
        _library.check(_library.create(spec.encode(), ctypes.byref(self.pointer)))
        # Not at exit: calls may come later, of other threads and of what ends last.
        weakref.finalize(self, _library.destroy, self.pointer).atexit = False
        found = ctypes.c_int64()
        _library.check(_library.bytes_of(self.pointer, ctypes.byref(found)))
        self.bytes = found.value + len(spec)  # on the host, with the text, which is in a key


def handle_of(made: Any) -> Handle:
    """Of a plan, of a call, or of what _native.py makes."""
    return made[1] if isinstance(made, tuple) else made._handle


def end(destroy: Callable[[ctypes.c_void_p], Any], pointer: ctypes.c_void_p) -> None:
    """Destroys what `pointer` points to, and leaves it NULL."""
    destroy(pointer)
    pointer.value = None


def problem_of(
    shapes: Sequence[Sequence[int]], dtype: str, how: Settings, any_order: bool
) -> tuple[Problem, dict[str, Any]]:
    """The problem of q, k and v of these shapes, and the options of its plan."""
    scale, softcap, dropout, order, forward_order, level, deterministic, arithmetic = how
    order, level = resolve_order(order, level, deterministic, any_order)
    q, k, v = shapes
    problem = Problem(
        q[0], q[2], k[2], q[1], k[1], q[3], v[3], dtype, scale, softcap, dropout
    )  # fmt: skip
    return problem, {
        "order": order,
        "forward_order": forward_order,
        "level": level,
        "arithmetic": arithmetic,
        "defer_backward": True,
    }


def resolve_order(
    order: str, level: str, deterministic: bool, any_order: bool = True
) -> tuple[str, str]:
    """Order and level of a plan. Order "none" adds in any order, at level not_guaranteed; it is
    what "auto" means when nobody asks for determinism and `any_order` is allowed."""
    if order == "none" and deterministic:
        raise ValueError(
            "[attention] order 'none' adds in any order; got deterministic=True, expected "
            "deterministic=False (nearest: order='auto')"
        )
    if order == "none" and not any_order:
        raise RuntimeError(
            "[attention] torch.use_deterministic_algorithms(True) forbids adding in any order; got "
            "order='none', expected the name of an order (nearest: order='auto')"
        )
    if order == "none" or (order == "auto" and not deterministic and any_order):
        return "auto", "not_guaranteed"
    return order, level
