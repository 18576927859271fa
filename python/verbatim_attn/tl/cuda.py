"""CUDA that a model wrote: compiled, run in a process of its own, and compared with double
precision. That code is a stranger's; whoever asks for it does so with --run."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from .. import _library
from .._errors import Refused
from ..plan import Problem
from . import sandbox, targets
from .spec import Spec

_HARNESS = Path(__file__).with_name("harness.cu")
_NO_GPU = 77
_MOST_RATIO = 2.0  # of O's largest error to that of the plain formula in the dtype
_LSE_TOLERANCE = 1e-3  # absolute: tensor cores and the approximations of exp and log
_HALF_STEP = {"f16": 2.0**-11, "bf16": 2.0**-8}  # of a number's last bit, relative
_COMPILE_SECONDS, _RUN_SECONDS = 300.0, 60.0

Values = np.ndarray
Outcome = tuple[bool, str, str, bool]  # right, what is said, the program, nothing can tell


class Compiler:
    """nvcc for a target. Raises Refused when there is none."""

    def __init__(self, target: str) -> None:
        found = shutil.which(os.environ.get("CUDACXX", "nvcc")) or shutil.which(
            "/usr/local/cuda/bin/nvcc"
        )
        if found is None:
            raise Refused("there is no nvcc", "--run", "no nvcc on the path",
                          "a CUDA compiler: PATH or CUDACXX", "without --run")  # fmt: skip
        architecture = re.search(r"sm_\w+", targets()[target])
        assert architecture is not None
        self._line = [found, "-O3", "-std=c++17", "-arch=" + architecture[0]]

    def judge(self, program: str, spec: Spec) -> Outcome:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "kernel.cu").write_text(program)
            shutil.copy(_HARNESS, folder / "harness.cu")
            line = [*self._line, "harness.cu", "kernel.cu", "-o", "harness"]
            code, output = sandbox.run(line, folder, _COMPILE_SECONDS)
            if code == sandbox.TOO_LONG:
                return False, f"nvcc did not end in {_COMPILE_SECONDS:g} seconds", "", False
            if code:
                return False, "nvcc refuses it:\n" + output, "", False
            return self._run(program, spec, folder)

    def _run(self, program: str, spec: Spec, folder: Path) -> Outcome:
        p = spec.problem
        inputs = draw(p)
        for name, values in inputs.items():
            (folder / name).write_bytes(to_bytes(values, p.dtype))
        words = [p.batch, p.q_heads, p.kv_heads, p.q_len, p.kv_len, p.head_dim_v, scale_of(p)]
        code, output = sandbox.run(["./harness", *map(str, words)], folder, _RUN_SECONDS)
        if code == _NO_GPU:
            return False, "compiled, not run: there is no GPU here", program, True
        if code:
            ended = f"did not end in {_RUN_SECONDS:g} seconds" if code == sandbox.TOO_LONG else ""
            return False, f"the kernel {ended or f'ended with {code}'}:\n{output}", "", False
        right, said = compare(
            spec,
            inputs,
            from_bytes((folder / "o").read_bytes(), p.dtype),
            np.frombuffer((folder / "lse").read_bytes(), np.float32),
        )
        return right, said, program if right else "", False


def scale_of(p: Problem) -> float:
    return p.head_dim**-0.5 if p.scale is None else p.scale


def draw(p: Problem) -> dict[str, Values]:
    """Normal deviates that the dtype holds: q, k, v (batch, length, heads, dim) in f32."""
    rng = np.random.default_rng(p.seed)
    shapes = {
        "q": (p.batch, p.q_len, p.q_heads, p.head_dim),
        "k": (p.batch, p.kv_len, p.kv_heads, p.head_dim),
        "v": (p.batch, p.kv_len, p.kv_heads, p.head_dim_v),
    }
    return {
        name: rounded(rng.standard_normal(shape).astype(np.float32), p.dtype)
        for name, shape in shapes.items()
    }


def compare(spec: Spec, inputs: dict[str, Values], o: Values, lse: Values) -> tuple[bool, str]:
    """Whether O and LSE, flat, are right, and by how much."""
    p = spec.problem
    exact, exact_lse = attention(spec, inputs, lambda x: x.astype(np.float64))
    plain, _ = attention(spec, inputs, lambda x: rounded(x.astype(np.float32), p.dtype))
    largest = float(np.abs(exact).max())
    allowed = max(float(np.abs(plain - exact).max()), _HALF_STEP[p.dtype] * largest)
    with np.errstate(invalid="ignore"):
        error = np.abs(o.reshape(exact.shape) - exact)
        off = np.abs(lse.reshape(exact_lse.shape) - exact_lse)
    off[lse.reshape(exact_lse.shape) == exact_lse] = 0  # -inf, too
    ratio = float(error.max()) / allowed if allowed else float(error.max() != 0)
    worst = tuple(map(int, np.unravel_index(np.argmax(error), error.shape)))
    said = (f"o: error ratio {ratio:.4g}, {_MOST_RATIO:g} allowed; worst at (batch, position, head, "
            f"dim) {worst}: got {o.reshape(exact.shape)[worst]:g}, expected {exact[worst]:g}\n"
            f"lse: largest error {float(off.max()):.4g}, {_LSE_TOLERANCE:g} allowed")  # fmt: skip
    return bool(ratio <= _MOST_RATIO and off.max() <= _LSE_TOLERANCE), said


def attention(
    spec: Spec, inputs: dict[str, Values], keep: Callable[[Values], Values]
) -> tuple[Values, Values]:
    """O (batch, q_len, q_heads, head_dim_v) and LSE (batch, q_heads, q_len) by the plain formula in
    double precision; `keep` rounds P and O."""
    p = spec.problem
    shown = np.empty((p.batch, p.kv_heads, p.q_len, p.kv_len), np.uint8)
    sizes = p.batch, p.kv_heads, p.q_len, p.kv_len
    _library.mask_to_dense(spec.mask, *sizes, shown.ctypes.data)
    group = p.q_heads // p.kv_heads
    q, k, v = (inputs[name].astype(np.float64).swapaxes(1, 2) for name in "qkv")
    k, v, visible = (np.repeat(x, group, axis=1) for x in (k, v, shown != 0))
    scores = np.where(visible, q @ k.swapaxes(2, 3) * scale_of(p), -np.inf)  # (b, h, q_len, kv_len)
    most = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    most = np.where(np.isneginf(most), 0, most)
    weights = np.exp(scores - most)
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + most)[..., 0]
    o = keep(keep(weights) @ v / np.where(total == 0, 1, total))
    return o.swapaxes(1, 2), lse


def rounded(values: Values, dtype: str) -> Values:
    """f32 values to the nearest that the dtype holds, ties to even."""
    if dtype == "f16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def to_bytes(values: Values, dtype: str) -> bytes:
    """Of f32 values that the dtype holds."""
    if dtype == "f16":
        return values.astype(np.float16).tobytes()
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def from_bytes(found: bytes, dtype: str) -> Values:
    if dtype == "f16":
        return np.frombuffer(found, np.float16).astype(np.float32)
    return (np.frombuffer(found, np.uint16).astype(np.uint32) << 16).view(np.float32)
