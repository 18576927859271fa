"""Kernels in TL as providers of the benchmark, and cases of blocks that queries select."""

import json

import numpy as np
import pytest
from benching import ROOT, bench, schema
from verbatim_attn import tl
from verbatim_attn.bench import workloads
from verbatim_attn.plan import Problem


def test_selected_blocks_are_a_querys_own_and_others_before_it():
    choice = workloads.Choice(seqlens=(300, 5000), heads=((4, 2),), head_dims=(16,), batch=2)
    for case in workloads.cases("selected", choice):
        n, lists, own = case.problem.q_len, case.selected.lists, np.arange(case.problem.q_len) // 64
        assert lists.shape == (2, n, 32) and lists.dtype == np.int32
        visible = np.minimum(own + 1, 32)
        assert ((lists >= 0).sum(2) == visible).all()
        assert (np.take_along_axis(lists, visible[None, :, None] - 1, 2)[..., 0] == own).all()
        assert (np.diff(np.where(lists < 0, n + np.arange(32), lists)) > 0).all()  # each once
        blocks = np.where(
            lists[0] < 0, 0, np.where(lists[0] == own[:, None], np.arange(n)[:, None] % 64 + 1, 64)
        )
        assert case.area == 2 * 4 * blocks.sum()
    assert (lists[0] != lists[1]).any()


def test_kernels_in_tl_are_a_provider(tmp_path):
    pytest.importorskip("torch")
    program, library, file = (tmp_path / name for name in ("f.tl", "f.so", "r.json"))
    sketch = (ROOT / "kernels" / "tl" / "forward.tl").read_text()
    program.write_text(tl.reason(sketch, Problem(1, 2, 1, 96, 96, 64, 64, "bf16"), "a100"))
    library.write_text("")
    bench("--mask", "causal", "--seqlen", 96, "--heads", "2:1", "--head-dim", 64, "--repeats", 1,
          "--protocol", "brief", "--json", file,
          "--providers", f"verbatim,verbatim:{program},verbatim:{library}")  # fmt: skip
    own, ours, other = json.loads(file.read_text())["results"]
    assert (ours["provider"], ours["status"]) == ("verbatim:f.tl", "ok"), ours
    assert ours["bits"]["sha256"] != own["bits"]["sha256"] and ours["check"]["correct"]
    assert ours["backward"]["ms"] > 0 and ours["plan"]["order"] == own["plan"]["order"]
    assert other["status"] == "unsupported" and ".tl" in other["reason"]


def test_selected_blocks_by_a_program_and_gathered(tmp_path):
    pytest.importorskip("torch")
    program, file = tmp_path / "q.tl", tmp_path / "r.json"
    sketch = (ROOT / "kernels" / "tl" / "selected.tl").read_text()
    sketch = sketch.replace("param sel = index", "param sel = query_index")
    problem = Problem(1, 4, 2, 200, 200, 64, 64, "bf16")
    program.write_text(tl.reason(sketch, problem, "a100", tile=(16, 0)))
    bench("--set", "selected", "--seqlen", 200, "--heads", "4:2", "--head-dim", 64, "--batch", 2,
          "--repeats", 1, "--protocol", "brief", "--json", file,
          "--providers", f"verbatim:{program},torch:gather,torch:math")  # fmt: skip
    found = json.loads(file.read_text())
    assert schema.check(found) == []
    ours, gathered, other = found["results"]
    for row in (ours, gathered):
        assert row["status"] == "ok" and row["check"]["correct"], row
        assert row["forward"]["ms"] > 0 and row["backward"] is None
    assert (other["status"], other["reason"]) == (
        "unsupported",
        "takes no blocks that queries select",
    )
