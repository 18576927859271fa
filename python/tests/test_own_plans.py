"""Plans of one's own: dumped, edited, given back."""

import copy

import numpy as np
import pytest
import reference
import verbatim_attn as va
from verbatim_attn import masks

PROBLEM = va.Problem(1, 2, 2, 500, 500, 32, 32, "f32")
MASK = masks.Causal()


def bottom_up(plan):
    """Each chain makes the visits of `plan`, of order "ascending", in the opposite sequence."""
    own = copy.deepcopy(plan)
    for order in own["orders"]:
        order["name"] = "bottom up"
        for run in order["runs"]:  # query head, first tile, count, step, addend, ...
            run[1], run[3] = run[1] + (run[2] - 1) * run[3], -run[3]
        for _, begin, end, *_ in order["chains"]:
            order["runs"][begin:end] = order["runs"][begin:end][::-1]
    del own["fingerprint"], own["residency"]
    return own


def run(plan):
    rng = np.random.default_rng(1)
    q, k, v, dout = (rng.standard_normal((1, 500, 2, 32)).astype("f4") for _ in range(4))
    o, lse = plan.forward(q, k, v)
    return (q, k, v, dout), (o, lse, *plan.backward(dout, q, k, v, o, lse))


def test_an_edited_plan_runs_in_its_order():
    usual = va.Plan(PROBLEM, MASK, order="ascending")
    own = va.Plan(PROBLEM, MASK, plans=[bottom_up(usual.dump())])
    (q, k, v, dout), got = run(own)
    visible = MASK.dense(500, 500)
    o, lse, _ = reference.forward(q, k, v, visible)
    expected = (o, lse, *reference.backward(dout, q, k, v, visible))
    for name, x, y in zip(("o", "lse", "dq", "dk", "dv"), got, expected, strict=True):
        reference.assert_close(name, x, y)
    _, rule = run(usual)
    same = [x.tobytes() == y.tobytes() for x, y in zip(got, rule, strict=True)]
    assert same == [True, True, True, False, False]  # dq is added up as before
    assert own.backward_pass.orders == ["bottom up"]
    assert own.backward_pass.fingerprint != usual.backward_pass.fingerprint
    again = va.Plan(PROBLEM, MASK, plans=[own.dump("forward"), own.dump("backward")])
    assert all(x.tobytes() == y.tobytes() for x, y in zip(run(again)[1], got, strict=True))
    assert again.level == own.level == "gpu_to_gpu" and usual.level == "invariant"


def test_what_is_no_plan_of_the_problem_is_refused():
    plan = va.Plan(PROBLEM, MASK, order="ascending").dump()
    with pytest.raises(ValueError, match="the plan is of another mask"):
        va.Plan(PROBLEM, masks.CausalSlidingWindow(100), plans=[plan])
    with pytest.raises(ValueError, match="the plan is of another head_dim; got 32, expected 64"):
        va.Plan(PROBLEM._replace(head_dim=64), MASK, plans=[plan])
    with pytest.raises(ValueError, match="the plan has an order of its own; got descending"):
        va.Plan(PROBLEM, MASK, order="descending", plans=[plan])
    with pytest.raises(ValueError, match="plans"):
        va.Plan(PROBLEM, MASK, plans=plan)
    with pytest.raises(ValueError, match="there is no such pass; got 'both'"):
        va.Plan(PROBLEM, MASK).dump("both")
    twice = bottom_up(plan)
    twice["orders"][0]["runs"][0][1] += 1
    with pytest.raises(ValueError, match="run 0 of head 0 is out of range"):
        va.Plan(PROBLEM, MASK, plans=[twice])
