"""The bounds and blocks that FlashMask is given, read as its documentation says, are the mask."""

import os
import random
import sys
import types

import numpy as np
import pytest
from benching import right_passes
from verbatim_attn import masks
from verbatim_attn.bench import flashmask, registry, workloads
from verbatim_attn.plan import Problem

ONE = ("causal", "causal_document", "causal_sliding_window", "share_question")  # bound a column
CASES = list(workloads.cases("longca", workloads.Choice(seqlens=(4096,), heads=((2, 1),))))


def shown_by(bounds, causal):
    rows, columns = np.arange(len(bounds))[:, None], np.arange(len(bounds))
    if causal:
        end = bounds[:, 1] if bounds.shape[1] == 2 else len(bounds)
        return (rows >= columns) & ~((rows >= bounds[:, 0]) & (rows < end))
    if bounds.shape[1] == 2:
        return (rows < bounds[:, 0]) & (rows >= bounds[:, 1])
    below = (rows >= bounds[:, 0]) & (rows < bounds[:, 1])
    return ~below & ~((rows >= bounds[:, 2]) & (rows < bounds[:, 3]))


def of_dense(shown):
    """Both intervals of every column and whether a key is seen ahead of its query, one by one; None
    where a column has more."""
    n, found = len(shown), []
    for key, column in enumerate(shown.T):
        bounds = []
        for first, past, nowhere in ((key, n, n), (0, key, 0)):
            rows = first + np.flatnonzero(~column[first:past])
            if len(rows) and rows[-1] - rows[0] + 1 != len(rows):
                return None
            bounds += [rows[0], rows[-1] + 1] if len(rows) else [nowhere, nowhere]
        found.append(bounds)
    return np.array(found), bool(np.triu(shown, 1).any())


def of_columns(bounds, causal):
    """The same of what FlashMask is given."""
    n, form = len(bounds), bounds.shape[1]
    key, whole = np.arange(n), np.full(n, n)
    below_end = bounds[:, 1] if form == 4 or (causal and form == 2) else whole
    below = np.stack([bounds[:, 0], below_end], 1)
    if causal:
        above = np.stack([0 * key, key], 1)
    else:
        above = bounds[:, 2:] if form == 4 else np.stack([0 * key, bounds[:, 1]], 1)
    return np.concatenate([below, above], 1), not causal


def drawn(rng, n):
    """Masks of every pattern, those of LongCA-bench among them, on n positions."""
    choice = workloads.Choice(seed=rng.randrange(1000), lengths=(*rng.choices(range(1, n), k=9), 1))
    documents = workloads._documents(n, choice)
    prefixes = tuple(rng.randint(0, length) for length in documents)
    edges = (0, *sorted(rng.choices(range(n), k=3)), n)
    width = rng.randint(0, n)
    return (
        *(make(n, choice) for make in workloads.STATIC_MASKS),
        masks.FullSlidingWindow(width), masks.CausalSlidingWindow(width),
        masks.GlobalSliding(rng.randint(0, n // 3), width), masks.PrefixLmDocument(documents, prefixes),
        masks.BlockCausalDocument(documents, rng.randint(1, n)), masks.CausalBlockwise(documents),
        masks.CuSeqlens(edges, edges, True), masks.Windows(edges, edges, width, rng.randint(0, n)),
        masks.Causal() & masks.FullDocument(documents), masks.Full().with_key_lengths([width]),
        masks.UniformBlockSparse(rng.randint(1, n), rng.randint(1, n), density=0.5, seed=width),
    )  # fmt: skip


def test_bounds_are_those_of_the_dense_mask_at_odd_lengths():
    seed = int(os.environ.get("VERBATIM_SEED", random.randrange(2**31)))
    print(f"seed {seed}: repeat with VERBATIM_SEED={seed}")
    rng, taken = random.Random(seed), set()
    for _ in range(12):
        n = rng.randrange(9, 300, 2)
        for mask in drawn(rng, n):
            shown = mask.dense(n)[0, 0]
            expected = of_dense(shown)
            if expected is None:
                with pytest.raises(ValueError, match="not one interval"):
                    flashmask.columns(mask, n)
                continue
            taken.add(mask.name)
            bounds, causal = flashmask.columns(mask, n)
            assert (shown_by(bounds, causal) == shown).all(), (n, mask)
            found = of_columns(bounds, causal)
            assert found[1] == expected[1] and (found[0] == expected[0]).all(), (n, mask)
    assert {case.mask.name for case in CASES} <= taken


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mask.name)
def test_bounds_are_the_mask(case):
    shown = case.mask.dense(4096, 4096)[0, 0]
    bounds, causal = flashmask.columns(case.mask, 4096)
    assert (shown_by(bounds, causal) == shown).all()
    fewest = 1 if case.mask.name in ONE else 4 if case.mask.name == "global_sliding" else 2
    assert bounds.shape[1] == fewest
    assert bounds.dtype == np.int32 and causal == (not np.triu(shown, 1).any())


def test_columns_with_holes_are_refused():
    shown = np.eye(8, dtype=bool)
    shown[6, 0] = True
    with pytest.raises(ValueError, match="not one interval"):
        flashmask.columns(masks.from_dense(shown), 8)
    with pytest.raises(ValueError, match="all batch entries"):
        flashmask.columns(masks.Full().with_key_lengths([4, 8]), 8)


@pytest.mark.parametrize("length", [32768, 49152])
def test_long_masks_need_no_dense_matrix(length, monkeypatch):
    """Where the kernel is: here its bounds alone are made."""
    monkeypatch.setattr(masks.Mask, "dense", None)
    provider = registry.known()["flashmask"]
    for case in workloads.cases("longca", workloads.Choice(seqlens=(length,), heads=((64, 8),))):
        assert provider.supports(case, "cuda") is None, case.name


BLOCKS = masks.UniformBlockSparse(128, 128, density=0.5, seed=2)


def _case(mask=BLOCKS, length=1024, dtype="bf16", dim=128, batch=1):
    problem = Problem(batch, 4, 2, length, length, dim, dim, dtype)
    return workloads.Case("given", mask.name, problem, mask)


def test_which_blocks_it_takes():
    provider = registry.known()["flashmask:blocks"]
    for length in (1024, 1500, 16384, 131072):
        assert provider.supports(_case(length=length), "cuda") is None
    refused = (
        (_case(masks.UniformBlockSparse(64, 64, density=0.5)), "blocks of 128"),
        (_case(masks.Full()), "blocks of 128"),
        (_case(dtype="f32"), "bf16 or f16"),
        (_case(dim=64), "head dim 128"),
        (_case(length=512), "1024 to 131072"),
        (_case(length=16384 + 1024), "multiples"),
    )
    for case, reason in refused:
        assert reason in provider.supports(case, "cuda")
    assert "CUDA" in provider.supports(_case(), "cpu")
    assert "one mask for all heads" in registry.known()["flashmask"].supports(_case(), "cuda")


def attended(torch, q, k, v, shown, scale):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, shown, scale=scale, enable_gqa=True
    )
    return o.transpose(1, 2)


def check_provider(monkeypatch, name, func, case):
    """`func` is in the place of FlashMask's kernels."""
    module = types.ModuleType("interface_torch")
    module.FlashMaskFunc = func
    monkeypatch.setitem(sys.modules, module.__name__, module)
    provider = registry.known()[name]
    assert provider.available() is None and provider.supports(case, "cuda") is None
    right_passes(provider, case)


def test_bounds_reach_the_kernels(monkeypatch):
    """With its interface in the place of its kernels."""
    torch = pytest.importorskip("torch")

    class Func:
        @staticmethod
        def apply(q, k, v, bounds, blocks, scale, causal, left, right, softcap, deterministic):
            assert (blocks, left, right, softcap) == (None, -1, -1, 0.0)
            assert bounds.dtype == torch.int32 and bounds.is_contiguous()
            assert bounds.shape[:3] == (2, 1, 1101) and (bounds[0] == bounds[1]).all()
            shown = torch.from_numpy(shown_by(bounds[0, 0].numpy(), causal))
            return attended(torch, q, k, v, shown, scale), None

    case = _case(masks.BlockCausalDocument((500, 601), 77), length=1101, batch=2)
    check_provider(monkeypatch, "flashmask", Func, case)


def test_blocks_are_the_mask(monkeypatch):
    """With its interface in the place of its kernels."""
    torch = pytest.importorskip("torch")

    class Func:
        @staticmethod
        def apply(q, k, v, bounds, blocks, scale, causal, left, right, softcap, deterministic):
            assert (causal, left, right, softcap, deterministic) == (False, -1, -1, 0.0, False)
            assert bounds.shape == (2, 2, 1100, 2) and blocks.shape == (2, 2, 9, 9)
            assert bounds.dtype == blocks.dtype == torch.int32
            assert bounds.is_contiguous() and blocks.is_contiguous()
            assert (bounds == torch.tensor([1100, 0])).all() and blocks.unique().tolist() == [0, 1]
            shown = blocks.bool().repeat_interleave(128, 2).repeat_interleave(128, 3)
            shown = shown[:, :, :1100, :1100].repeat_interleave(2, 1)
            return attended(torch, q, k, v, shown, scale), None

    check_provider(monkeypatch, "flashmask:blocks", Func, _case(length=1100, batch=2))
