"""Masks and problems as the JSON that the library reads."""

from __future__ import annotations

import json
import math
from typing import Any


def json_of(value: Any, owner: str, name: str) -> str:
    """json.dumps of what masks and problems hold, which torch.compile can follow. Refuses what JSON
    cannot say, as `name` of `owner`."""
    if isinstance(value, dict):
        return "{" + ", ".join([f'"{k}": {json_of(x, name, k)}' for k, x in value.items()]) + "}"
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join([json_of(entry, owner, name) for entry in value]) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"' if value.isidentifier() else json.dumps(value)
    if isinstance(value, int):
        return repr(value)
    if hasattr(value, "spec"):  # a mask
        return value.spec
    if hasattr(value, "tolist") and not isinstance(value, type):  # a number of NumPy
        return json_of(value.tolist(), owner, name)
    if not isinstance(value, float):
        raise ValueError(
            f"[{owner}] {name} has the wrong type; got {value!r}, expected numbers, or a name as a "
            "text"
        )
    if not math.isfinite(value):
        raise ValueError(
            f"[{owner}] {name} takes finite numbers; got {value!r}, expected such a one"
        )
    return repr(value)
