"""The benchmark as a command, and the schema of its results."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "apps"))
import schema  # noqa: E402, F401


def bench(*words, code=0):
    done = subprocess.run(
        [sys.executable, "-m", "verbatim_attn.bench", *map(str, words)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done


def right_passes(provider, case):
    """Both passes on a CPU, after a comparison with double precision."""
    from verbatim_attn.bench import check, run

    tensors = check.inputs(case, "cpu")
    passes = run.Passes(provider, case, "cpu", tensors)
    passes.both()
    assert check.error_ratio(passes.last, check.expectations(case, tensors)) <= 2
    return passes
