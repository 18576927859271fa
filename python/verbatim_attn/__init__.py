"""Exact attention whose gradients are the same bits every time.

    import verbatim_attn as va
    o = va.attention(q, k, v, mask=va.masks.Causal())     # (batch, length, heads, dim)
"""

from typing import Any

from . import _library, masks
from .attention import attention, attention_backward
from .plan import PassPlan, Plan, Problem

__version__: str = _library.info()["version"]
__all__ = [
    "PassPlan",
    "Plan",
    "Problem",
    "attention",
    "attention_backward",
    "masks",
    "orders",
]


def orders() -> list[dict[str, Any]]:
    """The orders of both passes: name, pass, strongest level kept, summary."""
    return _library.info()["orders"]
