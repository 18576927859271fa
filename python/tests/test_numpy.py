"""attention(), attention_backward() and Plan on NumPy arrays."""

import copy
import hashlib
import json
import os
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest
import reference
import verbatim_attn as va
from verbatim_attn import _handles, masks
from verbatim_attn._handles import kept
from verbatim_attn.plan import call_of, plan_of

PROBLEM = va.Problem(2, 4, 2, 70, 90, 24, 24, "f32")
SETTINGS = None, 0.0, 0.0, "auto", "auto", "invariant", True, ""  # of _handles.Settings


class Tensor:
    """Of a library that nobody knows."""


def inputs(rng, batch=2, q_len=70, kv_len=90, q_heads=4, kv_heads=2, dim=24, dim_v=24, dtype="f4"):
    def normal(*shape):
        return rng.standard_normal(shape).astype(dtype)

    q, k = normal(batch, q_len, q_heads, dim), normal(batch, kv_len, kv_heads, dim)
    return q, k, normal(batch, kv_len, kv_heads, dim_v), normal(batch, q_len, q_heads, dim_v)


def run(q, k, v, dout, **how):
    o, lse = va.attention(q, k, v, return_lse=True, **how)
    return o, lse, *va.attention_backward(dout, q, k, v, o, lse, **how)


def same_bits(a, b):
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("how", [{}, {"scale": 0.3}, {"scale": 0.0}, {"softcap": 2.0}], ids=str)
@pytest.mark.parametrize(
    "mask",
    [None, masks.Causal(), masks.CausalSlidingWindow(9), masks.Full().with_key_lengths([0, 50])],
    ids=lambda m: getattr(m, "name", "none"),
)  # fmt: skip
def test_agrees_with_double_precision(mask, how):
    q, k, v, dout = inputs(np.random.default_rng(1), dim_v=40)
    visible = (mask or masks.Full()).dense(70, 90, batch=2)
    got = run(q, k, v, dout, mask=mask, **how)
    o, lse, _ = reference.forward(q, k, v, visible, **how)
    expected = (o, lse, *reference.backward(dout, q, k, v, visible, **how))
    for name, x, y in zip(("o", "lse", "dq", "dk", "dv"), got, expected, strict=True):
        reference.assert_close(name, x, y)


def test_half_precision():
    q, k, v, dout = inputs(np.random.default_rng(2), dtype="f2")
    got = run(q, k, v, dout, mask=masks.Causal())
    assert {x.dtype.name for x in got} == {"float16", "float32"}
    expected = reference.backward(dout, q, k, v, masks.Causal().dense(70, 90))
    for name, x, y in zip(("dq", "dk", "dv"), got[2:], expected, strict=True):
        reference.assert_close(name, x, y, eps=4e-3)


def test_strides_do_not_matter():
    rng = np.random.default_rng(3)
    q, k, v, dout = inputs(rng)
    dense = run(q, k, v, dout, mask=masks.Causal())
    gapped = np.zeros((2, 70, 4, 30), "f4")
    gapped[..., :24] = q
    heads_first = np.ascontiguousarray(k.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    reversed_twice = np.ascontiguousarray(v[::-1])[::-1]
    dims_last = np.ascontiguousarray(dout.transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)
    strided = (gapped[..., :24], heads_first, reversed_twice, dims_last)
    assert not any(x.flags.c_contiguous for x in strided)
    assert same_bits(run(*strided, mask=masks.Causal()), dense)
    expanded = np.broadcast_to(q[:1], q.shape)
    assert same_bits(run(expanded, k, v, dout), run(np.ascontiguousarray(expanded), k, v, dout))


def test_bits_are_invariant():
    rng = np.random.default_rng(4)
    q, k, v, dout = inputs(rng, batch=1, q_len=300, kv_len=300)
    docs = (100, 37, 163)
    packed = run(q, k, v, dout, mask=masks.CausalDocument(docs))
    assert same_bits(run(q, k, v, dout, mask=masks.CausalDocument(docs)), packed)
    edges = np.cumsum((0, *docs))
    for begin, end in zip(edges, edges[1:], strict=False):
        part = slice(begin, end)
        alone = run(q[:, part], k[:, part], v[:, part], dout[:, part], mask=masks.Causal())
        o, lse, dq, dk, dv = packed
        cut = (o[:, part], lse[..., part], dq[:, part], dk[:, part], dv[:, part])
        assert same_bits(alone, cut)


def test_dropout_follows_its_seed():
    q, k, v, dout = inputs(np.random.default_rng(5))
    first, again, other = (run(q, k, v, dout, dropout=0.4, seed=s) for s in (7, 7, 2**63 + 8))
    assert same_bits(first, again) and not same_bits(first[:1], other[:1])
    ones = np.ones_like(v)  # the row sums of the weights that stay, scaled: 1 on average
    kept = va.attention(q, k, ones, dropout=0.4, seed=1)
    assert abs(kept.mean() - 1) < 0.02 and kept.std() > 0.01
    plan = va.Plan(PROBLEM._replace(dropout=0.4, seed=7))
    assert same_bits(plan.forward(q, k, v), first[:2])
    for seed in (7.0, [7], np.ones(2, np.int64)):
        for call in (
            lambda: va.attention(q, k, v, dropout=0.4, seed=seed),
            lambda: va.attention_backward(dout, q, k, v, *first[:2], dropout=0.4, seed=seed),
            lambda: plan.forward(q, k, v, seed=seed),
        ):
            with pytest.raises(ValueError, match="no seed; got .* expected an integer"):
                call()


@pytest.mark.parametrize(
    "order",
    [
        "ascending",
        "shift",
        "chunked_descending/split",
        "descending/split:2",
        "right_to_left/even:2",
        "descending/split:2/rows:64",
    ],
)
def test_orders_are_honoured(order):
    q, k, v, _ = inputs(np.random.default_rng(6))
    plan = va.Plan(PROBLEM, order=order, tile=(16, 16))
    assert plan.backward_pass.orders == [order] and plan.backward_pass.tile == [16, 16]
    assert plan.level == "invariant" and order in plan.explain()
    o, lse = plan.forward(q, k, v, threads=1)
    assert same_bits(plan.forward(q, k, v, threads=3), (o, lse))


def test_fingerprints_tell_bits_apart():
    def fingerprint(**how):
        return va.Plan(PROBLEM, masks.Causal(), **how).backward_pass.fingerprint

    assert fingerprint() == fingerprint(workers=3)
    assert fingerprint(order="ascending") != fingerprint(order="descending")


@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_the_tool_gets_the_same_bits(tmp_path, dtype):
    tool = os.environ.get("VERBATIM_TOOL")
    if not tool:
        pytest.skip("VERBATIM_TOOL does not name the command-line tool")
    tensors = dict(
        zip(("q", "k", "v", "do"), inputs(np.random.default_rng(8), dtype=dtype), strict=True)
    )
    for name, x in tensors.items():
        np.save(tmp_path / f"{name}.npy", x)
    command = [tool, "run", "--mask", "causal_sliding_window", "--window", "20", "--check", "none",
               "--repeats", "1", "--json", tmp_path / "run.json", "--input"]  # fmt: skip
    subprocess.run([*command, *(f"{n}={tmp_path / n}.npy" for n in tensors)], check=True)
    saved = json.loads((tmp_path / "run.json").read_text())
    got = run(*tensors.values(), mask=masks.CausalSlidingWindow(20))
    for name, x in zip(("o", "lse", "dq", "dk", "dv"), got, strict=True):
        assert hashlib.sha256(x.tobytes()).hexdigest() == saved["bits"]["sha256"][name], name


def test_arrays_that_nobody_may_write():
    tensors = inputs(np.random.default_rng(8))
    expected = run(*tensors)
    for x in tensors:
        x.flags.writeable = False
    assert same_bits(run(*tensors), expected)


def test_numbers_are_those_of_the_call():
    q, k, v, _ = inputs(np.random.default_rng(12))
    for name in ("scale", "softcap"):
        number = np.array(0.25)
        for number[...] in (0.25, 0.75):
            expected = va.attention(q, k, v, **{name: float(number)})
            assert va.attention(q, k, v, **{name: number}).tobytes() == expected.tobytes()


def test_few_calls_are_kept():
    plan = va.Plan(PROBLEM)
    q, k, v, _ = inputs(np.random.default_rng(8))
    expected = plan.forward(q, k, v)
    for gap in range(300):
        room = np.zeros((2, 70, 4, 24 + gap), np.float32)
        room[..., :24] = q
        assert same_bits(plan.forward(room[..., :24], k, v), expected)
    assert kept.cache_info().currsize <= 256


def test_plans_under_masks_that_change_are_kept_up_to_so_many_bytes(monkeypatch):
    most = 4 << 20
    monkeypatch.setattr(_handles, "_MOST_BYTES", most)  # of each of two generations
    rng = np.random.default_rng(9)
    q, k, v, dout = inputs(rng, 1, 1024, 1024)
    lse = np.empty((1, 4, 1024), np.float32)
    usual = plan_of(q, k, v, masks.Causal().spec, SETTINGS)
    handles = []
    for _ in range(40):
        plane = rng.random((2, 128, 128)) < 0.5
        mask = va.from_block_map(plane, block=(8, 8), lengths=(1024, 1024))
        for tensors in ((q, k, v), (q, k, v, dout, dout, lse)):
            handles.append(weakref.ref(call_of(tensors, mask.spec, SETTINGS)._handle))
        assert plan_of(q, k, v, masks.Causal().spec, SETTINGS) is usual  # of every step
    stay = [handle().bytes for handle in handles if handle()]
    assert handles[-2]() and handles[-1]()
    assert most // 2 < sum(stay) <= 2 * most
    assert 2 * len(stay) < len(handles)


def test_problems_of_numpys_numbers():
    problem = PROBLEM._replace(q_len=np.int32(PROBLEM.q_len), scale=np.float32(0.5))
    assert va.Plan(problem).description["problem"]["scale"] == 0.5


def test_plans_are_copied_and_pickled():
    q, k, v, _ = inputs(np.random.default_rng(14), q_len=40, kv_len=80)
    tile = [64, 32]
    blocks = va.from_block_map(np.eye(5), block=(8, 16), lengths=(40, 80)) & masks.Causal()
    problem = PROBLEM._replace(q_len=40, kv_len=80)
    plan = va.Plan(problem, blocks, order="shift", tile=tile)
    tile[:] = [32, 32]  # which the plan does not see
    assert copy.copy(plan) is plan and copy.deepcopy([plan])[0] is plan
    again = pickle.loads(pickle.dumps(plan))
    assert again.backward_pass == plan.backward_pass
    assert again.forward(q, k, v)[0].tobytes() == plan.forward(q, k, v)[0].tobytes()


def test_calls_when_python_ends():
    """What was registered first ends last."""
    late = (
        "import atexit\natexit.register(lambda: print((call() == first).all()))\n"
        "import numpy as np, verbatim_attn as va\nq = np.ones((1, 64, 2, 8), np.float32)\n"
        "def call(): return va.attention(q, q, q)\nfirst = call()\n"
    )
    assert subprocess.check_output([sys.executable, "-c", late], text=True) == "True\n"


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1)])
def test_lengths_of_zero_and_one(shape):
    q, k, v, dout = inputs(np.random.default_rng(9), q_len=shape[0], kv_len=shape[1])
    o, lse, dq, dk, dv = run(q, k, v, dout)
    if shape[1] == 0:
        assert (o == 0).all() and (lse == -np.inf).all()
    assert (dq == 0).all() or shape == (1, 1)
    assert dk.shape == k.shape


def test_errors_name_what_is_wrong():
    q, k, v, dout = inputs(np.random.default_rng(10))
    o, lse = va.attention(q, k, v, return_lse=True)

    def refused(kind, part, call):
        with pytest.raises(kind) as error:
            call()
        assert part in str(error.value)

    refused(ValueError, "wrong shape of v", lambda: va.attention(q, k, v[:, 1:]))
    refused(ValueError, "wrong dtype of k", lambda: va.attention(q, k.astype("f2"), v))
    refused(ValueError, "nearest: float32", lambda: va.attention(q.astype("f8"), k, v))
    refused(ValueError, "got >f4", lambda: va.attention(q.astype(">f4"), k, v))
    refused(ValueError, "(batch, length, heads, dim)", lambda: va.attention(q[0], k, v))
    refused(ValueError, "a divisor of q_heads", lambda: va.attention(q[:, :, :3], k, v))
    refused(ValueError, "nearest: shift", lambda: va.attention(q, k, v, order="shfit"))
    refused(ValueError, "deterministic=False", lambda: va.attention(q, k, v, order="none"))
    refused(
        ValueError, "nearest: attention(..., seed=0)", lambda: va.attention(q, k, v, dropout=0.1)
    )
    refused(TypeError, "got list", lambda: va.attention(q.tolist(), k, v))
    for name in ("scale", "softcap", "dropout"):
        for number in (np.nan, np.inf):
            refused(
                ValueError,
                f"[problem] {name} takes finite numbers; got {number}",
                lambda: va.attention(q, k, v, seed=0, **{name: number}),
            )
        refused(
            ValueError,
            f"[attention] {name} is no number; got 'x', expected a number",
            lambda: va.attention(q, k, v, seed=0, **{name: "x"}),
        )
    refused(ValueError, 'no such order; got a"b', lambda: va.attention(q, k, v, order='a"b'))
    refused(ValueError, "shape of lse", lambda: va.attention_backward(dout, q, k, v, o, lse.T))
    refused(TypeError, "k is no ndarray; got Tensor", lambda: va.attention(q, Tensor(), v))
    refused(
        ValueError, "head_dim_v is out of range", lambda: va.Plan(PROBLEM._replace(head_dim_v=0))
    )
    refused(ValueError, "unknown device; got 'gpu'", lambda: va.Plan(PROBLEM, device="gpu"))
    refused(
        ValueError,
        "[problem] dtype has the wrong type; got <class 'numpy.float32'>",
        lambda: va.Plan(PROBLEM._replace(dtype=np.float32)),
    )
    for threads in (-1, 1.5, None, 2**31):
        refused(
            ValueError,
            f"[run] threads is out of range; got {threads}, expected 0 to 2147483647",
            lambda: va.Plan(PROBLEM).forward(q, k, v, threads=threads),
        )


def test_none_is_a_level_without_promise():
    q, k, v, dout = inputs(np.random.default_rng(11))
    for order in ("none", "auto"):
        o, lse = va.attention(q, k, v, order=order, deterministic=False, return_lse=True)
        va.attention_backward(dout, q, k, v, o, lse, order=order, deterministic=False)
    from verbatim_attn._handles import resolve_order

    assert resolve_order("none", "invariant", False) == ("auto", "not_guaranteed")
    assert resolve_order("auto", "invariant", False) == ("auto", "not_guaranteed")
    assert resolve_order("shift", "run_to_run", False) == ("shift", "run_to_run")


def test_waits():
    va.check("cpu")  # where none expires
    with pytest.raises(ValueError, match="unknown device.*got 'gpu'"):
        va.check("gpu")
    for seconds in (0, -1, 2e9, float("nan"), None, "10"):
        with pytest.raises(ValueError, match="no time that a wait can take"):
            va.set_wait_limit(seconds)
    va.set_wait_limit(20)
    run(*inputs(np.random.default_rng(7)))
    va.set_wait_limit(10)


def test_plans_name_what_fixes_their_bits():
    plan = va.Plan(PROBLEM)
    assert plan.contract >= 2
    assert plan.forward_pass.arithmetic == plan.backward_pass.arithmetic == "cpu.2"
    with pytest.raises(NotImplementedError, match="an arithmetic that is not here"):
        va.Plan(PROBLEM, arithmetic="sm80")
    with pytest.raises(ValueError, match="there is no such arithmetic"):
        va.Plan(PROBLEM, arithmetic="sm75")
    q, k, v, dout = inputs(np.random.default_rng(3))
    o, lse = va.attention(q, k, v, arithmetic="cpu", return_lse=True)
    assert o.tobytes() == va.attention(q, k, v).tobytes()
    va.attention_backward(dout, q, k, v, o, lse, arithmetic="cpu")
    with pytest.raises(ValueError, match="there is no such arithmetic"):
        va.attention(q, k, v, arithmetic="sm75")
    with pytest.raises(ValueError, match="there is no such arithmetic"):
        va.attention_backward(dout, q, k, v, o, lse, arithmetic="sm75")


@pytest.mark.parametrize(
    "rows, keys", [((1, 1), (130, 300)), ((3, 16), (250, 41)), ((9, 5), (7, 5))]
)
def test_a_chunk_padded_on_the_left_has_its_bits_alone(rows, keys):
    rng = np.random.default_rng(3)
    q, k, v, dout = inputs(rng, q_len=max(rows) + 2, kv_len=max(keys) + 1, dim=64, dim_v=64)
    for mask in (masks.Causal(), masks.CausalSlidingWindow(40), masks.Full()):
        padded = run(q, k, v, dout, mask=mask.padded(rows, keys, side="left"))
        for b, (n, m) in enumerate(zip(rows, keys, strict=True)):
            alone = run(q[b : b + 1, -n:], k[b : b + 1, -m:], v[b : b + 1, -m:],
                        dout[b : b + 1, -n:], mask=mask)  # fmt: skip
            o, lse, dq, dk, dv = (x[b : b + 1] for x in padded)
            ours = o[:, -n:], lse[:, :, -n:], dq[:, -n:], dk[:, -m:], dv[:, -m:]
            assert same_bits(ours, alone), (b, mask)


def test_a_library_that_is_not_there_is_named():
    done = subprocess.run(
        [sys.executable, "-c", "import verbatim_attn"], capture_output=True, text=True, check=False,
        env={**os.environ, "VERBATIM_LIBRARY": "/nowhere/libverbatim_c.so"},
    )  # fmt: skip
    assert done.returncode != 0
    assert "/nowhere/libverbatim_c.so" in done.stderr and "pip install ." in done.stderr
