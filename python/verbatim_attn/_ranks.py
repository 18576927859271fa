"""Bytes between the ranks of a torch.distributed group, and the autograd of context parallelism."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import re
import time
import uuid
import weakref
from collections import deque
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from . import _library
from ._handles import end

_FIRST_TAG = 1 << 30  # tags below are the user's
_SHARD, _FIRST = -100, -101  # messages of gather() and _meet(); the library's own are above
_NAMES = {_SHARD: "a shard", _FIRST: "the first message"}
_POLL, _OPENING = 1e-4, 60.0  # seconds


class Wire:
    """Messages of ranks that compute on `device`, over a process group: from GPU to GPU where it has
    NCCL for them, also where it has nothing for the host; else through the host.

    A send keeps its bytes until they are taken, for gloo and NCCL wait for the receiver: where the
    library made the message in room of ours the message itself, else a copy. With NCCL the messages
    of one direction have communicators, and so streams, of their own: a stream on which a send waits
    for its receiver would hold up the receive behind it. A launch comes behind the sends before it:
    those that still waited would hold multiprocessors that its chains need at once. From GPU to GPU
    the caller's stream waits for transfers and the host does not, but for messages below 0, which
    it reads.

    Keeps no group alive: the threads of one that is still there when Python ends may abort the
    process, so that destroying it has to end them.
    """

    def __init__(self, group: Any, device: torch.device) -> None:
        group = group or dist.group.WORLD
        self._ranks = dist.get_process_group_ranks(group)
        self.rank, self.size = dist.get_rank(group), len(self._ranks)
        self._device = torch.device("cpu")  # where messages are sent from
        self._group = self._up = self._down = weakref.ref(group)
        self._timeout: Any = None
        backends = dist.get_backend_config(group)
        if "cuda:nccl" in backends and (device.type == "cuda" or "cpu:" not in backends):
            current = torch.device("cuda", torch.cuda.current_device())
            self._device = device if device.type == "cuda" else current
            self._timeout = self._given_timeout()
            self._up, self._down = map(weakref.ref, _both_ways(group, self._timeout))
        self._sent: list[tuple[int, int, Any, Tensor]] = []  # that may still be on their way
        # What streams wait for: what to say where it does not end, since when, the work.
        self._under_way: deque[tuple[str, float, Any]] = deque()
        self._told: Any = None  # the text of the last failure
        self._memory = device if device == self._device else torch.device("cpu")  # the library's
        self._in_stream = self._memory.type == "cuda"
        self._room: Tensor | None = None  # where the library makes the next messages
        self.transport = _library.Transport(
            None,
            # Unless messages are sent from elsewhere than the library has them.
            _library.ROOM(self._make_room) if device == self._device else _library.ROOM(),
            _library.MOVE(self._send_bytes),
            _library.MOVE(self._receive_bytes),
            self._in_stream,
            _library.SETTLE(self._settle) if self._in_stream else _library.SETTLE(),
        )
        if self._timeout is not None:
            self._meet()

    def _meet(self) -> None:
        """NCCL makes the communicator of two ranks when both call for it, and the first waits on the
        host: so pairs meet here one after another, in the same sequence on all ranks."""
        byte = torch.zeros(1, dtype=torch.uint8, device=self._device)
        for pair in itertools.combinations(range(self.size), 2):
            for sender, receiver in (pair, pair[::-1]):
                if self.rank == sender:
                    self.send(receiver, _FIRST, byte)
                elif self.rank == receiver:
                    self.receive(sender, _FIRST, byte)
        self.finish()

    def _given_timeout(self) -> Any:
        """The group's."""
        return _alive(self._group)._get_backend(self._device).options._timeout

    def peers(
        self, transport: str, device: torch.device, refused: Exception | None
    ) -> tuple[Peers | None, str]:
        """The ranks as peers, or None and why: their messages go through the group. All ranks call
        this, and find the same: "auto" takes peers where every rank has opened them. These take
        memory and time, so that objects of one group share them until a call over them fails.
        Raises on every rank: ValueError for what one has `refused` before, which itself raises
        that, for an unknown transport of one, or another than rank 0's; NotImplementedError where
        "peers" cannot be had."""
        of_group = _opened.setdefault(_alive(self._group), {})
        kept = of_group.get(device)
        own = kept.name if kept and kept.pointer and not kept.failed else "none"
        if refused:
            own, transport = "refused", str(refused) or type(refused).__name__
        told = self.tell(f"{own} {_host()} {uuid.uuid4().hex} {transport}")
        names, hosts, new, asked = zip(*(text.split(" ", 3) for text in told), strict=True)
        if refused:
            raise refused
        for rank, its in enumerate(asked):
            if names[rank] == "refused":
                raise ValueError(re.sub(r"^(\[\S+\] )?", rf"\g<1>rank {rank}: ", its))
            if its not in ("auto", "group", "peers"):
                raise ValueError(
                    f"[context_parallel] unknown transport of rank {rank}; got '{its}', expected "
                    "'auto', 'group' or 'peers' (nearest: 'auto')"
                )
            if its != asked[0]:
                raise ValueError(
                    f"[context_parallel] transport of rank {rank} is another; got '{its}', expected "
                    f"'{asked[0]}', as rank 0 has"
                )
        if transport == "group":
            return None, "the group was asked for"
        if kept and own != "none" and set(names) == {own}:
            return kept, ""
        opened, refusal = self._open(hosts, new[0], device)
        if opened:
            of_group[device] = opened
        elif transport == "peers":
            raise NotImplementedError(f"[context_parallel] {refusal}")
        return opened, refusal

    def _open(
        self, hosts: tuple[str, ...], name: str, device: torch.device
    ) -> tuple[Peers | None, str]:
        """Peers, or why some rank has none."""
        elsewhere = [rank for rank, host in enumerate(hosts) if host != hosts[0]]
        if elsewhere:
            return None, (
                f"ranks 0 and {elsewhere[0]} are on two hosts, or share no memory; got "
                "transport='peers', expected ranks of one host (nearest: 'group')"
            )
        peers, trouble = None, ""
        try:
            timeout = self._given_timeout().total_seconds()
            # All have just met. Who finds no other here can still tell it in time.
            opening = min(timeout / 2, _OPENING)
            peers = Peers(name, self, device, opening, timeout)
        except Exception as error:  # whatever it is: the others wait for what this rank has found
            trouble = f"{time.monotonic()} {error}"
        troubles = {rank: text for rank, text in enumerate(self.tell(trouble)) if text}
        if not troubles:
            return peers, ""
        # The first is why others waited in vain.
        rank = min(troubles, key=lambda rank: float(troubles[rank].split()[0]))
        for _ in troubles:  # it may have seen the end of one that was yet to say why
            ended = re.search(r"rank (\d+) has ended", troubles[rank])
            if not ended or int(ended[1]) not in troubles:
                break
            rank = int(ended[1])
        return None, f"rank {rank} has no peers; {troubles[rank].partition(' ')[2]}"

    def tell(self, text: str) -> list[str]:
        """What every rank tells; the first 1,000 bytes."""
        own = bytearray(text.encode()[:1000].ljust(1000))
        texts = self.gather(torch.frombuffer(own, dtype=torch.uint8), self.size * [len(own)])
        return [bytes(each.tolist()).decode(errors="replace").rstrip() for each in texts]

    def send(self, to: int, message: int, flat: Tensor) -> None:
        """Of memory that nobody else writes."""
        group = self._up if self.rank < to else self._down
        work = dist.isend(flat, self._ranks[to], _alive(group), self._tag(message))
        self._sent.append((to, message, work, flat))

    def receive(self, source: int, message: int, flat: Tensor) -> None:
        group = self._up if source < self.rank else self._down
        work = dist.irecv(flat, self._ranks[source], _alive(group), self._tag(message))
        if self._in_stream and message >= 0:
            missed = f"message {message} of rank {source} did not come to rank {self.rank}"
            self._follow(missed, work)
        else:
            self._wait(work)

    def finish(self) -> None:
        """What the caller does next comes after all that was sent is taken. Finds transfers that have
        been under way for longer than the group's timeout."""
        self._room = None
        self._await_sent()
        while self._under_way and self._under_way[0][2].is_completed():
            self._under_way.popleft()
        for missed, begin, _work in itertools.islice(self._under_way, 1):
            if time.monotonic() > begin + self._timeout.total_seconds():
                self._under_way.clear()
                raise _overdue(missed, f"no transfer in {self._timeout}")

    def _await_sent(self) -> None:
        sent, self._sent = self._sent, []
        for to, message, work, _copy in sent:
            what = f"message {message}" if message >= 0 else _NAMES.get(message, "the answer")
            missed = f"rank {to} did not take {what} of rank {self.rank}"
            if self._in_stream:
                self._follow(missed, work)
                continue
            try:
                self._wait(work)
            except Exception as error:
                raise _overdue(missed, error) from error

    def _follow(self, missed: str, work: Any) -> None:
        work.wait()  # of NCCL: holds up the stream, not the host
        self._under_way.append((missed, time.monotonic(), work))

    def gather(self, shard: Tensor, rows: list[int]) -> list[Tensor]:
        """The shards of all ranks, of so many rows each."""
        own = self._staged(shard.resolve_conj().resolve_neg().contiguous())
        shards = []
        try:
            for r in range(self.size):
                if r != self.rank and shard.numel():
                    self.send(r, _SHARD, _bytes(own))
            for r, n in enumerate(rows):
                part = own if r == self.rank else own.new_empty((n, *shard.shape[1:]))
                if r != self.rank and part.numel():
                    self.receive(r, _SHARD, _bytes(part))
                shards.append(part.to(shard.device))
        except Exception as error:
            self._sent = []
            raise RuntimeError(
                f"[context_parallel] a shard of rank {len(shards)} did not come to rank "
                f"{self.rank}; got {error}, expected it within the group's timeout"
            ) from error
        self.finish()
        return shards

    @staticmethod
    def _tag(message: int) -> int:
        return _FIRST_TAG + message % _FIRST_TAG

    def _wait(self, work: Any) -> None:
        """On the host."""
        if self._timeout is None:
            work.wait()  # at most the group's timeout
            return
        end = time.monotonic() + self._timeout.total_seconds()
        while not work.is_completed():
            if time.monotonic() > end:
                raise TimeoutError(f"no transfer in {self._timeout}")
            time.sleep(_POLL)
        work.wait()

    def _staged(self, x: Tensor) -> Tensor:
        """x where messages are: itself, or a copy, in pinned memory when that is the host's."""
        if x.device.type == self._device.type:
            return x
        pinned = self._device.type == "cpu"
        return torch.empty(x.shape, dtype=x.dtype, device=self._device, pin_memory=pinned).copy_(x)

    def _make_room(self, _user: Any, size: int) -> int | None:
        self._room = None  # what was not sent of it is not needed any more
        try:
            self._room = torch.empty(size, dtype=torch.uint8, device=self._device)
        except BaseException:
            return None  # the library has memory of its own, or fails
        return self._room.data_ptr()

    def _send_bytes(self, _user: Any, to: int, message: int, address: int, size: int) -> Any:
        try:
            begin = address - self._room.data_ptr() if self._room is not None else -1
            if self._room is not None and 0 <= begin <= len(self._room) - size:
                own = self._room[begin : begin + size]
            else:
                own = torch.empty(size, dtype=torch.uint8, device=self._device)
                own.copy_(self._view(message, address, size))
            self.send(to, message, own)
        except BaseException as error:
            return self._failed(error)
        return None

    def _receive_bytes(self, _user: Any, source: int, message: int, address: int, size: int) -> Any:
        try:
            view = self._view(message, address, size)
            if self._device.type == view.device.type:
                self.receive(source, message, view)
            else:
                flat = torch.empty(size, dtype=torch.uint8, device=self._device)
                self.receive(source, message, flat)
                view.copy_(flat)
        except BaseException as error:
            return self._failed(error)
        return None

    def _settle(self, _user: Any) -> Any:
        try:
            self._await_sent()
        except BaseException as error:
            return self._failed(error)
        return None

    def _view(self, message: int, address: int, size: int) -> Tensor:
        """Memory of the library; that of a comparison is the host's."""
        if message >= 0 and self._in_stream:
            return torch.as_tensor(_DeviceMemory(address, size), device=self._memory)
        return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)

    def _failed(self, error: BaseException) -> int:
        self._sent, self._room = [], None  # whose receivers are gone
        self._under_way.clear()
        self._told = ctypes.create_string_buffer(f"{type(error).__name__}: {error}".encode())
        return ctypes.addressof(self._told)


class Peers:
    """Owns a verbatim_peers: ranks of one host, which read each other's memory and meet by a name
    that no others have. Once a call over them has `failed`, all do."""

    def __init__(
        self, name: str, wire: Wire, device: torch.device, opening: float, timeout: float
    ) -> None:
        self.name, self.failed = name, False
        self.pointer = ctypes.c_void_p()
        status = _library.peers_open(
            name.encode(), wire.size, wire.rank, str(device).encode(), opening, timeout,
            ctypes.byref(self.pointer),
        )  # fmt: skip
        _library.check(status)
        weakref.finalize(self, end, _library.peers_close, self.pointer)


# Of groups, until they are destroyed: their peers by device, and what _both_ways() makes.
_opened: weakref.WeakKeyDictionary[Any, dict[torch.device, Peers]] = weakref.WeakKeyDictionary()
_ways: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


def _alive(group: weakref.ref[Any]) -> Any:
    found = group()
    if found is None:
        raise RuntimeError(
            "[context_parallel] the group has been destroyed; got no group, expected it to be there "
            "for every call (nearest: dist.destroy_process_group() behind the last one)"
        )
    return found


def _host() -> str:
    """Alike where processes share memory; no other's where that cannot be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot} {os.stat('/dev/shm').st_dev}".encode()).hexdigest()
    except OSError:
        return uuid.uuid4().hex


def _both_ways(group: Any, timeout: Any) -> list[Any]:
    """Groups of the ranks of `group` for messages to higher and to lower ranks. Communicators take
    memory and time, so that objects of one group share them."""
    if group not in _ways:
        ranks = dist.get_process_group_ranks(group)
        _ways[group] = [
            dist.new_group(ranks, timeout, backend="nccl", use_local_synchronization=True)
            for _ in range(2)
        ]
    return _ways[group]


def _overdue(missed: str, got: object) -> RuntimeError:
    return RuntimeError(
        f"[context_parallel] {missed}; got {got}, expected it within the group's timeout"
    )


def _bytes(x: Tensor) -> Tensor:
    return x.reshape(-1).view(torch.uint8)


class _DeviceMemory:
    """Bytes on a GPU, as PyTorch takes them without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, parallel: Any, seed: Any) -> Any:
        o, lse = parallel.run((q, k, v), seed)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.parallel, ctx.seed = parallel, seed
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _dlse: Any) -> Any:
        q, k, v, o, lse = ctx.saved_tensors
        gradients = Gradients.apply(q, k, v, o, dout, lse, ctx.parallel, ctx.seed)
        return (*gradients, None, None)


class Gradients(torch.autograd.Function):
    """Differentiated only to be refused: else what depends on gradients would lose a part."""

    @staticmethod
    def forward(_ctx: Any, *arguments: Any) -> Any:
        *tensors, parallel, seed = arguments
        return parallel.run(tuple(tensors), seed)

    @staticmethod
    def backward(_ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "[context_parallel] there are no second derivatives; got a gradient of dq, dk or dv, "
            "expected gradients of o alone"
        )


class Dispatch(torch.autograd.Function):
    """The gradient of a whole tensor is gathered, as that of a shard is taken from the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, parallel: Any, axis: str) -> Tensor:
        ctx.parallel, ctx.axis = parallel, axis
        return parallel.take(x, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Undispatch.apply(gradient, ctx.parallel, ctx.axis), None, None


class Undispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, parallel: Any, axis: str) -> Tensor:
        ctx.parallel, ctx.axis = parallel, axis
        return parallel.give(x, axis)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return Dispatch.apply(gradient, ctx.parallel, ctx.axis), None, None
