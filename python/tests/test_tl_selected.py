"""tl.SelectedAttention: lists of blocks as arrays and tensors."""

from pathlib import Path

import numpy as np
import pytest
import reference
import verbatim_attn as va
from verbatim_attn import tl

SKETCH = (Path(__file__).parents[2] / "kernels/tl/selected.tl").read_text()
PROBLEM = va.Problem(2, 6, 2, 130, 130, 64, 64, "f16")


def attention(index: str) -> tl.SelectedAttention:
    sketch = SKETCH.replace("sel = index", f"sel = {index}")
    program = tl.reason(sketch, PROBLEM, "a100", tile=(64, 32))
    return tl.SelectedAttention(PROBLEM, va.masks.Causal(), program)


def draw(selected: tl.SelectedAttention) -> tuple[np.ndarray, np.ndarray]:
    """Some of the blocks that the queries of each list see, in any sequence; and who sees whom."""
    rng = np.random.default_rng(3)
    q, kv = np.array(selected.q_edges), np.array(selected.kv_edges)
    blocks = np.full((2, 2, len(q) - 1, 4), -1)
    visible = np.zeros((2, 2, 130, 130), bool)
    for b, h, i in np.ndindex(*blocks.shape[:3]):
        seen = rng.permutation(np.flatnonzero(kv[:-1] < q[i + 1]))[: rng.integers(0, 5)]
        blocks[b, h, i, : len(seen)] = seen
        for block in seen:
            visible[b, h, q[i] : q[i + 1], kv[block] : kv[block + 1]] = True
    return blocks, visible & np.tri(130, dtype=bool)


@pytest.mark.parametrize("index", ["index", "query_index"])
def test_lists_of_tiles_and_of_queries_agree_with_the_formula(index):
    selected = attention(index)
    assert len(selected.q_edges) - 1 == (3 if index == "index" else 130)
    assert selected.arithmetic.startswith("tl.2:")
    blocks, visible = draw(selected)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 130, h, 64)).astype(np.float16) for h in (6, 2, 2))
    o, lse = selected.forward(q, k, v, blocks)
    expected, expected_lse, _ = reference.forward(q, k, v, visible)
    np.testing.assert_allclose(o, expected, atol=4e-3)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-4)
    again = selected.forward(q, k, v, blocks.astype(np.int32), threads=1)
    assert all(np.array_equal(a, b) for a, b in zip(again, (o, lse), strict=True))


def test_tensors_are_arrays():
    torch = pytest.importorskip("torch")
    selected = attention("query_index")
    blocks, _ = draw(selected)
    rng = np.random.default_rng(2)
    arrays = [rng.standard_normal((2, 130, h, 64)).astype(np.float16) for h in (6, 2, 2)]
    expected = selected.forward(*arrays, blocks)
    got = selected.forward(*map(torch.from_numpy, arrays), torch.from_numpy(blocks))
    assert all(np.array_equal(a, b.numpy()) for a, b in zip(expected, got, strict=True))
    # As of a GPU.
    signed = tl.selected._on_device(torch._neg_view(torch.from_numpy(-blocks).int()))
    assert not signed.is_neg() and np.array_equal(signed.numpy(), blocks)


def test_bad_lists_and_programs_name_themselves():
    selected = attention("query_index")
    blocks, _ = draw(selected)
    q, k, v = (np.ones((2, 130, h, 64), np.float16) for h in (6, 2, 2))
    for wrong, said in (
        (blocks[0], "four dimensions"),
        (blocks.astype(np.float32), "four dimensions; got float32"),
        (blocks + (1 << 40), "fits no int32"),
        (blocks[:, :, :3], r"expected \(2, 2, 130, room"),
        (np.full_like(blocks, 4), "sees no key|see no key"),
    ):
        with pytest.raises(ValueError, match=said):
            selected.forward(q, k, v, wrong)
    with pytest.raises(ValueError, match="a program without an index tensor"):
        forward = (Path(__file__).parents[2] / "kernels/tl/forward.tl").read_text()
        tl.SelectedAttention(PROBLEM, None, tl.reason(forward, PROBLEM, "a100"))
    with pytest.raises(NotImplementedError, match="mask"):
        tl.SelectedAttention(PROBLEM, va.masks.Full(), tl.reason(SKETCH, PROBLEM, "a100"))
