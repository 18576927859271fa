"""va.ContextParallel on gloo processes: the bits of va.attention without ranks, and what ends it."""

import dataclasses
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from collections import deque
from datetime import timedelta
from typing import Any

import pytest
import verbatim_attn as va
from places import PLACES
from ranks import Ranks
from verbatim_attn import masks

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch was built without gloo", allow_module_level=True)

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


@pytest.fixture(scope="module", params=[False, True], ids=["lazy", "eager"])
def gpus(request, tmp_path_factory):
    if torch.cuda.device_count() < 2:
        pytest.skip(
            "fewer than two CUDA devices, and NCCL refuses ranks that share one: before 2.30 always,"
            " then unless NCCL_MULTI_RANK_GPU_ENABLE=1, which is experimental"
        )
    folder = tmp_path_factory.mktemp("store")
    started = Ranks(2, folder, timeout=60, backend="nccl", eager=request.param)
    yield started
    started.stop()


@pytest.fixture
def pair(tmp_path):
    started = Ranks(2, tmp_path, timeout=3)
    yield started
    started.stop()


@dataclasses.dataclass(frozen=True)
class Case:
    mask: Any = dataclasses.field(default_factory=masks.Causal)
    batch: int = 1
    q_len: int = 520
    kv_len: int = 520
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (80, 80)  # whose shards end at multiples of 128
    dtype: str = "bf16"
    dropout: float = 0.0
    device: str = "cpu"
    how: dict[str, Any] = dataclasses.field(default_factory=dict)

    def problem(self):
        return va.Problem(
            self.batch, *self.heads, self.q_len, self.kv_len, *self.dims, self.dtype,
            dropout=self.dropout,
        )  # fmt: skip

    def tensors(self):
        """q, k, v and dout."""
        generator = torch.Generator().manual_seed(3)
        (q_heads, kv_heads), (dim, dim_v) = self.heads, self.dims
        return [
            torch.randn(self.batch, length, heads, dim, generator=generator).to(
                self.device, DTYPES[self.dtype]
            )
            for length, heads, dim in (
                (self.q_len, q_heads, dim),
                (self.kv_len, kv_heads, dim),
                (self.kv_len, kv_heads, dim_v),
                (self.q_len, q_heads, dim_v),
            )  # fmt: skip
        ]

    def at(self, place):
        """The same there, in a dtype that its kernels take."""
        is_taken = DTYPES[self.dtype] in place.dtypes
        return dataclasses.replace(
            self, device=place.device, dtype=self.dtype if is_taken else "bf16"
        )

    def seed(self):
        return 11 if self.dropout else None


STRATEGIES = ("ulysses", "ring", "allgather", "usp", "loongtrain", "balanced")
CASES = {
    **{strategy: Case(how={"strategy": strategy}) for strategy in STRATEGIES},
    **{
        shard: Case(masks.CausalDocument((300, 150, 70)), how={"strategy": "ring", "shard": shard})
        for shard in ("contiguous", "zigzag", "document", "balanced")
    },
    "full": Case(masks.Full(), heads=(8, 1), how={"strategy": "ulysses"}),
    "window": Case(masks.CausalSlidingWindow(100), heads=(2, 2), dtype="f32"),
    "a rank with nothing": Case(q_len=130, kv_len=130, how={"shard": "contiguous"}),
    "other lengths": Case(q_len=300, kv_len=520, dims=(96, 72), dtype="f16"),
    "padded batch": Case(masks.Causal().padded((520, 100, 0)), batch=3),
    "dropout": Case(masks.CausalDocument((333, 187)), dropout=0.2, how={"strategy": "usp"}),
    "heads that move": Case(
        masks.CausalDocument((2304, 128)),
        q_len=2432,
        kv_len=2432,
        heads=(4, 4),
        dims=(16, 16),
        how={"strategy": "balanced"},
    ),
    "an order": Case(how={"order": "descending/split:2", "strategy": "allgather"}),
}


def digest(x):
    return hashlib.sha256(
        x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
    ).hexdigest()


def alone(case):
    q, k, v, dout = case.tensors()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    how = {name: case.how[name] for name in ("order",) if name in case.how}
    o = va.attention(*inputs, mask=case.mask, dropout=case.dropout, seed=case.seed(), **how)
    return [digest(x) for x in (o, *torch.autograd.grad(o, inputs, dout))]


def parallel_of(case):
    how = {"transport": "group", **case.how}
    return va.ContextParallel(None, case.problem(), mask=case.mask, device=case.device, **how)


def spread(rank, case):
    """The digests of O, dQ, dK and dV, and bytes that were sent and predicted by pass."""
    parallel = parallel_of(case)
    wire = parallel._handle.wire
    sent = []
    original = wire.send

    def counting(to, message, flat):
        if message >= 0:
            sent[-1] += flat.numel()
        original(to, message, flat)

    wire.send = counting
    for _ in range(2):  # the second step launches what the first has made
        sent[:] = []
        digests = step(parallel, case, lambda: sent.append(0))
    own = parallel.description["ranks"][rank]
    predicted = [own[name]["predicted_bytes"] for name in ("forward", "backward")]
    return digests, sent, predicted


def step(parallel, case, before_pass=lambda: None):
    """The digests of O, dQ, dK and dV."""
    q, k, v, dout = case.tensors()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    axes = ("q", "kv", "kv")
    local = [parallel.dispatch(x, axis) for x, axis in zip(inputs, axes, strict=True)]
    before_pass()
    o = parallel.undispatch(parallel.attention(*local, seed=case.seed()))
    before_pass()
    return [digest(x) for x in (o, *torch.autograd.grad(o, inputs, dout))]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_bits_are_those_without_ranks(case, place, ranks):
    case = case.at(place)
    expected = alone(case)
    for got, sent, predicted in ranks.run(spread, case):
        assert got == expected
        assert sent == predicted


def round_trip(rank, case):
    parallel = parallel_of(case)
    whole = torch.arange(case.batch * case.q_len * 3).view(case.batch, case.q_len, 3)
    shard = parallel.dispatch(whole)
    flags = parallel.dispatch(whole[..., 0] % 2 == 0)
    assert torch.equal(parallel.undispatch(shard), whole)
    assert torch.equal(parallel.undispatch(torch._neg_view(shard)), -whole)
    assert torch.equal(parallel.undispatch(flags), whole[..., 0] % 2 == 0)
    numbers = torch.arange(case.q_len).expand(case.batch, -1)
    assert torch.equal(parallel.positions(), parallel.dispatch(numbers)[0])
    return shard[0, :, 0].tolist()


def test_shards_come_back_whole_and_cover_it(ranks):
    case = Case(masks.CausalDocument((300, 150, 70)), batch=2, how={"shard": "zigzag"})
    held = [row for shard in ranks.run(round_trip, case) for row in shard]
    assert sorted(held) == [3 * i for i in range(2 * 520)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_nccl_alone_on_a_gpu(tmp_path):
    started = Ranks(1, tmp_path, backend="nccl")
    case = Case(device="cuda")
    ((got, sent, predicted),) = started.run(spread, case)
    assert got == alone(case) and sent == predicted
    started.stop()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_nccl_between_gpus(case, gpus):
    case = case.at(PLACES["cuda"])
    expected = alone(case)
    for got, sent, predicted in gpus.run(spread, case):
        assert got == expected
        assert sent == predicted


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("heads", [(64, 8), (32, 32)], ids=str)
@pytest.mark.parametrize(
    "mask",
    [
        masks.Full(),
        masks.Causal(),
        masks.CausalDocument((500, 77, 320)),
        masks.CausalSlidingWindow(200),
    ],
    ids=lambda mask: mask.name,
)
def test_nccl_between_gpus_with_every_strategy(mask, heads, dim, gpus):
    case = Case(mask, 1, 897, 897, heads, (dim, dim), device="cuda")
    expected = alone(case)
    for strategy in STRATEGIES:
        dealt = dataclasses.replace(case, how={"strategy": strategy})
        for got, sent, predicted in gpus.run(spread, dealt):
            assert got == expected, strategy
            assert sent == predicted, strategy


def laid_out(rank, case):
    """dQ, dK and dV where all that the ranks are given has its heads outside the rows."""
    parallel = parallel_of(case)
    inputs = [x.requires_grad_() for x in case.tensors()[:3]]
    turned = [parallel.dispatch(x).transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    squares = parallel.attention(*turned).transpose(1, 2).contiguous().square()
    o = parallel.undispatch(squares.transpose(1, 2))
    return [digest(x) for x in torch.autograd.grad(o, inputs, case.tensors()[3])]


def test_layouts_do_not_matter(place, ranks):
    case = Case().at(place)
    *inputs, dout = [x.requires_grad_() for x in case.tensors()]
    o = va.attention(*inputs, mask=case.mask).square()
    expected = [digest(x) for x in torch.autograd.grad(o, inputs, dout)]
    for got in ranks.run(laid_out, case):
        assert got == expected


def drawn(rank, seed, case):
    torch.manual_seed(seed)
    parallel = parallel_of(case)
    q, k, v, _ = case.tensors()
    o = parallel.attention(*(parallel.dispatch(x) for x in (q, k, v)))
    return digest(parallel.undispatch(o))


def test_a_seed_is_drawn_from_the_generator_as_without_ranks(place, ranks):
    case = Case(dropout=0.3).at(place)
    q, k, v, _ = case.tensors()
    torch.manual_seed(5)
    expected = digest(va.attention(q, k, v, mask=masks.Causal(), dropout=0.3))
    assert set(ranks.run(drawn, 5, case)) == {expected}


def penalized(rank, case):
    """The error of a gradient penalty, which asks for second derivatives."""
    parallel = parallel_of(case)
    q, k, v = (parallel.dispatch(x) for x in case.tensors()[:3])
    o = parallel.attention(q.requires_grad_(), k, v)
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="there are no second derivatives"):
        (o.sum() + dq.sum()).backward()


def test_who_wants_second_derivatives_is_told(place, ranks):
    assert not any(ranks.run(penalized, Case().at(place)))


class Endless:
    """A transfer that a stream waits for in vain."""

    def wait(self):
        return True

    def is_completed(self):
        return False


def test_the_host_waits_for_no_transfer_of_a_stream(monkeypatch):
    from verbatim_attn._ranks import Wire

    wire = object.__new__(Wire)
    wire.rank, wire._ranks, wire._sent = 0, [0, 1], []
    wire._up = wire._down = lambda: "a group"
    wire._in_stream, wire._timeout, wire._under_way = True, timedelta(seconds=0.2), deque()
    for name in ("isend", "irecv"):
        monkeypatch.setattr(torch.distributed, name, lambda *_: Endless())
    begin = time.monotonic()
    wire.receive(1, 5, torch.empty(1))
    wire.send(1, 6, torch.empty(1))
    wire.finish()
    assert time.monotonic() - begin < 0.2
    time.sleep(0.2)
    with pytest.raises(RuntimeError, match="message 5 of rank 1 did not come to rank 0; got no tr"):
        wire.finish()
    wire.finish()  # it is told once


def test_who_does_not_take_what():
    from verbatim_attn._ranks import _SHARD, Wire

    wire = object.__new__(Wire)
    wire.rank, wire._in_stream, wire._timeout = 0, False, timedelta()
    for message, what in ((5, "message 5"), (-1, "the answer"), (_SHARD, "a shard")):
        wire._sent = [(1, message, Endless(), None)]
        with pytest.raises(RuntimeError, match=f"rank 1 did not take {what} of rank 0; got no tr"):
            wire._await_sent()


def misused(rank):
    parallel = parallel_of(Case())
    q, k, v, _ = Case().tensors()
    messages = []
    for call in (
        lambda: parallel.dispatch(q[:, :-1]),
        lambda: parallel.undispatch(q[:, :3]),
        lambda: parallel.attention(q, k, v),
        lambda: parallel.attention(q.double(), k, v),
        lambda: parallel.attention(q.to("meta"), k, v),
        lambda: parallel.dispatch(q, "k"),
    ):
        try:
            call()
        except ValueError as error:
            messages.append(str(error))
    return messages


def test_errors_of_tensors_name_them(ranks):
    for whole, shard, local, dtype, device, axis in ranks.run(misused):
        assert whole.endswith("whole tensor; got [1, 519, 4, 80], expected (1, 520, ...)")
        assert "wrong shape of the shard; got [1, 3, 4, 80]" in shard
        assert "wrong shape of q; got [1, 520, 4, 80]" in local
        assert "float64" in dtype
        assert "got meta, expected cpu (nearest: q.to('cpu')" in device
        assert "got axis='k', expected 'q' or 'kv'" in axis


def dying(rank, dead, backward):
    """Rank `dead` is killed in the forward, or in the backward, as it is about to send."""
    parallel = parallel_of(Case(masks.Full(), how={"strategy": "ring", "order": "descending"}))
    q, k, v, dout = Case().tensors()
    local = [parallel.dispatch(x).detach().requires_grad_() for x in (q, k, v)]
    wire = parallel._handle.wire
    if rank == dead and not backward:
        wire.send = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    o = parallel.attention(*local)
    if rank == dead:
        wire.send = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    torch.autograd.grad(o, local, parallel.dispatch(dout))


@pytest.mark.parametrize("backward", [False, True])
def test_a_rank_that_dies_is_named_with_the_step(backward, pair):
    pair.start(dying, 1, backward)
    (error,) = pair.results([0])
    name = "backward" if backward else "forward"
    assert isinstance(error, RuntimeError)
    assert f"of the {name}" in str(error) and "rank 0 at step " in str(error)
    assert re.search("no message (from|to) rank 1", str(error))  # whichever comes first


def ended(rank, dead, backward, folder):
    """As a program does: it ends with what it was told."""
    try:
        dying(rank, dead, backward)
    except RuntimeError as error:
        (folder / str(rank)).write_text(str(error))
        sys.exit(3)


@pytest.mark.parametrize("backward", [False, True])
def test_a_killed_rank_ends_all_and_is_named(backward, tmp_path):
    timeout, dead = 20, 2
    four = Ranks(4, tmp_path, timeout=timeout)
    try:
        four.start(ended, dead, backward, tmp_path)
        assert four.exits_without(dead, timeout) == [3, 3, -signal.SIGKILL, 3]
    finally:
        four.stop()
    name, named = "backward" if backward else "forward", []
    for rank in {0, 1, 2, 3} - {dead}:
        message = (tmp_path / str(rank)).read_text()
        assert re.search(rf"rank {rank} at step \d+ of the {name}: ", message)
        named += re.findall(r"no message (?:from|to) rank (\d)", message)
    assert str(dead) in named  # others name who ended for that reason


def silent(rank):
    """Rank 1 loses all that it should send."""
    parallel = parallel_of(Case(masks.Full(), how={"strategy": "ring"}))
    q, k, v, _ = Case().tensors()
    local = [parallel.dispatch(x) for x in (q, k, v)]
    if rank == 1:
        parallel._handle.wire.send = lambda *_: None
    begin = time.monotonic()
    try:
        parallel.attention(*local)
    except RuntimeError as error:
        return time.monotonic() - begin, str(error)
    finally:
        if rank == 1:
            time.sleep(8)


def test_a_transfer_that_never_comes_ends_in_time(pair):
    pair.start(silent)
    seconds, message = pair.results([0])[0]
    assert 2 < seconds < 13
    assert "rank 0 at step " in message and "no message from rank 1" in message


def destroyed(rank, case):
    """Whether the group lives on in an object that has been used, and what that then says."""
    parallel = parallel_of(case)
    step(parallel, case)
    group = weakref.ref(torch.distributed.group.WORLD)
    torch.distributed.destroy_process_group()
    try:
        parallel.undispatch(torch.zeros(1, len(parallel.positions()), 1))
    except RuntimeError as error:
        return group() is not None, str(error)


@pytest.mark.parametrize("transport", ["group", "peers"])
def test_an_object_keeps_no_group_alive(transport, pair):
    for lives, message in pair.run(destroyed, Case(how={"transport": transport})):
        assert not lives
        assert "the group has been destroyed" in message and "nearest: dist.destroy" in message


@pytest.mark.parametrize("transport", ["group", "peers"])
def test_calls_when_python_ends_are_refused(transport, tmp_path):
    """Memory that other ranks read is given back by then."""
    late = f"""
import atexit
def last():
    try:
        call()
    except RuntimeError as error:
        print(error)
atexit.register(last)
import torch, torch.distributed as dist, verbatim_attn as va
dist.init_process_group("gloo", "file://{tmp_path}/store", rank=0, world_size=1)
problem = va.Problem(1, 2, 2, 64, 64, 8, 8, "f32")
parallel = va.ContextParallel(None, problem, transport="{transport}")
q = torch.ones(1, 64, 2, 8)
def call(): return parallel.attention(q, q, q)
call()
"""
    said = subprocess.check_output([sys.executable, "-c", late], text=True)
    assert said.startswith("[context_parallel] its memory is given back when Python ends")
