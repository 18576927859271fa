"""bench/simulated_ranks.py, beside what bench/ranks.py measures."""

import json
import os
import subprocess
import sys

import pytest
from benching import ROOT


def test_measured_steps_stand_beside_simulated_ones(tmp_path):
    if not os.environ.get("VERBATIM_TOOL"):
        pytest.skip("VERBATIM_TOOL does not name the command-line tool")
    sizes = {
        "q_len": 512,
        "kv_len": 512,
        "q_heads": 4,
        "kv_heads": 2,
        "head_dim": 32,
        "dtype": "bf16",
    }
    row = {"name": "causal 4:2 512 hd32", "problem": sizes, "strategy": "ring", "shard": "zigzag",
           "order": "ascending"}  # fmt: skip
    measured, out, one = (tmp_path / f"{name}.json" for name in ("ranks", "simulated", "plan"))

    def run():
        script = ROOT / "bench" / "simulated_ranks.py"
        words = [sys.executable, script, measured, "--commit", "x", "--json", out]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    def simulate(*rows):
        measured.write_text(json.dumps({"command": "bench/ranks", "world": 2, "results": rows}))
        return run()

    assert simulate(row).returncode == 0
    found = json.loads(out.read_text())
    assert (found["cluster"], found["commit"]) == ("h200x8", "x")
    said = []
    for words in ("--pass forward", "--order ascending", ""):
        problem = (
            "plan --mask causal --seqlen 512 --q-heads 4 --kv-heads 2 --head-dim 32 --dtype bf16"
        )
        of = "--machine h200 --world replay:2 --strategy ring --shard zigzag"
        words = [os.environ["VERBATIM_TOOL"], *f"{problem} {of} {words}".split(), "--json", one]
        subprocess.run(words, check=True, capture_output=True)
        said.append(json.loads(one.read_text())["dist"]["passes"][0]["simulated"])
    assert found["results"][0]["step_ms"] == said[0]["in_turn_ms"] + said[1]["in_turn_ms"]
    alone = said[0]["device_ms"] + min(said[1]["device_ms"], said[2]["device_ms"])
    assert found["results"][0]["one_device_ms"] == alone
    measured.write_text("[]")
    assert "is no result of bench/ranks.py" in run().stderr
    assert "is called nothing" in simulate({**row, "name": "nothing"}).stderr
    assert "no such strategy" in simulate({**row, "strategy": "rign"}).stderr
