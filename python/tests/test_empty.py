"""Empty batches: results and gradients without elements, of the right shapes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
import verbatim_attn as va  # noqa: E402
from test_native import built  # noqa: E402, F401
from verbatim_attn import _native, masks  # noqa: E402

SHAPES = ((0, 40, 4, 16), (0, 56, 2, 16), (0, 56, 2, 8))  # q, k, v
MASKS = {
    "none": lambda: None,
    "causal": masks.Causal,
    "padded": lambda: masks.Causal().padded([], []),
    "dense": lambda: masks.from_dense(np.ones((0, 1, 40, 56), bool)),
}


def inputs(place, *shapes):
    return [torch.zeros(x, device=place.device, dtype=place.dtypes[0], requires_grad=True)
            for x in shapes]  # fmt: skip


def shapes(*results):
    return [tuple(x.shape) for x in results]


def attend(q, k, v, **how):
    o, lse = va.attention(q, k, v, return_lse=True, **how)
    return o, lse, *torch.autograd.grad(o.sum(), (q, k, v))


@pytest.mark.parametrize("make", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("how", [{}, {"dropout": 0.5}, {"order": "ascending"}], ids=str)
def test_attention(how, make, place):
    mask = make()
    q, k, v = inputs(place, *SHAPES)
    expected = [(0, 40, 4, 8), (0, 4, 40), *SHAPES]
    found = attend(q, k, v, mask=mask, **how)
    assert shapes(*found) == expected
    assert [x.dtype for x in found] == [q.dtype, torch.float32, *3 * [q.dtype]]
    torch.compiler.reset()  # of one function, only so many variants are compiled
    compiled = torch.compile(lambda *x: va.attention(*x, mask=mask, **how), fullgraph=True,
                             backend="aot_eager")  # fmt: skip
    o = compiled(q, k, v)
    assert shapes(o, *torch.autograd.grad(o.sum(), (q, k, v))) == [expected[0], *SHAPES]


def test_attention_through_cpp(place, built, monkeypatch):  # noqa: F811
    monkeypatch.setattr(_native, "module", built)
    assert shapes(*attend(*inputs(place, *SHAPES))) == [(0, 40, 4, 8), (0, 4, 40), *SHAPES]


def test_arrays():
    q, k, v = (np.zeros(x, np.float32) for x in SHAPES)
    o, lse = va.attention(q, k, v, return_lse=True)
    assert shapes(o, lse) == [(0, 40, 4, 8), (0, 4, 40)]
    assert shapes(*va.attention_backward(o, q, k, v, o, lse)) == list(SHAPES)


@pytest.mark.parametrize("edges", [(0,), (0, 0, 0)], ids=["no sequences", "empty ones"])
@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window_size": (3, 2)}], ids=str)
def test_packed_sequences(how, edges, place):
    q, k, v = inputs(place, *((0, *x[2:]) for x in SHAPES))
    edges = torch.tensor(edges, dtype=torch.int32)
    o = va.flash_attn_varlen_func(q, k, v, edges, edges, 0, 0, **how)
    made = shapes(o, *torch.autograd.grad(o.sum(), (q, k, v)))
    assert made == [(0, 4, 8), *((0, *x[2:]) for x in SHAPES)]


@pytest.mark.skipif(
    not hasattr(torch.nn.attention, "register_flash_attention_impl"), reason="PyTorch before 2.11"
)
def test_activated_modules(place):
    attention = torch.nn.MultiheadAttention(32, 2, batch_first=True)
    attention.to(place.device, place.dtypes[0])
    (x,) = inputs(place, (0, 40, 32))
    q, k, v = inputs(place, (0, 2, 40, 16), (0, 2, 40, 16), (0, 2, 40, 16))
    with va.activate():
        o, _ = attention(x, x, x, need_weights=False)
        o.sum().backward()
        assert shapes(o, x.grad) == [(0, 40, 32)] * 2
        assert not any(p.grad.count_nonzero() for p in attention.parameters())
        o = F.scaled_dot_product_attention(q, k, v)
        assert shapes(*torch.autograd.grad(o.sum(), (q, k, v))) == shapes(q, k, v)


@pytest.mark.parametrize(
    "shapes, error",
    [
        (((0, 40, 4, 16), (1, 40, 2, 16), (1, 40, 2, 16)), r"of k; got \[1, 40, 2, 16\]"),
        (((0, 40, 4, 16), (0, 40, 2, 8), (0, 40, 2, 8)), r"of k; .* expected \[0, 40, 2, 16\]"),
        (((0, 40, 4, 16), (0, 40, 2, 16), (0, 41, 2, 16)), r"of v; .* expected \[0, 40, 2, 16\]"),
        (((0, 40, 16), (0, 40, 16), (0, 40, 16)), "dimensions of q"),
        (((1, 40, 4, 16), (0, 40, 2, 16), (0, 40, 2, 16)), "of k"),
    ],
    ids=["batch", "dim", "length", "dimensions", "keys alone"],
)
def test_shapes_are_checked(shapes, error):
    with pytest.raises(ValueError, match=error):
        va.attention(*map(torch.zeros, shapes))
