"""verbatim_attn.jax: the bits of NumPy arrays, under every transformation of JAX."""

import functools
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import verbatim_attn as va
from jax_cases import arrays, attended, check, example, jax, jnp, vj
from test_numpy import run, same_bits
from verbatim_attn import _xla, masks

try:
    GPUS = jax.devices("cuda")
except RuntimeError:
    GPUS = []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    "mask",
    [
        None,
        masks.Causal(),
        masks.CausalSlidingWindow(9),
        masks.Causal().padded((70, 33), (90, 40)),
        masks.from_dense(np.random.default_rng(1).random((2, 2, 70, 90)) < 0.3),
        va.from_block_map(np.eye(9), block=(8, 10), lengths=(70, 90)),
    ],
    ids=lambda m: getattr(m, "name", "none"),
)
def test_bits_are_those_of_numpy(mask, dtype):
    tensors = example(dtype=dtype, dim_v=40)
    expected = run(*tensors, mask=mask)
    check(attended(*tensors, mask=mask), expected)
    check(jax.jit(functools.partial(attended, mask=mask))(*tensors), expected)


@pytest.mark.parametrize("sizes", [
    {"batch": 1, "q_len": 1, "kv_len": 1, "q_heads": 1, "kv_heads": 1},
    {"batch": 3, "q_len": 37, "kv_len": 301, "q_heads": 6, "kv_heads": 1},
    {"q_len": 301, "kv_len": 37, "q_heads": 3, "kv_heads": 3, "dim": 7, "dim_v": 5},
    {"q_len": 0},
    {"kv_len": 0},
], ids=str)  # fmt: skip
def test_sizes(sizes):
    tensors = example(**sizes)
    check(attended(*tensors, mask=masks.Causal()), run(*tensors, mask=masks.Causal()))


@pytest.mark.parametrize("how", [
    {"scale": 0.3}, {"scale": np.float32(0)}, {"softcap": 2}, {"order": "ascending"},
    {"order": "shift", "level": "run_to_run"}, {"forward_order": "ascending"},
    {"arithmetic": "cpu"},
], ids=str)  # fmt: skip
def test_settings(how):
    tensors = example(q_len=300, kv_len=300)
    check(attended(*tensors, **how), run(*tensors, **how))


def test_transformations():
    q, k, v, dout = example(3)
    mask = masks.Causal()
    o, _lse, *gradients = run(q, k, v, dout, mask=mask)

    def loss(q, k, v):
        return (vj.attention(q, k, v, mask=mask) * dout).sum()

    check_gradients = functools.partial(same_bits, gradients)
    assert check_gradients(arrays(jax.grad(loss, (0, 1, 2))(q, k, v)))
    value, found = jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(q, k, v)
    assert np.isfinite(value) and check_gradients(arrays(found))
    assert check_gradients(arrays(jax.jit(jax.grad(jax.checkpoint(loss), (0, 1, 2)))(q, k, v)))

    def step(carry, x):
        return carry + 1, vj.attention(*x, mask=mask)

    _, scanned = jax.lax.scan(step, 0, tuple(np.stack([x, x]) for x in (q, k, v)))
    assert same_bits(arrays(scanned), (o, o))

    def through_scan(q, k, v):
        xs = tuple(x[None] for x in (q, k, v))
        return (jax.lax.scan(jax.checkpoint(step), 0, xs)[1][0] * dout).sum()

    assert check_gradients(arrays(jax.jit(jax.grad(through_scan, (0, 1, 2)))(q, k, v)))


@pytest.mark.parametrize("how", [
    {"mask": masks.Causal()},
    {"mask": masks.Full().with_key_lengths((50, 90))},  # entries differ, and stay apart
    {"dropout": 0.3, "seed": 7},
], ids=lambda how: str(how)[:30])  # fmt: skip
def test_vmap(how):
    each = [example(seed) for seed in range(3)]
    expected = [run(*tensors, **how) for tensors in each]
    stacked = [np.stack(x) for x in zip(*each, strict=True)]
    mapped = jax.vmap(functools.partial(attended, **how))
    check(mapped(*stacked), [np.stack(x) for x in zip(*expected, strict=True)])
    check(jax.jit(mapped)(*stacked), [np.stack(x) for x in zip(*expected, strict=True)])
    nested = jax.vmap(mapped, in_axes=2, out_axes=1)(*(x[:, :, None] for x in stacked))
    check((x[:, 0] for x in nested), [np.stack(x) for x in zip(*expected, strict=True)])

    _q, k, v, _dout = each[0]
    shared = jax.vmap(lambda q, dout: attended(q, k, v, dout, **how), in_axes=-1, out_axes=0)
    got = shared(np.moveaxis(stacked[0], 0, -1), np.moveaxis(stacked[3], 0, -1))
    alone = [run(x[0], k, v, x[3], **how) for x in each]
    check(got, [np.stack(x) for x in zip(*alone, strict=True)])


def test_seeds():
    tensors = example(6)
    expected = {seed: run(*tensors, dropout=0.4, seed=seed) for seed in (7, -7, 2**63 + 8)}
    assert not same_bits(expected[7], expected[-7])
    for seed, made in expected.items():
        check(attended(*tensors, dropout=0.4, seed=seed), made)
    seeded = jax.jit(lambda seed, *x: attended(*x, dropout=0.4, seed=seed))
    check(seeded(7, *tensors), expected[7])
    check(seeded(jnp.int32(-7), *tensors), expected[-7])
    check(seeded(jnp.uint32([7]), *tensors), expected[7])
    with jax.enable_x64(True):
        check(seeded(jnp.uint64(2**63 + 8), *tensors), expected[2**63 + 8])
    check(attended(*tensors, seed=7), run(*tensors))


def test_the_lse_has_no_gradient():
    q, k, v, _ = example(7)
    found = jax.grad(lambda q: vj.attention(q, k, v, return_lse=True)[1].sum())(q)
    assert not np.asarray(found).any()


def test_nothing_is_copied():
    tensors = example(8)
    text = jax.jit(attended).lower(*tensors).compile().as_text()
    assert text.count('custom_call_target="verbatim_') == 2
    assert not any(f" {name}(" in text for name in ("copy", "transpose", "fusion"))


def test_runs_repeat():
    tensors = example(9, q_len=500, kv_len=500)
    function = jax.jit(functools.partial(attended, mask=masks.Causal()))
    first = arrays(function(*tensors))
    for _ in range(5):
        check(function(*tensors), first)


def test_threads_share_plans():
    """Each meets every problem, all at the same time."""
    problems = [example(seed, q_len=30 + seed) for seed in range(4)]
    function = jax.jit(attended)
    expected, found = [run(*tensors) for tensors in problems], {}

    def work(me):
        found[me] = [arrays(function(*problems[(me + i) % 4])) for i in range(8)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for me in range(4):
        assert all(same_bits(got, expected[(me + i) % 4]) for i, got in enumerate(found[me]))


def test_a_program_outlives_its_plan():
    """More plans than are kept; the mask's object is gone, too."""
    tensors = example(10, q_len=16, kv_len=16)
    mask = va.from_block_map(np.eye(2), block=(8, 8), lengths=(16, 16))
    expected = run(*tensors, mask=mask)
    program = jax.jit(functools.partial(attended, mask=mask)).lower(*tensors).compile()
    check(program(*tensors), expected)
    del mask
    gc.collect()
    q, k, v, _ = tensors
    for i in range(270):
        vj.attention(q, k, v, scale=1 + i / 270)
    check(program(*tensors), expected)


PROGRAM = """
import hashlib, jax, numpy as np, verbatim_attn.jax as vj
from verbatim_attn import masks
hits = []
jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))
x = np.random.default_rng(0).standard_normal((1, 50, 2, 16), np.float32)
f = jax.jit(jax.value_and_grad(lambda x: vj.attention(x, x, x, mask=masks.Causal()).sum()))
print(hashlib.sha256(b"".join(np.asarray(y).tobytes() for y in f(x))).hexdigest())
print(hits.count("/jax/compilation_cache/cache_hits"))
"""


def test_a_second_process_finds_the_compiled_program(tmp_path):
    how = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PLATFORMS": "cpu",
    }
    first, second = (
        subprocess.check_output([sys.executable, "-c", PROGRAM], text=True, env=os.environ | how)
        for _ in range(2)
    )
    assert first.split()[0] == second.split()[0]
    assert (first.split()[1], second.split()[1]) == ("0", "1")


@pytest.mark.skipif(not GPUS, reason="no CUDA device")
@pytest.mark.parametrize("at", [0, -1])
def test_on_a_gpu(at):
    """Its bits are its own; its numbers are those of the CPU."""
    mask = masks.Causal().padded((300, 130), (300, 140))
    tensors = example(15, "bfloat16", q_len=300, kv_len=300, dim=64, dim_v=64)
    how = {"mask": mask, "dropout": 0.2}
    there = jax.device_put(tensors, GPUS[at])
    first = arrays(attended(*there, seed=7, **how))
    for x, y in zip(first, run(*tensors, seed=7, **how), strict=True):
        np.testing.assert_allclose(x.astype("f4"), y.astype("f4"), atol=0.05)
    function = jax.jit(lambda seed, *x: attended(*x, seed=seed, **how))
    for _ in range(3):
        check(function(7, *there), first)
    stacked = [jnp.stack([x, x]) for x in there]
    check((x[1] for x in jax.vmap(functools.partial(function, 7))(*stacked)), first)
    plain = arrays(attended(*there, mask=masks.Causal()))
    mapped = jax.jit(jax.vmap(functools.partial(attended, mask=masks.Causal())))(*stacked)
    check((x[1] for x in mapped), plain)
    wide = [x.astype(jnp.float32) for x in there[:3]]
    on_gpu = functools.partial(refused, jax.errors.JaxRuntimeError, "nearest")
    on_gpu(lambda: jax.block_until_ready(vj.attention(*wide)))  # said when it is waited for


def refused(kind, part, call, *arguments, **how):
    with pytest.raises(kind) as error:
        call(*arguments, **how)
    assert part in str(error.value)


def test_errors_name_what_is_wrong():
    q, k, v, _ = example(11)
    refuse = functools.partial(refused, ValueError)
    refuse("wrong shape of v; got [2, 89, 2, 24], expected", vj.attention, q, k, v[:, 1:])
    refuse("wrong shape of k; got [1, 90, 2, 24], expected", vj.attention, q, k[:1], v)
    refuse("wrong dtype of k; got float16", vj.attention, q, k.astype("f2"), v)
    refuse("got float64, expected float32", vj.attention, q.astype("f8"), k, v)
    refuse("(batch, length, heads, dim)", vj.attention, q[0], k, v)
    refuse("a divisor of q_heads", vj.attention, q[:, :, :3], k, v)
    refuse("nearest: shift", vj.attention, q, k, v, order="shfit")
    refuse("deterministic=False", vj.attention, q, k, v, order="none")
    message = "expected at most level gpu_to_gpu"
    refused(NotImplementedError, message, vj.attention, q, k, v, order="right_to_left_tail")
    refuse("nearest: seed=0", vj.attention, q, k, v, dropout=0.1)
    refuse("no seed; got str", vj.attention, q, k, v, seed="x")
    refuse("no seed; got float32", vj.attention, q, k, v, seed=jnp.float32(1))
    refuse("scale is no number", vj.attention, q, k, v, scale="x")
    refuse("[mask] not a mask; got str", vj.attention, q, k, v, mask="causal")
    refuse("other lengths", vj.attention, q, k, v, mask=masks.CausalDocument((1, 2)))
    refuse("another batch", vj.attention, q, k, v, mask=masks.Full().with_key_lengths((1, 2, 3)))
    refused(TypeError, "q is neither a JAX nor", vj.attention, q.tolist(), k, v)
    message = "there is no such arithmetic"  # which a device may have
    refused(jax.errors.JaxRuntimeError, message, vj.attention, q, k, v, arithmetic="sm75")

    def scaled(scale):
        return vj.attention(q, k, v, scale=scale)

    refuse("scale is no number", jax.jit(scaled), 0.5)

    def twice(q):
        return jax.grad(lambda q: vj.attention(q, k, v).sum())(q).sum()

    refused(NotImplementedError, "no second derivatives", jax.grad(twice), q)


def test_handlers_refuse_what_does_not_fit():
    """What others than verbatim_attn.jax may ask of XLA's calls."""
    q, k, v, dout = example(12)
    _xla.register()
    like_o, like_lse = jax.ShapeDtypeStruct((2, 70, 4, 24), q.dtype), jnp.zeros((2, 4, 70))
    good = {
        "problem": '{"scale": null, "softcap": 0, "dropout": 0, "seed": 0}',
        "mask": masks.Causal().spec,
        "options": '{"order": "auto"}',
    }

    def forward(*inputs, like=(like_o, like_lse), **attributes):
        return jax.ffi.ffi_call("verbatim_forward", like)(*inputs, **good | attributes)

    expected = va.attention(q, k, v, mask=masks.Causal(), return_lse=True)
    assert same_bits(arrays(forward(q, k, v)), expected)
    refuse = functools.partial(refused, jax.errors.JaxRuntimeError)
    refuse("wrong shape of v", forward, q, k, v[:1])
    refuse("wrong dtype of k", forward, q, k.astype("f2"), v)
    refuse("no tensor of attention: q; got 3 dimensions", forward, q[0], k, v)
    refuse("no tensor of attention: v", forward, q, k, v.astype("i4"))
    refuse("wrong shape of o", forward, q, k, v, like=(v[:, :70], like_lse))
    refuse("lse; expected float32", forward, q, k, v, like=(like_o, like_lse.astype("f2")))
    refuse("lse; expected float32", forward, q, k, v, like=(like_o, like_lse.swapaxes(1, 2)))
    refuse("lse; expected float32", forward, q, k, v, like=(like_o, like_lse.swapaxes(0, 1)))
    refuse("expected two words of uint32", forward, q, k, v, np.ones(2, "i4"))
    refuse("is no object of JSON; got 7", forward, q, k, v, problem="7")
    refuse("'softcap'", forward, q, k, v, problem='{"scale": 1, "dropout": 0, "seed": 0}')
    refuse("JSON", forward, q, k, v, mask="causal")
    refuse("ordr", forward, q, k, v, options='{"ordr": "auto"}')
    refuse(
        "expected 3 but got 0", jax.ffi.ffi_call("verbatim_forward", (like_o, like_lse)), q, k, v
    )
    backward = jax.ffi.ffi_call("verbatim_backward", (q, k, v))
    o, lse = expected
    assert same_bits(arrays(backward(q, k, v, o, dout, lse, **good)),
                     va.attention_backward(dout, q, k, v, o, lse, mask=masks.Causal()))  # fmt: skip
    refuse("wrong shape of dout", backward, q, k, v, o, dout[:, :3], lse, **good)
    refuse("lse; expected", backward, q, k, v, o, dout, lse[:1], **good)


DOT_PRODUCTS = [
    {},
    {"is_causal": True, "scale": 0.3},
    {"local_window_size": 2},
    {"local_window_size": (3, 1), "is_causal": True},
    {"local_window_size": (5, 0), "key_value_seq_lengths": np.array([7, 9], np.int32)},
    {"query_seq_lengths": np.array([4, 5], np.int32), "is_causal": True},
    {
        "query_seq_lengths": np.array([4, 5], np.int32),
        "key_value_seq_lengths": jnp.array([5, 4], np.int32),
    },
]


@pytest.mark.parametrize("how", DOT_PRODUCTS, ids=str)
@pytest.mark.parametrize("lengths", [(9, 9), (6, 11), (11, 9)], ids=str)
def test_dot_product_attention_is_jaxs(lengths, how):
    q, k, v, _ = example(13, q_len=lengths[0], kv_len=lengths[1])

    def both(function):
        def seen(q, k, v):
            o, residual = function(q, k, v, return_residual=True, **how)
            shown = jnp.isfinite(vj.dot_product_attention(q, k, v, return_residual=True, **how)[1])
            return jnp.where(shown[..., None], o, 0), jnp.where(shown, residual, 0)

        (o, residual), gradients = jax.vjp(seen, q, k, v)
        return o, residual, *gradients((jnp.cos(o), jnp.zeros_like(residual)))

    for x, y in zip(
        both(vj.dot_product_attention), both(jax.nn.dot_product_attention), strict=True
    ):
        np.testing.assert_allclose(x, y, atol=5e-6)


def test_dot_product_attention_in_particular():
    q, k, v, _ = example(14, q_len=90)
    o = va.attention(q, k, v, mask=masks.Causal())
    found = vj.dot_product_attention(q, k, v, mask=masks.Causal(), is_causal=True)
    assert same_bits([np.asarray(found)], [o])
    found, residual = vj.dot_product_attention(
        q[0], k[0], v[0], is_causal=True, return_residual=True
    )
    assert same_bits([np.asarray(found)], o[:1]) and residual.shape == (90, 4)
    refuse = functools.partial(refused, NotImplementedError)
    call = vj.dot_product_attention
    refuse(
        "no bias; got float32 [1, 1, 90, 90], expected",
        call,
        q,
        k,
        v,
        np.zeros((1, 1, 90, 90), "f4"),
    )
    refuse("no array here; got bool [90, 90]", call, q, k, v, mask=np.ones((90, 90), bool))
    refuse("got 'cudnn', expected None", call, q, k, v, implementation="cudnn")
    refused(ValueError, "dimensions of key; got shape [2, 90]", call, q, k[..., 0, 0], v)
    refused(ValueError, "one integer or two; got (1, 2, 3)", call, q, k, v,
            local_window_size=(1, 2, 3))  # fmt: skip
    for name in ("query_seq_lengths", "key_value_seq_lengths"):
        lengths = np.array([4, 5], np.int32)
        refuse(
            f"{name} is traced", jax.jit(lambda x, name=name: call(q, k, v, **{name: x})), lengths
        )


def test_an_old_jax_is_refused():
    with pytest.raises(ImportError, match="got 0.9.2, expected 0.10 or newer"):
        _xla.require_jax("0.9.2")
    _xla.require_jax("0.10.0.dev1")
    _xla.require_jax("1.0")


REFUSED = """
import jax, numpy as np
from verbatim_attn import _xla, jax as vj
vj.build()
_xla.register()
q = np.zeros((1, 2, 3, 8), "f4")
try:
    jax.ffi.ffi_call("verbatim_forward", (q, q[..., 0]))(q, q, q)
except jax.errors.JaxRuntimeError as error:
    print(error)
"""


def test_a_compiler_that_links_its_library_statically(tmp_path):
    compiler = os.environ.get("CXX", "c++") + " -static-libstdc++ -static-libgcc"
    how = {"CXX": compiler, "VERBATIM_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    said = subprocess.check_output([sys.executable, "-c", REFUSED], text=True, env=os.environ | how)
    assert "expected 3 but got 0" in said  # which XLA's header says by way of a stream


def test_building(monkeypatch, tmp_path, capsys):
    assert vj.main([]) == 0 and ": built (" in capsys.readouterr().out
    monkeypatch.setenv("VERBATIM_CACHE", str(tmp_path))
    assert vj.main([]) == 0 and ": not built (" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(_xla, "_library_of_calls", None)
        refused(
            RuntimeError, "nearest: python -m verbatim_attn.jax build", vj.attention, *example()[:3]
        )
    with monkeypatch.context() as patch:
        patch.setenv("CXX", "false")
        refused(RuntimeError, "[jax] compiling failed", vj.build)
    assert not list(tmp_path.iterdir())
    assert vj.main(["build", "--folder", str(tmp_path)]) == 0
    assert [file.name for file in tmp_path.iterdir()] == [_xla.built_file().name]
