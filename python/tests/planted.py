"""Functions with one planted fault each, for test_audit.py. New processes import them from here."""

import sys
import threading
import time

import numpy as np

PROCESS = hash("verbatim")  # another in every process, unless PYTHONHASHSEED is set


def honest(x):
    """Rows that know nothing of one another."""
    return x * 3 + 1


def packed(x, *, doc_lengths):
    return honest(x)


def packed_wrong(x, *, doc_lengths):
    return nudged(honest(x), len(doc_lengths) > 1)


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
