"""va.ContextParallel: what differs between ranks, or is wrong at one, ends all with its name."""

import time

import numpy as np
import pytest
import verbatim_attn as va
from test_context_parallel import Case, drawn, parallel_of
from verbatim_attn import masks


def differing(rank, last, name):
    """The last rank has another `name`."""
    odd = rank == last
    cases = {
        "problem.scale": lambda: va.ContextParallel(
            None, Case().problem()._replace(scale=0.5 if odd else None)
        ),
        "mask.params.window": lambda: va.ContextParallel(
            None, Case().problem(), masks.CausalSlidingWindow(7 if odd else 6)
        ),
        "options.order": lambda: parallel_of(
            Case(how={"order": "ascending" if odd else "descending"})
        ),
        "strategy": lambda: parallel_of(Case(how={"strategy": "ring" if odd else "balanced"})),
        "seed": lambda: drawn(rank, 6 if odd else 5, Case(dropout=0.3)),
        "strategy 'rang'": lambda: parallel_of(Case(how={"strategy": "rang" if odd else "ring"})),
    }
    cases[name]()


FIELDS = ["problem.scale", "mask.params.window", "options.order", "strategy", "seed"]


@pytest.mark.parametrize("name", FIELDS)
def test_every_rank_names_what_differs_and_where(name, ranks):
    last = len(ranks.pipes) - 1
    for error in ranks.run(differing, last, name):
        assert isinstance(error, ValueError)
        assert f"{name} of rank {last} is another; got " in str(error)


def test_bad_input_of_one_rank_ends_all(ranks):
    last = len(ranks.pipes) - 1
    *others, own = ranks.run(differing, last, "strategy 'rang'")
    for error in [*others, own]:
        assert isinstance(error, ValueError) and "nearest: ring" in str(error)
    assert all(f"rank {last}: " in str(error) for error in others)


def refused(rank, last, name):
    """The last rank is given what Python refuses."""
    problem, odd = Case().problem(), rank == last
    cases = {
        "mask": lambda: va.ContextParallel(None, problem, "causal" if odd else None),
        "device": lambda: va.ContextParallel(None, problem, device="cud" if odd else "cpu"),
        "problem": lambda: va.ContextParallel(
            None, problem._replace(softcap=float("nan") if odd else 0.0), transport="group"
        ),
        "options": lambda: va.ContextParallel(
            None, problem, level=object() if odd else "invariant"
        ),
    }
    begin = time.monotonic()
    try:
        cases[name]()
    except ValueError as error:
        return str(error), time.monotonic() - begin


REFUSED = {
    "mask": ("[mask] ", "not a mask; got str, "),
    "device": ("[context_parallel] ", "there is no such device; got device='cud', "),
    "problem": ("[problem] ", "softcap takes finite numbers; got nan, "),
    "options": ("[options] ", "level has the wrong type; "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_python_refuses_of_one_rank_ends_all(name, ranks):
    last = len(ranks.pipes) - 1
    who, what = REFUSED[name]
    for rank, (message, seconds) in enumerate(ranks.run(refused, last, name)):
        named = "" if rank == last else f"rank {last}: "
        assert message.startswith(f"{who}{named}{what}")
        assert seconds < 30  # the timeout is 120


def given_arrays(rank, last):
    parallel, x = parallel_of(Case()), np.zeros((1, 4, 4, 16), np.float32)
    messages = []
    for call in (lambda: parallel.attention(x, x, x), lambda: parallel.dispatch(x)):
        with pytest.raises(TypeError) as refused:
            call()
        messages.append(str(refused.value))
    return messages


def test_arrays_are_refused_by_name(ranks):
    for messages in ranks.run(given_arrays, len(ranks.pipes) - 1):
        for name, message in zip("qx", messages, strict=True):
            assert f"{name} is no PyTorch tensor; got ndarray, expected one on cpu" in message
