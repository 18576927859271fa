"""Programs that may misbehave, each in a process of its own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

# What they may know of the environment: no key is among it.
_KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CPATH", "CUDA_VISIBLE_DEVICES")
_MOST_OUTPUT = 16 << 10
_MOST_FILE = 1 << 30
TOO_LONG = -1


def run(command: list[str], folder: Path, seconds: float) -> tuple[int, str]:
    """Exit code and output of `command`, run in `folder`; TOO_LONG when it was ended with all that
    it started because its time was over."""
    environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with open(folder / "output", "wb+") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_limit,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = TOO_LONG
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind, too
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        return code, output.read(_MOST_OUTPUT).decode(errors="replace")


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE, _MOST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
