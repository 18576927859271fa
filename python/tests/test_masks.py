"""Every mask against its predicate of docs/masks.md, and what is made of masks."""

import dataclasses
import json
import math

import numpy as np
import pytest
from verbatim_attn import Plan, Problem, masks

N = 13
DOCS = (3, 0, 6, 4)
START = np.repeat(np.cumsum((0, *DOCS[:-1])), DOCS)  # of the document that holds a position
DOC = np.repeat(range(4), DOCS)
Q, K = np.arange(N)[:, None], np.arange(N)[None, :]
SAME = DOC[Q] == DOC[K]

PREDICATES = [
    (masks.Full(), Q >= 0 * K),
    (masks.Causal(), K <= Q),
    (masks.FullSlidingWindow(3), abs(Q - K) <= 3),
    (masks.CausalSlidingWindow(3), (Q - 3 <= K) & (K <= Q)),
    (masks.FullDocument(DOCS), SAME),
    (masks.CausalDocument(np.array(DOCS)), SAME & (K <= Q)),
    (masks.ShareQuestion(list(DOCS)), (K <= Q) & (SAME | (DOC[K] == 0))),
    (masks.CausalBlockwise(DOCS), (K <= Q) & (SAME | (DOC[Q] == 3))),
    (masks.GlobalSliding(2, 1), (Q < 2) | (K < 2) | (abs(Q - K) <= 1)),
    (masks.PrefixLmCausal(4), (K < 4) | (K <= Q)),
    (masks.PrefixLmDocument(np.array(DOCS), np.int64(2)), SAME & ((K - START[K] < 2) | (K <= Q))),
    (masks.PrefixLmDocument(DOCS, (1, 0, 5, 2)),
     SAME & ((K - START[K] < np.array((1, 0, 5, 2))[DOC[K]]) | (K <= Q))),
    (masks.BlockCausalDocument(DOCS, 2), SAME & ((K - START[K]) // 2 <= (Q - START[Q]) // 2)),
    (masks.UniformBlockSparse(5, 4, blocks=(((0, 1), (2, 0)),)),
     ((Q // 5 == 0) & (K // 4 == 1)) | ((Q // 5 == 2) & (K // 4 == 0))),
    (masks.VariableBlockSparse((0, 6, N), (0, 1, N), blocks=[[(0, 0), (1, 1)]]),
     ((Q < 6) & (K < 1)) | ((Q >= 6) & (K >= 1))),
    (masks.from_cu_seqlens((0, 3, 9, N)), SAME),
    (masks.from_cu_seqlens((0, 3, 9, N), causal=True), SAME & (K <= Q)),
]  # fmt: skip


@pytest.mark.parametrize("mask, visible", PREDICATES, ids=lambda x: getattr(x, "name", ""))
def test_shows_what_its_predicate_says(mask, visible):
    assert (mask.dense(N)[0, 0] == visible).all()
    assert mask.area(N) == visible.sum()


@pytest.mark.parametrize("mask, visible", PREDICATES, ids=lambda x: getattr(x, "name", ""))
def test_mask_mod_says_the_same(mask, visible):
    if "import torch" in masks._library.mask_mod(mask.spec, N, N, 1):
        pytest.importorskip("torch")
    mask_mod = mask.to_mask_mod(N)
    assert all(bool(mask_mod(0, 0, q, k)) == visible[q, k] for q in range(N) for k in range(N))


def test_a_mask_mod_of_tables_takes_whole_axes_as_flex_attention_takes_single_positions():
    torch = pytest.importorskip("torch")
    mask = masks.PrefixLmDocument((30, 10, 20, 7, 13, 40, 8), (5,))
    assert "import torch" in masks._library.mask_mod(mask.spec, 128, 128, 1)
    axis = torch.arange(128)
    shown = mask.to_mask_mod(128)(0, 0, axis[:, None], axis[None, :])
    assert (shown.numpy() == mask.dense(128)[0, 0]).all()


def test_every_pattern_of_the_library_has_a_class():
    from verbatim_attn import _library

    classes = {cls.name for cls in masks.Mask.__subclasses__()}
    assert set(_library.info()["masks"]) <= classes


def test_masks_are_values():
    assert masks.CausalDocument([1, 2]) == masks.CausalDocument(np.array([1, 2]))
    assert len({masks.CausalDocument([1, 2]), masks.CausalDocument((1, 2))}) == 1
    assert masks.Causal() != masks.Full()
    with pytest.raises(dataclasses.FrozenInstanceError):
        masks.FullSlidingWindow(3).window = 4


def test_causal_is_aligned_bottom_right():
    assert (masks.Causal().dense(2, 4)[0, 0] == [[1, 1, 1, 0], [1, 1, 1, 1]]).all()


def test_intersection_and_key_lengths():
    both = masks.Causal() & masks.FullSlidingWindow(2)
    assert (both.dense(N)[0, 0] == ((K <= Q) & (abs(Q - K) <= 2))).all()
    padded = (
        (both & masks.from_dense((K != 5) & (Q >= 0))).with_key_lengths([N, 4]).dense(N, batch=2)
    )
    assert (padded[0, 0] == ((K <= Q) & (abs(Q - K) <= 2) & (K != 5))).all()
    assert (padded[1, 0] == ((K <= Q) & (abs(Q - K) <= 2) & (K < 4))).all()


def test_padding_hides_queries_and_keys():
    right = masks.Causal().padded([N, 5], [N, 4]).dense(N, batch=2)
    assert (right[0, 0] == (K <= Q)).all()
    assert (right[1, 0] == ((K <= Q) & (Q < 5) & (K < 4))).all()
    left = masks.Padded(masks.Causal(), (N, 5), (N, 5), side="left").dense(N, batch=2)
    assert (left[1, 0] == ((K <= Q) & (Q >= N - 5) & (K >= N - 5))).all()
    with pytest.raises(ValueError, match="no such side; got middle.*left or right"):
        masks.Causal().padded([N], side="middle").dense(N)


def test_windows_keep_empty_sequences():
    for edges_q, edges_k in (
        ((0, 4, 4, N), (0, 4, 4, N)),
        ((0, 0, 4, N, N), (0, 3, 3, N, N)),
        ((0, 4, 4, N), (0, 3, 5, N)),
    ):
        mask = json.loads(masks.windows(edges_q, edges_k, 2, 0).to_json(N))
        assert mask["variants"][0]["q_breaks"] == list(edges_q[1:-1])
        assert mask["variants"][0]["k_breaks"] == list(edges_k[1:-1])
    with pytest.raises(ValueError, match="got 3 and 2, expected as many of both"):
        masks.windows((0, 4, N), (0, N), 2, 0)


def test_packed_sequences_have_cumulative_lengths():
    assert masks.CausalDocument((3, 0, 5)).to_cu_seqlens() == ((0, 3, 3, 8), (0, 3, 3, 8), True)
    assert masks.FullDocument((3, 5)).to_cu_seqlens() == ((0, 3, 8), (0, 3, 8), False)
    there = masks.from_cu_seqlens(np.array([0, 2, 8]), [0, 5, 9], causal=True).to_cu_seqlens()
    assert there == ((0, 2, 8), (0, 5, 9), True)
    for mask in (masks.CausalDocument((3, 5)), masks.FullDocument((3, 5))):
        cu_seqlens_q, cu_seqlens_k, causal = mask.to_cu_seqlens()
        back = masks.from_cu_seqlens(cu_seqlens_q, cu_seqlens_k, causal=causal)
        assert (back.dense(8) == mask.dense(8)).all()
    with pytest.raises(NotImplementedError, match=r"got prefix_lm_causal.*nearest: to_mask_mod"):
        masks.PrefixLmCausal(3).to_cu_seqlens()


def test_area_counts_every_query_head():
    mask = masks.UniformBlockSparse(2, 2, density=0.3).with_key_lengths((N, 4))
    shown = mask.dense(N, batch=2, kv_heads=3)
    assert mask.area(N, batch=2, q_heads=6, kv_heads=3) == 2 * shown.sum()
    with pytest.raises(ValueError, match="KV heads do not divide query heads; got 1, 4, 3"):
        mask.area(N, q_heads=4, kv_heads=3)


def test_dense_masks_survive_the_round_trip():
    shown = np.random.default_rng(0).random((2, 3, 7, 9)) < 0.4
    assert (masks.from_dense(shown).dense(7, 9, batch=2, kv_heads=3) == shown).all()
    assert json.loads(masks.from_dense(shown[0, 0]).to_json(7, 9))["q_len"] == 7
    assert masks.from_dense(shown.astype(np.float32)) == masks.from_dense(shown)


def test_random_blocks_depend_on_the_seed_and_head_only():
    one, same, other = (masks.UniformBlockSparse(2, 2, density=0.3, seed=s) for s in (0, 0, 1))
    assert (one.dense(64, kv_heads=2) == same.dense(64, kv_heads=2)).all()
    assert (one.dense(64) != other.dense(64)).any()
    heads = one.dense(64, kv_heads=2)[0]
    assert (heads[0] != heads[1]).any() and (heads[0] == one.dense(64)[0, 0]).all()


@pytest.mark.parametrize(
    "make, part",
    [
        (lambda: masks.CausalDocument((3, 4)).dense(9), "expected 7, 7"),
        (lambda: masks.FullSlidingWindow(-1).dense(4), "window is out of range; got -1"),
        (lambda: masks.UniformBlockSparse(2, 2), "expected density= or blocks="),
        (lambda: masks.from_cu_seqlens((0, 5, 3)).dense(3), "cu_seqlens_q[2]"),
        (
            lambda: masks.from_dense(np.where(np.tri(4), 0, -np.inf)),
            "got -inf, expected bool, or 1 where visible",
        ),
        (lambda: masks.from_dense(np.where(np.tri(4), 0, -np.inf)),
         "nearest: masks.from_additive(mask, q_len, kv_len)"),
        (lambda: masks.from_dense([[1, 2]]), "nearest: a bool array"),
        (lambda: masks.from_dense([[0.0, -1.5]]), "nearest: a bool array"),
        (lambda: masks.from_dense(np.ones(3)), "expected (batch, kv_heads, q_len, kv_len)"),
        (lambda: Plan(Problem(1, 1, 1, 9, 9, 8, 8, "f32"), masks.FullDocument((3, 4))),
         "expected 9 queries, 9 keys"),
        (lambda: Plan(Problem(1, 1, 1, 9, 9, 8, 8, "f32"), np.ones((9, 9), np.bool_)),
         "[mask] not a mask; got ndarray, expected one of verbatim_attn.masks or None"),
        (lambda: Plan((1, 2)), "[problem] not a problem; got tuple, expected verbatim_attn.Problem"),
        (lambda: masks.windows(3, (0, 4), 1, 1), "[masks.windows] cumulative lengths"),
        (lambda: masks.window_bounds(("3", 0), False), "window_size is a pair of integers; got ('3'"),
        (lambda: masks.from_additive(np.ones((4, 4)), 4, 4), "mask is no tensor of PyTorch; got nd"),
        (lambda: masks.Causal().padded(np.ones((2, 9))), "got shape [2, 9], expected (batch,)"),
        (lambda: masks.Full().with_key_lengths(np.ones((2, 9))), "key_lengths is one number an"),
        (lambda: Plan(Problem(1, 1, 1, 9, 9, 8, 8, "bfloat16")), "(nearest: bf16)"),
        (lambda: masks.Causal() & None, "[mask] not a mask; got NoneType"),
        (lambda: masks.Causal() & masks.Causal, "one of verbatim_attn.masks (nearest: Causal(...))"),
        (lambda: masks.Causal() & type("BlockMask", (), {})(), "nearest: from_block_mask(mask)"),
        (lambda: masks.Causal().dense(8.0), "lengths are integers; got 8.0 and 8.0, expected"),
        (lambda: masks.Causal().area(8, "9"), "lengths are integers; got 8 and '9'"),
        (lambda: masks.Causal().to_mask_mod(4.5), "lengths are integers; got 4.5"),
        (lambda: masks.Causal().to_json(None), "lengths are integers; got None"),
        (lambda: masks.CausalDocument((3, 4)).to_mask_mod(9), "[mask.mod] the mask has other"),
        (lambda: masks.CausalDocument((3, 4)).to_json(9), "[mask.json] the mask has other"),
        (lambda: masks.CausalDocument({5: 1, 3: 2}).dense(8), "got an object, expected a list"),
        (lambda: masks.CausalDocument({5, 3}), "doc_lengths has the wrong type; got {3, 5}"),
        (lambda: masks.FullSlidingWindow(math.nan), "[mask.full_sliding_window] window takes"),
        (lambda: masks.CausalDocument((1, math.inf)), "doc_lengths takes finite numbers; got inf"),
        (lambda: masks.UniformBlockSparse(2, 2, density=math.nan), "density takes finite numbers"),
        (lambda: masks.Causal().padded(None).dense(4), "'q_lengths' has the wrong type"),
        (lambda: masks.Causal().padded((4,), side='le"ft').dense(4), 'got le"ft, expected left'),
    ],
)  # fmt: skip
def test_errors_name_what_is_wrong(make, part):
    with pytest.raises(ValueError) as error:
        make()
    assert part in str(error.value)


@pytest.mark.parametrize(
    "given, nearest",
    [
        ("causal", "masks.Causal()"),
        ("sliding_windw", "masks.FullSlidingWindow(window)"),
        ('{"name": "causal", "params": {}}', "masks.Explicit(mask)"),
        ({"name": "causal", "params": {}}, "masks.Explicit(json.dumps(mask))"),
        (np.tri(4), "masks.from_dense(visible), of which True is seen"),
        (lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, "from_mask_mod(mask, length)"),
        (True, "masks.Causal()"),
    ],
)
def test_what_is_no_mask_is_told_the_nearest(given, nearest):
    with pytest.raises(ValueError) as error:
        masks.spec_of(given)
    assert str(error.value).endswith(f"(nearest: {nearest})")


def test_a_dense_mask_of_more_than_2_to_the_28_positions():
    length = 2**14 + 64
    visible = np.tri(length, dtype=np.bool_)
    visible[:, : 2**13 + 5] = False
    mask = masks.from_dense(visible)
    assert mask.area(length) == int(visible.sum())
