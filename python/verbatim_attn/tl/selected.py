"""Attention over blocks of keys that lists name (docs/tl-nsa.md)."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import _library
from .._arrays import arrays_of
from .._calls import Call
from .._handles import Problem, specification
from ..masks import Mask, spec_of


class _WithLists(NamedTuple):
    """A handle as a Call takes it, with the lists of one call."""

    pointer: ctypes.c_void_p
    functions: tuple[Callable[..., int]]
    takes_workspace: bool = False


class SelectedAttention:
    """The forward of a program whose blocks an index tensor names, `param sel = index` or
    `query_index`: of native sparse attention the branch of selected blocks. Not differentiable.

    `program` is TL code, on a GPU the path of a library that `verbatim tl build` made. `mask` is
    the one that the program names. `device` is "cpu", "cuda" or "cuda:N".
    """

    def __init__(
        self,
        problem: Problem,
        mask: Mask | None,
        program: str,
        *,
        level: str = "invariant",
        device: str = "cpu",
    ) -> None:
        self.problem = problem
        self._device = "cuda:0" if device == "cuda" else device
        spec = specification(problem, spec_of(mask), kernel=program, level=level, device=device)
        self._pointer = ctypes.c_void_p()
        _library.check(_library.selected_create(spec.encode(), ctypes.byref(self._pointer)))
        weakref.finalize(self, _library.selected_destroy, self._pointer).atexit = False

    def forward(self, q: Any, k: Any, v: Any, blocks: Any, *, threads: int = 0) -> tuple[Any, ...]:
        """(O, LSE), as Plan.forward, over the blocks that lists name.

        blocks: integers (batch, kv_heads, lists, room), an array or a tensor on any device: for
        each list of `q_edges` the numbers of its blocks, in turn, and -1 behind the last. On the
        host all are checked before anything runs. A tensor on a GPU is checked there, in the
        current stream: O and LSE of a wrong list's queries are NaN, and the next call says which.
        """
        arrays = arrays_of(q)
        if arrays.device != self._device:
            raise ValueError(
                f"[tensors] q is on another device than the program; got {arrays.device}, expected "
                f"{self._device} (nearest: device='{arrays.device}')"
            )
        on_device = arrays.device != "cpu" and str(getattr(blocks, "device", "")) == arrays.device
        lists: Any = _on_device(blocks) if on_device else _lists(blocks)
        address = lists.data_ptr() if on_device else lists.ctypes.data
        packed = _library.SELECTED.pack(address, *lists.shape)

        def forward(pointer: ctypes.c_void_p, tensors: bytes, run: bytes) -> int:
            return _library.selected_forward(pointer, tensors, packed, run)

        p = self.problem
        shapes = [(p.batch, p.q_len, p.q_heads, p.head_dim_v)]
        call = Call(
            _WithLists(self._pointer, (forward,)),
            arrays,
            arrays.keys((q, k, v)),
            shapes,
            (p.batch, p.q_heads, p.q_len),
        )
        return call((q, k, v), None, threads)

    @functools.cached_property
    def _description(self) -> dict[str, Any]:
        return _library.selected_describe(self._pointer)

    @property
    def q_edges(self) -> list[int]:
        """Where the queries of each list begin, then their end."""
        return self._description["q_edges"]

    @property
    def kv_edges(self) -> list[int]:
        """Where the keys of each block begin, then their end."""
        return self._description["kv_edges"]

    @property
    def arithmetic(self) -> str:
        """The hash of the program: another one gives other bits."""
        return self._description["arithmetic"]


def _lists(blocks: Any) -> np.ndarray:
    given = np.asarray(blocks.detach().cpu() if hasattr(blocks, "detach") else blocks)
    _check(given, given.dtype.kind in "iu")
    lists = np.ascontiguousarray(given, dtype=np.int32)
    if not np.array_equal(lists, given):
        raise ValueError(
            f"[blocks] a number fits no int32; got {given.min()} to {given.max()}, expected the "
            "numbers of blocks, or -1 (nearest: int32)"
        )
    return lists


def _on_device(blocks: Any) -> Any:
    """int32 without gaps; what does not fit stays a number that is no block."""
    import torch

    real = blocks.is_floating_point() or blocks.is_complex() or blocks.dtype == torch.bool
    _check(blocks, not real)
    if blocks.dtype == torch.int64:
        most = torch.iinfo(torch.int32)
        blocks = blocks.clamp(most.min, most.max)
    return blocks.to(torch.int32).resolve_neg().contiguous()


def _check(blocks: Any, integers: bool) -> None:
    if blocks.ndim == 4 and integers:
        return
    raise ValueError(
        f"[blocks] lists are integers of four dimensions; got {blocks.dtype} "
        f"{tuple(blocks.shape)}, expected (batch, kv_heads, lists, room) (nearest: int32)"
    )
