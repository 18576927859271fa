"""The checks: each varies one thing that must not matter, and yields results beside what was
expected of them."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import environment
from .bits import on_host, torch_of
from .subject import NotChecked, Outputs, Subject

Runs = Iterator[tuple[Outputs, Outputs]]  # got, expected


@dataclass(frozen=True)
class Case:
    """What the checks are given."""

    subject: Subject
    expected: Outputs  # of the first run
    repeats: int
    processes: int
    timeout: float  # seconds of each
    packed: Callable[..., Any] | None
    doc_lengths: Sequence[int] | None
    padded: Callable[..., Any] | None


class Check(NamedTuple):
    name: str
    verdict: str  # that it belongs to
    runs: Callable[[Case], Runs]

    @property
    def varies(self) -> str:
        """The first sentence of its documentation."""
        return " ".join((self.runs.__doc__ or "").split()).partition(".")[0]


def repeats(case: Case) -> Runs:
    """Nothing: the same call again and again."""
    for _ in range(case.repeats):
        yield case.subject.run(), case.expected


def load(case: Case) -> Runs:
    """Work beside it: busy threads on the CPU, matrix products on a side stream on CUDA."""
    if case.subject.on_cuda:
        beside = _side_stream(case.subject.device)
        for _ in range(case.repeats):
            beside()
            yield case.subject.run(), case.expected
    else:
        with _busy_threads(2 * (os.cpu_count() or 1)):
            for _ in range(case.repeats):
                yield case.subject.run(), case.expected


def threads(case: Case) -> Runs:
    """The number of CPU threads: 1, 2, 3 and 8. Set by torch.set_num_threads for tensors; for
    arrays by the method set_threads of fn, where it has one: 0 is its own choice."""
    if case.subject.on_cuda:
        raise NotChecked("the function runs on a GPU")
    set_threads, before = getattr(case.subject.fn, "set_threads", None), 0
    if case.subject.device is not None:
        import torch

        set_threads, before = torch.set_num_threads, torch.get_num_threads()
    if set_threads is None:
        raise NotChecked("NumPy has no number of threads to set, and fn no method set_threads")
    try:
        for count in (1, 2, 3, 8):
            set_threads(count)
            yield case.subject.run(), case.expected
    finally:
        set_threads(before)


def sms(case: Case) -> Runs:
    """The multiprocessors it may use: half of them, then eight (a CUDA green context)."""
    _needs_cuda(case)
    import torch

    try:
        from torch.cuda.green_contexts import GreenContext
    except ImportError:
        raise NotChecked(f"PyTorch {torch.__version__} has no torch.cuda.green_contexts") from None
    device = case.subject.device
    every = torch.cuda.get_device_properties(device).multi_processor_count
    for count in (every // 2, 8):
        with _refusal_is_no_check():
            context: Any = GreenContext.create(count, device.index or 0)
            context.set_context()
            try:
                # Autograd's own threads would run the backward outside the context.
                with torch.autograd.set_multithreading_enabled(False):
                    got = case.subject.run()
                torch.cuda.synchronize(device)
            finally:
                try:
                    context.pop_context()
                except RuntimeError:  # it was not the current one
                    raise NotChecked("fn makes another CUDA context current") from None
        yield got, case.expected


def graph(case: Case) -> Runs:
    """Replays of a captured CUDA graph in place of calls."""
    _needs_cuda(case)
    import torch

    with _refusal_is_no_check(), torch.cuda.device(case.subject.device):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # what the first call sets up must not be captured
            case.subject.run()
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            got = case.subject.run()
    given = {x.untyped_storage().data_ptr() for x in case.subject.inputs.values() if torch_of(x)}
    written = [x for x in got.values() if x.untyped_storage().data_ptr() not in given]
    for _ in range(case.repeats):
        for x in written:
            x.zero_()  # a replay that writes nothing must show
        captured.replay()
        yield got, case.expected


def processes(case: Case) -> Runs:
    """The process: new ones, with their own addresses and hash seeds."""
    try:
        call = pickle.dumps((environment.settings(), case.subject))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise NotChecked(f"another process cannot import fn: {error}") from error
    if getattr(case.subject.fn, "__module__", None) == "__main__":
        raise NotChecked("another process cannot import fn: it lives in __main__, not in a module")
    expected = {name: on_host(x) for name, x in case.expected.items()}
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder, "call"), Path(folder, "outputs")
        question.write_bytes(call)
        for _ in range(case.processes):
            try:
                done = subprocess.run(
                    [sys.executable, "-m", f"{__package__}.process", question, answer],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                    check=False,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=case.timeout,
                )
            except subprocess.TimeoutExpired:
                raise NotChecked(f"the new process was stopped after {case.timeout:g} s") from None
            if done.returncode:
                last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
                raise NotChecked(f"the new process failed: {last}")
            yield pickle.loads(answer.read_bytes()), expected


def batch(case: Case) -> Runs:
    """The batch: each entry alone, the batch reversed, and twice the batch and one entry more."""
    yield from _parts(case, "b")


def heads(case: Case) -> Runs:
    """The heads: each (a KV head with its query heads) alone, reversed, and more of them."""
    yield from _parts(case, "h")


def _parts(case: Case, letter: str) -> Runs:
    units = case.subject.units(letter)
    every = list(range(units))
    for indices in (*([i] for i in every), every[::-1], [*every, *every, 0]):
        expected = case.subject.part_of(case.expected, letter, indices)
        with _refusal_is_no_check():
            got = case.subject.part(letter, indices).run()
        yield {name: got[name] for name in expected if name in got}, expected


def packing(case: Case) -> Runs:
    """Where a document lies: alone, and packed with others along the length."""
    whole, together = _together(case)
    for begin, end in _edges(case):
        expected = whole.part_of(together, "l", range(begin, end))
        with _refusal_is_no_check():
            got = whole.part("l", range(begin, end), fn=case.subject.fn).run()
        yield {name: got[name] for name in expected if name in got}, expected


def neighbours(case: Case) -> Runs:
    """What other batch entries hold, and other documents of the packed form: NaN, infinities and
    large numbers in every other one."""
    units = case.subject.units("b")
    every = list(range(units)) if units > 1 else [0, 0]
    beside = case.subject.part("b", every)
    for first in range(2):
        others, kept = _every_other(range(len(every)), first)
        expected = case.subject.part_of(case.expected, "b", [every[i] for i in kept])
        with _refusal_is_no_check():
            got = beside.spoiled("b", others).run()
        yield beside.part_of(got, "b", kept), expected
    if len(_edges(case)) < 2:
        return
    try:
        whole, together = _together(case)
    except NotChecked:
        return  # packing says why
    for first in range(2):
        others, kept = (
            [i for edge in edges for i in range(*edge)]
            for edges in _every_other(_edges(case), first)
        )
        with _refusal_is_no_check():
            got = whole.spoiled("l", others).run()
        yield whole.part_of(got, "l", kept), whole.part_of(together, "l", kept)


def padding(case: Case) -> Runs:
    """What hidden rows and keys hold, and how many there are: 3 and 301 of NaN, infinities and
    large numbers behind each entry and before it, against none."""
    if case.padded is None:
        raise NotChecked("no padded function was given")
    length = case.subject.units("l")
    if set(case.subject.sizes("l").values()) != {length}:
        raise NotChecked("the lengths of the inputs differ")
    exists = list(range(length))
    expected = case.subject.part_of(case.expected, "l", exists)
    for more, side in itertools.product((3, 301), ("right", "left")):
        hidden = [0] * more
        longer = case.subject.part(
            "l",
            exists + hidden if side == "right" else hidden + exists,
            fn=_Form(case.padded, {"length": length, "side": side}),
        )
        begin = 0 if side == "right" else more
        kept = range(begin, begin + length)
        with _refusal_is_no_check():
            got = longer.spoiled("l", [i for i in range(length + more) if i not in kept]).run()
        yield longer.part_of(got, "l", kept), expected


def _every_other(parts: Sequence[Any], first: int) -> tuple[list[Any], list[Any]]:
    """Every second part from `first` on, and the others."""
    return list(parts[first::2]), list(parts[1 - first :: 2])


def _edges(case: Case) -> list[tuple[int, int]]:
    """Where each document begins and ends, but for the empty ones."""
    edges = itertools.pairwise(itertools.accumulate(case.doc_lengths or (), initial=0))
    return [(begin, end) for begin, end in edges if begin < end]


def _together(case: Case) -> tuple[Subject, Outputs]:
    """The documents packed, and what the packed form makes of them."""
    if case.packed is None or case.doc_lengths is None:
        raise NotChecked("no packed function was given")
    length, lengths = case.subject.units("l"), tuple(case.doc_lengths)
    if sum(lengths) != length:
        raise ValueError(
            f"[audit] doc_lengths do not sum to the length; got {sum(lengths)}, expected {length}"
        )
    form = _Form(case.packed, {"doc_lengths": lengths})
    whole = dataclasses.replace(case.subject, fn=form, dout={})
    with _refusal_is_no_check():
        return whole, whole.run_to_keep()


@dataclass(frozen=True)
class _Form:
    """Another form of the function, with what it takes by name besides the inputs."""

    fn: Callable[..., Any]
    how: dict[str, Any]

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self.fn(*args, **named, **self.how)


@contextmanager
def _refusal_is_no_check() -> Iterator[None]:
    """For calls of another kind than the first, which a function may rightly refuse."""
    try:
        yield
    except NotChecked:
        raise
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise NotChecked(f"refused: {type(error).__name__}: {first}") from error


def _needs_cuda(case: Case) -> None:
    if not case.subject.on_cuda:
        raise NotChecked("the inputs are not on a CUDA device")


@contextmanager
def _busy_threads(count: int) -> Iterator[None]:
    """Threads that stream memory, for as long as the block runs."""
    stop = threading.Event()

    def work() -> None:
        memory = np.ones(1 << 20)
        while not stop.is_set():
            np.negative(memory, out=memory)

    busy = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in busy:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in busy:
            thread.join()


def _side_stream(device: Any) -> Callable[[], None]:
    """A function that enqueues a few milliseconds of matrix products on a stream of its own."""
    import torch

    factor = torch.ones(4096, 4096, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(factor)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))

    def enqueue() -> None:
        with torch.cuda.stream(stream):
            for _ in range(20):
                torch.mm(factor, factor, out=product)

    return enqueue


CHECKS = [
    Check("repeats", "repeatable", repeats),
    Check("load", "repeatable", load),
    Check("threads", "repeatable", threads),
    Check("sms", "repeatable", sms),
    Check("graph", "repeatable", graph),
    Check("processes", "repeatable", processes),
    Check("batch", "batch_invariant", batch),
    Check("heads", "batch_invariant", heads),
    Check("packing", "packing_invariant", packing),
    Check("neighbours", "isolated", neighbours),
    Check("padding", "isolated", padding),
]
VERDICTS = ("repeatable", "batch_invariant", "packing_invariant", "isolated")
