"""va.ContextParallel(transport="peers"): ranks of one host that read each other's memory."""

import dataclasses
import os
import random
import signal
import sys
import time

import pytest
from places import PLACES
from ranks import Ranks
from test_context_parallel import CASES, STRATEGIES, Case, alone, parallel_of, step
from verbatim_attn import masks

torch = pytest.importorskip("torch")


def with_peers(case, **how):
    return dataclasses.replace(case, how={**case.how, **how, "transport": "peers"})


def steps(rank, case, count=2, pause=0.0):
    """The digests of each step. Ranks pause for up to so many seconds in front of each pass."""
    parallel = parallel_of(case)
    wait = random.Random(rank)

    def pauses():
        time.sleep(wait.uniform(0, pause))

    return [step(parallel, case, pauses) for _ in range(count)]


def on_own_gpu(rank, case, *rest):
    torch.cuda.set_device(rank)
    return steps(rank, dataclasses.replace(case, device=f"cuda:{rank}"), *rest)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_without_ranks(case, place, ranks):
    case = case.at(place)
    expected = alone(case)
    for got in ranks.run(steps, with_peers(case)):
        assert got == 2 * [expected]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ranks_that_pause_have_the_same_bits(strategy, place, ranks):
    case = Case(masks.CausalDocument((300, 150, 70))).at(place)
    expected = alone(case)
    for got in ranks.run(steps, with_peers(case, strategy=strategy), 50, 0.01):
        assert got == 50 * [expected]


@pytest.fixture(scope="module")
def gpus(tmp_path_factory):
    count = min(torch.cuda.device_count(), 4)
    if count < 2:
        pytest.skip("fewer than two CUDA devices")
    started = Ranks(count, tmp_path_factory.mktemp("store"), timeout=60)
    yield started
    started.stop()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_between_gpus(case, gpus):
    case = case.at(PLACES["cuda"])
    expected = alone(case)
    for got in gpus.run(on_own_gpu, with_peers(case)):
        assert got == 2 * [expected]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("mask", [masks.Full(), masks.Causal()], ids=lambda mask: mask.name)
def test_bits_between_gpus_that_pause(mask, strategy, gpus):
    case = Case(mask, 1, 2048, 2048, (16, 4), (128, 128), device="cuda")
    expected = alone(case)
    for got in gpus.run(on_own_gpu, with_peers(case, strategy=strategy), 50, 0.01):
        assert got == 50 * [expected]


# Long enough for several launches; messages come beside them.
LONG = [
    Case(masks.Causal(), 1, 16384, 16384, (32, 4), (128, 128), device="cuda"),
    Case(masks.Full(), 1, 32768, 32768, (16, 4), (128, 128), device="cuda"),
]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.mask.name)
def test_bits_of_several_launches_between_gpus(case, strategy, gpus):
    expected = alone(case)
    for got in gpus.run(on_own_gpu, with_peers(case, strategy=strategy), 10, 0.01):
        assert got == 10 * [expected]


def other_mask(rank, last, case):
    odd = masks.CausalSlidingWindow(7 if rank == last else 6)
    parallel_of(dataclasses.replace(case, mask=odd))


def test_every_rank_names_what_differs_and_where(place, ranks):
    last = len(ranks.pipes) - 1
    for error in ranks.run(other_mask, last, with_peers(Case().at(place))):
        assert isinstance(error, ValueError)
        assert f"mask.params.window of rank {last} is another; got " in str(error)


def elsewhere(rank, last):
    from verbatim_attn import _ranks

    own, _ranks._host = _ranks._host, lambda: f"{rank == last:032d}"
    _ranks._opened.clear()
    try:
        parallel_of(with_peers(Case()))
    finally:
        _ranks._host = own


def test_ranks_of_two_hosts_are_told_of_the_other_way(tmp_path):
    pair = Ranks(2, tmp_path)
    for error in pair.run(elsewhere, 1):
        assert isinstance(error, NotImplementedError)
        assert "ranks 0 and 1 are on two hosts" in str(error) and "nearest: 'group'" in str(error)
    pair.stop()


def ending(rank, case, dead, folder):
    """Rank `dead` is killed between the passes; others end with what they are told."""
    parallel = parallel_of(case)
    q, k, v, dout = case.tensors()
    local = [parallel.dispatch(x).detach().requires_grad_() for x in (q, k, v)]
    douts = parallel.dispatch(dout)
    try:
        for _ in range(3):  # a GPU's work that waits in vain is told by the call behind it
            o = parallel.attention(*local)
            if rank == dead:
                os.kill(os.getpid(), signal.SIGKILL)
            torch.autograd.grad(o, local, douts)
    except RuntimeError as error:
        (folder / str(rank)).write_text(str(error))
        sys.exit(3)


def test_a_killed_rank_ends_all_and_is_named(place, tmp_path):
    timeout, dead = 20, 2
    case = Case(masks.Full(), how={"strategy": "ring", "order": "descending"}).at(place)
    four = Ranks(4, tmp_path, timeout=timeout)
    try:
        four.start(ending, with_peers(case), dead, tmp_path)
        assert four.exits_without(dead, timeout) == [3, 3, -signal.SIGKILL, 3]
    finally:
        four.stop()
    told = [(tmp_path / str(rank)).read_text() for rank in (0, 1, 3)]
    assert any(f"of rank {dead} did not come" in text for text in told)
    assert all("has ended" in text for text in told)


def silent(rank, case):
    """Rank 1 does not take part, and its process goes on."""
    parallel = parallel_of(case)
    local = [parallel.dispatch(x) for x in case.tensors()[:3]]
    begin = time.monotonic()
    if rank == 1:
        time.sleep(8)
        return None
    try:
        parallel.attention(*local)
    except RuntimeError as error:
        return time.monotonic() - begin, str(error)


def test_a_message_that_never_comes_ends_in_time(place, tmp_path):
    pair = Ranks(2, tmp_path, timeout=3)
    case = Case(masks.Full(), how={"strategy": "ring"}).at(place)
    seconds, message = pair.run(silent, with_peers(case))[0]
    pair.stop()
    assert 2 < seconds < 13
    assert "rank 0 at step " in message and "of rank 1 did not come to rank 0" in message


def other_dtype_on_rank_1(rank, case):
    """What rank 0 sends, rank 1 never takes."""
    parallel = parallel_of(case)
    q, k, v, _ = case.tensors()
    shards = [parallel.dispatch(x) for x in (q, k, v)]
    try:
        parallel.attention(*(x.float() if rank else x for x in shards))
    except ValueError as error:
        return str(error)
    return "sent"


def test_a_message_left_behind_is_not_of_the_next_object(place, tmp_path):
    ranks = Ranks(2, tmp_path, timeout=20)
    contiguous = Case(q_len=900, kv_len=900, dims=(16, 16), how={"shard": "contiguous"})
    case = with_peers(contiguous.at(place))
    sent, refused = ranks.run(other_dtype_on_rank_1, case)
    assert sent == "sent" and "wrong dtype" in refused
    for got in ranks.run(steps, case):
        assert got == 2 * [alone(case)]
    ranks.stop()
