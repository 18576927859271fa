"""The PyTorch operators against SDPA's formula in double precision, and in every way of use.

VERBATIM_PROBLEMS says how many random problems are compared (100 by default).
"""

import os
import random

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
import verbatim_attn as va  # noqa: E402
import verbatim_attn._torch  # noqa: E402, F401  (registers torch.ops.verbatim)
from places import PLACES  # noqa: E402
from verbatim_attn import masks  # noqa: E402

PROBLEMS = int(os.environ.get("VERBATIM_PROBLEMS", "100"))
UNITS = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def inputs(place=PLACES["cpu"], seed=0, batch=2, q_len=40, kv_len=56, q_heads=4, kv_heads=2, dim=16,
           dim_v=16, dtype=None, grad=True):  # fmt: skip
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        values = torch.randn(shape, generator=g)
        return values.to(place.device, dtype or place.dtypes[0]).requires_grad_(grad)

    q, k = normal(batch, q_len, q_heads, dim), normal(batch, kv_len, kv_heads, dim)
    return q, k, normal(batch, kv_len, kv_heads, dim_v)


def gradients(o, *inputs, seed=9):
    dout = torch.randn(o.shape, generator=torch.Generator().manual_seed(seed)).to(o)
    return torch.autograd.grad(o, inputs, dout)


def same_bits(a, b):
    return all(x.dtype == y.dtype and torch.equal(x.view(torch.uint8), y.view(torch.uint8))
               for x, y in zip(a, b, strict=True))  # fmt: skip


def random_mask(rng, q_len, kv_len):
    square = [
        lambda: masks.CausalDocument(documents(rng, q_len)),
        lambda: masks.FullDocument(documents(rng, q_len)),
        lambda: masks.ShareQuestion(documents(rng, q_len)),
        lambda: masks.CausalBlockwise(documents(rng, q_len)),
        lambda: masks.GlobalSliding(rng.randrange(5), rng.randrange(20)),
        lambda: masks.PrefixLmCausal(rng.randrange(q_len + 2)),
        lambda: masks.PrefixLmDocument(documents(rng, q_len), rng.randrange(9)),
        lambda: masks.BlockCausalDocument(documents(rng, q_len), rng.randrange(1, 20)),
    ]
    any_shape = [
        masks.Full,
        masks.Causal,
        lambda: masks.FullSlidingWindow(rng.randrange(30)),
        lambda: masks.CausalSlidingWindow(rng.randrange(30)),
        lambda: masks.UniformBlockSparse(
            rng.randrange(1, 20), 16, density=0.5, seed=rng.randrange(9)
        ),
    ]
    return rng.choice(any_shape + (square if q_len == kv_len else []))()


def documents(rng, length):
    cuts = sorted(rng.randrange(length + 1) for _ in range(rng.randrange(4)))
    return [b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)]


def head_dims(rng, place):
    if place.step == 1:
        return rng.randrange(1, 80), rng.randrange(1, 80)
    if rng.random() < 0.6:  # Hopper's kernels have these alone
        return (rng.choice((64, 128)),) * 2
    return tuple(place.step * rng.randrange(1, 256 // place.step + 1) for _ in range(2))


@pytest.mark.parametrize("part", range(10))
def test_random_problems_agree_with_sdpa_in_double_precision(part, place):
    longest = 200 if place.device == "cpu" else 600
    for seed in range(part, PROBLEMS, 10):
        rng = random.Random(seed)
        kv_heads, group = rng.choice([(1, 1), (2, 1), (1, 3), (2, 2)])
        q_len = rng.randrange(1, longest)
        kv_len = q_len if rng.random() < 0.6 else rng.randrange(1, longest)
        batch, dtype = rng.randrange(1, 4), rng.choice(place.dtypes)
        mask, scale = random_mask(rng, q_len, kv_len), rng.choice([None, 0.25])
        q, k, v = inputs(place, seed, batch, q_len, kv_len, kv_heads * group, kv_heads,
                         *head_dims(rng, place), dtype)  # fmt: skip
        o = va.attention(q, k, v, mask=mask, scale=scale)

        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        visible = torch.from_numpy(mask.dense(q_len, kv_len, kv_heads=kv_heads))
        visible = visible.repeat_interleave(group, 1).to(place.device)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            heads_first = [x.transpose(1, 2) for x in wide]
            expected = F.scaled_dot_product_attention(
                *heads_first, attn_mask=visible, scale=scale, enable_gqa=True
            ).transpose(1, 2)
        outputs = (o, *gradients(o, q, k, v))
        exact = (expected, *gradients(expected, *wide))
        for name, got, want in zip(("o", "dq", "dk", "dv"), outputs, exact, strict=True):
            assert got.dtype == dtype
            error = (got.double() - want).abs().max().item()
            allowed = UNITS[dtype] * max(1, want.abs().max().item())
            assert error <= allowed, f"problem {seed}, {mask}: {name} is {error:.3g} off"


CASES = {
    "causal": {"mask": masks.Causal()},
    "softcap": {"softcap": 3.0, "scale": 0.5},
    "order": {"mask": masks.CausalSlidingWindow(9), "order": "descending", "level": "run_to_run"},
    "dropout": {"dropout": 0.2, "seed": 5},
}


def op_arguments(how):
    seed = torch.tensor(how["seed"]) if "seed" in how else None
    spec = how.get("mask", masks.Full()).spec
    return (seed, spec, how.get("scale"), how.get("softcap", 0.0), how.get("dropout", 0.0),
            how.get("order", "auto"), "auto", how.get("level", "invariant"), True, "")  # fmt: skip


@pytest.mark.parametrize("how", CASES.values(), ids=CASES)
def test_opcheck(how, place):
    q, k, v = inputs(place, q_len=12, kv_len=20)
    arguments = op_arguments(how)
    torch.library.opcheck(torch.ops.verbatim.forward, (q, k, v, *arguments))
    q, k, v = (x.detach() for x in (q, k, v))
    o, lse = torch.ops.verbatim.forward(q, k, v, *arguments)
    torch.library.opcheck(torch.ops.verbatim.backward, (o, q, k, v, o, lse, *arguments))


@pytest.mark.parametrize("how", CASES.values(), ids=CASES)
def test_gradcheck(how):
    """In f32, which is what the kernels compute in: double inputs would be refused. Steps are
    therefore large and errors compared at f32's noise; the backward must not vary at all."""
    q, k, v = inputs(q_len=5, kv_len=7, q_heads=2, kv_heads=1, dim=4, dim_v=3)
    assert torch.autograd.gradcheck(
        lambda *x: va.attention(*x, **how),
        (q, k, v),
        eps=1e-2,
        atol=2e-3,
        rtol=2e-2,
        nondet_tol=0.0,
    )


@pytest.mark.parametrize("how", CASES.values(), ids=CASES)
def test_autograd_gives_the_bits_of_the_explicit_backward(how, place):
    q, k, v = inputs(place)
    o, lse = va.attention(q, k, v, return_lse=True, **how)
    assert o.requires_grad and not lse.requires_grad
    dout = torch.randn(o.shape, generator=torch.Generator().manual_seed(9)).to(o)
    with torch.no_grad():
        explicit = va.attention_backward(dout, q, k, v, o, lse, **how)
    assert same_bits(gradients(o, q, k, v), explicit)
    if place.device != "cpu":
        return
    arrays = [x.detach().numpy() for x in (dout, q, k, v, o, lse)]
    assert same_bits([torch.from_numpy(x) for x in va.attention_backward(*arrays, **how)], explicit)


def test_the_order_survives_every_entry_point(monkeypatch, place):
    """A flag that autograd or the compiler drops would show in the calls that are asked for."""
    asked = []
    import verbatim_attn._torch as ops

    monkeypatch.setattr(ops._native, "module", None)  # test_native.py asks that one
    real = ops.call_of
    monkeypatch.setattr(
        ops, "call_of", lambda x, mask, how: asked.append((len(x), how[3:])) or real(x, mask, how)
    )
    kernels = "cpu" if place.device == "cpu" else "sm80"
    how = {"order": "shift", "level": "run_to_run", "deterministic": False, "arithmetic": kernels}
    q, k, v = inputs(place)

    def call(q, k, v):
        return va.attention(q, k, v, **how)

    checkpointed = torch.utils.checkpoint.checkpoint(call, q, k, v, use_reentrant=False)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v)
    for o in (call(q, k, v), compiled, checkpointed):
        gradients(o, q, k, v)
    assert len(asked) >= 6
    assert set(asked) == {(n, ("shift", "auto", "run_to_run", False, kernels)) for n in (3, 6)}


def test_checkpointing_draws_the_same_dropout(place):
    q, k, v = inputs(place)

    def call(q, k, v):
        return va.attention(q, k, v, dropout=0.3)

    torch.manual_seed(0)
    plain = gradients(call(q, k, v), q, k, v)
    torch.manual_seed(0)
    o = torch.utils.checkpoint.checkpoint(call, q, k, v, use_reentrant=False)
    assert same_bits(gradients(o, q, k, v), plain)
    assert not torch.equal(call(q, k, v), call(q, k, v))


def test_a_seed_may_be_a_tensor(place):
    q, k, v = inputs(place)

    def call(seed):
        o = va.attention(q, k, v, dropout=0.3, seed=seed)
        return (o, *gradients(o, q, k, v))

    expected = call(2**63 + 5)
    seed = torch.tensor(5 - 2**63)
    assert same_bits(call(seed), expected) and same_bits(call(seed.to(place.device)), expected)
    assert not same_bits(call(seed + 1), expected)
    plan = va.Plan(va.Problem(2, 4, 2, 40, 56, 16, 16, "f32", dropout=0.3))
    for seed, got in (
        (torch.zeros(2, dtype=torch.int32, device=place.device), r"torch.int32 \[2\]"),
        (torch.ones(1, dtype=torch.float64, device=place.device), r"torch.float64 \[1\]"),
        (1.0, "1.0"),
        ("1", "str"),
    ):
        with pytest.raises(ValueError, match=f"no seed; got {got}, expected an integer"):
            call(seed)
        if place.device == "cpu":
            with pytest.raises(ValueError, match=f"no seed; got {got}, expected an integer"):
                plan.forward(q, k, v, seed=seed)


def test_seeds_are_integers_of_any_kind():
    q, k, v = inputs(grad=False)

    def call(q, k, v, seed):
        return va.attention(q, k, v, dropout=0.3, seed=seed)

    plan = va.Plan(va.Problem(2, 4, 2, 40, 56, 16, 16, "f32", dropout=0.3))
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    for seed in (3, 4, 5):  # dynamic from the second on
        expected = [call(q, k, v, seed)]
        assert same_bits([call(q, k, v, np.int64(seed))], expected)
        assert same_bits([compiled(q, k, v, seed)], expected)
        assert same_bits([plan.forward(q, k, v, seed=np.uint8(seed))[0]], expected)
        assert same_bits([plan.forward(q, k, v, seed=torch.tensor(seed))[0]], expected)
    assert same_bits([call(q, k, v, -1)], [call(q, k, v, 2**64 - 1)])
    for seed in (2**64, -(2**63) - 1):
        for asked in (lambda: call(q, k, v, seed), lambda: plan.forward(q, k, v, seed=seed)):
            with pytest.raises(ValueError, match=f"seed is out of range; got {seed}, expected 64"):
                asked()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype, place):
    q, k, v = inputs(place, dtype=torch.float32)
    with torch.autocast(place.device, dtype=dtype):
        o = va.attention(q, k, v, mask=masks.Causal())
        grads = gradients(o, q, k, v)
    assert o.dtype == dtype and grads[0].dtype == torch.float32
    narrow = va.attention(*(x.to(dtype) for x in (q, k, v)), mask=masks.Causal())
    assert same_bits([o], [narrow])
    for other in (torch.float64, torch.int32):  # which matrix products leave as they are
        with torch.autocast(place.device, dtype=dtype), pytest.raises(ValueError, match=f"{other}"):
            va.attention(*(x.detach().to(other) for x in (q, k, v)))


def test_strides_and_expanded_gradients(place):
    q, k, v = inputs(place, grad=False)
    dense = [x.clone().requires_grad_() for x in (q, k, v)]
    strided = [
        q.transpose(0, 3).contiguous().transpose(0, 3),
        k.transpose(1, 2).contiguous().transpose(1, 2),
        torch.cat([v, v], 3)[..., :16],
    ]
    strided = [x.requires_grad_() for x in strided]
    for sum_of in (torch.sum, lambda o: (o * o).sum()):  # the first gradient is expanded from one
        a, b = (torch.autograd.grad(sum_of(va.attention(*x)), x) for x in (dense, strided))
        assert same_bits(a, b)
    shared = k[:1, :, :1].expand(2, -1, 2, -1)
    assert same_bits([va.attention(q, shared, v)], [va.attention(q, shared.contiguous(), v)])


def test_a_call_of_one_layout_does_not_serve_another(place):
    """All share one plan, whose prepared calls hold the strides."""
    dense = inputs(place, grad=False, q_len=40, kv_len=40, q_heads=2)
    o, lse = va.attention(*dense, return_lse=True)
    dout = torch.randn(o.shape, generator=torch.Generator().manual_seed(9)).to(o)
    expected = (o, lse, *va.attention_backward(dout, *dense, o, lse))

    def heads_first(x):
        return x.transpose(1, 2).contiguous().transpose(1, 2)

    def between(x):
        return torch.stack([x, x], -1)[..., 0]

    wide = (lse.double(), lse.transpose(1, 2).contiguous().transpose(1, 2))
    for how in (heads_first, between, torch.clone, heads_first):
        for i in range(3):
            tensors = [how(x) if i == j else x for j, x in enumerate(dense)]
            for rows in (lse, *wide):
                o, again = va.attention(*tensors, return_lse=True)
                gradients = va.attention_backward(how(dout), *tensors, how(o), rows)
                assert same_bits((o, again, *gradients), expected)


def test_saved_tensors_may_come_back_otherwise(place):
    q, k, v = inputs(place)
    expected = gradients(va.attention(q, k, v), q, k, v)

    def strided(x):
        return x.transpose(0, -1).contiguous().transpose(0, -1)

    with torch.autograd.graph.saved_tensors_hooks(strided, lambda x: x):
        o = va.attention(q, k, v)
    assert same_bits(gradients(o, q, k, v), expected)


def test_only_rows_that_a_gpu_cannot_read_are_copied():
    from verbatim_attn._arrays import rows_are_aligned

    def aligned(x):
        return rows_are_aligned(x.shape, x.stride(), x.element_size(), 16)

    x = torch.empty(2, 3, 4, 64, dtype=torch.bfloat16)
    assert aligned(x) and aligned(x.transpose(1, 2)) and aligned(x[..., 8:40])
    assert aligned(x[:, :1, :, :].expand(2, 5, 4, 64))
    assert not aligned(x.flatten()[: 2 * 3 * 4 * 36].view(2, 3, 4, 36))  # 72-byte rows
    assert aligned(torch.empty(1, 1, 1, 3))  # one row


@pytest.mark.parametrize("how", CASES.values(), ids=CASES)
def test_who_observes_sees_the_operators_and_the_same_bits(how, place):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    q, k, v = inputs(place)
    o = va.attention(q, k, v, **how)
    direct = (o, *gradients(o, q, k, v))
    with Log():
        o = va.attention(q, k, v, **how)
        observed = (o, *gradients(o, q, k, v))
    ops = torch.ops.verbatim
    assert {ops.forward.default, ops.backward.default} <= set(seen)
    assert same_bits(direct, observed)
    assert va.attention(*(x.to("meta") for x in (q, k, v)), **how).is_meta


class Block(torch.nn.Module):
    def forward(self, q, k, v):
        return va.attention(q, k, v, mask=masks.Causal())


def test_tracers_see_the_operators(place):
    q, k, v = inputs(place, kv_len=40, grad=False)
    expected, operator = Block()(q, k, v), "verbatim.forward.default"
    traced = [
        torch.export.export(Block(), (q, k, v), strict=strict).module() for strict in (True, False)
    ]
    traced.append(torch.fx.experimental.proxy_tensor.make_fx(Block())(q, k, v))
    for module in traced:
        assert operator in [str(node.target) for node in module.graph.nodes]
        assert same_bits([module(q, k, v)], [expected])
    mapped = torch.vmap(Block())(*(x[None] for x in (q, k, v)))  # by a loop of PyTorch's
    assert same_bits([mapped[0]], [expected])


@pytest.mark.parametrize("operator", [False, True])
def test_who_wants_second_derivatives_is_told(operator):
    q, k, v = inputs()
    ops = torch.ops.verbatim
    o = ops.forward(q, k, v, *op_arguments({}))[0] if operator else va.attention(q, k, v)
    first = torch.autograd.grad(o.sum(), q, retain_graph=True)
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    assert same_bits([dq], first)
    with pytest.raises(NotImplementedError, match="there are no second derivatives"):
        (o.sum() + dq.sum()).backward()


def test_who_wants_forward_derivatives_is_told():
    q, k, v = inputs(grad=False)
    with pytest.raises(
        NotImplementedError, match="no forward-mode derivatives; got a tangent of v"
    ):
        torch.func.jvp(lambda v: va.attention(q, k, v), (v,), (torch.ones_like(v),))
    with torch.autograd.forward_ad.dual_level():
        va.attention(q, k, v)
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises(NotImplementedError, match="got a tangent of q"):
            va.attention(dual, k, v)


@pytest.mark.parametrize("ask", ["grad", "vjp", "jacrev"])
def test_who_wants_gradients_of_torch_func_is_told(ask):
    q, k, v = inputs(grad=False)
    functions = {
        "grad": lambda f: torch.func.grad(f)(v),
        "vjp": lambda f: torch.func.vjp(f, v),
        "jacrev": lambda f: torch.func.jacrev(f)(v),
    }
    with pytest.raises(NotImplementedError, match="torch.func takes no .*nearest: torch.autograd"):
        functions[ask](lambda v: va.attention(q, k, v).sum())


def test_signs_that_are_not_in_memory():
    q, k, v = inputs(grad=False)
    plan = va.Plan(va.Problem(2, 4, 2, 40, 56, 16, 16, "f32"))
    o, lse = plan.forward(q, k, v)
    seed = torch.tensor(5)
    dropped = va.Plan(va.Problem(2, 4, 2, 40, 56, 16, 16, "f32", dropout=0.5))
    for calls in (
        (lambda *x: [va.attention(*x)], q, k, v),
        (plan.forward, q, k, v),
        (plan.backward, o, q, k, v, o, lse),
        (va.attention_backward, o, q, k, v, o, lse),
        (lambda seed: dropped.forward(q, k, v, seed=seed), seed),
    ):
        call, *tensors = calls
        for i in range(len(tensors)):
            call(*tensors)  # which is of another layout
            lazy = [torch._neg_view(x) if i == j else x for j, x in enumerate(tensors)]
            assert same_bits(call(*lazy), call(*(x.resolve_neg() for x in lazy)))


def test_deterministic_algorithms_forbid_any_order(place):
    q, k, v = inputs(place)
    unordered = {"order": "none", "deterministic": False}
    o = va.attention(q, k, v, **unordered)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(
            RuntimeError, match="forbids adding in any order.*nearest: order='auto'"
        ):
            va.attention(q, k, v, **unordered)
        with pytest.raises(RuntimeError, match="forbids"):  # also when only the backward is inside
            gradients(o, q, k, v)
        from verbatim_attn._handles import resolve_order

        assert resolve_order("auto", "invariant", False, False) == ("auto", "invariant")
        va.attention(q, k, v, deterministic=False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_errors_name_what_is_wrong():
    q, k, v = inputs(grad=False)
    with pytest.raises(ValueError, match="got torch.float64.*nearest: float32"):
        va.attention(q.double(), k.double(), v.double())
    with pytest.raises(ValueError, match="wrong dtype of k"):
        va.attention(q, k.half(), v)
    learned = torch.ones((), requires_grad=True)
    nested = torch.nested.as_nested_tensor([q[0, :30], q[0, 30:]], layout=torch.jagged)
    for name, nearest in (("scale", r"q \* scale"), ("softcap", r"softcap.detach\(\)")):
        with pytest.raises(NotImplementedError, match=f"{name} gets no gradient.*{nearest}"):
            va.attention(q, k, v, **{name: learned})
    with pytest.raises(ValueError, match="there is no such arithmetic"):
        va.attention(q, k, v, arithmetic="sm75")
    with pytest.raises(TypeError, match="k is no Tensor; got ndarray"):
        va.Plan(va.Problem(2, 4, 2, 40, 56, 16, 16, "f32")) and va.attention_backward(
            q, q, k.numpy(), v, q, q
        )
    for call in (lambda: va.attention(q, k.numpy(), v), lambda: va.attention(q, q, None)):
        with pytest.raises(
            TypeError, match="is no Tensor; got .*, expected q, k and v of one kind"
        ):
            call()
    for call, named in (
        (lambda: va.attention(q, k.to_sparse(), v), r"k .*sparse_coo.*nearest: k.to_dense\(\)"),
        (lambda: va.attention(q, k, v.to_mkldnn()), r"v .*mkldnn.*nearest: v.to_dense\(\)"),
        (
            lambda: va.attention(nested, nested, nested),
            r"q .*a nested one, torch.jagged.*values\(\)",
        ),
    ):
        with pytest.raises(ValueError, match=named):
            call()
    packed = masks.from_cu_seqlens(nested.offsets())  # as the error says
    assert va.attention(*3 * [nested.values()[None]], mask=packed).shape == (1, 40, 4, 16)
    with pytest.raises(ValueError, match="different devices; got meta, expected cpu"):
        va.attention_backward(q, q, k.to("meta"), v, q, q)
    plan = va.Plan(va.Problem(2, 4, 2, 40, 56, 16, 16, "f32"), device=q.device)
    with pytest.raises(ValueError, match="another device than the plan; got meta, expected cpu"):
        plan.forward(*(x.to("meta") for x in (q, k, v)))
