"""What only a GPU has: streams, graphs, Hopper's kernels, rows that it cannot read."""

import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)
import torch.nn.functional as F  # noqa: E402
import verbatim_attn as va  # noqa: E402
from places import PLACES  # noqa: E402
from test_torch import UNITS, gradients, inputs, same_bits  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from verbatim_attn import masks  # noqa: E402
from verbatim_attn.audit import __main__ as audit  # noqa: E402

CUDA = PLACES["cuda"]
LENGTH = 1500
DOCUMENTS = (700, 1, 333, 466)


def made(dim=128, length=LENGTH, **how):
    how = {"batch": 1, "q_heads": 8, "kv_heads": 2, "dim": dim, "dim_v": dim, **how}
    return inputs(CUDA, q_len=length, kv_len=length, **how)


def with_gradients(o, *tensors):
    return (o, *gradients(o, *tensors))


MASKS = [
    masks.Full(),
    masks.Causal(),
    masks.CausalSlidingWindow(200),
    masks.CausalDocument(DOCUMENTS),
    masks.CausalBlockwise(DOCUMENTS),
    masks.GlobalSliding(50, 100),
    masks.UniformBlockSparse(128, 128, density=0.5),
    masks.Causal().with_key_lengths((900,)),
]


@pytest.mark.parametrize("dtype", CUDA.dtypes, ids=str)
@pytest.mark.parametrize("dim", [64, 128, 96, 256])
@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.name)
def test_long_problems_agree_with_sdpa_and_repeat_their_bits(mask, dim, dtype):
    q, k, v = made(dim, dtype=dtype)
    first = with_gradients(va.attention(q, k, v, mask=mask), q, k, v)
    for _ in range(5):
        assert same_bits(with_gradients(va.attention(q, k, v, mask=mask), q, k, v), first)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    shown = torch.from_numpy(mask.dense(LENGTH, kv_heads=2)).to(q.device).repeat_interleave(4, 1)
    with sdpa_kernel(SDPBackend.MATH):
        heads_first = [x.transpose(1, 2) for x in wide]
        o = F.scaled_dot_product_attention(*heads_first, attn_mask=shown, enable_gqa=True)
    exact = with_gradients(o.transpose(1, 2), *wide)
    for name, got, want in zip(("o", "dq", "dk", "dv"), first, exact, strict=True):
        error = (got.double() - want).abs().max().item()
        assert error <= UNITS[dtype] * max(1, want.abs().max().item()), f"{name} is {error:.3g} off"


@pytest.mark.parametrize("how", [{"softcap": 3.0}, {"dropout": 0.3, "seed": 2**63 + 5}], ids=str)
def test_the_gpu_computes_what_the_cpu_does(how):
    """The same weights are dropped."""
    q, k, v = made(32, length=200)
    there = with_gradients(va.attention(q, k, v, **how), q, k, v)
    q, k, v = (x.detach().cpu().requires_grad_() for x in (q, k, v))
    here = with_gradients(va.attention(q, k, v, **how), q, k, v)
    for got, want in zip(there, here, strict=True):
        torch.testing.assert_close(got.cpu(), want, atol=5e-2, rtol=5e-2)


def test_work_is_enqueued_on_the_current_stream():
    """Inputs that come late on a side stream: any other stream would read NaN."""
    tensors = made()
    dout = torch.randn_like(tensors[0])

    def both(q, k, v):
        o = va.attention(q, k, v, mask=masks.Causal())
        return (o, *torch.autograd.grad(o, (q, k, v), dout))

    expected = both(*tensors)
    late = [torch.full_like(x, torch.nan) for x in tensors]
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        for x, value in zip(late, tensors, strict=True):
            x.copy_(value.detach())
        got = both(*(x.requires_grad_() for x in late))
    assert not side.query()  # nothing has waited
    side.synchronize()
    assert same_bits(got, expected)


def captured(call):
    """The graph of a call, and what it returns."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    return graph, found


@pytest.mark.parametrize("how", [{}, {"dropout": 0.2, "seed": 3}], ids=["plain", "dropout"])
def test_a_graph_replays_both_passes(how):
    q, k, v = made()
    dout = torch.randn(q.shape, device="cuda").to(q)

    def both():
        o = va.attention(q, k, v, mask=masks.CausalDocument(DOCUMENTS), **how)
        return (o, *torch.autograd.grad(o, (q, k, v), dout))

    graph, found = captured(both)
    for _ in range(3):
        with torch.no_grad():
            for x in (q, k, v, dout):
                x.copy_(torch.randn_like(x))
            for x in found:
                x.fill_(torch.nan)
        graph.replay()
        assert same_bits(found, both())


@pytest.mark.parametrize("dim", [32, 128])  # other kernels
def test_a_graph_drops_by_the_seed_of_the_replay(dim):
    q, k, v = made(dim, length=300)
    dout, seed = torch.randn_like(q), torch.tensor(0, device="cuda")

    def both(seed):
        o = va.attention(q, k, v, dropout=0.2, seed=seed)
        return (o, *torch.autograd.grad(o, (q, k, v), dout))

    graph, found = captured(lambda: both(seed))
    for value in (7, 8):
        seed.fill_(value)
        graph.replay()
        assert same_bits(found, both(value))
    graph, found = captured(lambda: both(None))
    drawn = []
    for _ in range(2):
        graph.replay()
        drawn.append([x.clone() for x in found])
    assert not same_bits(*drawn)


def test_inductor_with_its_own_graphs():
    def block(q, k, v):
        return va.attention(q * 2, k, v, mask=masks.Causal()).relu()

    q, k, v = made()
    expected = with_gradients(block(q, k, v), q, k, v)
    compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):  # the second call records, later ones replay
        torch.compiler.cudagraph_mark_step_begin()
        assert same_bits(with_gradients(compiled(q, k, v), q, k, v), expected)


def test_rows_between_multiples_of_16_bytes_are_copied():
    dense = made(64, grad=False)
    shifted = []
    for x in dense:
        room = torch.empty(*x.shape[:-1], 72, dtype=x.dtype, device=x.device)
        room[..., 4:68] = x
        shifted.append(room[..., 4:68].requires_grad_())
    dense = [x.requires_grad_() for x in dense]
    assert same_bits(*(with_gradients(va.attention(*x), *x) for x in (dense, shifted)))


def test_heads_of_a_fused_projection():
    fused = torch.randn(2, LENGTH, 3, 8, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
    dense = [x.detach().contiguous().requires_grad_() for x in fused.unbind(2)]
    o = va.attention(*fused.unbind(2), mask=masks.Causal())
    expected = with_gradients(va.attention(*dense, mask=masks.Causal()), *dense)
    (gradient,) = gradients(o, fused)
    assert same_bits((o, *(x.contiguous() for x in gradient.unbind(2))), expected)


def test_packed_sequences_are_sequences():
    q, k, v = (x[0] for x in made(64))
    edges = torch.tensor([0, *DOCUMENTS], device="cuda").cumsum(0, dtype=torch.int32)
    how = {"causal": True, "return_lse": True}
    o, lse = va.flash_attn_varlen_func(q, k, v, edges, edges, 700, 700, **how)
    gradient = gradients(o, q, k, v)
    dout = torch.randn(o.shape, generator=torch.Generator().manual_seed(9)).to(o)
    for begin, end in zip(edges.tolist(), edges.tolist()[1:], strict=False):
        alone = [x[None, begin:end].detach().requires_grad_() for x in (q, k, v)]
        o_alone, lse_alone = va.flash_attn_func(*alone, **how)
        assert same_bits((o[None, begin:end], lse[None, :, begin:end]), (o_alone, lse_alone))
        theirs = torch.autograd.grad(o_alone, alone, dout[None, begin:end])
        assert same_bits([x[None, begin:end] for x in gradient], theirs)


@pytest.mark.skipif(not hasattr(torch.nn.attention, "varlen"), reason="PyTorch before 2.10")
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (100, 0)])
def test_activate_replaces_varlen_attn(window):
    varlen = torch.nn.attention.varlen
    q, k, v = (x[0] for x in made(64, kv_heads=8))
    edges = torch.tensor([0, *DOCUMENTS], device="cuda").cumsum(0, dtype=torch.int32)

    def theirs():
        o = varlen.varlen_attn(q, k, v, edges, edges, 700, 700, window_size=window)
        return with_gradients(o, q, k, v)

    before = theirs()
    with va.activate():
        first, second = theirs(), theirs()
    ours = va.flash_attn_varlen_func(q, k, v, edges, edges, window_size=window)
    assert same_bits(first, second) and same_bits(first, with_gradients(ours, q, k, v))
    for got, want in zip(first, before, strict=True):
        torch.testing.assert_close(got, want, atol=5e-2, rtol=5e-2)


def test_what_gpus_do_not_take():
    q, k, v = made(64, dtype=torch.float32)
    with pytest.raises(NotImplementedError, match="dtype bf16 or f16"):
        va.attention(q, k, v)
    q, k, v = made(20)
    with pytest.raises(NotImplementedError, match="multiples of 8"):
        va.attention(q, k, v)
    q, k, v = made(64)
    with pytest.raises(ValueError, match="different devices; got cpu, expected cuda:0"):
        va.attention(q, k.cpu(), v)


def test_the_auditor_makes_every_check(tmp_path, capsys):
    certificate = tmp_path / "audit.json"
    words = ["--target", "verbatim", "--device", "cuda", "--dtype", "bf16", "--repeats", "10"]
    assert audit.main([*words, "--processes", "1", "--json", str(certificate)]) == 0
    statuses = {c["check"]: c["status"] for c in json.loads(certificate.read_text())["checks"]}
    expected = dict.fromkeys(statuses, "same") | {"threads": "not checked"}
    assert statuses == expected, capsys.readouterr().out


def test_the_auditor_sees_atomics():
    rows = torch.zeros(2**16, dtype=torch.int64, device="cuda")
    x = torch.randn(2**16, 64, device="cuda")
    found = va.audit(lambda x: x.new_zeros(1, 64).index_add_(0, rows, x), (x,), checks=["repeats"])
    assert found.verdicts["repeatable"] == "no"


@pytest.mark.parametrize(
    "provider", ["verbatim", "verbatim:unordered", "torch:flash:deterministic"]
)
def test_the_benchmark_times_ours_and_peers(provider, tmp_path):
    saved = tmp_path / "bench.json"
    words = ["--mask", "causal", "--seqlen", "1024", "--heads", "8:2", "--head-dim", "64",
             "--device", "cuda", "--repeats", "3", "--providers", provider, "--json", saved]  # fmt: skip
    subprocess.run([sys.executable, "-m", "verbatim_attn.bench", *words], check=True)
    (row,) = json.loads(saved.read_text())["results"]
    assert row["status"] == "ok", row["reason"]
    assert row["check"]["correct"] and row["forward"]["ms"] > 0 and row["backward"]["ms"] > 0


def test_a_check_finds_nothing_and_waits_for_nothing():
    q, k, v = made()
    va.set_wait_limit(5)
    try:
        with_gradients(va.attention(q, k, v), q, k, v)
        for device in (None, "cuda", q.device):
            va.check(device)
        torch.cuda.synchronize()
        va.check()
    finally:
        va.set_wait_limit(10)


@pytest.mark.parametrize("native", [False, True])
def test_workspace_is_of_pytorchs_allocator(native, monkeypatch):
    from verbatim_attn import _native

    if native:
        from verbatim_attn import native as way

        way.build()
    else:
        monkeypatch.setattr(_native, "module", None)
    problem = va.Problem(1, 4, 4, 1000, 1000, 128, 128, "bf16")
    plan = va.Plan(problem, masks.Causal(), device="cuda")
    q, k, v, dout = (torch.randn(1, 1000, 4, 128, device="cuda", dtype=torch.bfloat16)
                     for _ in range(4))  # fmt: skip
    o, lse = plan.forward(q, k, v)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = plan.backward(dout, q, k, v, o, lse)
    made = sum(x.numel() * x.element_size() for x in gradients)
    peak = torch.cuda.max_memory_allocated() - before
    workspace = plan.backward_pass.workspace_bytes
    assert workspace > 0
    assert made + workspace <= peak <= made + workspace + 4 * 2**20
    assert torch.cuda.memory_allocated() - before <= made + 3 * 512
