"""examples/train_lm.py: the curves agree, and Verbatim's bits do in runs and processes."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
PROGRAM = Path(__file__).parents[1] / "examples" / "train_lm.py"
SMALL = ["--device=cpu", "--layers=2", "--heads=2", "--dim=32", "--context=48", "--batch=2",
         "--steps=12"]  # fmt: skip


def trained(folder, *options):
    saved, drawn = folder / "runs.json", folder / "loss.svg"
    command = [sys.executable, PROGRAM, *SMALL, *options, "--json", saved, "--svg", drawn]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(saved.read_text()), done.stdout, drawn.read_text()


def test_curves_agree_and_bits_are_the_same_in_every_process(tmp_path):
    runs, shown, picture = trained(tmp_path)
    naive = runs["naive"][0]["losses"]
    assert naive[-1] < naive[0] - 0.5  # something was learnt
    for name in ("sdpa", "verbatim"):
        for mine, theirs in zip(runs[name][0]["losses"], naive, strict=True):
            assert abs(mine - theirs) < 1e-4, name
    first, second = runs["verbatim"]
    assert (first["losses"], first["sha256"]) == (second["losses"], second["sha256"])
    assert first["sha256"][:16] in shown and picture.count("<polyline") == 6

    only = ("--attention", "verbatim", "--repeats", "1")
    again = trained(tmp_path, *only)[0]["verbatim"][0]
    assert (again["losses"], again["sha256"]) == (first["losses"], first["sha256"])
    other = trained(tmp_path, *only, "--seed", "1")[0]["verbatim"][0]
    assert other["sha256"] != first["sha256"]


def test_differences_between_runs_are_found():
    spec = importlib.util.spec_from_file_location("train_lm", PROGRAM)
    train_lm = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(train_lm)
    a = {"losses": [3.0, 2.0], "sha256": "a", "tokens_per_second": 1.0, "peak_bytes": None}
    late = {**a, "losses": [3.0, 2.0 + 2**-22]}
    assert train_lm.first_difference([a, a]) is None
    assert train_lm.first_difference([a, late]) == 1
    assert train_lm.first_difference([a, {**a, "sha256": "b"}]) == 2
    assert "no, from step 1" in train_lm.table({"sdpa": [a, late]})
