"""Problems and plans: everything about an attention that is known before its tensors are."""

from __future__ import annotations

import ctypes
import functools
import json
from typing import Any, NamedTuple

from . import _library
from ._arrays import arrays_of, seed_address
from .masks import Full, Mask


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
    dtype: str  # "f32", "bf16" or "f16"
    scale: float = 0.0  # 0: 1 / sqrt(head_dim)
    softcap: float = 0.0  # 0: none; else S = softcap tanh(scale Q K^T / softcap)
    dropout: float = 0.0  # probability that an element of P is dropped
    seed: int = 0  # of the dropout, when a run names no other


class PassPlan(NamedTuple):
    """How one pass runs. `fingerprint` covers all that fixes the bits."""

    orders: list[str]  # distinct, over all heads
    tile: list[int]  # queries, keys
    placement: str
    workers: int
    residency: int  # workers that must run at once
    fingerprint: str
    kernel: str
    workspace_bytes: int


class Plan:
    """Forward and backward of one problem under one mask, planned once and run many times.

    Orders, placements and levels are named in docs/scheduling.md and docs/determinism.md;
    `verbatim_attn.orders()` lists the orders. `device` is "cpu", "cuda" or "cuda:N". Plans are
    immutable and may be used by several threads.
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
        device: str = "cpu",
    ) -> None:
        options = {
            "order": order,
            "forward_order": forward_order,
            "level": level,
            "placement": placement,
            "tile": tile,
            "workers": workers,
            "device": device,
        }
        self._handle = ctypes.c_void_p()
        self.problem = problem
        self._q_shape = (problem.batch, problem.q_len, problem.q_heads, problem.head_dim)
        self._k_shape = (problem.batch, problem.kv_len, problem.kv_heads, problem.head_dim)
        self._v_shape = (*self._k_shape[:3], problem.head_dim_v)
        self._o_shape = (*self._q_shape[:3], problem.head_dim_v)
        self._lse_shape = (problem.batch, problem.q_heads, problem.q_len)
        spec = (
            f'{{"problem": {json.dumps(problem._asdict())}, "mask": {(mask or Full()).spec}, '
            f'"options": {json.dumps(options)}}}'
        )
        _library.check(_library.create(spec.encode(), ctypes.byref(self._handle)))

    def __del__(self) -> None:
        if handle := getattr(self, "_handle", None):
            _library.destroy(handle)

    def forward(
        self, q: Any, k: Any, v: Any, *, seed: Any = None, threads: int = 0
    ) -> tuple[Any, Any]:
        """(O, LSE) of arrays or tensors on the plan's device, in the current stream.

        q (batch, q_len, q_heads, head_dim), k (batch, kv_len, kv_heads, head_dim),
        v (batch, kv_len, kv_heads, head_dim_v); o (batch, q_len, q_heads, head_dim_v),
        lse f32 (batch, q_heads, q_len). Rows without a visible key: o = 0, lse = -inf.
        `seed` of the dropout: an integer, or a tensor of one int64 on the plan's device, which is
        read when the work runs; None: the problem's.
        """
        arrays = arrays_of(q)
        (q, q_view), (k, k_view), (v, v_view) = arrays.read(q), arrays.read(k), arrays.read(v)
        o, o_view = arrays.read(arrays.empty(q, self._o_shape))
        lse = arrays.empty_rows(q, self._lse_shape)
        tensors = _library.FORWARD.pack(*q_view, *k_view, *v_view, *o_view, arrays.address(lse))
        self._run(_library.forward, arrays, q, tensors, threads, seed)
        return o, lse

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
    ) -> tuple[Any, Any, Any]:
        """(dQ, dK, dV), shaped like q, k and v, from the forward's tensors and dout, like o."""
        arrays = arrays_of(q)
        read, empty = arrays.read, arrays.empty
        (q, q_view), (k, k_view), (v, v_view) = read(q), read(k), read(v)
        (o, o_view), (dout, dout_view) = read(o), read(dout)
        lse = arrays.ready_rows(lse, self._lse_shape)
        dq, dq_view = read(empty(q, self._q_shape))
        dk, dk_view = read(empty(q, self._k_shape))
        dv, dv_view = read(empty(q, self._v_shape))
        tensors = _library.BACKWARD.pack(
            *q_view, *k_view, *v_view, *o_view, *dout_view, arrays.address(lse),
            *dq_view, *dk_view, *dv_view,
        )  # fmt: skip
        self._run(_library.backward, arrays, q, tensors, threads, seed)
        return dq, dk, dv

    def _run(
        self, function: Any, arrays: Any, q: Any, tensors: bytes, threads: int, seed: Any
    ) -> None:
        value = at = 0
        if hasattr(seed, "data_ptr"):
            at = seed_address(seed, arrays.device)
        elif seed is not None:
            own = ctypes.c_uint64(seed)  # kept until the call has read it
            value = ctypes.addressof(own)
        run = _library.RUN.pack(arrays.stream(q), threads, value, at)
        _library.check(function(self._handle, tensors, run))

    @functools.cached_property
    def description(self) -> dict[str, Any]:
        """Device, level, problem, mask (with its visible area) and both passes, as plain data."""
        return _library.describe(self._handle)

    @property
    def level(self) -> str:
        """What stays equal when the problem runs again (docs/determinism.md)."""
        return self.description["level"]

    @functools.cached_property
    def forward_pass(self) -> PassPlan:
        return PassPlan(**self.description["forward"])

    @functools.cached_property
    def backward_pass(self) -> PassPlan:
        return PassPlan(**self.description["backward"])

    def explain(self) -> str:
        """A few lines for people: what will run, where, and what it promises."""
        mask = self.description["mask"]
        lines = [f"{mask['name']} on {self.description['device']}, level {self.level}"]
        for name, each in (("forward", self.forward_pass), ("backward", self.backward_pass)):
            lines.append(
                f"{name:<9} {each.kernel}, order {' and '.join(each.orders) or 'none'}, tiles "
                f"{each.tile[0]} x {each.tile[1]}, placement {each.placement} over {each.workers} "
                f"workers, workspace {each.workspace_bytes:,} bytes, plan {each.fingerprint}"
            )
        return "\n".join(lines)
