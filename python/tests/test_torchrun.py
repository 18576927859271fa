"""Programs with va.ContextParallel, as torchrun starts them."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("PyTorch was built without gloo", allow_module_level=True)

EXAMPLE = Path(__file__).parents[1] / "examples" / "09_context_parallel.py"
BENCHMARK = Path(__file__).parents[2] / "bench" / "ranks.py"


def launched(n, *words):
    """What `n` processes of torchrun print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               f"--nproc-per-node={n}", *map(str, words)]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


def test_the_example_ends_with_the_same_loss_on_1_2_and_4_processes():
    one = launched(1, EXAMPLE)
    assert one.startswith("loss 0x") and launched(2, EXAMPLE) == one and launched(4, EXAMPLE) == one


def test_the_benchmark_compares_before_it_times(tmp_path):
    result = tmp_path / "ranks.json"
    table = launched(
        2, BENCHMARK, "--seqlen", 300, "--heads", "2:1", "--head-dim", 64, "--match", "causal",
        "--transport", "group,peers", "--json", result,
    )  # fmt: skip
    rows = json.loads(result.read_text())["results"]
    assert [(row["strategy"], row["transport"]) for row in rows] == [
        *itertools.product(("ulysses", "ring", "balanced"), ("group", "peers"))
    ]
    assert table.count("causal 2:1 600") == 12  # a line and a table each
    for row in rows:
        assert row["differing_bytes"] == 0 and row["sent_bytes"] > 0
        assert min(row[way]["ms"] for way in ("step", "compute", "one_device")) > 0
        sent = 0
        for passes in row["recorded"]["ranks"]:
            assert list(passes) == ["forward", "backward"]
            times = [
                ms
                for parts in passes.values()
                for part in ("launches", "adds", "transfers", "copies")
                for ms in parts.get(part, {"each_ms": []})["each_ms"]
            ] + [parts["host_ms"] for parts in passes.values()]
            assert min(times) >= 0
            assert 0 < sum(times) <= row["recorded"]["ms"] * 1.001  # which is the slowest rank's
            sent += sum(parts["transfers"]["bytes"] for parts in passes.values())
        assert sent == 2 * row["sent_bytes"]  # received, too
