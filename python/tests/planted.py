"""Functions with one planted fault each, for test_audit.py. New processes import them from here."""

import sys
import threading
import time

import numpy as np

PROCESS = hash("verbatim")  # another in every process, unless PYTHONHASHSEED is set


def honest(x):
    """Rows that know nothing of one another."""
    return x * 3 + 1


class ReturnsMore:
    """Something more with every call but the first, which nothing is compared with."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        return {"out": x, **({"extra": x} if self.calls > 1 else {})}


class InOneBuffer:
    """fn, whose results of one shape all lie in the same memory, as those of a CUDA graph do."""

    def __init__(self, fn):
        self.fn, self.buffers = fn, {}

    def __call__(self, x, **how):
        found = self.fn(x, **how)
        buffer = self.buffers.setdefault(found.shape, np.empty_like(found))
        buffer[...] = found
        return buffer


def packed(x, *, doc_lengths):
    return honest(x)


def packed_wrong(x, *, doc_lengths):
    return nudged(honest(x), len(doc_lengths) > 1)


def packed_leaks(x, *, doc_lengths):
    """What hidden keys do that a mask multiplies by 0: nothing, but for NaN and infinities."""
    return honest(x) + 0 * x.sum(1, keepdims=True)


def padded(x, *, length, side):
    return honest(x)


def padded_leaks(x, *, length, side):
    return packed_leaks(x, doc_lengths=())


def padded_shows(x, *, length, side):
    """Right: the padding is hidden behind the entry, but not before it."""
    return honest(x) + (x[:, :1] if side == "left" else 0)


def by_neighbours(x):
    return honest(x) + 0 * x.sum(0)


def gradient_by_neighbours(x):
    """Only the gradients of other entries reach it."""
    import torch

    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x

        @staticmethod
        def backward(ctx, grad):
            return 3 * grad + 0 * grad.sum(0)

    return Tripled.apply(x)


def nudged(x, when):
    """x, its second element one unit in the last place higher `when` that holds."""
    x = x.copy()
    if when:
        x.flat[1] = np.nextafter(x.flat[1], np.float32(np.inf))
    return x


class EveryKth:
    """Differs in every k-th call."""

    def __init__(self, k):
        self.k, self.calls = k, 0

    def __call__(self, x):
        self.calls += 1
        return nudged(honest(x), self.calls % self.k == 0)


class ByThreads:
    """Differs with more than two threads."""

    threads = 0

    def set_threads(self, count):
        self.threads = count

    def __call__(self, x):
        return nudged(honest(x), self.threads > 2)


def by_batch(x):
    return nudged(honest(x), len(x) == 1)


def by_heads(x):
    return nudged(honest(x), x.shape[2] == 1)


def by_load(x):
    return nudged(honest(x), threading.active_count() > 1)


def by_process(x):
    return honest(x) + np.float32(PROCESS % 65521)


class TwoOutputs:
    """One is steady, the other differs in every second call."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        return {"steady": honest(x), "shaky": nudged(x, self.calls % 2 == 0)}


def changes_its_input(x):
    x += 1
    return x


def torch_by_threads(q, k, v):
    import torch

    return q + k + v * (1 + (torch.get_num_threads() > 2))


def hangs_elsewhere(x):
    """In a new process, which runs audit/process.py."""
    if sys.argv[0].endswith("process.py"):
        time.sleep(60)
    return x


def fails(q, k, v):
    raise RuntimeError("no such kernel")
