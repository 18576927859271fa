"""What the check `processes` starts: python -m verbatim_attn.audit.process CALL OUTPUTS."""

import pickle
import sys
from pathlib import Path

from . import environment
from .bits import on_host


def main(call: str, outputs: str) -> None:
    """Runs the pickled call once, under the settings saved with it, and pickles its outputs."""
    settings, subject = pickle.loads(Path(call).read_bytes())
    environment.restore(settings)
    found = {name: on_host(x) for name, x in subject.run().items()}
    Path(outputs).write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
