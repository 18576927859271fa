"""Block-sparse masks from arrays beside those from lists of pairs."""

import copy
import dataclasses
import gc
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import verbatim_attn as va
from verbatim_attn import masks


def blocks_of(plane):
    """The blocks of a map (kv_heads, q_blocks, k_blocks) as pairs, head by head."""
    return tuple(tuple(zip(*np.nonzero(head), strict=True)) for head in plane)


def lists_of(plane, rng):
    """row_begin and columns of a map (..., q_blocks, k_blocks), each row in any sequence."""
    rows = plane.reshape(-1, plane.shape[-1])
    columns = [rng.permutation(np.nonzero(row)[0]) for row in rows]
    ends = np.cumsum([len(row) for row in columns]).reshape(-1, plane.shape[-2])
    begin = np.concatenate([np.append(0, ends[:-1, -1])[:, None], ends], axis=1)
    return begin.reshape(*plane.shape[:-2], -1), np.concatenate([*columns, []]).astype(np.int64)


def fingerprints(mask, q_len, kv_len, kv_heads):
    problem = va.Problem(1, 2 * kv_heads, kv_heads, q_len, kv_len, 32, 32, "f32")
    plan = va.Plan(problem, mask)
    return plan.forward_pass.fingerprint, plan.backward_pass.fingerprint


def test_arrays_plan_as_pairs_do():
    seed = int(os.environ.get("VERBATIM_SEED", np.random.default_rng().integers(2**31)))
    print(f"seed {seed}: repeat with VERBATIM_SEED={seed}")
    rng = np.random.default_rng(seed)
    for _ in range(20):
        q_len, kv_len, block_q, block_k = (int(n) for n in rng.integers(1, [400, 400, 90, 90]))
        heads = int(rng.integers(1, 4))
        how = {"block": (block_q, block_k), "lengths": (q_len, kv_len)}
        grid = -(-q_len // block_q), -(-kv_len // block_k)
        plane = rng.random((heads, *grid)) < rng.random()
        pairs = masks.UniformBlockSparse(block_q, block_k, blocks=blocks_of(plane))
        expected = fingerprints(pairs, q_len, kv_len, heads)
        for mask in (
            va.from_block_lists(*lists_of(plane, rng), **how),
            va.from_block_map(plane, **how),
        ):
            shown = mask.dense(q_len, kv_len, kv_heads=heads)
            assert (shown == pairs.dense(q_len, kv_len, kv_heads=heads)).all()
            assert fingerprints(mask, q_len, kv_len, heads) == expected


def test_blocks_between_edges_and_one_list_for_all():
    edges = (0, 3, 10, 64), (0, 1, 30, 50)
    plane = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0]], bool)
    pairs = masks.VariableBlockSparse(*edges, blocks=blocks_of(plane[None]))
    rng = np.random.default_rng(1)
    for mask in (
        va.from_block_map(plane, edges=edges),
        va.from_block_lists(*lists_of(plane, rng), edges=edges),
    ):
        assert (mask.dense(64, 50, batch=2, kv_heads=3) == pairs.dense(64, 50)).all()


def test_entries_of_a_batch_have_lists_of_their_own():
    rng = np.random.default_rng(2)
    plane = rng.random((2, 3, 4, 5)) < 0.5
    how = {"block": (8, 8), "lengths": (32, 40)}
    shown = va.from_block_map(plane, **how).dense(32, 40, batch=2, kv_heads=3)
    assert (shown == plane.repeat(8, 2).repeat(8, 3)).all()
    again = va.from_block_lists(*lists_of(plane, rng), **how)
    assert (again.dense(32, 40, batch=2, kv_heads=3) == shown).all()


def test_equal_arrays_are_one_mask_and_live_as_long_as_a_mask_made_of_them():
    plane = np.eye(4, dtype=bool)
    how = {"block": (8, 8), "lengths": (32, 32)}
    mask, again = va.from_block_map(plane, **how), va.from_block_map(plane, **how)
    assert mask == again and hash(mask) == hash(again)
    both = mask & masks.Causal()
    del mask, again
    gc.collect()
    for length in range(33, 133):  # more than are kept without an owner
        va.from_block_map(np.ones((1, 1)), block=(200, 200), lengths=(length, length))
    assert both.dense(32).sum() == 4 * 36


@pytest.mark.parametrize(
    "arrays, how, named",
    [
        (([0, 1, 2], [0, 4]), {}, "columns of batch entry 0, KV head 0, row 1.*got 4.*0 to 3"),
        (([[0, 1, 2], [2, 3, 4]], [0, 1, 2, -1]), {}, "KV head 1, row 1.*got -1"),
        (([0, 2, 2], [1, 1]), {}, "row 0.*1 twice.*every block once"),
        (
            ([0, 2, 1], [1]),
            {},
            "row_begin of batch entry 0, KV head 0, row 1.*got 2, expected 0 to 1",
        ),
        (([0, 1], [1]), {}, "row_begin.*2 offsets"),
        (([], []), {}, r"wrong shapes; got row_begin of \[0\] and columns of \[0\]"),
        (([[0, 1, 1], [0, 1, 1]], [1]), {}, "one behind another.*KV head 1, row 0"),
        (([0, 1, 1], [1, 2]), {}, "do not end with columns; got 1, expected 2"),
        (([0.0, 1.0, 1.0], [1]), {}, "row_begin must be integers"),
        (([0, 1, 1], [2**40]), {}, "columns is out of range"),
        (([0, 1, 1], [1]), {"block": None}, "expected block= and lengths=, or edges="),
        (([0, 1, 1], [1]), {"block": (0, 4)}, "block_q"),
    ],
)
def test_what_does_not_fit_is_named(arrays, how, named):
    given = {"block": (8, 8), "lengths": (16, 32), **how}
    with pytest.raises(ValueError, match=named):
        va.from_block_lists(*map(np.array, arrays), **given)


def test_a_map_of_another_grid_is_refused():
    with pytest.raises(ValueError, match="got 2 x 3 blocks, expected 2 x 4"):
        va.from_block_map(np.ones((2, 3)), block=(8, 8), lengths=(16, 32))
    with pytest.raises(ValueError, match="got 1, expected"):
        va.from_block_map(np.ones(3), block=(8, 8), lengths=(16, 32))


def test_block_masks_without_partial_blocks_go_block_by_block():
    torch = pytest.importorskip("torch")
    from torch.nn.attention.flex_attention import BlockMask

    rng = np.random.default_rng(3)
    plane = rng.random((1, 4, 6, 7)) < 0.4
    plane[:, 1], plane[:, 3] = plane[:, 0], plane[:, 2]  # the query heads of a group
    counts = torch.from_numpy(plane.sum(-1, dtype=np.int32))
    order = torch.from_numpy(np.argsort(~plane, -1, kind="stable").astype(np.int32))
    none = torch.zeros_like(counts)
    for lists in ((counts, order), (none, order, counts, order)):
        listed = BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=32)
        mask = va.from_block_mask(listed, group=2)
        assert "uniform_block_sparse" in mask.spec
        shown = mask.dense(192, 224, kv_heads=2)
        assert (shown == plane[:, ::2].repeat(32, 2).repeat(32, 3)).all()


def test_copies_and_pickles_outlive_the_mask():
    how = {"block": (8, 8), "lengths": (32, 32)}
    begin = np.arange(5)
    mask = va.from_block_lists(begin, np.arange(4), **how)
    begin[:] = 0  # which the mask does not see
    edges = (np.array([0, 32]), np.array([0, 9, 32]))
    pickled = pickle.dumps((mask, mask & masks.Causal(), va.from_block_map([[1, 0]], edges=edges)))
    made = copy.copy(mask), copy.deepcopy(mask), dataclasses.replace(mask)
    assert all(each == mask for each in made)
    program = "import pickle, sys\nfor mask in pickle.load(sys.stdin.buffer): "
    program += "print(mask.dense(32).sum())"
    said = subprocess.check_output([sys.executable, "-c", program], input=pickled)
    assert said.split() == [b"256", b"144", b"288"]
    del mask
    for length in range(33, 133):  # more than are kept without an owner
        va.from_block_map(np.ones((1, 1)), block=(200, 200), lengths=(length, length))
    assert all(each.dense(32).sum() == 256 for each in (*made, pickle.loads(pickled)[0]))


@pytest.mark.parametrize(
    "how, named",
    [
        ({"block": 8, "lengths": (32, 32)}, "block is a pair.*got 8, expected two integers"),
        ({"block": (8, 8), "lengths": (32, 32.5)}, "lengths is a pair.*expected two integers"),
        ({"block": (8, 8), "lengths": (32, 32, 1)}, "lengths is a pair"),
        ({"edges": ((0, 32), (0, 10.7, 32))}, "edges must be integers; got float64"),
        ({"edges": ((0, 32),)}, "edges is a pair.*expected two lists"),
        ({"edges": 32}, "edges is a pair.*got 32"),
    ],
)
def test_grids_are_of_integers(how, named):
    for make in (
        lambda: va.from_block_lists([0, 1], [0], **how),
        lambda: va.from_block_map([[1, 0]], **how),
    ):
        with pytest.raises(ValueError, match=named):
            make()
