"""TL from Python: check, fix, reason, format, emit and build are those of the tool."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import reference
import verbatim_attn as va
from verbatim_attn import tl

SKETCH_FILE = Path(__file__).parents[2] / "kernels" / "tl" / "forward.tl"
SKETCH = SKETCH_FILE.read_text()
PROBLEM = va.Problem(1, 2, 1, 64, 64, 64, 64, "bf16")
WRONG = SKETCH.replace("GEMM Q, K^T", "GEMM Q, K")


def test_reason_and_format_are_the_tools(tmp_path):
    tool = os.environ.get("VERBATIM_TOOL")
    if not tool:
        pytest.skip("VERBATIM_TOOL does not name the command-line tool")
    words = ["--target", "h200", "--dtype", "bf16", "--tile-q", "64", "--output", "f.tl"]
    subprocess.run([tool, "tl", "reason", SKETCH_FILE, *words], cwd=tmp_path, check=True)
    code = tl.reason(SKETCH, PROBLEM, "h200", tile=(64, 0))
    assert code == (tmp_path / "f.tl").read_text()
    (tmp_path / "f.tl").write_text(code.replace("  ", "      "))
    shown = subprocess.run([tool, "tl", "fmt", "f.tl"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert tl.format(code.replace("  ", "      ")).encode() == shown.stdout


def test_emit_is_the_tools(tmp_path):
    tool = os.environ.get("VERBATIM_TOOL")
    if not tool:
        pytest.skip("VERBATIM_TOOL does not name the command-line tool")
    code = tl.reason(SKETCH, PROBLEM, "a100")
    (tmp_path / "f.tl").write_text(code)
    words = ["tl", "emit", "f.tl", "--target", "l40s", "--output", "."]
    said = subprocess.run([tool, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True).stdout
    emitted = tl.emit(code, "l40s")
    assert (emitted.name, emitted.arch) == ("forward_l40s", "89")
    assert emitted.source == (tmp_path / "forward_l40s.cu").read_text()
    assert said.endswith(f"arithmetic {emitted.arithmetic}\n")
    assert tl.emit(code).name == "forward_a100"


def test_without_a_compiler_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    folder = tmp_path / "made"
    code = tl.reason(SKETCH, PROBLEM, "a100")
    with pytest.raises(NotImplementedError, match="no nvcc on the PATH"):
        tl.build(code, folder, archs=("sm_80",))
    with pytest.raises(ValueError, match="sketch"):
        tl.build(SKETCH, folder)
    assert not folder.exists()


def test_sizes_that_no_program_has():
    for tile, error in (((-1, 64), ValueError), ((64, 10**12), NotImplementedError)):
        with pytest.raises(error, match="tile_(q|kv) is out of range; got .* expected 1 to 1024"):
            tl.reason(SKETCH, PROBLEM, "a100", tile=tile)


def test_a_text_alone_is_no_list_of_kernels():
    with pytest.raises(ValueError, match="'kernels' has the wrong type.* expected a list"):
        va.Plan(PROBLEM, va.masks.Causal(), kernels=tl.reason(SKETCH, PROBLEM, "a100"))


def test_a_fault_has_a_place_and_an_edit():
    assert tl.check(SKETCH, sketch=True) == []
    (fault,) = tl.check(WRONG, sketch=True)
    line = next(n for n, text in enumerate(WRONG.splitlines(), 1) if "GEMM Q, K and" in text)
    assert (fault.code, fault.line, fault.column) == ("transpose", line, 19)
    assert WRONG.encode()[fault.begin : fault.end] == b"K" and fault.right == "K^T"
    assert fault.edit == tl.Edit(fault.begin, fault.end, "K^T")
    assert fault.shown.startswith(f"program:{line}:19: transpose: ") and "^\n" in fault.shown
    assert tl.fix(WRONG, sketch=True) == SKETCH


def test_bytes_are_those_of_utf_8():
    (fault,) = tl.check("// ümlaut — é\n" + WRONG, sketch=True)
    assert ("// ümlaut — é\n" + WRONG).encode()[fault.begin : fault.end] == b"K"


def test_level_and_target_count():
    sketch = SKETCH_FILE.with_name("backward.tl").read_text()
    loose = sketch.replace("Reduce ordered dK", "Reduce unordered dK")
    assert [fault.code for fault in tl.check(loose, sketch=True)] == ["unordered"]
    assert tl.check(loose, sketch=True, level="not_guaranteed") == []
    code = tl.reason(SKETCH, PROBLEM, "a100")
    assert [fault.code for fault in tl.check(code, "t4")] == ["dtype"] and tl.check(code) == []


def test_targets_have_names():
    assert list(tl.targets()) == ["t4", "rtx8000", "a100", "l40s", "h200"]
    assert "sm_90a" in tl.targets()["h200"]


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: tl.check(SKETCH, "a10"), "nearest: a100"),
        (lambda: tl.check(SKETCH, level="invarant"), "invariant"),
        (lambda: tl.check("Copy\0 Q"), "got 0 at 4"),
        (lambda: tl.format("Copy"), "program:1:5: syntax"),
        (lambda: tl.reason(WRONG, PROBLEM, "a100"), "transpose"),
        (lambda: tl.reason(SKETCH, PROBLEM._replace(head_dim=0), "a100"), "head_dim"),
    ],
)
def test_bad_input_is_a_value_error(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_what_a_target_cannot_do_is_not_implemented():
    with pytest.raises(NotImplementedError, match="nearest: f16"):
        tl.reason(SKETCH, PROBLEM, "t4")


def test_a_program_takes_the_place_of_the_librarys_kernel():
    problem = PROBLEM._replace(dtype="f16")
    code = tl.reason(SKETCH, problem, "a100")
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 64, h, 64)).astype(np.float16) for h in (2, 1, 1))
    plan = va.Plan(problem, kernels=[code])
    assert plan.forward_pass.kernel == "tl.a100" and plan.backward_pass.arithmetic == "cpu.2"
    o, lse = plan.forward(q, k, v)
    expected, expected_lse, _ = reference.forward(q, k, v, np.ones((1, 1, 64, 64), bool))
    np.testing.assert_allclose(o, expected, atol=2e-3)
    np.testing.assert_allclose(lse, expected_lse, atol=1e-5)
    with pytest.raises(ValueError, match="got 3, expected a string"):
        va.Plan(problem, kernels=[3])
    with pytest.raises(ValueError, match="arithmetic of its own"):
        va.Plan(problem, kernels=[code], arithmetic="cpu")


def e4m3(x):
    """An array or tensor in e4m3, of whichever package there is, and what makes scales for it."""
    try:
        import torch
    except ImportError:
        return x.astype(pytest.importorskip("ml_dtypes").float8_e4m3fn), np.asarray
    return torch.tensor(x).to(torch.float8_e4m3fn), torch.tensor


def as_f32(x):
    return x.float().numpy() if hasattr(x, "float") else x.astype(np.float32)


def test_e4m3_has_a_scale_a_head():
    problem = PROBLEM._replace(kv_heads=2, dtype="e4m3")
    plan = va.Plan(problem, kernels=[tl.reason(SKETCH, problem, "l40s")])
    assert "tl.l40s" in plan.explain() and "backward" not in plan.explain()
    with pytest.raises(NotImplementedError, match="nearest: bf16"):
        plan.backward_pass  # noqa: B018
    rng = np.random.default_rng(1)
    (q, scales_of), (k, _), (v, _) = (
        e4m3(rng.standard_normal((1, 64, 2, 64)).astype(np.float32)) for _ in range(3)
    )
    scales = [np.array(s, np.float32) for s in ([1, 0.5], [2, 1], [0.25, 3])]
    o, lse = plan.forward(q, k, v, scales=[scales_of(s) for s in scales])
    whole = [as_f32(x) * s[:, None] for x, s in zip((q, k, v), scales, strict=True)]
    expected, expected_lse, _ = reference.forward(*whole, np.ones((1, 1, 64, 64), bool))
    np.testing.assert_allclose(as_f32(o), expected, atol=0.2)
    np.testing.assert_allclose(as_f32(lse), expected_lse, atol=1e-4)
    plain, _ = plan.forward(q, k, v, scales=(None, None, None))
    assert np.array_equal(as_f32(plain), as_f32(plan.forward(q, k, v)[0]))
    assert not np.array_equal(as_f32(plain), as_f32(o))
    for wrong in ([scales_of(scales[0][:1]), None, None], [1.0, None, None], [None]):
        with pytest.raises(ValueError, match="scales"):
            plan.forward(q, k, v, scales=wrong)
    if isinstance(q, np.ndarray):
        with pytest.raises(NotImplementedError, match="nearest: bf16"):
            va.attention(q, k, v)
    with pytest.raises(NotImplementedError, match="nearest: bf16"):
        plan.backward(o, q, k, v, o, lse)
