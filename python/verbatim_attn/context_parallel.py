"""Long sequences over the ranks of a torch.distributed group, with the bits of one device."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

from . import _library
from ._arrays import Arrays, Key, arrays_of, arrays_of_device, seed_of
from ._calls import Call
from ._handles import Problem, end, specification
from .masks import Mask, spec_of


class _Handle:
    """Owns a verbatim_dist, and the wire that it calls unless it has peers."""

    functions = _library.dist_forward, _library.dist_backward
    takes_workspace = False

    def __init__(self, spec: str, wire: Any, peers: Any = None) -> None:
        self.wire, self.peers = wire, peers
        self._pointer = ctypes.c_void_p()
        if peers:
            status = _library.dist_create_over_peers(
                spec.encode(), peers.pointer, ctypes.byref(self._pointer)
            )
        else:
            status = _library.dist_create(
                spec.encode(), wire.size, wire.rank, ctypes.byref(wire.transport),
                ctypes.byref(self._pointer),
            )  # fmt: skip
        wire.finish()  # others wait for what this rank found, good or bad
        with _left_when_it_fails(peers):
            _library.check(status)
        # At exit, too: before the peers, whose memory others may read until they are closed.
        weakref.finalize(self, end, _library.dist_destroy, self._pointer)

    @property
    def pointer(self) -> ctypes.c_void_p:
        if not self._pointer:
            raise RuntimeError(
                "[context_parallel] its memory is given back when Python ends; got a later call, "
                "expected the last one before (nearest: atexit.register() behind its making)"
            )
        return self._pointer


@contextlib.contextmanager
def _left_when_it_fails(peers: Any) -> Iterator[None]:
    """The next object of the group has other peers than those over which a call has failed."""
    try:
        yield
    except Exception:  # whatever it is: others may have sent what this rank never takes
        if peers:
            peers.failed = True
        raise


def _device_of(torch: Any, device: Any) -> Any:
    """With an index, if it is a GPU."""
    try:
        found = torch.device(device)
        if found.type == "cuda" and found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(
            f"[context_parallel] there is no such device; got device={device!r}, expected 'cpu', "
            "or 'cuda' or 'cuda:N' of this process (nearest: 'cpu')"
        ) from error
    return found


class _Axis(NamedTuple):
    """Which rows every rank holds, as batch entry * length + position."""

    length: int
    rows: list[Any]  # int64 tensors


class ContextParallel:
    """One attention whose rows are spread over the ranks of `group`.

        parallel = va.ContextParallel(group, problem, mask=va.masks.Causal())
        q, k, v = (parallel.dispatch(x) for x in (q, k, v))   # (1, rows here, heads, dim)
        o = parallel.undispatch(parallel.attention(q, k, v))

    Results and gradients have the bits of va.attention without ranks: for any number of them, any
    strategy and any sharding (docs/context-parallel.md). All ranks make the object and call its
    methods in the same sequence, one call at a time. Making it compares problem, mask, options and
    versions of all ranks.

    Args:
        group: of torch.distributed, None: the default one. Its timeout is that of every transfer.
            Bytes of a GPU go from GPU to GPU where the group has NCCL for them, else through pinned
            memory of the host.
        problem: the sizes of the whole problem (verbatim_attn.Problem).
        mask: one of verbatim_attn.masks; None: every query sees every key.
        strategy: "balanced", "ulysses", "ring", "allgather", "usp" or "loongtrain".
        shard: "contiguous", "zigzag", "document" or "balanced"; "": "balanced".
        ulysses_size: ranks that share heads with usp and loongtrain; 0: chosen.
        ring_window: ranks of an inner ring with loongtrain; 0: chosen.
        order, forward_order, level: as va.attention takes them.
        transport: of messages. "group": through the group. "peers", for ranks of one host: a
            receiver copies from the sender's memory, on GPUs by copy engines, and ranks may share
            one. "auto": "peers" where all ranks can, else "group", the same on every rank; the
            attributes `transport` and `refusal` say which, and why not peers. dispatch and
            undispatch go through the group.
        device: of the tensors, "cpu", "cuda" (the current one) or "cuda:1"; each rank has its own,
            and with gloo ranks may share one.

    Raises:
        ValueError, NotImplementedError: on every rank, when one has bad input or ranks differ; the
            message names the field and the rank.
        NotImplementedError: on every rank, "peers" where ranks are on several hosts, or one
            cannot read another's memory.
        RuntimeError: a transfer failed, here or in any method; names the ranks and the step.
    """

    def __init__(
        self,
        group: Any,
        problem: Problem,
        mask: Mask | None = None,
        *,
        strategy: str = "balanced",
        shard: str = "",
        ulysses_size: int = 0,
        ring_window: int = 0,
        order: str = "auto",
        forward_order: str = "auto",
        level: str = "invariant",
        transport: str = "auto",
        device: Any = "cpu",
    ) -> None:
        import torch

        from . import _ranks

        self._torch, self._operators = torch, _ranks
        # Where a refusal is told from, if that is the device.
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.problem = problem
        spec, refused = "", None
        try:
            self.device = _device_of(torch, device)
            spec = specification(
                problem,
                spec_of(mask),
                options={
                    "order": order,
                    "forward_order": forward_order,
                    "level": level,
                    "device": str(self.device),
                },
                dist={
                    "strategy": strategy,
                    "shard": shard,
                    "ulysses_size": ulysses_size,
                    "ring_window": ring_window,
                },
            )
        except Exception as error:  # whatever it is: the others wait to hear from this rank
            refused = error
        wire = _ranks.Wire(group, self.device)
        #: Why messages go through the group; "" where they do not.
        self.refusal: str
        peers, self.refusal = wire.peers(transport, self.device, refused)
        #: Of messages: "peers" or "group".
        self.transport = "peers" if peers else "group"
        self._handle = _Handle(spec, wire, peers)
        self._calls: dict[tuple[Arrays, tuple[Key, ...]], Call] = {}
        #: World, rank, strategy and shard as chosen; of each rank the ranges that it holds, bytes
        #: that it sends and of its memory; both passes.
        self.description: dict[str, Any] = _library.dist_describe(self._handle.pointer)
        self.rank: int = self.description["rank"]
        self._axes = {
            axis: _Axis(length, [self._rows(r[axis], length) for r in self.description["ranks"]])
            for axis, length in (("q", problem.q_len), ("kv", problem.kv_len))
        }

    def dispatch(self, x: Any, axis: str = "q") -> Any:
        """The rows of this rank, (1, rows, ...), of a whole tensor (batch, length, ...), which all
        ranks have alike. `axis` "kv" where there are other numbers of keys than of queries. Its
        gradient is gathered from all ranks."""
        self._require_tensors(x=x)
        return self._operators.Dispatch.apply(x, self, axis)

    def undispatch(self, x: Any, axis: str = "q") -> Any:
        """The whole tensor, on all ranks, of their shards. Its gradient is taken to be alike on all
        ranks: that of a loss that each of them computes."""
        self._require_tensors(x=x)
        return self._operators.Undispatch.apply(x, self, axis)

    def positions(self, axis: str = "q") -> Any:
        """Of this rank's rows in their sequences, int64 (rows): for rotary embeddings."""
        length, rows = self._axis(axis)
        return (rows[self.rank] % length).to(self.device)

    def attention(
        self, q: Any, k: Any, v: Any, *, seed: Any = None, return_lse: bool = False
    ) -> Any:
        """o (1, rows, q_heads, head_dim_v) of this rank's rows, given its shards of q, k and v.
        With return_lse also the LSE, f32 (1, q_heads, rows), which carries no gradient.

        `seed` of the dropout, an integer or a tensor of one, the same on all ranks; None: the next
        of PyTorch's generator of the device, which they seed alike."""
        self._require_tensors(q=q, k=k, v=v)
        if not self.problem.dropout:
            seed = None
        elif seed is None:
            seed = int(self._torch.randint(2**63 - 1, (), device=self.device))
        else:
            seed = int(seed_of(seed)) % 2**64
        o, lse = self._operators.Attention.apply(q, k, v, self, seed)
        return (o, lse) if return_lse else o

    @contextlib.contextmanager
    def recorded(self) -> Iterator[list[dict[str, Any]]]:
        """What this rank does in the block, when it is over: verbatim_dist_recorded() of
        verbatim/c.h. Waits for the current stream before and after."""
        steps: list[dict[str, Any]] = []
        _library.dist_record(self._handle.pointer, arrays_of_device(self.device).stream())
        try:
            yield steps
        finally:
            steps += _library.dist_recorded(self._handle.pointer)

    def run(self, tensors: tuple[Any, ...], seed: int | None) -> tuple[Any, ...]:
        """(o, lse) of q, k and v; (dq, dk, dv) of q, k, v, o, dout and the LSE."""
        with _left_when_it_fails(self._handle.peers):
            arrays = arrays_of(tensors[0])
            tensors = tuple(x.contiguous() for x in tensors)  # rows move as they lie
            layout = arrays, arrays.keys(tensors)
            if layout not in self._calls:
                self._calls[layout] = self._prepare(*layout)
            try:
                return self._calls[layout](tensors, seed, self._torch.get_num_threads())
            finally:
                self._handle.wire.finish()

    def take(self, x: Any, axis: str) -> Any:
        """dispatch() without autograd."""
        batch, length = self.problem.batch, self._axis(axis).length
        if tuple(x.shape[:2]) != (batch, length):
            other = "kv" if axis == "q" else "q"
            fits_other = tuple(x.shape[:2]) == (batch, self._axis(other).length)
            raise ValueError(
                f"[context_parallel] wrong shape of the whole tensor; got {list(x.shape)}, expected "
                f"({batch}, {length}, ...)" + f" (nearest: axis='{other}')" * fits_other
            )
        rows = self._axes[axis].rows[self.rank]
        return x.flatten(0, 1).index_select(0, rows.to(x.device))[None]

    def give(self, x: Any, axis: str) -> Any:
        """undispatch() without autograd."""
        length, rows = self._axis(axis)
        own = len(rows[self.rank])
        if tuple(x.shape[:2]) != (1, own):
            raise ValueError(
                f"[context_parallel] wrong shape of the shard; got {list(x.shape)}, expected "
                f"(1, {own}, ...)"
            )
        whole = x.new_empty((self.problem.batch * length, *x.shape[2:]))
        for at, part in zip(rows, self._handle.wire.gather(x[0], [*map(len, rows)]), strict=True):
            whole[at.to(x.device)] = part
        return whole.unflatten(0, (self.problem.batch, length))

    def _require_tensors(self, **named: Any) -> None:
        for name, x in named.items():
            if not isinstance(x, self._torch.Tensor):
                raise TypeError(
                    f"[context_parallel] {name} is no PyTorch tensor; got {type(x).__name__}, "
                    f"expected one on {self.device} (nearest: torch.as_tensor({name}))"
                )

    def _axis(self, name: str) -> _Axis:
        if name not in self._axes:
            raise ValueError(
                f"[context_parallel] there is no such axis; got axis={name!r}, expected 'q' or 'kv'"
            )
        return self._axes[name]

    def _rows(self, ranges: list[list[int]], length: int) -> Any:
        arange = self._torch.arange
        parts = [arange(b * length + begin, b * length + end) for b, begin, end in ranges]
        return self._torch.cat([arange(0), *parts])

    def _prepare(self, arrays: Arrays, keys: tuple[Key, ...]) -> Call:
        if arrays.device != str(self.device):
            raise ValueError(
                f"[context_parallel] the tensors are elsewhere; got {arrays.device}, expected "
                f"{self.device} (nearest: q.to('{self.device}'), or device='{arrays.device}')"
            )
        p = self.problem
        q_rows, kv_rows = (len(self._axes[axis].rows[self.rank]) for axis in ("q", "kv"))
        q = (1, q_rows, p.q_heads, p.head_dim)
        k = (1, kv_rows, p.kv_heads, p.head_dim)
        o = (*q[:3], p.head_dim_v)
        outputs = [o] if len(keys) == 3 else [q, k, (*k[:3], p.head_dim_v)]
        return Call(self._handle, arrays, keys, outputs, (1, p.q_heads, q_rows))
