"""A plan's passes on the native way beside the one through Python."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
import verbatim_attn as va  # noqa: E402
from test_native import between, built, heads_first, shifted  # noqa: E402, F401
from test_torch import inputs, same_bits  # noqa: E402
from verbatim_attn import _native, masks  # noqa: E402


@pytest.fixture
def both_of_plans(built, monkeypatch):  # noqa: F811
    """Calls a function on both ways, which must agree; `taken`: which passes C++ has to have done."""

    def run(call, taken):
        done = []

        def counted(*arguments):
            done.append(made := built.run(*arguments))
            return made

        results = []
        for way in (None, SimpleNamespace(run=counted)):
            monkeypatch.setattr(_native, "module", way)
            try:
                results.append(call())
            except Exception as error:  # noqa: BLE001
                results.append((type(error), str(error)))
        assert [made is not None for made in done] == taken
        expected, got = results
        assert got == expected if isinstance(expected[0], type) else same_bits(got, expected)
        return got

    return run


def plan_of(q, k, v):
    """Of a problem of these tensors with dropout."""
    dtype = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[q.dtype]
    problem = va.Problem(q.shape[0], q.shape[2], k.shape[2], q.shape[1], k.shape[1], q.shape[3],
                         v.shape[3], dtype, dropout=0.2, seed=5)  # fmt: skip
    return va.Plan(problem, masks.Causal(), device=str(q.device))


def passes(plan, q, k, v, **how):
    o, lse = plan.forward(q, k, v, **how)
    dout = torch.ones_like(o).cumsum(1)
    return (o, lse, *plan.backward(dout, q, k, v, o, lse, **how))


def test_plans(place, both_of_plans):
    """Seeds that are tensors of the plan's device, and layouts of every kind, are for C++."""

    def check(tensors):
        plan = plan_of(*tensors)
        there = torch.tensor(7, device=place.device)
        for seed, native in ((None, True), (there, True), (7, False)):
            found = both_of_plans(lambda seed=seed: passes(plan, *tensors, seed=seed), [native] * 2)
            assert not any(x.requires_grad for x in found)
        for how in (heads_first, between, shifted):
            changed = [how(x.detach()) for x in tensors]
            both_of_plans(lambda changed=changed: passes(plan, *changed, threads=1), [True] * 2)

    for i, dtype in enumerate(place.dtypes):
        check(inputs(place, i, dtype=dtype, grad=bool(i % 2)))


def test_what_no_plan_takes_is_said_by_python(place, both_of_plans):
    q, k, v = inputs(place, grad=False)
    plan = plan_of(q, k, v)
    o, lse = plan.forward(q, k, v)
    other = next(dtype for dtype in place.dtypes if dtype != q.dtype)
    bad_forwards = [(q[:, 1:], k, v), (q, k.double(), v), (q, k.to(other), v), (q, k[..., :8], v),
                    (q[0], k, v), (q, k, None), (q, k.to("meta"), v),
                    (q.cpu().numpy(), k, v)]  # fmt: skip
    for bad in bad_forwards:
        asked = [False] if isinstance(bad[0], torch.Tensor) else []  # arrays know no other way
        error, _message = both_of_plans(lambda bad=bad: plan.forward(*bad), asked)
        assert issubclass(error, Exception)
    bad_backwards = [(o[:, 1:], q, k, v, o, lse), (o, q, k, v, o.double(), lse),
                     (o, q, k, v, o, lse[..., 1:].contiguous())]  # fmt: skip
    for bad in bad_backwards:
        error, _message = both_of_plans(lambda bad=bad: plan.backward(*bad), [False])
        assert issubclass(error, Exception)
    apart = torch.stack([lse, lse], -1)[..., 0]  # an LSE that is copied
    both_of_plans(lambda: plan.backward(o, q, k, v, o, apart), [False])
    seed = torch.zeros(2, dtype=torch.int64, device=place.device)
    assert "no seed" in both_of_plans(lambda: plan.forward(q, k, v, seed=seed), [False])[1]
