"""XLA's calls of the library, as `python -m verbatim_attn.jax build` compiles csrc/jax_call.cpp,
and the two passes as operations of JAX."""

from __future__ import annotations

import ctypes
import functools
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxlib

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
    csrc/jax_call.cpp adds."""

    problem: str
    mask: str
    options: str
    vmap_method: str  # of jax.ffi.ffi_call


def _call(name: str, how: How, like: Any, *arrays: Any) -> Any:
    """`like` makes what is like the results out of what is like the arrays, axes of a mesh along
    which they vary (jax.shard_map) included."""
    results = jax.eval_shape(like, *arrays)
    call = jax.ffi.ffi_call(f"verbatim_{name}", results, vmap_method=how.vmap_method)
    return call(*arrays, problem=how.problem, mask=how.mask, options=how.options)


def _like_o_and_lse(q: Any, _k: Any, v: Any, *_seed: Any) -> tuple[Any, Any]:
    rows = q[..., 0]
    o = jnp.broadcast_to(rows[..., None], (*rows.shape, v.shape[3]))
    return o, rows.transpose(0, 2, 1).astype(jnp.float32)


def _like_the_first_three(q: Any, k: Any, v: Any, *_: Any) -> tuple[Any, Any, Any]:
    return q, k, v


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _backward(
    how: How, q: Any, k: Any, v: Any, o: Any, dout: Any, lse: Any, *seed: Any
) -> tuple[Any, ...]:
    return _call("backward", how, _like_the_first_three, q, k, v, o, dout, lse, *seed)


def _refuse_second_derivatives(*_: Any) -> Any:
    raise NotImplementedError(
        "[attention] there are no second derivatives; got a gradient of dq, dk or dv, expected "
        "gradients of o alone (nearest: jax.nn.dot_product_attention)"
    )


_backward.defvjp(_refuse_second_derivatives, _refuse_second_derivatives)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(how: How, q: Any, k: Any, v: Any, *seed: Any) -> tuple[Any, Any]:
    return _call("forward", how, _like_o_and_lse, q, k, v, *seed)


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
