"""Scripts of bench/ that ask the tool what ranks do."""

import json
import os
import subprocess
import sys

import pytest
from benching import ROOT


@pytest.fixture
def tool():
    if not os.environ.get("VERBATIM_TOOL"):
        pytest.skip("VERBATIM_TOOL does not name the command-line tool")
    return os.environ["VERBATIM_TOOL"]


def script(name, *words):
    of = [sys.executable, ROOT / "bench" / f"{name}.py", *words]
    return subprocess.run(of, capture_output=True, text=True, check=False)


def test_measured_steps_stand_beside_simulated_ones(tmp_path, tool):
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
        return script("simulated_ranks", measured, "--commit", "x", "--json", out)

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
        words = [tool, *f"{problem} {of} {words}".split(), "--json", one]
        subprocess.run(words, check=True, capture_output=True)
        said.append(json.loads(one.read_text())["dist"]["passes"][0]["simulated"])
    assert found["results"][0]["step_ms"] == said[0]["in_turn_ms"] + said[1]["in_turn_ms"]
    alone = said[0]["device_ms"] + min(said[1]["device_ms"], said[2]["device_ms"])
    assert found["results"][0]["one_device_ms"] == alone
    measured.write_text("[]")
    assert "is no result of bench/ranks.py" in run().stderr
    assert "is called nothing" in simulate({**row, "name": "nothing"}).stderr
    assert "--strategy: there is no such name" in simulate({**row, "strategy": "rign"}).stderr


def test_transfers_of_peers_are_simulated_as_overlapped(tmp_path, tool):
    sizes = {"q_len": 1024, "kv_len": 1024, "q_heads": 64, "kv_heads": 64, "head_dim": 128,
             "dtype": "bf16"}  # fmt: skip
    row = {"name": "full 64:64 1024 hd128", "problem": sizes, "strategy": "balanced",
           "shard": "balanced", "order": "auto"}  # fmt: skip
    measured, out = tmp_path / "ranks.json", tmp_path / "simulated.json"
    rows = [{**row, "transport": way} for way in ("group", "peers")]
    measured.write_text(json.dumps({"command": "bench/ranks", "world": 2, "results": rows}))
    assert script("simulated_ranks", measured, "--json", out).returncode == 0
    in_turn, overlapped = json.loads(out.read_text())["results"]
    assert (in_turn["transport"], overlapped["transport"]) == ("group", "peers")
    assert overlapped["step_ms"] < in_turn["step_ms"]


def test_replayed_cases_are_dealt_again(tmp_path, tool):
    played, out, one = (tmp_path / f"{name}.json" for name in ("played", "simulated", "plan"))
    problem = "--mask causal --seqlen 512 --q-heads 4 --kv-heads 2 --head-dim 32".split()
    timed = "--world replay:1,2 --strategy ring,ulysses --repeats 1 --check none".split()
    words = [tool, "bench", *timed, *problem, "--json", played]
    subprocess.run(words, check=True, capture_output=True)

    def simulate(file):
        named = ("--orders", "descending/rows:256")
        return script("simulated_replays", file, "--commit", "x", "--json", out, *named)

    assert simulate(played).returncode == 0
    found = json.loads(out.read_text())
    assert (found["cluster"], found["commit"]) == ("h200x8", "x")
    rows = found["results"]
    assert [(row["strategy"], row["world"]) for row in rows] == [("ring", 2), ("ulysses", 2)]
    named = rows[0]["named"]["descending/rows:256"]
    for of, times in (
        ("--pass forward", rows[0]["forward"]),
        ("", rows[0]["backward"]),
        ("--order none", rows[0]["backward_none"]),
        ("--order descending/rows:256", named["backward"]),
        (
            "--pass forward --forward-order descending --order descending/rows:256",
            named["forward"],
        ),
    ):
        world = f"--machine h200 --world replay:2 --strategy ring {of} --json {one}".split()
        subprocess.run([tool, "plan", *problem, *world], check=True, capture_output=True)
        said = json.loads(one.read_text())["dist"]["passes"][0]["simulated"]
        assert times == {time: said[time] for time in times}
    assert named["alone"] > 0
    other = json.loads(played.read_text())
    other["results"][0]["plan"]["fingerprint"] = "0" * 16
    played.write_text(json.dumps(other))
    assert "what was played had another plan" in simulate(played).stderr
    other["contract"] -= 1  # whose fingerprints are others
    played.write_text(json.dumps(other))
    assert simulate(played).returncode == 0
    played.write_text(json.dumps({"results": [{}]}))
    assert "is no result of `verbatim bench --world`" in simulate(played).stderr


def test_an_order_has_one_error_in_every_world(tmp_path, tool):
    out = tmp_path / "errors.json"
    problem = (
        "run --seqlen 640 --q-heads 2 --kv-heads 1 --head-dim 16 --check full --shard contiguous"
    )
    assert (
        script("free_order", "--problem", problem, "--commit", "x", "--json", out).returncode == 0
    )
    found = json.loads(out.read_text())
    assert (found["commit"], found["mask"], found["strategy"]) == ("x", "causal", "balanced")
    auto, named, none = (found["results"][at : at + 6] for at in (0, 6, 12))
    for rows in (auto, named):
        assert len({json.dumps([row["error"], row["sha256"]]) for row in rows}) == 1
    assert [row["world"] for row in none] == [1, 2, 4, 8, 16, 32]
    assert none[1]["sha256"]["dk"] != none[0]["sha256"]["dk"] == auto[0]["sha256"]["dk"]
    assert none[1]["sha256"]["dq"] == none[0]["sha256"]["dq"]
    assert none[0]["backward_sent_bytes"] == 0 < none[1]["backward_sent_bytes"]
    wrong = script("free_order", "--problem", "run --seqlen no", "--json", out)
    assert wrong.returncode != 0 and "seqlen" in wrong.stderr
