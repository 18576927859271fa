"""What was meant by what is no mask, for the error that says so."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any


def meant(got: object, mask: Any) -> str:
    """The mask that comes nearest to what was given as one; `mask` is the base of all."""
    if isinstance(got, type) and issubclass(got, mask):
        return f"{got.__name__}(...)"
    if isinstance(got, Mapping):
        return "masks.Explicit(json.dumps(mask))"
    if isinstance(got, str) and got.lstrip().startswith("{"):
        return "masks.Explicit(mask)"
    if isinstance(got, str):
        named = {each.name: each for each in mask.__subclasses__()}
        found = named[difflib.get_close_matches(got, named, 1, cutoff=0)[0]]
        return f"masks.{found.__name__}({', '.join(found._parameters)})"
    if type(got).__name__ == "BlockMask":
        return "from_block_mask(mask)"
    if isinstance(got, Sequence) or hasattr(got, "shape"):
        return "masks.from_dense(visible), of which True is seen"
    return "from_mask_mod(mask, length)" if callable(got) else "masks.Causal()"
