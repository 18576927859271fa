"""cudnn.flex_attention as a provider of the benchmark and a target of the auditor, with its
documentation (fakes/cudnn) in the place of its kernels."""

import pathlib
import sys

import numpy as np
import pytest
import verbatim_attn as va
from verbatim_attn import _cudnn_flex, masks
from verbatim_attn.audit import __main__ as tool
from verbatim_attn.audit import targets
from verbatim_attn.bench import peers, providers, registry, workloads
from verbatim_attn.plan import Problem

DOCUMENTS = (5, 0, 9, 10)
MASKS = (
    masks.Full(), masks.Causal(), masks.FullSlidingWindow(3), masks.FullSlidingWindow(0),
    masks.CausalSlidingWindow(7), masks.FullDocument(DOCUMENTS), masks.CausalDocument(DOCUMENTS),
    masks.ShareQuestion(DOCUMENTS), masks.CausalBlockwise((5, 9, 10)), masks.GlobalSliding(3, 2),
    masks.PrefixLmCausal(6), masks.PrefixLmDocument(DOCUMENTS, 2),
    masks.BlockCausalDocument(DOCUMENTS, 4), masks.UniformBlockSparse(4, 4, density=0.5, seed=1),
    masks.VariableBlockSparse((0, 3, 10, 24), (0, 7, 8, 24), density=0.5, seed=2),
)  # fmt: skip
NAMES = ("cudnn:flex", "cudnn:flex:deterministic")


def positions(ends, kv_len):
    """What endpoints show, as the documentation reads them."""
    keys = np.arange(kv_len)
    shown = keys < ends[:, 0, :, None]
    for i in range(1, ends.shape[1], 2):
        shown |= (keys >= ends[:, i, :, None]) & (keys < ends[:, i + 1, :, None])
    return shown


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.name)
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_endpoints_are_the_mask(mask, kv_heads):
    found = _cudnn_flex.endpoints(mask, 24, 24, kv_heads=kv_heads)
    assert found.dtype == np.int32 and found.shape[1] % 2 == 1 and found.flags.c_contiguous
    assert found.min() >= 0 and found.max() <= 24 and (np.diff(found, axis=1) >= 0).all()
    assert (positions(found, 24) == mask.dense(24, kv_heads=kv_heads)[0]).all()
    most = _cudnn_flex.endpoint_bytes(mask, 24, 24, batch=1, kv_heads=kv_heads, group=1)
    assert found.nbytes <= most


def test_endpoints_of_few_keys_and_of_entries_that_differ():
    no_keys_first = _cudnn_flex.endpoints(masks.Causal(), 10, 4)
    assert (positions(no_keys_first, 4) == masks.Causal().dense(10, 4)[0]).all()
    padded = masks.Causal().with_key_lengths((3, 8, 0))
    shown = positions(_cudnn_flex.endpoints(padded, 10, 8), 8).reshape(3, 10, 8)
    assert (shown == padded.dense(10, 8, batch=3)[:, 0]).all()
    assert _cudnn_flex.endpoints(masks.Causal(), 9, 9).shape == (1, 1, 9)  # adjoining ones are one
    assert _cudnn_flex.endpoints(masks.GlobalSliding(3, 2), 9, 9).shape == (1, 3, 9)


def case_of(mask, *, batch=1, length=24, heads=(4, 2), dims=(16, 16), dtype="bf16"):
    problem = Problem(batch, *heads, length, length, *dims, dtype)
    return workloads.Case("given", mask.name, problem, mask)


@pytest.mark.parametrize(
    "how, part",
    [
        ({}, None),
        ({"dims": (8, 8)}, None),
        ({"dims": (128, 72)}, None),
        ({"dims": (192, 128)}, None),
        ({"dims": (256, 256)}, None),
        ({"dims": (192, 192)}, "192 with 128"),
        ({"dims": (136, 136)}, "8 to 128"),
        ({"dims": (12, 16)}, "by 8"),
        ({"dtype": "f32"}, "bf16 and f16"),
    ],
)
def test_what_its_documentation_offers(how, part):
    for name in NAMES:
        reason = registry.known()[name].supports(case_of(masks.Causal(), **how), "cuda")
        assert (reason is None) if part is None else part in reason
        assert "CUDA" in registry.known()[name].supports(case_of(masks.Causal(), **how), "cpu")


def test_masks_of_too_many_intervals_are_refused(monkeypatch):
    provider = registry.known()["cudnn:flex"]
    for mask in MASKS:
        assert provider.supports(case_of(mask), "cuda") is None
    # Four query heads, 24 queries, at most 7 endpoints of 4 bytes each.
    monkeypatch.setattr(peers.CudnnFlex, "MOST_ENDPOINTS", 4 * 24 * 7 * 4 - 1)
    refused = {mask.name for mask in MASKS if provider.supports(case_of(mask), "cuda")}
    assert refused == {"uniform_block_sparse"}


def test_modes_are_twins():
    assert providers.unordered_twin(NAMES[1]) == NAMES[0]
    known = registry.known()
    assert [known[name].deterministic for name in NAMES] == [False, True]


@pytest.fixture
def cudnn(monkeypatch):
    """The fake, fresh, in the place of a cudnn that may be installed."""
    pytest.importorskip("torch")
    for name in [n for n in sys.modules if n.partition(".")[0] == "cudnn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(pathlib.Path(__file__).parent / "fakes")
    import cudnn as fake

    yield fake
    targets._cudnn_plan.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "cudnn"]:
        del sys.modules[name]


def bench_row(name, case, repeats=2):
    from verbatim_attn.bench import run
    from verbatim_attn.bench.measure import Device

    device = Device("cpu")
    device.times_in_turn = lambda calls, protocol: [[1.0]]  # the check, not the clock
    provider = registry.known()[name]
    assert provider.available() is None
    provider.supports = lambda case, device: None  # the fake runs on a CPU
    return run.Bench(case, device, run.Settings(repeats=repeats)).row(provider)


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.name)
def test_rows_of_every_mask_are_right(cudnn, mask):
    batch = 1 if hasattr(mask, "doc_lengths") else 2
    found = bench_row(NAMES[1], case_of(mask, batch=batch), repeats=1)
    assert found["status"] == "ok", found["reason"]
    assert found["bits"]["differing_words"] == 0 and found["backward"]["ms"] == 1.0


def test_a_wrong_mask_gets_no_time_and_differing_bits_are_a_fact(cudnn):
    case = case_of(masks.CausalSlidingWindow(7), dims=(24, 16))
    cudnn.fault = "mask"
    found = bench_row(NAMES[1], case)
    assert found["status"] == "wrong" and found["backward"] is None
    cudnn.fault = "bits"
    unordered, ordered = (bench_row(name, case) for name in NAMES)
    assert unordered["status"] == ordered["status"] == "ok", unordered["reason"]
    assert unordered["bits"]["differing_words"] > 0 == ordered["bits"]["differing_words"]


def audited(mask, deterministic, **how):
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 20, 4, 16), (2, 20, 2, 16), (2, 20, 2, 8))
    q, k, v = (torch.randn(shape, generator=generator).bfloat16() for shape in shapes)
    target = targets.TARGETS["cudnn:flex"](mask, deterministic)
    assert target.missing("cpu") == "it runs on CUDA devices only"
    inputs = tuple(x.requires_grad_() for x in (q, k, v))
    return va.audit(
        target, inputs, layout=targets.LAYOUT, repeats=3, processes=1, packed=target.packed,
        doc_lengths=(7, 0, 4, 9), **how,
    )  # fmt: skip


def test_the_auditor_takes_it_apart(cudnn):
    result = audited(masks.Causal(), True)
    same = {f.check for f in result.findings if f.status == "same"}
    assert same == {
        "repeats",
        "load",
        "threads",
        "processes",
        "batch",
        "heads",
        "packing",
        "neighbours",
    }
    assert set(result.sha256) == {"o", "dq", "dk", "dv"}
    for mask in (masks.Full(), masks.CausalSlidingWindow(3), masks.PrefixLmCausal(4)):
        assert audited(mask, True, checks=["packing"]).passed


def test_the_auditor_passes_the_mode_on(cudnn):
    cudnn.fault = "bits"
    checks = ["repeats", "batch"]
    assert audited(masks.Causal(), True, checks=checks).passed
    result = audited(masks.Causal(), False, checks=checks)
    assert {f.check for f in result.findings if f.status == "differs"} == {"repeats"}


def test_the_command_line_says_why_not(capsys, monkeypatch):
    monkeypatch.setattr(targets, "installed", lambda module: False)
    assert tool.main(["--target", "cudnn:flex", "--device", "cpu"]) == 3
    assert "cudnn.flex_attention is not installed" in capsys.readouterr().err
    assert tool.main(["--target", "cudnn:flx", "--device", "cpu"]) == 2
    assert "nearest: cudnn:flex" in capsys.readouterr().err
