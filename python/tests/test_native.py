"""The native way of tensors beside the one through Python: the same bits and the same errors."""

import contextlib
import os
import random
import shutil
import sysconfig
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F  # noqa: E402
import verbatim_attn as va  # noqa: E402
from test_torch import gradients, head_dims, inputs, random_mask, same_bits  # noqa: E402
from verbatim_attn import _native, masks, native  # noqa: E402

if shutil.which(os.environ.get("CXX", "c++").split()[0]) is None:
    pytest.skip("no compiler", allow_module_level=True)
if not Path(sysconfig.get_path("include"), "Python.h").exists():
    pytest.skip("no headers of Python", allow_module_level=True)


@pytest.fixture(scope="module")
def built():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VERBATIM_NATIVE", raising=False)
        patch.setattr(_native, "module", _native.load())
        native.build()
        yield _native.module


@pytest.fixture
def both(built, monkeypatch):
    """Calls a function on both ways, which must agree. `taken`: how many attentions C++ has to have
    done, and Python to have been left."""

    def outcome(call):
        torch.manual_seed(0)
        try:
            found = call()
        except Exception as error:  # noqa: BLE001
            return type(error), str(error)
        return found if isinstance(found, tuple) else (found,)

    def run(call, taken=(1, 0)):
        done = []

        def counted(*arguments):
            made: Any = ()
            try:
                made = built.attention(*arguments)
            finally:  # checkpointing ends the second forward by an exception
                done.append(made is not None)
            return made

        monkeypatch.setattr(_native, "module", None)
        expected = outcome(call)
        monkeypatch.setattr(_native, "module", SimpleNamespace(attention=counted, run=built.run))
        got = outcome(call)
        assert (done.count(True), done.count(False)) == taken
        if isinstance(expected[0], type):
            assert got == expected
        else:
            assert same_bits(got, expected)
        return got

    return run


def attended(tensors, **how):
    """o, the LSE and, where the tensors require any, their gradients."""
    o, lse = va.attention(*tensors, return_lse=True, **how)
    assert not lse.requires_grad
    return (o, lse, *(gradients(o, *tensors) if o.requires_grad else ()))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_random_problems(part, grad, place, both):
    for seed in range(part, 60, 4):
        rng = random.Random(seed)
        kv_heads, group = rng.choice([(1, 1), (2, 1), (1, 3), (2, 2)])
        q_len = rng.randrange(1, 200)
        kv_len = q_len if rng.random() < 0.6 else rng.randrange(1, 200)
        how = {
            "mask": random_mask(rng, q_len, kv_len),
            "scale": rng.choice([None, 0.25]),
            "softcap": rng.choice([0, 3]),
            "dropout": rng.choice([0, 0.2]),
            "seed": rng.choice([None, 2**64 - 1]),
            "order": rng.choice(["auto", "descending"]),
        }
        tensors = inputs(
            place, seed, rng.randrange(1, 4), q_len, kv_len, kv_heads * group, kv_heads,
            *head_dims(rng, place), rng.choice(place.dtypes), grad,
        )  # fmt: skip
        both(lambda tensors=tensors, how=how: attended(tensors, **how))


def heads_first(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def between(x):
    return torch.stack([x, x], -1)[..., 0]


def shifted(x):
    """Where a GPU cannot read: 8 bytes behind a multiple of 16."""
    step = 8 // x.element_size()
    return torch.cat([x, x], -1)[..., step : step + x.shape[-1]]


@pytest.mark.parametrize("how", [heads_first, between, shifted, lambda x: x[:1].expand(x.shape)])
def test_strides(how, place, both):
    tensors = inputs(place, grad=False)
    for i in range(3):
        changed = [how(x) if i == j else x for j, x in enumerate(tensors)]
        both(lambda changed=changed: attended([x.detach().requires_grad_() for x in changed]))

    def with_gradient():
        q, k, v = inputs(place)
        o = va.attention(q, k, v)
        return torch.autograd.grad(o, (q, k, v), how(torch.ones_like(o).cumsum(1)))

    both(with_gradient)


def test_which_inputs_require_gradients(place, both):
    for wanted in ((0,), (2,), (0, 1)):

        def call(wanted=wanted):
            tensors = inputs(place, grad=False)
            for i in wanted:
                tensors[i].requires_grad_()
            o = va.attention(*tensors)
            o.sum().backward()
            assert [x.grad is not None for x in tensors] == [i in wanted for i in range(3)]
            return tuple(tensors[i].grad for i in wanted)

        both(call)

    def unwanted():
        with torch.no_grad():
            o = va.attention(*inputs(place))
        assert o.grad_fn is None
        return o

    both(unwanted)
    with torch.inference_mode():
        both(lambda: va.attention(*inputs(place, grad=False)))


def test_flash_attention_functions(place, both):
    q, k, v = inputs(place, kv_len=40)

    def func():
        o = va.flash_attn_func(q, k, v, causal=True, window_size=(9, 0))
        return (o, *gradients(o, q, k, v))

    def varlen():
        edges = torch.tensor([0, 7, 40])
        o, lse = va.flash_attn_varlen_func(
            q[0], k[0], v[0], edges, edges, causal=True, return_lse=True
        )
        return (o, lse, *gradients(o, q, k, v))

    both(func)
    both(varlen)


@pytest.mark.parametrize("seed", [None, 7, torch.tensor(-7), torch.tensor(7, dtype=torch.uint64)])
def test_seeds(seed, place, both):
    tensors, is_signed = inputs(place), getattr(seed, "dtype", None) != torch.uint64
    both(lambda: attended(tensors, dropout=0.3, seed=seed), (1, 0) if is_signed else (0, 1))
    if isinstance(seed, torch.Tensor):
        there = seed.to(place.device)
        both(lambda: attended(tensors, dropout=0.3, seed=there), (1, 0) if is_signed else (0, 1))


def test_numbers_are_those_of_the_call(both):
    q, k, v = inputs(grad=False)
    scale = torch.tensor(0.25)  # which is written to in place

    def call():
        return tuple(va.attention(q, k, v, scale=scale.fill_(x)) for x in (0.25, 0.75))

    expected = tuple(va.attention(q, k, v, scale=x) for x in (0.25, 0.75))
    assert same_bits(both(call, taken=(2, 0)), expected)


def test_autocast(place, both):
    tensors = inputs(place, dtype=torch.float32)
    with torch.autocast(place.device, dtype=torch.bfloat16):
        found = both(lambda: attended(tensors))
        double = both(lambda: va.attention(*(x.double() for x in tensors)), taken=(0, 1))
    assert found[0].dtype == torch.bfloat16 and found[2].dtype == torch.float32
    assert double[0] is ValueError


def test_checkpointing(place, both):
    for reentrant in (False, True):

        def call(reentrant=reentrant):
            q, k, v = inputs(place)
            o = torch.utils.checkpoint.checkpoint(
                lambda *x: va.attention(*x, dropout=0.2), q, k, v, use_reentrant=reentrant
            )
            o.sum().backward()
            return o, q.grad, k.grad, v.grad

        both(call, taken=(2, 0))


@pytest.mark.parametrize("pack", [
    lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    torch.Tensor.double,
    torch.Tensor.cpu,
])  # fmt: skip
def test_saved_tensors_may_come_back_otherwise(pack, place, both):
    tensors = inputs(place)

    def call():
        kinds = {4: tensors[0].dtype, 3: torch.float32}  # the LSE has three dimensions
        back = lambda x: x.to(place.device, kinds[x.dim()])  # noqa: E731
        with torch.autograd.graph.saved_tensors_hooks(pack, back):
            o = va.attention(*tensors)
        return gradients(o, *tensors)

    both(call)


def test_gradients_of_gradients_are_refused(both):
    q, k, v = inputs()

    def first():
        o = va.attention(q, k, v)
        return torch.autograd.grad(o.sum(), (q, k, v), create_graph=True)

    def second():
        return torch.autograd.grad(first()[1].sum(), q)

    both(first)
    error, message = both(second)
    assert error is NotImplementedError and "there are no second derivatives" in message


def test_a_graph_that_has_been_used(both):
    def twice(retain):
        q, k, v = inputs()
        o = va.attention(q, k, v)
        return sum((torch.autograd.grad(o.sum(), (q, k, v), retain_graph=retain)
                    for _ in range(2)), ())  # fmt: skip

    both(lambda: twice(True))
    assert "second time" in both(lambda: twice(False))[1]

    def changed():
        q, k, v = inputs()
        o = va.attention(q, k, v)
        with torch.no_grad():
            k.add_(1)
        o.sum().backward()

    assert "modified by an inplace operation" in both(changed)[1]


@contextlib.contextmanager
def deterministic_algorithms():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def test_deterministic_algorithms(both):
    def call(before, **how):
        q, k, v = inputs(q_len=150, kv_len=150)
        with deterministic_algorithms() if before else contextlib.nullcontext():
            o = va.attention(q, k, v, deterministic=False, **how)
        with deterministic_algorithms():
            return gradients(o, q, k, v)

    for before in (False, True):  # the backward has then another order than the forward asked for
        ordered = both(lambda before=before: call(before))
        q, k, v = inputs(q_len=150, kv_len=150)
        assert same_bits(ordered, gradients(va.attention(q, k, v), q, k, v))
    assert "forbids adding in any order" in both(lambda: call(False, order="none"))[1]
    assert "forbids" in both(lambda: call(True, order="none"))[1]


ERRORS = {
    "one dtype": lambda q, k, v: va.attention(q, k.half(), v),
    "shape": lambda q, k, v: va.attention(q, k[:, :, :1], v),
    "order": lambda q, k, v: va.attention(q, k, v, order="forward"),
    "unordered": lambda q, k, v: va.attention(q, k, v, order="none"),
    "level": lambda q, k, v: va.attention(q, k, v, order="right_to_left_tail"),
    "mask": lambda q, k, v: va.attention(q, k, v, mask=masks.CausalDocument((1, 2))),
    "no heads": lambda q, k, v: va.attention(*(x[:, :, :0] for x in (q, k, v))),
}
ERRORS_BEFORE = {
    "number": lambda q, k, v: va.attention(q, k, v, scale=[1.0]),
    "learned": lambda q, k, v: va.attention(q, k, v, scale=torch.ones((), requires_grad=True)),
}
ERRORS_OF_PYTHON = {
    "dtype": lambda q, k, v: va.attention(q.double(), k.double(), v.double()),
    "dimensions": lambda q, k, v: va.attention(q[0], k[0], v[0]),
    "device": lambda q, k, v: va.attention(q, k.to("meta"), v),
    "tangent": lambda q, k, v: torch.func.jvp(lambda q: va.attention(q, k, v), (q,), (q,)),
}


@pytest.mark.parametrize("name", ERRORS | ERRORS_OF_PYTHON | ERRORS_BEFORE)
def test_errors(name, both):
    call = (ERRORS | ERRORS_OF_PYTHON | ERRORS_BEFORE)[name]
    taken = (1, 0) if name in ERRORS else (0, 1) if name in ERRORS_OF_PYTHON else (0, 0)
    error, _message = both(lambda: call(*inputs(grad=False)), taken=taken)
    assert issubclass(error, Exception)


def test_an_order_that_is_no_name(built, monkeypatch):
    for way, error in ((built, TypeError), (None, RuntimeError)):  # no key; no schema's argument
        monkeypatch.setattr(_native, "module", way)
        with pytest.raises(error, match="list"):
            va.attention(*inputs(grad=False), order=["auto"])


class Twice(torch.Tensor):
    """A class of its own, whose operators see twice its values."""

    @staticmethod
    def __torch_dispatch__(function, types, args=(), kwargs=None):
        plain = [torch.Tensor._make_subclass(torch.Tensor, x) if isinstance(x, Twice) else x
                 for x in args]  # fmt: skip
        plain = [x * 2 if isinstance(x, torch.Tensor) else x for x in plain]
        return function(*plain, **(kwargs or {}))


OBSERVERS = {
    "parameter": lambda q, k, v: va.attention(torch.nn.Parameter(q), k, v),
    "vmap": lambda q, k, v: torch.vmap(lambda q: va.attention(q[None], k[:1], v[:1]))(q),
    "meta": lambda q, k, v: torch.zeros(va.attention(*(x.to("meta") for x in (q, k, v))).shape),
    "sign": lambda q, k, v: va.attention(torch._neg_view(q), k, v),
    "trace": lambda q, k, v: torch.jit.trace(lambda *x: va.attention(*x), (q, k, v),
                                             check_trace=False)(q, k, v),
    "class": lambda q, k, v: va.attention(q.as_subclass(Twice), k, v),
}  # fmt: skip


@pytest.mark.parametrize("call", OBSERVERS.values(), ids=OBSERVERS)
def test_observers_get_operators(call, both):
    tensors = [x.contiguous() for x in inputs(grad=False)]
    both(lambda: call(*tensors), taken=(0, 1))


def test_modes_and_compilers_get_operators(both):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    q, k, v = inputs()

    def observed():
        seen.clear()
        with Log():
            o = va.attention(q, k, v)
        assert "verbatim.forward.default" in seen
        return (o, *gradients(o, q, k, v))

    both(observed, taken=(0, 1))
    compiled = torch.compile(va.attention, fullgraph=True, backend="aot_eager")
    both(lambda: (compiled(q, k, v), *gradients(compiled(q, k, v), q, k, v)), taken=(0, 0))


def test_threads_share_plans(built, monkeypatch, place):
    """As many shapes as threads, each met by every thread at the same time."""
    monkeypatch.setattr(_native, "module", built)
    problems = [inputs(place, seed, q_len=30 + seed, kv_len=50) for seed in range(4)]

    def run(tensors):
        return attended(tensors, mask=masks.Causal())

    expected, found = [run(tensors) for tensors in problems], {}

    def work(me):
        found[me] = [run(problems[(me + i) % 4]) for i in range(20)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for me in range(4):
        assert all(same_bits(got, expected[(me + i) % 4]) for i, got in enumerate(found[me]))


def test_a_graph_outlives_its_plan(built, monkeypatch):
    """More plans than are kept, between a forward and its backward."""
    monkeypatch.setattr(_native, "module", built)
    q, k, v = inputs()
    expected = attended((q, k, v))
    o = va.attention(q, k, v)
    with torch.no_grad():
        for length in range(1, 300):
            va.attention(
                q[:1, :1], k[:1, :1].expand(1, length, 2, 16), v[:1, :1].expand(1, length, 2, 16)
            )
    assert same_bits(gradients(o, q, k, v), expected[2:])
    assert same_bits(attended((q, k, v)), expected)


def test_the_order_survives(built, monkeypatch):
    monkeypatch.setattr(_native, "module", built)
    asked, problem_of = [], _native.problem_of
    monkeypatch.setattr(_native, "problem_of", lambda *x: asked.append(x[2]) or problem_of(*x))
    q, k, v = inputs(q_len=123)
    how = {"order": "shift", "level": "run_to_run", "deterministic": False, "arithmetic": "cpu"}
    for _ in range(2):
        gradients(va.attention(q, k, v, **how), q, k, v)
    settings = (None, 0.0, 0.0, "shift", "auto", "run_to_run", False, "cpu")
    assert asked == [settings]  # by both passes, once


def test_activation_changes_nothing(place, both):
    if not hasattr(torch.nn.attention, "register_flash_attention_impl"):
        pytest.skip("PyTorch before 2.11")
    q, k, v = inputs(place, kv_len=40, kv_heads=4, dim=64, dim_v=64)
    expected = both(lambda: attended((q, k, v)))
    with va.activate():
        assert same_bits(both(lambda: attended((q, k, v))), expected)
        o = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
        theirs = (o, *gradients(o, q, k, v))
    if place.device == "cpu":  # elsewhere PyTorch may choose another kernel
        assert same_bits(theirs, (expected[0], *expected[2:]))


def test_status(built, monkeypatch, tmp_path):
    monkeypatch.setattr(_native, "module", built)
    assert native.status().way == "native" and native.status().file.exists()
    monkeypatch.setattr(_native, "module", None)
    monkeypatch.setenv("VERBATIM_NATIVE", "0")
    assert _native.load() is None
    assert native.status()[::2] == ("python", "VERBATIM_NATIVE is 0")

    monkeypatch.delenv("VERBATIM_NATIVE")
    monkeypatch.setenv("VERBATIM_CACHE", str(tmp_path))
    assert _native.load() is None
    assert native.status()[::2] == ("python", "not built")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(RuntimeError, match=r"\[native\] compiling failed"):
        native.build()
    assert not list(tmp_path.iterdir())
    native.status().file.write_text("no library")
    with pytest.warns(UserWarning, match="does not load"):
        assert _native.load() is None
    assert native.status().reason == "does not load"


def test_tools_of_the_command_line(built, monkeypatch, capsys):
    monkeypatch.setattr(_native, "module", built)
    monkeypatch.delenv("VERBATIM_NATIVE", raising=False)
    for words in ([], ["build"]):
        assert native.main(words) == 0
        assert capsys.readouterr().out.startswith("native: ")


def test_outputs_are_not_filled_first(built, monkeypatch):
    """Under torch.use_deterministic_algorithms, which fills what torch.empty() makes."""
    q, k, v = inputs(grad=False)
    o, lse = va.attention(q, k, v, return_lse=True)
    dout = torch.ones_like(o)
    expected = va.attention_backward(dout, q, k, v, o, lse)

    def filled():
        """Shapes of what is filled."""
        with torch.profiler.profile(record_shapes=True) as profile:
            done = va.attention(q, k, v, return_lse=True)
            done += va.attention_backward(dout, q, k, v, o, lse)
        assert same_bits(done, (o, lse, *expected))
        return {
            tuple(event.input_shapes[0])
            for event in profile.key_averages(group_by_input_shape=True)
            if event.key == "aten::fill_"
        }

    with deterministic_algorithms():
        for way in (built, None):
            monkeypatch.setattr(_native, "module", way)
            assert filled() <= {(0,)}
