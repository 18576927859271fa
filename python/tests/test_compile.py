"""torch.compile: the bits of the same code as it is, without breaks of the graph."""

import pytest

torch = pytest.importorskip("torch")
import verbatim_attn as va  # noqa: E402
from test_torch import CASES, gradients, inputs, same_bits  # noqa: E402
from verbatim_attn import masks  # noqa: E402


# One case is enough for the slow compiler.
@pytest.mark.parametrize(
    "backend, name", [*(("aot_eager", n) for n in CASES), ("inductor", "order")]
)
def test_compile_keeps_the_bits(name, backend, place):
    how = CASES[name]

    def block(q, k, v):
        return va.attention(q * 2, k, v, **how).relu()

    q, k, v = inputs(place)
    eager = block(q, k, v)
    compiled = torch.compile(block, fullgraph=True, backend=backend)(q, k, v)
    assert same_bits((compiled, *gradients(compiled, q, k, v)), (eager, *gradients(eager, q, k, v)))


def test_compile_with_a_seed_that_changes(place):
    """From the second on it is a variable of the compiled code."""
    q, k, v = inputs(place, grad=False)

    def dropped(seed):
        return va.attention(q, k, v, dropout=0.2, seed=seed)

    compiled = torch.compile(dropped, fullgraph=True)
    for seed in (7, 8, -(2**63)):
        assert same_bits([compiled(seed)], [dropped(seed)])


MADE_INSIDE = [
    masks.Causal,
    lambda: masks.Causal() & masks.FullSlidingWindow(3),
    lambda: masks.CausalDocument((7, 33)).with_key_lengths([15, 40]),
    lambda: masks.UniformBlockSparse(5, 5, density=0.5),
    lambda: masks.from_cu_seqlens((0, 5, 40), causal=True),
    lambda: masks.Causal().padded((30, 7)),
    lambda: masks.Causal().padded((30, 7), (20, 40), side="left"),
    lambda: masks.windows((0, 5, 40), (0, 5, 40), 3, 2),
    lambda: masks.PrefixLmDocument((7, 33), 3),
]


@pytest.mark.parametrize("make", MADE_INSIDE, ids=lambda make: make().name)
def test_compile_with_masks_made_inside(make, place):
    def block(q, k, v):
        return va.attention(q, k, v, mask=make())

    torch.compiler.reset()  # of one function, only so many variants are compiled
    q, k, v = inputs(place, kv_len=40)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert same_bits([compiled(q, k, v)], [block(q, k, v)])


ALL_SEE_ONE = torch.tril(torch.ones(40, 40, dtype=torch.bool))  # and itself, transposed
PADDING = torch.arange(40) < torch.tensor([40, 25])[:, None, None, None]  # (batch, 1, 1, kv_len)
MADE_OF_TENSORS = {
    "dense": (lambda x: masks.from_dense(x.T), ALL_SEE_ONE),
    "dense, NumPy": (lambda x: masks.from_dense(x.T), ALL_SEE_ONE.numpy()),
    "additive": (lambda x: masks.from_additive(x.T, 40, 40), ALL_SEE_ONE.double().log()),
    "key padding": (lambda x: masks.from_additive(x, 40, 40), PADDING),
    "block map": (
        lambda x: va.from_block_map(x.T, block=(5, 5), lengths=(40, 40)),
        ALL_SEE_ONE[:8, :8],
    ),
    "block lists": (
        lambda x: va.from_block_lists(x.T, [0, 0, 1, 1], block=(20, 20), lengths=(40, 40)),
        torch.tensor([[0, 3], [1, 4], [3, 4]]),  # of two heads
    ),
    "shown": (lambda x: masks.from_dense(masks.Causal().dense(40) & x.numpy()), ALL_SEE_ONE),
}


@pytest.mark.parametrize("make, x", MADE_OF_TENSORS.values(), ids=MADE_OF_TENSORS)
def test_compile_with_masks_made_of_tensors_inside(make, x):
    """Traced, NumPy's arrays were dead when the library read them, or of other strides."""

    def block(q, k, v, x):
        return va.attention(q, k, v, mask=make(x))

    q, k, v = inputs(kv_len=40, grad=False)
    compiled = torch.compile(block, backend="eager")
    expected = block(q, k, v, x)
    assert all(same_bits([compiled(q, k, v, x)], [expected]) for _ in range(3))


def test_compile_with_explicit_backwards():
    """Copies of what the library cannot read live until it has."""

    def block(dout, *tensors):
        return va.attention_backward(dout.transpose(1, 3) + 0, *tensors)

    q, k, v = inputs(kv_len=40, grad=False)
    o, lse = va.attention(q, k, v, return_lse=True)
    dout = torch.randn(2, 16, 4, 40)
    compiled = torch.compile(block, backend="eager")
    expected = block(dout, q, k, v, o, lse)
    assert all(same_bits(compiled(dout, q, k, v, o, lse), expected) for _ in range(3))


@pytest.mark.parametrize("window", [(3, 0), (3, 3), (3, 1), (-1, 2)])
def test_compile_with_windows_of_flash_attention(window):
    def block(q, k, v):
        return va.flash_attn_func(q, k, v, window_size=window)

    q, k, v = inputs(grad=False)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert same_bits([compiled(q, k, v)], [block(q, k, v)])


def test_compile_with_dynamic_lengths(place):
    def block(q, k, v):
        return va.attention(q, k, v, mask=masks.Causal())

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (20, 33, 48):
        q, k, v = inputs(place, q_len=length, kv_len=length)
        assert same_bits([compiled(q, k, v)], [block(q, k, v)])


def plan_of(q, k, v, **how):
    dtype = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[q.dtype]
    problem = va.Problem(q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1], q.shape[3],
                         v.shape[3], dtype, **how)  # fmt: skip
    return va.Plan(problem, masks.Causal(), device=q.device)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_with_passes_of_a_plan(backend, place):
    """Inside the graph, outside autograd."""
    q, k, v = inputs(place)
    plan = plan_of(q, k, v, dropout=0.2)

    def passes(q, k, v, seed):
        o, lse = plan.forward(q * 2, k, v, seed=seed)
        return o, lse, *plan.backward(o + 1, q * 2, k, v, o, lse, seed=seed)

    compiled = torch.compile(passes, fullgraph=True, backend=backend)
    for seed in (None, 7, torch.tensor(7, device=place.device)):
        found = compiled(q, k, v, seed)
        assert same_bits(found, passes(q, k, v, seed))
        assert not any(x.requires_grad for x in found)


def test_compile_with_one_plan_after_another():
    """A compiled function takes the plan that it is called with, not one of before."""
    q, k, v = inputs(grad=False)

    def forward(plan):
        return plan.forward(q, k, v)

    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for scale in (1.0, 0.5, 0.25):  # each plan ends before the next begins
        assert same_bits(
            compiled(plan_of(q, k, v, scale=scale)),
            va.attention(q, k, v, mask=masks.Causal(), scale=scale, return_lse=True),
        )


def test_compile_says_what_is_refused():
    q, k, v = inputs(grad=False)
    plan = plan_of(q, k, v)
    for call in (plan.forward, va.attention):
        compiled = torch.compile(lambda *x, call=call: call(*x), fullgraph=True, backend="eager")
        with pytest.raises(ValueError, match="wrong shape of [kv]"):
            compiled(q, k[..., :8], v)
        with pytest.raises(Exception, match=r"dimensions of k; got shape .* expected \(batch"):
            compiled(q, k[0], v)
