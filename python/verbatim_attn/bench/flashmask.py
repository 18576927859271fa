"""FlashMask 3 as a provider: its PyTorch form, which PaddlePaddle/flash-attention builds for Hopper.

FlashMask says of every key's column which queries do not see it: one interval of rows below the
diagonal, one above it. Masks whose columns are not of that kind are refused. Masks of blocks of 128
are given as such, beside bounds that hide nothing.
"""

from __future__ import annotations

import importlib
import json
from typing import Any

import numpy as np

from .. import masks
from .._intervals import merged, turned
from .providers import Attend, Provider
from .workloads import Case

_MODULE = "interface_torch"


def columns(mask: masks.Mask, n: int) -> tuple[Any, bool]:
    """`startend_row_indices` of a mask of n queries and keys, and whether it is causal, without a
    dense matrix.

    Returns:
        int32 (n, 1, 2 or 4): the fewest bounds that say it, in FlashMask's order: [below's begin],
        [below's begin, below's end], [below's begin, above's end] or both intervals.

    Raises:
        ValueError: a column's hidden rows are not one interval on each side of the diagonal, or
        batch entries differ.
    """
    variants = json.loads(mask.to_json(n))["variants"]
    if len(variants) > 1:
        raise ValueError("one mask for all batch entries")
    begins, ends = merged(turned(variants[0]["slices"]), n, n)
    after = np.concatenate([begins[1:], np.full((1, n), n, np.int32)])  # a gap: [ends, after)
    key = np.arange(n)
    below_begin, below_end = _hidden(np.maximum(ends, key), after, n)
    above_begin, above_end = _hidden(ends, np.minimum(after, key), 0)
    to_the_end = bool((below_end == n).all())
    if causal := bool((above_end - above_begin == key).all()):
        bounds = [below_begin] if to_the_end else [below_begin, below_end]
    elif to_the_end and not above_begin.any():
        bounds = [below_begin, above_end]
    else:
        bounds = [below_begin, below_end, above_begin, above_end]
    return np.stack(bounds, -1).astype(np.int32), causal


def _hidden(begins: Any, ends: Any, nowhere: int) -> tuple[Any, Any]:
    """Of gaps (gaps, n), some empty, the one of every column; [nowhere, nowhere) without any."""
    hidden = begins < ends
    if (hidden.sum(0) > 1).any():
        raise ValueError("a column's hidden rows are not one interval on a side of the diagonal")
    some, at = hidden.any(0), hidden.argmax(0)[None]
    begin, end = (np.take_along_axis(x, at, 0)[0] for x in (begins, ends))
    return np.where(some, begin, nowhere), np.where(some, end, nowhere)


class FlashMask(Provider):
    """One mask for all heads, head dim 128."""

    module = _MODULE

    def __init__(self, deterministic: bool):
        self.name = "flashmask" + (":deterministic" if deterministic else "")
        self.deterministic = deterministic

    def supports(self, case: Case, device: str) -> str | None:
        p = case.problem
        if device == "cpu":
            return "runs on CUDA devices only"
        if (p.head_dim, p.head_dim_v) != (128, 128) or p.dtype == "f32":
            return "head dim 128 in bf16 or f16"
        if p.q_len != p.kv_len or p.q_len < 1024:
            return "as many queries as keys, 1024 or more"
        if case.masks_differ_by_head or case.selected or p.softcap or p.dropout:
            return "one mask for all heads, no softcap, no dropout"
        try:
            columns(case.mask, p.q_len)
        except ValueError as error:
            return str(error)
        return None

    def make(self, case: Case, device: str) -> Attend:
        import torch

        p = case.problem
        bounds, causal = columns(case.mask, p.q_len)
        rows = torch.from_numpy(bounds)[None, None].expand(p.batch, 1, -1, -1)  # (b, 1, n, bounds)
        rows = rows.contiguous().to(device)
        scale = p.head_dim**-0.5 if p.scale is None else p.scale
        function = importlib.import_module(_MODULE).FlashMaskFunc
        settings = (causal, -1, -1, 0.0, self.deterministic)
        return lambda q, k, v: function.apply(q, k, v, rows, None, scale, *settings)[0]


class FlashMaskBlocks(Provider):
    """Blocks of 128 that differ by KV head, head dim 128: without determinism alone."""

    name, module = "flashmask:blocks", _MODULE
    MOST, CHUNK = 2**17, 2**14  # keys

    def supports(self, case: Case, device: str) -> str | None:
        p, mask = case.problem, case.mask
        if device == "cpu":
            return "runs on CUDA devices only"
        if not isinstance(mask, masks.UniformBlockSparse) or {mask.block_q, mask.block_k} != {128}:
            return "takes no mask but blocks of 128"
        if (p.head_dim, p.head_dim_v) != (128, 128) or p.dtype == "f32":
            return "head dim 128 in bf16 or f16"
        if p.q_len != p.kv_len or not 1024 <= p.q_len <= self.MOST:
            return f"as many queries as keys, 1024 to {self.MOST}"
        # It walks the keys in chunks, and begins the last chunk's blocks elsewhere than its bounds.
        if p.kv_len > self.CHUNK and p.kv_len % self.CHUNK:
            return f"more than {self.CHUNK} keys in multiples of it"
        return "no softcap, no dropout" if p.softcap or p.dropout else None

    def make(self, case: Case, device: str) -> Attend:
        import torch

        p, blocks = case.problem, case.blocks
        assert blocks is not None
        shown = torch.from_numpy(blocks.shown.astype(np.int32)).to(device)
        shown = shown.expand(p.batch, -1, -1, -1).contiguous()
        bounds = torch.tensor([p.q_len, 0], dtype=torch.int32, device=device)
        bounds = bounds.expand(p.batch, p.kv_heads, p.kv_len, 2).contiguous()
        scale = p.head_dim**-0.5 if p.scale is None else p.scale
        function = importlib.import_module(_MODULE).FlashMaskFunc
        settings = (scale, False, -1, -1, 0.0, False)
        return lambda q, k, v: function.apply(q, k, v, bounds, shown, *settings)[0]
