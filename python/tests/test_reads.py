"""Tensors on a GPU are read once. Where there is none, tensors of the CPU stand for them."""

import gc

import pytest

torch = pytest.importorskip("torch")
import verbatim_attn as va  # noqa: E402
from verbatim_attn import _reads, masks  # noqa: E402


@pytest.fixture
def reads(monkeypatch):
    """The reads so far, of tensors that all count as remote."""
    seen = []
    to_list = torch.Tensor.tolist
    monkeypatch.setattr(_reads, "_is_remote", lambda x: isinstance(x, torch.Tensor))
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: seen.append(len(x)) or to_list(x))
    return seen


def test_lengths_are_read_once_for_queries_and_keys_and_all_layers(reads):
    q, k = torch.tensor([0, 3, 7]), torch.tensor([0, 4, 9, 12])[:3]
    made = [masks.windows(q, k, 2, 0) for _layer in range(3)]
    assert reads == [6]
    assert made[0] == made[2] == masks.windows((0, 3, 7), (0, 4, 9), 2, 0)
    assert va.from_cu_seqlens(q, causal=True).cu_seqlens_q == (0, 3, 7)
    assert reads == [6]


def test_a_write_or_another_part_is_read_anew(reads):
    lengths = torch.tensor([0, 3, 7, 9])
    assert va.from_cu_seqlens(lengths[:3]).cu_seqlens_q == (0, 3, 7)
    assert va.from_cu_seqlens(lengths).cu_seqlens_q == (0, 3, 7, 9)
    lengths[1] = 4
    assert va.from_cu_seqlens(lengths[:3]).cu_seqlens_q == (0, 4, 7)
    assert reads == [3, 4, 3]


def test_a_sign_that_is_not_in_memory_is_read(reads):
    mask = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1) > 0, 1e5)
    assert masks.from_additive(torch._neg_view(mask), 8, 8) == masks.from_dense(mask == 0)
    with pytest.raises(NotImplementedError, match="no bias"):
        masks.from_additive(mask, 8, 8)


def test_nothing_is_kept_of_tensors_that_are_gone(reads):
    _reads._known.clear()
    lengths = torch.tensor([0, 5])
    masks.Full().with_key_lengths(lengths)
    assert len(_reads._known) == 1
    del lengths
    gc.collect()
    assert not _reads._known


def test_dense_masks_are_read_once(reads, monkeypatch):
    asked, from_dense = [], masks.from_dense
    monkeypatch.setattr(masks, "from_dense", lambda x: asked.append(1) or from_dense(x))
    mask = torch.ones(1, 1, 8, 8, dtype=torch.bool).tril()
    assert masks.from_additive(mask, 8, 8) == masks.from_additive(mask, 8, 8)
    assert len(asked) == 1
    mask[..., 0] = False
    masks.from_additive(mask, 8, 8)
    assert len(asked) == 2


def test_the_second_layer_waits_for_nothing():
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    q, k, v = (torch.randn(96, 2, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))  # fmt: skip
    lengths = torch.tensor([0, 40, 96], device="cuda", dtype=torch.int32)

    keys = lengths.clone()

    def layer(x):
        return va.flash_attn_varlen_func(x, k, v, lengths, keys, causal=True)

    first = layer(q)
    torch.cuda.set_sync_debug_mode("error")
    try:
        layer(first).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert q.grad is not None
