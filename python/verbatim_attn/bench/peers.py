"""Providers outside PyTorch, each used when it is installed: FlashAttention 2 (with blocks, too), 3
and 4, MagiAttention, cudnn.flex_attention and cudnn.BSA, FlashInfer, VSA, FlashMask. None of them
has been run in this repository's tests."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
from typing import Any, ClassVar

from .. import _cudnn_flex, masks
from .block_lists import block_lists
from .flashmask import FlashMask, FlashMaskBlocks
from .providers import (
    Attend,
    Packed,
    Provider,
    cumulative,
    missing,
    packed,
    too_large,
)  # fmt: skip
from .workloads import Case


def every() -> list[Provider]:
    flash = [
        FlashAttention(number, deterministic)
        for number in FlashAttention.MODULES
        for deterministic in (False, True)
    ]
    return [
        *flash, FlashAttentionBlocks(False), FlashAttentionBlocks(True), Magi(False), Magi(True),
        CudnnFlex(False), CudnnFlex(True), CudnnBlocks(), FlashInfer(), FlashInferSparse(),
        *map(Vsa, Vsa.FUNCTIONS), FlashMask(False), FlashMask(True), FlashMaskBlocks(),
    ]  # fmt: skip


class FlashAttention(Provider):
    """flash_attn_func and flash_attn_varlen_func of one generation."""

    MODULES: ClassVar = {2: "flash_attn", 3: "flash_attn_interface", 4: "flash_attn.cute"}

    def __init__(self, number: int, deterministic: bool):
        self.name = f"flash_attn_{number}" + (":deterministic" if deterministic else "")
        self.number, self.deterministic = number, deterministic
        self.module = self.MODULES[number]

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu":
            return "runs on CUDA devices only"
        return Packed.lacks(case)

    def make(self, case: Case, device: str) -> Attend:
        module = importlib.import_module(self.module)
        terms = packed(case.mask)
        assert terms is not None
        none = None if self.number == 4 else -1
        left = none if terms.window < 0 else terms.window
        settings: dict[str, Any] = {
            "causal": terms.causal,
            "window_size": (left, 0 if terms.causal and left is not none else left),
            "deterministic": self.deterministic,
        }

        def first(result: Any) -> Any:  # some return (o, lse)
            return result[0] if isinstance(result, tuple) else result

        if not terms.documents:
            return lambda q, k, v: first(module.flash_attn_func(q, k, v, **settings))
        cu_seqlens = cumulative(terms.documents, device)
        longest = max(terms.documents)

        def attend(q: Any, k: Any, v: Any) -> Any:
            o = module.flash_attn_varlen_func(
                q[0], k[0], v[0], cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens,
                max_seqlen_q=longest, max_seqlen_k=longest, **settings,
            )  # fmt: skip
            return first(o)[None]

        return attend


class FlashAttentionBlocks(Provider):
    """Blocks of multiples of 128 by FlashAttention-2, of the package block-sparse-attn."""

    module = "block_sparse_attn"
    HEAD_DIMS, UNIT = (32, 64, 128), 128

    def __init__(self, deterministic: bool):
        self.name = "flash_attn_2:blocks" + (":deterministic" if deterministic else "")
        self.deterministic = deterministic

    def supports(self, case: Case, device: str) -> str | None:
        p, mask = case.problem, case.mask
        if device == "cpu":
            return "runs on CUDA devices only"
        if not isinstance(mask, masks.UniformBlockSparse):
            return "takes no mask but blocks of one size"
        if mask.block_q % self.UNIT or mask.block_k % self.UNIT:
            return f"takes blocks of multiples of {self.UNIT}"
        if p.head_dim != p.head_dim_v or p.head_dim not in self.HEAD_DIMS or p.dtype == "f32":
            return "head dims 32, 64 and 128 in bf16 or f16"
        return "no softcap, no dropout" if p.softcap or p.dropout else None

    def make(self, case: Case, device: str) -> Attend:
        import torch
        from block_sparse_attn import block_sparse_attn_func

        p, mask, blocks = case.problem, case.mask, case.blocks
        assert isinstance(mask, masks.UniformBlockSparse) and blocks is not None
        shown = torch.from_numpy(blocks.shown).to(device)  # (KV heads, rows, columns)
        sides = (p.q_heads // p.kv_heads, mask.block_q // self.UNIT, mask.block_k // self.UNIT)
        for axis, repeats in enumerate(sides):
            shown = shown.repeat_interleave(repeats, axis)
        rows, columns = (-(-length // self.UNIT) for length in (p.q_len, p.kv_len))
        shown = shown[:, :rows, :columns].expand(p.batch, -1, -1, -1).contiguous()
        kinds = torch.ones(p.q_heads, dtype=torch.int32, device=device)  # 1: has blocks
        ends = [cumulative(p.batch * [length], device) for length in (p.q_len, p.kv_len)]
        settings = (*ends, kinds, None, shown, p.q_len, p.kv_len, 0.0, self.deterministic, p.scale)

        def attend(q: Any, k: Any, v: Any) -> Any:
            tokens = (x.flatten(0, 1) for x in (q, k, v))
            return block_sparse_attn_func(*tokens, *settings).unflatten(0, q.shape[:2])

        return attend


class Magi(Provider):
    """MagiAttention's flex_flash_attn_func: rectangles with causal corners."""

    module = "magi_attention.api"

    def __init__(self, deterministic: bool):
        self.name = "magi" + (":deterministic" if deterministic else "")
        self.deterministic = deterministic

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu":
            return "runs on CUDA devices only"
        return "has one mask for all heads" if case.masks_differ_by_head else None

    def make(self, case: Case, device: str) -> Attend:
        import torch
        from magi_attention.api import flex_flash_attn_func

        p = case.problem
        pieces = [
            (q0 + b * p.q_len, q1 + b * p.q_len, k0 + b * p.kv_len, k1 + b * p.kv_len, kind)
            for b in range(p.batch)
            for q0, q1, k0, k1, kind in corner_pieces(case.mask, p.q_len, p.kv_len)
        ]
        table = torch.tensor(pieces, dtype=torch.int32, device=device)
        settings = {
            "q_ranges": table[:, 0:2].contiguous(),
            "k_ranges": table[:, 2:4].contiguous(),
            "attn_type_map": table[:, 4].contiguous(),
            "deterministic": self.deterministic,
        }

        def attend(q: Any, k: Any, v: Any) -> Any:
            tokens = (x.flatten(0, 1) for x in (q, k, v))
            return flex_flash_attn_func(*tokens, **settings)[0].unflatten(0, q.shape[:2])

        return attend


def corner_pieces(
    mask: masks.Mask, q_len: int, kv_len: int
) -> list[tuple[int, int, int, int, int]]:
    """The mask as MagiAttention's (q_begin, q_end, k_begin, k_end, kind): 0 full, 1 causal (the
    diagonal ends in the bottom right corner), 2 inverse causal (it starts in the top left one),
    3 both. Rows of a slice are split where a side of its band enters or leaves the rectangle."""
    slices = json.loads(mask.to_json(q_len, kv_len))["variants"][0]["slices"]
    pieces = []
    for q0, q1, k0, k1, low, high in slices:
        first = q0 if high is None else max(q0, k0 - high)
        last = q1 if low is None else min(q1, k1 - low)
        right = first if high is None else k1 - 1 - high  # rows before it end at the band
        left = last if low is None else k0 - low + 1  # rows from it on begin at the band
        cuts = sorted({first, last, *(cut for cut in (left, right) if first < cut < last)})
        for begin, end in itertools.pairwise(cuts):
            cut_right, cut_left = begin < right, low is not None and begin >= left
            k_begin = begin + low if cut_left else k0
            k_end = end + high if cut_right else k1
            pieces.append((begin, end, k_begin, k_end, int(cut_right) + 2 * int(cut_left)))
    return pieces


class CudnnFlex(Provider):
    """cudnn.flex_attention of nvidia-cudnn-frontend: every query's keys as intervals, compiled for
    a case before it is timed, as our plans are."""

    module = "cudnn.flex_attention"
    MOST_ENDPOINTS = 2**32  # bytes; masks of unequal blocks would take tens of GiB

    def __init__(self, deterministic: bool):
        self.name = "cudnn:flex" + (":deterministic" if deterministic else "")
        self.deterministic = deterministic

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu":
            return "runs on CUDA devices only"
        p = case.problem
        if reason := _cudnn_flex.lacks(p.head_dim, p.head_dim_v, p.dtype):
            return reason
        needed = _cudnn_flex.endpoint_bytes(
            case.mask, p.q_len, p.kv_len, batch=p.batch, kv_heads=p.kv_heads,
            group=p.q_heads // p.kv_heads,
        )  # fmt: skip
        if needed > self.MOST_ENDPOINTS:
            most = f"more than {self.MOST_ENDPOINTS / 2**30:g} GiB"
            return f"its intervals take {needed / 2**30:.1f} GiB, {most}"
        return None

    def make(self, case: Case, device: str) -> Attend:
        import torch
        from cudnn import flex_attn_func

        p = case.problem
        shapes = (
            (p.batch, p.q_len, p.q_heads, p.head_dim),
            (p.batch, p.kv_len, p.kv_heads, p.head_dim),
            (p.batch, p.kv_len, p.kv_heads, p.head_dim_v),
        )
        dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[p.dtype]
        settings = {
            "mask_plan": _cudnn_flex.plan(case.mask, shapes, dtype, device),
            "deterministic": self.deterministic,
        }
        return lambda q, k, v: flex_attn_func(q, k, v, **settings)


class CudnnBlocks(Provider):
    """cudnn.BSA of nvidia-cudnn-frontend: blocks of 64 or 128; a backward without groups, in bf16
    and of head dim 128."""

    name, module = "cudnn:blocks", "cudnn.block_sparse_attention.api"

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu":
            return "runs on CUDA devices only"
        p, mask = case.problem, case.mask
        if not isinstance(mask, masks.UniformBlockSparse) or (mask.block_q, mask.block_k) not in (
            (64, 64),
            (128, 128),
        ):
            return "takes no mask but blocks of 64 or 128"
        if p.q_len % mask.block_q or p.kv_len % mask.block_k:
            return "takes whole blocks here"
        if p.dtype == "f32" or not {p.head_dim, p.head_dim_v} <= {64, 96, 128}:
            return "takes head dims 64, 96 and 128 in bf16 and f16"
        return None

    def make(self, case: Case, device: str) -> Attend:
        import torch
        from cudnn.block_sparse_attention import api

        p, mask = case.problem, case.mask
        assert isinstance(mask, masks.UniformBlockSparse)
        self.has_backward = (p.q_heads, p.head_dim, p.head_dim_v, p.dtype) == (
            p.kv_heads, 128, 128, "bf16",
        )  # fmt: skip
        counts, columns = block_lists(case, device, p.q_heads // p.kv_heads)
        lists = columns[..., : int(counts.max())].expand(p.batch, -1, -1, -1).contiguous()
        settings: dict[str, Any] = {"sparse_block_size": mask.block_q, "layout": "bshd"}
        if bool((counts != counts.max()).any()):  # else every row has the lists' whole width
            settings["q2k_block_nums"] = counts.expand(p.batch, -1, -1).contiguous()
            settings["allow_empty_block_nums"] = True

        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
                found = api.block_sparse_attention_forward(q, k, v, lists, **settings)
                ctx.save_for_backward(q, k, v, found["o_tensor"], found["lse_tensor"])
                return found["o_tensor"]

            @staticmethod
            def backward(ctx: Any, dout: Any) -> Any:
                told = {key: x for key, x in settings.items() if not key.startswith("allow")}
                found = api.block_sparse_attention_backward(dout, *ctx.saved_tensors, lists, **told)
                return found["dq_tensor"], found["dk_tensor"], found["dv_tensor"]

        return Attention.apply


class FlashInfer(Provider):
    """FlashInfer's prefill: forward only."""

    name, module = "flashinfer", "flashinfer"
    has_backward = False

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu":
            return "runs on CUDA devices only"
        if case.problem.batch > 1:
            return "takes one batch entry"
        if case.masks_differ_by_head:
            return "has one mask for all heads"
        named = isinstance(case.mask, (masks.Full, masks.Causal, masks.CausalSlidingWindow))
        return None if named else too_large(case, 1, "mask", device)

    def make(self, case: Case, device: str) -> Attend:
        import torch
        from flashinfer import single_prefill_with_kv_cache

        p, mask = case.problem, case.mask
        settings: dict[str, Any]
        if isinstance(mask, (masks.Full, masks.Causal)):
            settings = {"causal": isinstance(mask, masks.Causal)}
        elif isinstance(mask, masks.CausalSlidingWindow):
            settings = {"causal": True, "window_left": mask.window}
        else:
            shown = mask.dense(p.q_len, p.kv_len)[0, 0]
            settings = {"custom_mask": torch.from_numpy(shown).to(device)}
        return lambda q, k, v: single_prefill_with_kv_cache(q[0], k[0], v[0], **settings)[None]


class FlashInferSparse(Provider):
    """FlashInfer's block-sparse attention, with other blocks for every KV head: forward only."""

    name, module = "flashinfer:sparse", "flashinfer.sparse"
    has_backward = False
    heads_first = True
    WORKSPACE, INT_WORKSPACE = 2**27, 2**23  # bytes: as its documentation advises, and its own

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu":
            return "runs on CUDA devices only"
        if case.blocks is None:
            return "takes no mask but blocks"
        return "takes one batch entry" if case.problem.batch > 1 else None

    def make(self, case: Case, device: str) -> Attend:
        import torch
        from flashinfer.sparse import VariableBlockSparseAttentionWrapper

        p, blocks = case.problem, case.blocks
        assert blocks is not None
        shown, *sizes = (torch.from_numpy(x).to(device) for x in blocks)
        workspace = torch.empty(self.WORKSPACE, dtype=torch.uint8, device=device)
        wrapper = VariableBlockSparseAttentionWrapper(workspace)
        buffers = {}
        # Its plan names every key of every block; older ones in a buffer that they do not enlarge.
        listing = "vector_sparse_indices_buffer"
        if listing in inspect.signature(wrapper.reset_workspace_buffer).parameters:
            listed = int((shown.sum(1) * sizes[1]).sum()) + 1
            buffers[listing] = torch.empty(listed, dtype=torch.int32, device=device)
        wrapper.reset_workspace_buffer(
            workspace, torch.empty(self.INT_WORKSPACE, dtype=torch.uint8, device=device), **buffers
        )
        wrapper.plan(
            shown, *(x.int().repeat(p.kv_heads, 1) for x in sizes),
            p.q_heads, p.kv_heads, p.head_dim,
            q_data_type={"bf16": torch.bfloat16, "f16": torch.float16}[p.dtype],
        )  # fmt: skip
        return lambda q, k, v: wrapper.run(*(x[0].transpose(0, 1) for x in (q, k, v)))[
            None
        ].transpose(1, 2)


class Vsa(Provider):
    """VSA's block-sparse attention of the package fastvideo-kernel: its kernels for Hopper, or its
    Triton form. Whole blocks of 64, as many KV heads as query heads."""

    module = "fastvideo_kernel.block_sparse_attn"
    FUNCTIONS: ClassVar = {"sm90": "block_sparse_attn_sm90", "triton": "block_sparse_attn_triton"}
    COMPILED = "fastvideo_kernel._C.fastvideo_kernel_ops"
    heads_first = True

    def __init__(self, form: str):
        self.name, self.form = f"vsa:{form}", form

    def available(self) -> str | None:
        if reason := super().available():
            return reason
        if self.form == "triton":
            return None
        if reason := missing(self.COMPILED):
            return reason
        built = hasattr(importlib.import_module(self.COMPILED), "block_sparse_bwd")
        return None if built else "not installed: the kernels for Hopper"

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu":
            return "runs on CUDA devices only"
        p, mask = case.problem, case.mask
        if not isinstance(mask, masks.UniformBlockSparse) or {mask.block_q, mask.block_k} != {64}:
            return "takes no mask but blocks of 64"
        if p.q_len % 64 or p.kv_len % 64:
            return "takes whole blocks of 64"
        if p.q_heads != p.kv_heads:
            return "takes as many KV heads as query heads"
        if p.batch > 1:
            return "takes one batch entry"
        return None if self.form == "triton" else self._hopper_lacks(case)

    @staticmethod
    def _hopper_lacks(case: Case) -> str | None:
        p, blocks = case.problem, case.blocks
        if p.dtype != "bf16" or (p.head_dim, p.head_dim_v) not in ((64, 64), (128, 128)):
            return "takes head dims 64 and 128 in bf16"
        assert blocks is not None
        # It reads the first block of every row, listed or not.
        return None if blocks.shown.any(-1).all() else "takes no row without blocks"

    def make(self, case: Case, device: str) -> Attend:
        import torch

        # By name: the package has a function of the module's name.
        module = importlib.import_module("fastvideo_kernel.block_sparse_attn")
        counts, columns = block_lists(case, device, 1)
        sizes = torch.full(columns.shape[-1:], 64, dtype=torch.int32, device=device)
        columns = columns[..., : int(counts.max())].contiguous()  # it walks their whole width
        compute: Any = getattr(module, self.FUNCTIONS[self.form])

        def attend(q: Any, k: Any, v: Any) -> Any:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return compute(q, k, v, columns, counts, sizes)[0].transpose(1, 2)

        return attend
