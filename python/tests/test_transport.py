"""va.ContextParallel(transport="auto"): peers where all ranks can, else the group, and the same on
every rank."""

import contextlib
import dataclasses
import os
import time
from unittest import mock

import pytest
import verbatim_attn as va
from ranks import Ranks
from test_context_parallel import Case, alone, parallel_of, step
from verbatim_attn import masks

torch = pytest.importorskip("torch")
from verbatim_attn._ranks import Peers, _host  # noqa: E402, which needs torch


def over(transport, case):
    return dataclasses.replace(case, how={**case.how, "transport": transport})


def by_default(rank, case):
    parallel = va.ContextParallel(None, case.problem(), case.mask, device=case.device)
    return parallel.transport, step(parallel, case)


def test_ranks_of_one_host_are_peers(place, ranks):
    case = Case(masks.CausalDocument((300, 150, 70))).at(place)
    assert ranks.run(by_default, case) == len(ranks.pipes) * [("peers", alone(case))]


def with_another_device(name, wire, device, *seconds):
    own = torch.device("cuda" if device.type == "cpu" else "cpu", 0)
    return Peers(name, wire, own, *seconds)


def slow_to_say(*arguments):
    try:
        with_another_device(*arguments)
    except Exception:
        time.sleep(0.5)  # the others see the end of this rank first
        raise


def without_room(*_):
    raise OSError("no room")


def fails_later(*arguments):
    Peers(*arguments)
    raise OSError("not here")


# What stands in for something of _ranks, and what "peers" says then.
REFUSALS = {
    "another host": ("_host", lambda: "another", "are on two hosts, or share no memory"),
    "another device": ("Peers", with_another_device, "rank {odd} has no peers; "),
    "slow to say": ("Peers", slow_to_say, "rank {odd} has no peers; "),
    "no room": ("Peers", without_room, "rank {odd} has no peers; no room"),  # others wait for it
    "too late": ("Peers", fails_later, "rank {odd} has no peers; not here"),  # others have theirs
}


def refused(rank, odd, way, case):
    """How messages go with "auto", the digests, and what "auto" and "peers" say while rank `odd`
    cannot; then again how they go, and the digests."""
    from verbatim_attn import _ranks

    name, stand_in, _ = REFUSALS[way]
    with mock.patch.object(_ranks, name, stand_in) if rank == odd else contextlib.nullcontext():
        parallel = parallel_of(over("auto", case))
        found = [parallel.transport, step(parallel, case), parallel.refusal]
        try:
            parallel_of(over("peers", case))
        except NotImplementedError as error:
            found.append(str(error))
    parallel = parallel_of(over("auto", case))
    return [*found, parallel.transport, step(parallel, case)]


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("way", REFUSALS)
def test_where_one_rank_cannot_all_go_through_the_group(way, odd, place, tmp_path):
    case = Case().at(place)
    expected = alone(case)
    three = Ranks(3, tmp_path, timeout=8)
    try:
        found = three.run(refused, odd, way, case)
    finally:
        three.stop()
    for each in found:
        transport, digests, refusal, told, later, again = each
        assert transport == "group" and later == "peers"
        assert digests == again == expected
        reason = REFUSALS[way][2].format(odd=odd)
        assert refusal == found[0][2] and reason in refusal and reason in told


def another_transport(rank, last):
    parallel_of(over("peers" if rank == last else "auto", Case()))


def test_ranks_that_ask_for_different_transports_are_told(ranks):
    last = len(ranks.pipes) - 1
    for error in ranks.run(another_transport, last):
        assert isinstance(error, ValueError)
        assert f"transport of rank {last} is another; got 'peers', expected 'auto'" in str(error)


def unknown(rank, odd):
    parallel_of(over("pears" if rank == odd else "auto", Case()))


@pytest.mark.parametrize("odd", [0, 1])
def test_an_unknown_transport_of_one_rank_is_told_to_all(odd, ranks):
    for error in ranks.run(unknown, odd):
        assert isinstance(error, ValueError)
        assert f"unknown transport of rank {odd}; got 'pears'" in str(error)


def late(rank, case, seconds):
    """Whether a call failed to which rank 1 came too late."""
    parallel = parallel_of(case)
    q, k, v, _ = case.tensors()
    local = parallel.dispatch(q), parallel.dispatch(k, "kv"), parallel.dispatch(v, "kv")
    parallel.attention(*local)
    time.sleep(seconds if rank == 1 else 0)
    try:
        parallel.attention(*local)
    except RuntimeError:
        return True
    return False


def test_peers_that_failed_are_opened_anew(place, tmp_path):
    case = over("auto", Case(masks.Full()).at(place))
    expected = alone(case)
    pair = Ranks(2, tmp_path, timeout=6)
    try:
        assert True in pair.run(late, case, 9)
        assert pair.run(by_default, case) == 2 * [("peers", expected)]
    finally:
        pair.stop()


def opened(rank, forgetful):
    from verbatim_attn import _ranks

    first, second = (parallel_of(over("auto", Case())) for _ in range(2))
    if rank == forgetful:
        _ranks._opened.clear()
    third = parallel_of(over("peers", Case()))
    peers = [parallel._handle.peers for parallel in (first, second, third)]
    return peers[0] is peers[1], peers[1] is peers[2]


def test_objects_of_a_group_share_peers_that_all_ranks_have(ranks):
    assert ranks.run(opened, None) == len(ranks.pipes) * [(True, True)]
    assert ranks.run(opened, 0) == len(ranks.pipes) * [(True, False)]


def test_a_host_that_cannot_be_told_is_like_no_other():
    assert _host() == _host()
    with mock.patch.object(os, "stat", without_room):
        hosts = _host(), _host()
    assert hosts[0] != hosts[1]
