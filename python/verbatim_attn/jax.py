"""Attention of JAX arrays, on CPUs and NVIDIA GPUs: the bits of verbatim_attn.attention.

    from verbatim_attn.jax import attention
    o = attention(q, k, v, mask=masks.Causal())      # (batch, length, heads, dim)

    python -m verbatim_attn.jax build      # once: compiles XLA's calls for the jaxlib at hand
    python -m verbatim_attn.jax            # says whether they are built, and the file

Works under jit, grad, checkpoint, vmap, scan and shard_map. Devices that share a batch or KV heads
compute what they hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _library, _xla, masks
from ._arrays import NAMES, check_dimensions, seed_of
from ._handles import Handle, Settings, kept, number, problem_of, specification
from ._json import json_of
from ._xla import build
from .masks import Mask, spec_of

__all__ = ["attention", "build", "dot_product_attention"]

_DTYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Mask | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    dropout: float = 0.0,
    seed: Any = None,
    order: str = "auto",
    forward_order: str = "auto",
    level: str = "invariant",
    deterministic: bool = True,
    arithmetic: str = "",
    return_lse: bool = False,
) -> Any:
    """verbatim_attn.attention() of JAX or NumPy arrays, as one operation of JAX.

    Args:
        q: (batch, q_len, q_heads, head_dim), float32 (CPU), bfloat16 or float16.
        k: (batch, kv_len, kv_heads, head_dim); kv_heads divides q_heads.
        v: (batch, kv_len, kv_heads, head_dim_v).
        seed: of the dropout: an integer, which is a constant of what jit compiles, or an array of
            one integer, which is not. The same seed drops the same weights; under shard_map every
            device counts entries and heads of its own.
        mask, scale, softcap, dropout, order, forward_order, level, deterministic, arithmetic: as
            verbatim_attn.attention() takes them; constants of what jit compiles.
        return_lse: also return the row logarithms of the softmax sums.

    Returns:
        o (batch, q_len, q_heads, head_dim_v), or (o, lse) with lse f32 (batch, q_heads, q_len),
        which carries no gradient. A query without a visible key: o = 0, lse = -inf.

    Raises:
        ValueError, NotImplementedError: when it is traced, what no device computes.
        jax.errors.JaxRuntimeError: when it runs, with the library's message, what its device does
            not compute.
        RuntimeError: XLA's calls are not built.
    """
    settings: Settings = (
        None if scale is None else number("scale", scale), number("softcap", softcap),
        number("dropout", dropout), order, forward_order, level, deterministic, arithmetic,
    )  # fmt: skip
    tensors = [_array(name, x) for name, x in zip(NAMES, (q, k, v), strict=False)]
    words = _seed_words(seed)
    drops = settings[2] != 0
    if drops and not words:
        raise ValueError(
            "[attention] dropout needs a seed; got None, expected an integer (nearest: seed=0)"
        )
    how, _owner = kept(_checked, *map(_shape_and_dtype, tensors), spec_of(mask), settings)
    o, lse = _xla.attend(how, *tensors, *(words if drops else ()))
    return (o, lse) if return_lse else o


def _array(name: str, x: Any) -> Any:
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise TypeError(
            f"[tensors] {name} is neither a JAX nor a NumPy array; got {type(x).__name__}, "
            f"expected one of them (nearest: jax.numpy.asarray({name}))"
        )
    if x.dtype.name not in _DTYPES:
        raise ValueError(
            f"[tensors] no kernel for this dtype; got {x.dtype}, expected float32, bfloat16 or "
            "float16 (nearest: float32)"
        )
    check_dimensions(name, (x.shape,))
    return jnp.asarray(x)


def _shape_and_dtype(x: Any) -> tuple[tuple[int, ...], str]:
    return x.shape, x.dtype.name


def _checked(q: Any, k: Any, v: Any, mask: str, settings: Settings) -> tuple[_xla.How, Handle]:
    """What a CPU, which has every kernel, would compute: it plans it. Refuses what does not fit."""
    (shape, dtype), (keys, _), (values, _) = q, k, v
    for name, x, expected in (
        ("k", k, (shape[0], *keys[1:3], shape[3])),
        ("v", v, (*shape[:1], *keys[1:3], values[3])),
    ):
        if x[1] != dtype:
            raise ValueError(f"[tensors] wrong dtype of {name}; got {x[1]}, expected {dtype}")
        if x[0] != expected:
            raise ValueError(
                f"[tensors] wrong shape of {name}; got {list(x[0])}, expected {list(expected)}"
            )
    problem, options = problem_of((shape, keys, values), _DTYPES[dtype], settings, True)
    anywhere = {**options, "arithmetic": ""}  # a GPU's is not here
    handle = Handle(specification(problem, mask, options=anywhere))
    numbers = {name: getattr(problem, name) for name in ("scale", "softcap", "dropout", "seed")}
    # Entries and heads that differ by their arrays alone may be mapped, or dealt to devices: not
    # those that dropout or the level counts, nor heads each with its own blocks, drawn or listed.
    counted = problem.dropout != 0 or options["level"] in ("run_to_run", "gpu_to_gpu")
    drawn = '"density"' in mask
    more = {"q_heads": 2 * problem.q_heads, "kv_heads": 2 * problem.kv_heads}
    how = _xla.How(
        json_of(numbers, "", ""), mask, json_of(options, "", ""),
        not counted and _fits(mask, problem, batch=problem.batch + 1),
        not counted and not drawn and _fits(mask, problem, **more),
    )  # fmt: skip
    return how, handle


def _fits(mask: str, problem: Any, **other: int) -> bool:
    """Whether the mask is one of a problem of other sizes, too."""
    p = problem._replace(**other)
    try:
        _library.mask_area(mask, p.batch, p.q_heads, p.kv_heads, p.q_len, p.kv_len)
    except ValueError:
        return False
    return True


def _seed_words(seed: Any) -> tuple[Any, ...]:
    """The 64 bits of a seed, (2) of uint32, the lower ones first; none for None."""
    if seed is None:
        return ()
    if not isinstance(seed, jax.Array):
        bits = seed_of(seed) % 2**64
        return (np.array([bits % 2**32, bits >> 32], np.uint32),)
    if seed.size != 1 or not jnp.issubdtype(seed.dtype, jnp.integer):
        raise ValueError(
            f"[tensors] no seed; got {seed.dtype} {list(seed.shape)}, expected an integer, or an "
            "array of one (nearest: jax.random.bits(key))"
        )
    seed = seed.reshape(())
    if seed.dtype.itemsize == 8:
        high = seed >> 32
    else:
        high = jnp.where(seed < 0, -1, 0)  # as a 64-bit integer has it
    return (jnp.stack([seed.astype(jnp.uint32), high.astype(jnp.uint32)]),)


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: None = None,
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: None = None,
    return_residual: bool = False,
) -> Any:
    """What jax.nn.dot_product_attention of these arguments computes, by attention(). A query
    without a visible key gives 0, where JAX's average of all values has no meaning.

    Args:
        query: (batch, q_len, q_heads, head_dim), or without batch.
        key: (batch, kv_len, kv_heads, head_dim), or without batch; kv_heads divides q_heads.
        value: (batch, kv_len, kv_heads, head_dim_v), or without batch.
        bias: None: there are none.
        mask: one of verbatim_attn.masks: arrays are refused.
        scale: of the scores; None: 1 / sqrt(head_dim).
        is_causal: query q sees keys k <= q, also where there are other numbers of them.
        query_seq_lengths: (batch) integers that tracing knows; later queries give 0.
        key_value_seq_lengths: the same of the keys that are seen.
        local_window_size: query q sees keys from q - left to q + right: (left, right), or one
            number for both.
        implementation: None: those that it names are JAX's own.
        return_residual: also return the row logarithms of the softmax sums.

    Returns:
        The output, (batch, q_len, q_heads, head_dim_v), without batch where query has none; or
        (output, residual) with residual (batch, q_len, q_heads) in query's dtype, which carries no
        gradient.

    Raises:
        NotImplementedError: names what is JAX's alone; and what attention() raises.
    """
    _refuse_what_is_jaxs_alone(bias, mask, implementation)
    named = {"query": query, "key": key, "value": value}
    q, k, v = (_with_batch(name, x) for name, x in named.items())
    (batch, q_len), kv_len = q.shape[:2], k.shape[1]
    shown = _shown(q_len, kv_len, is_causal, local_window_size)
    if mask is not None:
        shown = mask if shown == masks.Full() else mask & shown
    queries = _known("query_seq_lengths", query_seq_lengths)
    keys = _known("key_value_seq_lengths", key_value_seq_lengths)
    if queries or keys:
        shown &= masks.Full().padded(queries or (q_len,) * batch, keys or (kv_len,) * batch)
    o, lse = attention(q, k, v, mask=shown, scale=scale, return_lse=True)
    residual = lse.swapaxes(1, 2).astype(o.dtype)
    if query.ndim == 3:
        o, residual = o[0], residual[0]
    return (o, residual) if return_residual else o


def _with_batch(name: str, x: Any) -> Any:
    return _array(name, x[None] if getattr(x, "ndim", None) == 3 else x)


def _refuse_what_is_jaxs_alone(bias: Any, mask: Any, implementation: Any) -> None:
    if bias is not None:
        raise NotImplementedError(
            f"[dot_product_attention] scores take no bias; got {_described(bias)}, expected "
            "bias=None (nearest: mask=, where it only hides)"
        )
    if mask is not None and not isinstance(mask, Mask):
        raise NotImplementedError(
            f"[dot_product_attention] mask is no array here; got {_described(mask)}, expected one "
            "of verbatim_attn.masks or None (nearest: masks.from_dense(numpy.asarray(mask)), one "
            "plane a KV head)"
        )
    if implementation is not None:
        raise NotImplementedError(
            "[dot_product_attention] implementation names a kernel of JAX; got "
            f"{implementation!r}, expected None (nearest: jax.nn.dot_product_attention)"
        )


def _described(x: Any) -> str:
    return f"{x.dtype} {list(x.shape)}" if hasattr(x, "shape") else type(x).__name__


def _shown(q_len: int, kv_len: int, is_causal: bool, window: Any) -> Mask:
    """JAX counts positions from the first query and key, masks from the last ones."""
    left, right = _pair(window)
    if is_causal:
        right = 0 if right is None else min(right, 0)
    if (left is None and right is None) or q_len == 0 or kv_len == 0:
        return masks.Full()
    if (left, right, q_len) == (None, 0, kv_len):
        return masks.Causal()
    more = kv_len - q_len
    return masks.windows(
        (0, q_len), (0, kv_len), None if left is None else left + more,
        None if right is None else right - more,
    )  # fmt: skip


def _pair(window: Any) -> tuple[int | None, int | None]:
    if window is None:
        return None, None
    pair = window if isinstance(window, Sequence) else (window, window)
    if len(pair) != 2 or not all(isinstance(x, (int, np.integer)) for x in pair):
        raise ValueError(
            f"[dot_product_attention] local_window_size is one integer or two; got {window!r}, "
            "expected (left, right) (nearest: None, which is all)"
        )
    return int(pair[0]), int(pair[1])


def _known(name: str, lengths: Any) -> tuple[int, ...] | None:
    if isinstance(lengths, jax.core.Tracer):
        raise NotImplementedError(
            f"[dot_product_attention] {name} is traced; got {lengths.aval.str_short()}, expected "
            "numbers that are known when the mask is made (nearest: a NumPy array that is no "
            "argument of the function given to jit)"
        )
    return None if lengths is None else tuple(np.asarray(lengths).tolist())


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verbatim_attn.jax", description="XLA's calls of the library, compiled."
    )
    parser.add_argument("command", nargs="?", choices=["status", "build"], default="status")
    parser.add_argument("--folder", type=Path, help="of what is built; default: VERBATIM_CACHE")
    args = parser.parse_args(words)
    file = build(args.folder) if args.command == "build" else _xla.built_file()
    print(f"jax {jax.__version__}: {'built' if file.exists() else 'not built'} ({file})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
