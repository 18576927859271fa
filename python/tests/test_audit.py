"""The auditor: planted faults are found by the right check, certificates are whole and safe."""

import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import planted
import pytest
import verbatim_attn as va
from verbatim_attn.audit import __main__ as tool
from verbatim_attn.audit.bits import as_result, difference, same, sha256

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "apps"))
import schema

LAYOUT = "blhd"
ALONE = {"packed": None, "doc_lengths": None, "padded": None}
ON_CPU = {"repeats", "load", "threads", "processes", "batch", "heads", "packing", "neighbours",
          "padding"}  # fmt: skip


def x_of(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("f4")


def audited(fn, **how):
    how = {"repeats": 3, "processes": 1, "layout": LAYOUT, "packed": planted.packed,
           "doc_lengths": (2, 0, 3), "padded": planted.padded, **how}  # fmt: skip
    return va.audit(fn, (x_of(2, 5, 3, 4),), **how)


def by_status(result, status):
    return {f.check for f in result.findings if f.status == status}


def test_an_honest_function_passes():
    result = audited(planted.honest)
    assert by_status(result, "same") == ON_CPU - {"threads"} and result.passed
    assert by_status(result, "not checked") == {"threads", "sms", "graph"}
    assert all(f.reason for f in result.findings if f.status == "not checked")
    assert set(result.verdicts.values()) == {"yes"}
    lengths = np.array([2, 0, 3])
    assert audited(planted.honest, doc_lengths=lengths, checks=["packing"]).passed
    expected = planted.honest(x_of(2, 5, 3, 4))
    assert result.sha256 == {"out": hashlib.sha256(expected.tobytes()).hexdigest()}


@pytest.mark.parametrize(
    "fn, how, check, verdict",
    [
        (planted.EveryKth(3), {"repeats": 8}, "repeats", "repeatable"),
        (planted.InOneBuffer(planted.EveryKth(3)), {"repeats": 8}, "repeats", "repeatable"),
        (planted.ByThreads(), {}, "threads", "repeatable"),
        (planted.by_load, {}, "load", "repeatable"),
        (planted.by_process, {"processes": 2, **ALONE}, "processes", "repeatable"),
        (planted.by_batch, ALONE, "batch", "batch_invariant"),
        (planted.by_heads, ALONE, "heads", "batch_invariant"),
        (planted.honest, {"packed": planted.packed_wrong}, "packing", "packing_invariant"),
        (planted.by_neighbours, ALONE, "neighbours", "isolated"),
        (planted.honest, {"packed": planted.packed_leaks}, "neighbours", "isolated"),
        (
            planted.honest,
            {"packed": planted.InOneBuffer(planted.packed_leaks)},
            "neighbours",
            "isolated",
        ),
        (planted.honest, {"padded": planted.padded_leaks}, "padding", "isolated"),
        (planted.honest, {"padded": planted.padded_shows}, "padding", "isolated"),
    ],
)
def test_a_planted_fault_is_found_by_its_check_alone(fn, how, check, verdict, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    result = audited(fn, **how)
    assert by_status(result, "differs") == {check} and not result.passed
    assert [name for name, said in result.verdicts.items() if said == "no"] == [verdict]
    (finding,) = (f for f in result.findings if f.check == check)
    assert finding.difference.tensor == "out" and 0 < finding.differing <= finding.runs
    if check in ("neighbours", "padding"):
        assert finding.runs == (2 if how is ALONE else 4) and finding.difference.max_abs is None
    if check == "repeats":  # calls 2 to 9 of a function that differs in each third
        assert (finding.differing, finding.runs, finding.distinct) == (3, 8, 1)
        assert finding.difference.worst == [0, 0, 0, 1] and finding.difference.max_ulps == 1


def test_a_lonely_entry_gets_a_neighbour():
    result = va.audit(planted.by_neighbours, (x_of(1, 3),), checks=["neighbours"])
    assert by_status(result, "differs") == {"neighbours"}
    # Whole numbers may be places: they stay.
    rows = {"x": x_of(2, 3), "row": np.array([1, 0])}
    result = va.audit(lambda x, row: x[row], rows, checks=["neighbours"])
    assert by_status(result, "differs") == {"neighbours"}


def test_gradients_of_neighbours_are_garbage_too():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(x_of(3, 4)).requires_grad_()
    result = va.audit(
        planted.gradient_by_neighbours, (x,), checks=["repeats", "batch", "neighbours"]
    )
    assert by_status(result, "differs") == {"neighbours"}
    assert result.findings[2].difference.tensor == "dx"


def test_what_differs_idle_is_not_blamed_on_anything_else():
    result = audited(planted.TwoOutputs(), repeats=4, **ALONE)
    assert by_status(result, "differs") == {"repeats"}
    (batch,) = (f for f in result.findings if f.check == "batch")
    assert batch.status == "not checked" and "shaky" in batch.reason
    assert batch.tensors == ["steady"]


def test_what_cannot_be_checked_says_why():
    result = va.audit(lambda x: x * 2, (x_of(4),), repeats=2, checks=["processes", "heads"])
    assert by_status(result, "not checked") == {"processes", "heads"} and not result.passed
    assert "cannot import" in result.findings[0].reason and "'h'" in result.findings[1].reason

    result = va.audit(planted.hangs_elsewhere, (x_of(4),), checks=["processes"], timeout=1)
    assert result.findings[0].reason == "the new process was stopped after 1 s"

    two = {"x": x_of(2, 4), "y": x_of(2, 8)}
    how = {"layout": "bl", "checks": ["padding"]}
    for padded, reason in (
        (None, "no padded function was given"),
        (planted.padded, "the lengths of the inputs differ"),
    ):
        result = va.audit(lambda x, y: y * 2, two, padded=padded, **how)
        assert result.findings[0].reason == reason and result.verdicts["isolated"] == "not checked"

    def only_whole(x):
        assert len(x) == 4, "four, please"
        return x

    result = va.audit(only_whole, (x_of(4),), checks=["batch"])
    assert result.findings[0].reason == "refused: AssertionError: four, please"


def test_bits_are_compared_not_values():
    nan = np.array([np.nan, 1], "f4")
    assert same(nan, nan.copy())
    zeros = np.array([0.0, 0.0], "f4"), np.array([0.0, -0.0], "f4")
    assert not same(*zeros)
    found = difference("z", *zeros)
    assert (found.differing, found.max_abs, found.max_ulps, found.worst) == (1, 0.0, 0, [1])
    found = difference("n", nan, np.array([2, 1], "f4"))
    assert (found.max_abs, found.max_ulps, found.got) == (None, None, "nan")
    across = [np.array([v], "f4").view("i4") for v in (-1e-45, 1e-45)]
    assert difference("d", *(a.view("f4") for a in across)).max_ulps == 2
    assert difference("f8", np.array([-1.7e308]), np.array([1.7e308])).max_ulps > 2**63
    assert difference("i", np.array([3]), np.array([5])).max_ulps is None
    assert "int64 [1]" in difference("s", np.array([3]), np.array([3, 4])).got
    transposed = np.arange(6, dtype="f4").reshape(2, 3).T
    assert sha256(transposed) == hashlib.sha256(transposed.tobytes()).hexdigest()


def test_bad_arguments_are_named():
    x = x_of(2, 3)
    for part, call in (
        ("nearest: repeats", lambda: va.audit(planted.honest, (x,), checks=["repeat"])),
        ("expected 1 or more", lambda: va.audit(planted.honest, (x,), repeats=0)),
        ("nearest: (x,)", lambda: va.audit(planted.honest, x)),
        ("come together", lambda: va.audit(planted.honest, (x,), doc_lengths=(2,))),
        ("sum to the length", lambda: audited(planted.honest, doc_lengths=(2, 2))),
        ("changes its inputs", lambda: va.audit(planted.changes_its_input, (x,))),
        ("real numbers", lambda: va.audit(lambda x: x * 1j, (x,))),
        (
            "repeats is too small, or none; got 1.5",
            lambda: va.audit(lambda x: x, (x,), repeats=1.5),
        ),
        ("got [-1, 6]", lambda: audited(planted.honest, doc_lengths=(-1, 6))),
        ("got 'bbh' of *", lambda: va.audit(lambda x: x, (x,), layout="bbh")),
        ("nothing to compare; got None", lambda: va.audit(lambda x: None, (x,))),
        ("nothing to compare; got out", lambda: va.audit(lambda x: x[:0], (x,))),
        (
            "fn returned extra only when called again",
            lambda: va.audit(planted.ReturnsMore(), (x,), repeats=2, checks=["repeats"]),
        ),
    ):
        with pytest.raises((ValueError, TypeError)) as error:
            call()
        assert part in str(error.value)


def test_the_certificate_follows_its_schema():
    for fn in (planted.honest, planted.EveryKth(2)):
        result = json.loads(audited(fn, checks=["repeats", "batch", "sms"]).to_json())
        assert schema.check(result) == []
    assert result["schema"] == "verbatim.audit.v1" and result["verdicts"]["repeatable"] == "no"


def test_the_page_smuggles_nothing():
    evil = "<script>alert('x')</script>"
    result = va.audit(
        lambda **named: {evil: named[evil] * 2}, {evil: x_of(2)}, name=evil, checks=["repeats"]
    )
    result = dataclasses.replace(result, arguments=[evil], problem={evil: evil}, version=evil)
    page = result.to_html()
    assert "default-src 'none'" in page and "&lt;script&gt;" in page
    assert not re.search(r"<script|\ssrc=|https?://", page)


def call(*words, capsys):
    code = tool.main([str(word) for word in words])
    return code, *capsys.readouterr()


SMALL = ("--seqlen", 40, "--head-dim", 16, "--q-heads", 2, "--repeats", 2, "--processes", 1)


def test_the_command_line_audits_ours(tmp_path, capsys):
    files = ("--json", tmp_path / "a.json", "--html", tmp_path / "a.html")
    code, out, _ = call("--target", "verbatim", *SMALL, "--device", "cpu", *files,
                        "--commit", "1a2b3c4", capsys=capsys)  # fmt: skip
    assert code == 0 and "packing-invariant: yes" in out
    assert "isolated:          yes (neighbours, padding)" in out
    saved = json.loads((tmp_path / "a.json").read_text())
    assert schema.check(saved) == []
    assert {c["check"] for c in saved["checks"] if c["status"] == "same"} == ON_CPU
    assert {"o", "lse", "dq", "dk", "dv"} == set(saved["sha256"])
    assert saved["arguments"][:2] == ["--target", "verbatim"] and saved["commit"] == "1a2b3c4"
    assert "python -m verbatim_attn.audit --target verbatim" in (tmp_path / "a.html").read_text()
    some = ("--order", "none", "--mask", "causal_sliding_window", "--window", 9)
    code, out, _ = call("--target", "verbatim", *SMALL, *some, "--checks", "repeats,packing",
                        "--device", "cpu", "--kv-heads", 1, capsys=capsys)  # fmt: skip
    assert code == 0, out


def test_a_function_of_yours_has_a_packed_form(capsys, monkeypatch):
    monkeypatch.setattr(planted, "of_three", lambda q, k, v: planted.honest(q), raising=False)
    for factor, verdict in ((1, "yes"), (2, "no")):  # of what is packed

        def form(q, k, v, *, doc_lengths, by=factor):
            return planted.honest(q) * (by if len(doc_lengths) > 1 else 1)

        monkeypatch.setattr(planted, "form", form, raising=False)
        words = ("--target", "planted:of_three", "--packed", "planted:form", *SMALL)
        code, out, _ = call(*words, "--checks", "packing", "--device", "cpu", capsys=capsys)
        assert f"packing-invariant: {verdict}" in out and code == (verdict == "no")


def test_exit_codes(tmp_path, capsys, monkeypatch):
    kept = tmp_path / "old.json"
    kept.write_text("kept")

    def refused(code, part, *words):
        got, out, err = call("--device", "cpu", *words, "--json", kept, capsys=capsys)
        assert got == code and out == "" and part in err, err
        assert kept.read_text() == "kept"

    refused(2, "nearest: torch:flash", "--target", "torch:flsh")
    refused(2, "nearest: --list", "--seqlen", 8)
    refused(2, "nearest: bf16", "--target", "verbatim", "--dtype", "bf17")
    refused(2, "nearest: shift", "--target", "verbatim", "--order", "shfit", *SMALL)
    refused(2, "sum to 9", "--target", "verbatim", "--seqlen", 9, "--doc-lengths", "4,4")
    for seconds in ("nan", "inf", "0"):
        refused(2, f"--timeout: too small, or none; got {float(seconds)}", "--target", "verbatim",
                "--timeout", seconds)  # fmt: skip
    refused(2, "a divisor of 4", "--target", "verbatim", "--kv-heads", 3)
    refused(2, "no such module", "--target", "nowhere.at_all:f")
    refused(2, "no such function", "--target", "planted:nothing")
    refused(2, "its own packed form", "--target", "verbatim", "--packed", "planted:packed")
    refused(2, "--packed: no such", "--target", "planted:fails", "--packed", "planted:nothing")
    refused(2, "cuda:N", "--target", "verbatim", "--device", "gpu")
    refused(
        2, "No such file or directory", "--target", "verbatim", "--html", tmp_path / "no" / "a.html"
    )
    refused(2, "forbids", "--target", "verbatim", "--order", "none", "--deterministic")
    refused(2, "sliding windows", "--target", "verbatim", "--window", 3)
    refused(3, "", "--target", "torch:cudnn", *SMALL)
    refused(3, "no such kernel", "--target", "planted:fails", *SMALL)
    words = ("--target", "planted:by_place", *SMALL, "--checks", "batch", "--device", "cpu")
    monkeypatch.setattr(planted, "by_place", lambda q, k, v: q + len(q), raising=False)
    code, out, _ = call(*words, capsys=capsys)
    assert code == 1 and "batch-invariant:   no (batch)" in out
    assert call("--list", capsys=capsys)[0] == 0


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "verbatim_attn.audit", "--list", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "verbatim         available (cpu)" in done.stdout and done.stderr == ""
    assert os.linesep.join(done.stdout.splitlines()[2:3]).startswith("torch:cudnn      not here")


def test_gradients_and_threads_of_tensors():
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 6, 2, 4, generator=generator) for _ in range(3))
    result = va.audit(planted.torch_by_threads, (q, k.requires_grad_(), v.requires_grad_()),
                      layout=LAYOUT, repeats=2, processes=1)  # fmt: skip
    assert by_status(result, "differs") == {"threads"} and {"dk", "dv"} < set(result.sha256)
    assert "dq" not in result.sha256 and torch.get_num_threads() == result.environment["settings"][
        "num_threads"
    ]  # fmt: skip
    nan = torch.tensor([float("nan"), 1.0], dtype=torch.bfloat16)
    assert same(nan, nan.clone())
    one = difference("b", nan[1:], nan[1:] + 2**-7)
    assert (one.max_ulps, one.max_abs) == (1, 2**-7)


def test_outputs_have_other_names_than_gradients():
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match="two results have one name; got an output dx"):
        va.audit(lambda x: {"o": 2 * x, "dx": torch.rand(2)}, {"x": x})


def test_a_sign_that_is_not_in_memory_is_no_difference():
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(x_of(2, 5))
    assert same(as_result("o", torch._neg_view(-x)), as_result("o", x))


def test_targets_of_torch(capsys):
    pytest.importorskip("torch")
    for name in ("torch:math", "torch:flash", "flex"):
        code, out, _ = call("--target", name, *SMALL, "--checks", "repeats,load,packing",
                            "--device", "cpu", capsys=capsys)  # fmt: skip
        assert code in (0, 1) and "repeatable:        yes (repeats, load)" in out, out
        assert re.search(r"packing  +3  ", out), out
    # A mask multiplies what it hides by 0, so NaN comes through.
    code, out, _ = call("--target", "torch:math", *SMALL, "--checks", "neighbours,padding",
                        "--device", "cpu", capsys=capsys)  # fmt: skip
    assert code == 1 and "isolated:          no (neighbours, padding)" in out, out
