"""Who is compared with whom: pairs of providers, and one provider's cases that differ in a size."""

from __future__ import annotations

from typing import Any, NamedTuple

Pairs = tuple[tuple[str, str], ...]


class Contrast(NamedTuple):
    """One provider's cases with `first` over those with `second`, alike in all other sizes."""

    size: str  # of registry.sizes
    first: Any
    second: Any
    words: str
    axes: tuple[str, ...] = ()  # of rates.AXES; without: the entry's


def over(*peers: str) -> Pairs:
    return tuple(("verbatim", peer) for peer in peers)


FLEX = over("flex")
MASKED = over("flex", "cudnn:flex", "flashmask", "flash_attn_2", "flash_attn_3")
LENGTHS = (*MASKED, *over("torch:flash", "torch:varlen"))
MEMORY = (*MASKED, *over("torch:varlen", "torch:cudnn", "torch:math"))
SPARSE = over("flex", "cudnn:flex", "cudnn:blocks", "vsa:sm90", "vsa:triton", "flashmask:blocks",
              "flash_attn_2:blocks", "flashinfer:sparse")  # fmt: skip
NAIVE = over("torch:flash", "torch:math", "flash_attn_2", "flash_attn_3")
SELECTED = (("verbatim TL", "torch:gather"),)
_LIBRARIES = ("torch:flash", "torch:cudnn", "flex")
GENERATED = (*(("verbatim TL", peer) for peer in (*_LIBRARIES, "verbatim")),
             ("verbatim TL for an A100", "torch:flash"), *over(*_LIBRARIES))  # fmt: skip

LARGER_BLOCKS = Contrast("block", 128, 64, "blocks of 128 over 64")
MORE_SHOWN = Contrast("density", 0.8, 0.2, "a share of 0.8 over 0.2")
ONE_KV_HEAD = Contrast(
    "heads", "16:1", "16:16", "MQA over MHA",
    ("memory forward", "memory backward", "forward", "backward"),
)  # fmt: skip


def orders(best: str) -> Pairs:
    """DASH's curves; `verbatim:unordered` is the backward without an order."""
    return (
        *over("flash_attn_3:deterministic", "flash_attn_3", "verbatim:unordered"),
        (f"verbatim {best}", "verbatim ascending"),
        ("verbatim descending", "verbatim ascending"),
        ("verbatim descending", f"verbatim {best}"),
    )
