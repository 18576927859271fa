"""Visible positions in arrays and tensors, before they are a mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def host(x: Any) -> np.ndarray:
    """What NumPy makes of lists, an array or a tensor, in a dtype that it has."""
    if not hasattr(x, "detach"):
        return np.asarray(x)
    x = x.detach()
    return (x.float() if x.is_floating_point() and x.element_size() < 4 else x).cpu().numpy()


def of_kv_heads(visible: Any, group: int) -> Any:
    """(batch, q_heads or 1, q, k) with one entry for each group of query heads."""
    heads = visible.shape[1]
    if heads == 1 or group == 1:
        return visible
    check_groups(heads, group)
    grouped = visible.unflatten(1, (heads // group, group))
    if not (grouped == grouped[:, :, :1]).all():
        raise different_masks(heads, group)
    return grouped[:, :, 0]


def check_groups(heads: int, group: int) -> None:
    if group < 1 or heads % group:
        raise ValueError(
            f"[masks] query heads are no groups; got {heads} heads in groups of {group}, expected "
            f"a divisor of {heads} (nearest: {math.gcd(heads, group)})"
        )


def different_masks(heads: int, group: int) -> Exception:
    return NotImplementedError(
        f"[masks] query heads of a group have different masks; got {heads} heads in groups of "
        f"{group}, expected one mask a group (nearest: k and v repeated for every query head)"
    )
