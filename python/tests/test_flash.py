"""flash_attn_func, flash_attn_varlen_func and FlexAttention's masks."""

import re

import numpy as np
import pytest
import verbatim_attn as va
from verbatim_attn import attention, flash_attn_func, flash_attn_varlen_func, masks
from verbatim_attn.blocks import BlockLists

Q_LEN, KV_LEN = 20, 26
# FlashAttention: key k is visible when p - left <= k <= p + right, p = q + kv_len - q_len.
P, K = np.arange(Q_LEN)[:, None] + KV_LEN - Q_LEN, np.arange(KV_LEN)[None, :]


def inputs(*lengths, heads=(4, 2), dim=16):
    rng = np.random.default_rng(0)
    q_len, kv_len = lengths
    return [rng.standard_normal((2, n, h, dim)).astype("f4")
            for n, h in ((q_len, heads[0]), (kv_len, heads[1]), (kv_len, heads[1]))]  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [(-1, -1), (3, 3), (3, 0), (None, 5), (4, -1), (2, 7), (0, 0)])
def test_windows_mean_what_flash_attention_means(causal, window):
    left, right = (10**6 if side in (None, -1) else side for side in window)
    visible = (P - left <= K) & (K <= P + (0 if causal else right))
    q, k, v = inputs(Q_LEN, KV_LEN)
    got, lse = flash_attn_func(q, k, v, causal=causal, window_size=window, return_lse=True)
    expected, expected_lse = attention(q, k, v, mask=masks.from_dense(visible), return_lse=True)
    np.testing.assert_allclose(got, expected, atol=2e-6)
    np.testing.assert_allclose(lse, expected_lse, atol=2e-6)


@pytest.mark.parametrize("window", [(-1, -1), (3, 1), (2, -1)])
@pytest.mark.parametrize("causal", [False, True])
def test_packed_sequences_are_sequences(causal, window):
    edges_q, edges_k = (0, 7, 7, 20), (0, 5, 9, 26)
    q, k, v = (x[0] for x in inputs(Q_LEN, KV_LEN))
    how = {"causal": causal, "window_size": window, "return_lse": True, "softmax_scale": 0.3}
    o, lse = flash_attn_varlen_func(q, k, v, np.array(edges_q), edges_k, 13, 17, **how)
    assert o.shape == q.shape and lse.shape == (4, Q_LEN)
    for i in (0, 2):
        mine, keys = slice(*edges_q[i : i + 2]), slice(*edges_k[i : i + 2])
        alone, alone_lse = flash_attn_func(q[None, mine], k[None, keys], v[None, keys], **how)
        assert o[mine].tobytes() == alone[0].tobytes()  # the bits of packing and alone are equal
        assert lse[:, mine].tobytes() == alone_lse[0].tobytes()


def test_positions_of_arguments_are_flash_attentions():
    q, k, v = inputs(Q_LEN, Q_LEN)
    named = flash_attn_func(
        q, k, v, softmax_scale=0.2, causal=True, window_size=(5, 0), softcap=2.0
    )
    assert flash_attn_func(q, k, v, 0.0, 0.2, True, (5, 0), 2.0).tobytes() == named.tobytes()


def test_what_is_missing_says_so():
    q, k, v = inputs(Q_LEN, KV_LEN)
    for how in ({"alibi_slopes": np.ones(4)}, {"return_attn_probs": True}):
        with pytest.raises(NotImplementedError, match="nearest"):
            flash_attn_func(q, k, v, **how)
    with pytest.raises(NotImplementedError, match="paged"):
        flash_attn_varlen_func(q[0], k[0], v[0], (0, 20), (0, 26), block_table=np.ones(1))


def test_windows_are_pairs_of_integers():
    q, k, v = inputs(Q_LEN, KV_LEN)
    for window in ((np.nan, 3), (2.7, 0), ("3", 0), (3,), 3):
        named = re.escape(f"window_size is a pair of integers; got {window}")
        with pytest.raises(ValueError, match=named):
            flash_attn_func(q, k, v, window_size=window)


def test_dimensions_are_those_of_the_caller():
    q, k, v = inputs(Q_LEN, KV_LEN)
    named = (
        r"_varlen_func\] .*dimensions of q; got shape \[2, 20, 4, 16\], expected \(total, heads,"
    )
    with pytest.raises(ValueError, match=named):
        flash_attn_varlen_func(q, k, v, (0, 20), (0, 26))
    with pytest.raises(ValueError, match=r"dimensions of k; got list, expected \(batch, length"):
        flash_attn_func(q, k.tolist(), v)


def test_masks_of_tensors_in_any_dtype():
    torch = pytest.importorskip("torch")
    visible = torch.tril(torch.ones(8, 8))
    blocks = {"block": (4, 4), "lengths": (8, 8)}
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float8_e4m3fn, torch.float64):
        x = visible.to(dtype)
        assert (masks.from_dense(x).dense(8) == masks.Causal().dense(8)).all()
        assert va.from_block_map(x[:2, :2], **blocks).area(8) == 48
    assert masks.from_dense(visible.requires_grad_()).area(8) == 36


def test_masks_of_other_sizes_are_refused():
    torch = pytest.importorskip("torch")
    visible = torch.ones(1, 3, 8, 8, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"of other lengths; got shape \[1, 3, 8, 8\], expected"):
        masks.from_additive(visible, 8, 9)
    for group, nearest in ((2, 1), (0, 3)):
        named = rf"got 3 heads in groups of {group}, .* of 3 \(nearest: {nearest}\)"
        with pytest.raises(ValueError, match=named):
            masks.from_additive(visible, 8, 8, group=group)
        with pytest.raises(ValueError, match=named):
            va.from_mask_mod(lambda b, h, q, k: q >= k, 8, q_heads=3, group=group)


def test_block_masks_that_cannot_serve_all_are_refused():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="expected 2, 1"):
        masks.Causal().padded((5, 8)).to_block_mask(8)  # entries differ: batch=2
    with pytest.raises(ValueError, match="expected 1, 2"):
        masks.from_dense(np.ones((1, 2, 8, 8))).to_block_mask(8)  # heads do: kv_heads=2
    with pytest.raises(ValueError, match="other lengths; got 7, 7, expected 8, 8"):
        masks.CausalDocument((3, 5)).to_block_mask(7)
    with pytest.raises(ValueError, match="got Causal, expected a BlockMask"):
        va.from_block_mask(masks.Causal())


def test_masks_to_and_from_flex_attention():
    pytest.importorskip("torch")
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask
    from verbatim_attn import from_block_mask

    for mask in (masks.Causal(), masks.CausalDocument((50, 90, 60)), masks.GlobalSliding(3, 9)):
        mask_mod = mask.to_mask_mod(200)
        block_mask = create_block_mask(mask_mod, 1, 1, 200, 200, device="cpu", BLOCK_SIZE=32)
        assert (from_block_mask(block_mask).dense(200) == mask.dense(200)).all()
    by_head = masks.UniformBlockSparse(16, 16, density=0.4, seed=1)
    mask_mod = by_head.to_mask_mod(96, kv_heads=2, group=2)
    block_mask = create_block_mask(mask_mod, 1, 4, 96, 96, device="cpu", BLOCK_SIZE=32)
    got = from_block_mask(block_mask, group=2).dense(96, kv_heads=2)
    assert (got == by_head.dense(96, kv_heads=2)).all()
    with pytest.raises(NotImplementedError, match="different masks"):
        from_block_mask(block_mask, group=4)
    # Blocks that were never listed are hidden, whatever mask_mod says.
    part = block_mask.kv_num_blocks.clone()
    part[:, :, 1] = 0
    listed = BlockMask.from_kv_blocks(
        part, block_mask.kv_indices, BLOCK_SIZE=32, mask_mod=lambda b, h, q, k: q >= 0
    )
    assert not from_block_mask(listed).dense(96, kv_heads=4)[:, :, 32:64].any()


def test_mask_mods_and_block_masks_there_and_back():
    pytest.importorskip("torch")
    shapes = {"batch": 2, "q_heads": 4, "group": 2}
    by_head = masks.UniformBlockSparse(16, 16, density=0.5).with_key_lengths((96, 70))
    expected = by_head.dense(96, batch=2, kv_heads=2)
    mask_mod = by_head.to_mask_mod(96, kv_heads=2, group=2)
    assert (
        va.from_mask_mod(mask_mod, 96, **shapes).dense(96, batch=2, kv_heads=2) == expected
    ).all()
    block_mask = by_head.to_block_mask(96, batch=2, kv_heads=2, group=2)
    got = va.from_block_mask(block_mask, group=2)
    assert (got.dense(96, batch=2, kv_heads=2) == expected).all()
    assert masks.Causal().to_block_mask(40, 70).shape == (1, 1, 40, 70)
    with pytest.raises(NotImplementedError, match="different masks"):
        va.from_mask_mod(lambda b, h, q, k: k <= q + h, 8, q_heads=2, group=2)


def drawn_mask_mod(torch, rng, batch, heads, q_len, kv_len):
    """Of one of four kinds; which head or batch entry it is for may matter."""
    entries = int(rng.choice([1, batch]))
    document = torch.as_tensor(rng.integers(0, 3, (entries, max(q_len, kv_len)))).sort(-1).values
    window, by_head = int(rng.integers(1, 60)), int(rng.integers(0, 2))
    noise = torch.as_tensor(rng.random((heads, q_len, kv_len)) < rng.random())
    return {
        "causal": lambda b, h, q, k: q >= k,
        "documents": lambda b, h, q, k: document[b % entries, q] == document[b % entries, k],
        "window": lambda b, h, q, k: (q - k).abs() <= window + by_head * h,
        "noise": lambda b, h, q, k: noise[h * by_head, q, k],
    }[rng.choice(["causal", "documents", "window", "noise"])]


def positions(blocks, size, q_len, kv_len):
    shown = blocks.repeat_interleave(size[0], -2).repeat_interleave(size[1], -1)
    return shown[..., :q_len, :kv_len]


@pytest.mark.parametrize("case", range(40))
def test_a_block_mask_shows_what_flex_attention_shows(case):
    torch = pytest.importorskip("torch")
    from torch.nn.attention.flex_attention import BlockMask, create_block_mask, create_mask

    rng = np.random.default_rng(case)
    batch, heads = int(rng.integers(1, 3)), int(rng.choice([1, 2, 4]))
    q_len, kv_len = (int(n) for n in rng.integers(1, 200, 2))
    size = tuple(int(n) for n in rng.choice([16, 32, 48], 2))
    mask_mod = drawn_mask_mod(torch, rng, batch, heads, q_len, kv_len)
    shape = (batch, heads, q_len, kv_len)
    block_mask = create_block_mask(mask_mod, *shape, device="cpu", BLOCK_SIZE=size)
    expected = create_mask(mask_mod, *shape, device="cpu")
    drawn = rng.random()
    if drawn < 0.3:  # the first block of a row that is partial is full, too, at the ends as well
        listed = block_mask.kv_num_blocks, block_mask.kv_indices
        first = listed[0].clamp(max=1), listed[1]
        made = [BlockMask.from_kv_blocks(*lists, BLOCK_SIZE=size, seq_lengths=(q_len, kv_len))
                for lists in (listed, first)]  # fmt: skip
        partial, full = (positions(each.to_dense().bool(), size, q_len, kv_len) for each in made)
        block_mask = BlockMask.from_kv_blocks(
            *listed, *first, size, mask_mod, seq_lengths=(q_len, kv_len)
        )
        expected = expected & partial | full
    elif drawn < 0.6:  # some blocks of a row are not listed
        counts = (block_mask.kv_num_blocks - 1).clamp(min=0)
        left = block_mask.kv_num_blocks > counts
        block_mask = BlockMask.from_kv_blocks(
            counts, block_mask.kv_indices, block_mask.full_kv_num_blocks,
            block_mask.full_kv_indices, size, mask_mod, seq_lengths=(q_len, kv_len),
        )  # fmt: skip
        for b, h, row in left.nonzero().tolist():
            column = int(block_mask.kv_indices[b, h, row, counts[b, h, row]])
            rows, columns = (
                slice(at * n, (at + 1) * n) for at, n in zip((row, column), size, strict=True)
            )
            expected[b, h, rows, columns] = False
    got = va.from_block_mask(block_mask)
    assert (got.dense(q_len, kv_len, batch=batch, kv_heads=heads) == expected.numpy()).all()
    if not isinstance(got, BlockLists):  # mask_mod was asked
        assert got == masks.from_dense(expected.numpy())


def test_a_long_block_mask_is_never_dense():
    torch = pytest.importorskip("torch")
    from torch.nn.attention.flex_attention import BlockMask

    n, size = 1 << 17, 512  # 2^34 positions
    row = torch.arange(n // size, dtype=torch.int32)
    before = row.repeat(n // size, 1)
    own = before.clone()
    own[:, 0] = row
    block_mask = BlockMask.from_kv_blocks(
        torch.ones_like(row)[None, None], own[None, None], row[None, None], before[None, None],
        size, lambda b, h, q, k: q >= k, seq_lengths=(n, n),
    )  # fmt: skip
    mask = va.from_block_mask(block_mask)
    assert mask.area(n) == masks.Causal().area(n)
