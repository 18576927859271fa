"""XLA's calls of the library, as `python -m verbatim_attn.jax build` compiles csrc/jax_call.cpp,
and the two passes as operations of JAX."""

from __future__ import annotations

import ctypes
import functools
import math
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax.custom_batching import custom_vmap, sequential_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from . import _library
from ._compiled import compile_file, file_of, source_file

_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}  # of handlers: as XLA calls them
_SOURCE = source_file("jax_call.cpp")
# A C++ library that a compiler links statically stays inside: it must not share half its state with
# the process's own.
_OPTIONS = ("-Wl,--exclude-libs,ALL",)
_lock = threading.Lock()
_library_of_calls: Any = None  # once it is registered


def require_jax(version: str) -> None:
    """Raises ImportError before what shard_map needs to know of an array's axes."""
    if tuple(int(part) for part in version.split(".")[:2]) < (0, 10):
        raise ImportError(
            f"[jax] this JAX is too old; got {version}, expected 0.10 or newer (nearest: pip "
            "install -U jax)"
        )


require_jax(jax.__version__)


def built_file() -> Path:
    """There or not. XLA's interface is C: one file serves every Python."""
    return file_of("verbatim_jax", _SOURCE, jaxlib.__version__, _OPTIONS, ".so")


def build(folder: Path | None = None) -> Path:
    """Compiles XLA's calls for the jaxlib at hand, with CXX or else c++, unless they are there. The
    file lies in `folder`, else in VERBATIM_CACHE, by default ~/.cache/verbatim_attn, where later
    processes find it.

    Raises RuntimeError with what the compiler says.
    """
    file = built_file()
    if folder is not None:
        file = folder / file.name
    if not file.exists():
        compile_file(
            file, _SOURCE, [jax.ffi.include_dir()], _OPTIONS,
            "[jax] compiling failed; got {}, expected a C++20 compiler (nearest: "
            "verbatim_attn.attention(), which takes NumPy arrays without one)",
        )  # fmt: skip
    return file


def register() -> None:
    """Makes the handlers known to XLA, once. Raises RuntimeError where they are not built: as
    native.py, nothing compiles that was not asked to."""
    global _library_of_calls
    if _library_of_calls is not None:
        return
    with _lock:
        if _library_of_calls is not None:
            return
        file = built_file()
        if not file.exists():
            raise RuntimeError(
                f"[jax] the calls of XLA are not built; got no file {file}, expected the one for "
                f"jaxlib {jaxlib.__version__} (nearest: python -m verbatim_attn.jax build)"
            )
        _library_of_calls = _registered(file)


def _registered(file: Path) -> Any:
    made = ctypes.CDLL(str(file))
    functions: tuple[Any, ...] = (
        _library.create, _library.destroy, _library.forward, _library.backward,
        _library.workspace, _library.bytes_of, _library.last_error,
    )  # fmt: skip
    addresses = [ctypes.cast(function, ctypes.c_void_p) for function in functions]
    made.verbatim_jax_begin(*addresses, ctypes.c_void_p(ctypes.addressof(_library.wait_limit)))
    for name in ("forward", "backward"):
        for platform, theirs in _PLATFORMS.items():
            handler = jax.ffi.pycapsule(getattr(made, f"verbatim_jax_{name}_{platform}"))
            jax.ffi.register_ffi_target(f"verbatim_{name}", handler, platform=theirs)
    return made


class How(NamedTuple):
    """All of an attention but its arrays: objects of JSON without sizes and device, which
    csrc/jax_call.cpp adds; and whether entries of the batch, or KV heads, differ by their arrays
    alone, so that any number of them has the same bits."""

    problem: str
    mask: str
    options: str
    any_batch: bool
    any_heads: bool


# Axes of arrays and results, behind those of jax.vmap, which count as batch: queries i, keys j,
# KV heads g with r query heads each.
_AXES = {
    "forward": (("b i gr d", "b j g d", "b j g e"), ("b i gr e", "b gr i")),
    "backward": (
        ("b i gr d", "b j g d", "b j g e", "b i gr e", "b i gr e", "b gr i"),
        ("b i gr d", "b j g d", "b j g e"),
    ),
}


def _call(name: str, how: How, like: Any, *arrays: Any) -> Any:
    """`like` makes what is like the results out of what is like the arrays, axes of a mesh along
    which they vary (jax.shard_map) included."""
    results = tuple(jax.make_jaxpr(like)(*arrays).out_avals)  # eval_shape() forgets such axes
    call = jax.ffi.ffi_call(
        f"verbatim_{name}", results, vmap_method="broadcast_all" if how.any_batch else "sequential"
    )
    return call(*arrays, problem=how.problem, mask=how.mask, options=how.options)


def _call_in_parts(name: str, how: How, like: Any, *arrays: Any) -> Any:
    """_call(). Under jit, devices that hold parts of the batch or of the KV heads compute these;
    under jax.shard_map they have only these."""
    in_shard_map = jax.sharding.get_abstract_mesh().manual_axes
    if in_shard_map or not (how.any_batch or how.any_heads):
        return _call(name, how, like, *arrays)
    return _partitioned(name, how, like)(*arrays)


@functools.lru_cache(maxsize=256)
def _partitioned(name: str, how: How, like: Any) -> Any:
    """_call() by JAX's custom_partitioning, which has no rule for jax.vmap: that is _call()'s."""
    compute = functools.partial(_call, name, how, like)
    partition = functools.partial(_partition, name, how, compute)
    in_parts = custom_partitioning(compute)
    in_parts.def_partition(
        partition,
        infer_sharding_from_operands=lambda *shapes: partition(*shapes)[2],  # before Shardy
        sharding_rule=functools.partial(_sharding_rule, name),
    )

    def whole(*arrays: Any) -> Any:
        return in_parts(*arrays)

    def as_batch(size: int, are_mapped: Any, *arrays: Any) -> Any:
        made = mapped(*(
            x if is_mapped else jnp.broadcast_to(x, (size, *x.shape))
            for x, is_mapped in zip(arrays, are_mapped, strict=True)
        ))  # fmt: skip
        return made, (True,) * len(made)

    if how.any_batch:
        mapped: Any = custom_vmap(whole)
        mapped.def_vmap(as_batch)
    else:
        mapped = sequential_vmap(whole)
    return jax.jit(mapped, inline=True)  # traced once, where nothing else is compiled, too


def _sharding_rule(name: str, mesh: Any, values: Any, _results: Any) -> Any:
    """Which axes are alike: for XLA's Shardy."""
    q, k = (list(x.shape) for x in values[:2])
    lead = [f"n{i}" for i in range(len(q) - 4)]
    group = q[-2] // max(k[-2], 1)
    # Shardy takes no factor 1 in "(g r)", and where an axis of the mesh cuts g only in part, it asks
    # for a part of that axis, which custom_partitioning has no name for.
    in_part = _is_cut_in_part(k[-2], tuple(mesh.shape.values()))
    heads = "g" if group == 1 else "r" if k[-2] == 1 or in_part else "(g r)"

    def written(axes: str) -> str:
        return " ".join([*lead, *(heads if axis == "gr" else axis for axis in axes.split())])

    operands, results = (", ".join(map(written, side)) for side in _AXES[name])
    return f"{operands} -> {results}", {"r": group} if heads == "(g r)" else {}


@functools.lru_cache(maxsize=256)
def _is_cut_in_part(heads: int, sizes: tuple[int, ...]) -> bool:
    """Whether axes of these sizes, some of them and one after another, leave a number of heads that
    another cuts only in part."""
    if any(math.gcd(heads, size) not in (1, size) for size in sizes):
        return True
    return any(
        _is_cut_in_part(heads // size, sizes[:i] + sizes[i + 1 :])
        for i, size in enumerate(sizes)
        if size > 1 and heads % size == 0
    )


def _partition(
    name: str, how: How, compute: Any, mesh: Any, arrays: Any, _results: Any
) -> tuple[Any, ...]:
    """Every device computes the entries and KV heads of q that it holds, whole groups of heads."""
    q, k = arrays[:2]
    spec = [*q.sharding.spec, *[None] * (len(q.shape) - len(q.sharding.spec))]
    lead = spec[:-3] if how.any_batch else [None] * len(spec[:-3])
    heads = spec[-2] if how.any_heads and k.shape[-2] % _parts(mesh, spec[-2]) == 0 else None

    def sharded(axes: str) -> NamedSharding:
        own = [heads if axis in ("g", "gr") else None for axis in axes.split()[1:]]
        return NamedSharding(mesh, PartitionSpec(*lead, *own))

    operands, results = (tuple(map(sharded, side)) for side in _AXES[name])
    return mesh, compute, results, operands


def _parts(mesh: Any, axes: Any) -> int:
    """Into how many parts these axes of a mesh cut."""
    names = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
    return int(np.prod([mesh.shape[name] for name in names], dtype=int))


def _like_o_and_lse(q: Any, _k: Any, v: Any, *_seed: Any) -> tuple[Any, Any]:
    rows = q.sum(-1)
    o = jnp.broadcast_to(rows[..., None], (*rows.shape, v.shape[-1]))
    return o, rows.swapaxes(-1, -2).astype(jnp.float32)


def _like_the_first_three(q: Any, k: Any, v: Any, *_: Any) -> tuple[Any, Any, Any]:
    return q, k, v


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _backward(
    how: How, q: Any, k: Any, v: Any, o: Any, dout: Any, lse: Any, *seed: Any
) -> tuple[Any, ...]:
    return _call_in_parts("backward", how, _like_the_first_three, q, k, v, o, dout, lse, *seed)


def _refuse_second_derivatives(*_: Any) -> Any:
    raise NotImplementedError(
        "[attention] there are no second derivatives; got a gradient of dq, dk or dv, expected "
        "gradients of o alone (nearest: jax.nn.dot_product_attention)"
    )


_backward.defvjp(_refuse_second_derivatives, _refuse_second_derivatives)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: How, q: Any, k: Any, v: Any, *seed: Any) -> tuple[Any, Any]:
    return _call_in_parts("forward", how, _like_o_and_lse, q, k, v, *seed)


def _attend_and_save(how: How, *inputs: Any) -> tuple[Any, Any]:
    made = _attend(how, *inputs)  # for the derivatives of the second order, which are refused
    return made, (inputs, made)


def _gradients(how: How, saved: Any, cotangents: Any) -> tuple[Any, ...]:
    (q, k, v, *seed), (o, lse) = saved
    dout, _ = cotangents
    return *_backward(how, q, k, v, o, dout, lse, *seed), *[None] * len(seed)


_attend.defvjp(_attend_and_save, _gradients)


def attend(how: How, q: Any, k: Any, v: Any, *seed: Any) -> tuple[Any, Any]:
    """(o, lse) of q, k and v whose shapes fit and, with dropout, a seed as two words of uint32. o
    has gradients, lse none."""
    register()
    axes = frozenset().union(*map(_axes, (q, k, v, *seed)))
    return _attend(how, *[_varying(x, axes) for x in (q, k, v, *seed)])


def _axes(x: Any) -> frozenset[str]:
    return jax.typeof(x).manual_axis_type.varying


def _varying(x: Any, axes: frozenset[str]) -> Any:
    """x as one that may differ along all `axes` of a mesh, whose gradient is summed over those
    along which it does not."""
    missing = tuple(sorted(axes - _axes(x)))
    return jax.lax.pcast(x, missing, to="varying") if missing else x
