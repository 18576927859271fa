"""Who is compared with whom: pairs of providers, and one provider's cases that differ in a size;
and what lines and tables call them. A line names the first of the pairs, so those that a paper's
claim is about come first."""

from __future__ import annotations

from typing import Any, NamedTuple

Pairs = tuple[tuple[str, str], ...]

NAMES = {
    "verbatim": "ours",
    "verbatim:unordered": "ours unordered",
    "flash_attn_3": "FA3",
    "flash_attn_2": "FA2",
    "flash_attn_2:blocks": "FA2 blocks",
    "flashmask": "FlashMask",
    "flashmask:blocks": "FlashMask blocks",
    "flex": "FlexAttention",
    "cudnn:flex": "cuDNN flex",
    "cudnn:blocks": "cuDNN blocks",
    "vsa:sm90": "VSA",
    "vsa:triton": "VSA Triton",
    "flashinfer:sparse": "FlashInfer",
    "torch:flash": "PyTorch FA2",
    "torch:varlen": "PyTorch varlen",
    "torch:cudnn": "PyTorch cuDNN",
    "torch:efficient": "PyTorch efficient",
    "torch:math": "naive",
    "torch:gather": "PyTorch gather",
}


def named(provider: str) -> str:
    """In a line: an order, or TL, where ours was timed so."""
    base, _, mode = provider.rpartition(":")
    if mode == "deterministic":
        return f"{NAMES.get(base, base)} deterministic"
    if provider in NAMES:
        return NAMES[provider]
    return provider.replace("verbatim \N{DAGGER}", "ours \N{DAGGER}").removeprefix("verbatim ")


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
MASKED = over("flash_attn_3", "flex", "flashmask", "cudnn:flex", "flash_attn_2")
LENGTHS = (*MASKED, *over("torch:flash", "torch:varlen"))
MEMORY = over("torch:math", "flash_attn_2", "flash_attn_3", "flex", "cudnn:flex", "flashmask",
              "torch:varlen", "torch:cudnn")  # fmt: skip
NAIVE = over("torch:math", "torch:flash", "flash_attn_2", "flash_attn_3")
SELECTED = (("verbatim TL", "torch:gather"),)
_LIBRARIES = ("torch:flash", "torch:cudnn", "flex")
GENERATED = (*(("verbatim TL", peer) for peer in _LIBRARIES),
             ("verbatim TL for an A100", "torch:flash"), ("verbatim TL", "verbatim"),
             *over(*_LIBRARIES))  # fmt: skip

LARGER_BLOCKS = Contrast("block", 128, 64, "blocks of 128 over 64")
MORE_SHOWN = Contrast("density", 0.8, 0.2, "a share of 0.8 over 0.2")
ONE_KV_HEAD = Contrast(
    "heads", "16:1", "16:16", "MQA over MHA",
    ("memory forward", "memory backward", "forward", "backward"),
)  # fmt: skip


def sparse(*first: str) -> Pairs:
    """Of block-sparse masks, those that the claim is about first."""
    every = ("flex", "cudnn:flex", "cudnn:blocks", "vsa:sm90", "vsa:triton", "flashmask:blocks",
             "flash_attn_2:blocks", "flashinfer:sparse")  # fmt: skip
    return over(*dict.fromkeys((*first, *every)))


def orders(best: str) -> Pairs:
    """DASH's curves; `verbatim:unordered` is the backward without an order."""
    return (
        (f"verbatim {best}", "verbatim ascending"),
        ("verbatim descending", f"verbatim {best}"),
        *over("flash_attn_3:deterministic", "flash_attn_3", "verbatim:unordered"),
        ("verbatim descending", "verbatim ascending"),
    )
