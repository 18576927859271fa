"""Who computes attention. A provider makes a function (q, k, v) -> o of PyTorch tensors, shaped
(batch, length, heads, dim), that autograd can follow; what it cannot do it says in words."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .. import masks
from .block_lists import block_lists, tile_lists
from .workloads import Case

Attend = Callable[[Any, Any, Any], Any]


class Provider:
    """One implementation in one mode."""

    name: str
    module = "torch"  # that it needs
    deterministic = False  # in its deterministic mode
    ours = False  # its promise is ours: a differing bit is a failure, not a fact
    has_backward = True
    heads_first = False  # wants (batch, heads, length, dim) in memory, and else would copy
    selects = False  # computes cases with blocks that queries select

    def available(self) -> str | None:
        """None, or why nothing can run."""
        return missing("torch") or missing(self.module)

    def version(self) -> str | None:
        """What is installed of others, "NAME VERSION"; None: ours, or its installation has none."""
        return None if self.ours else version_of(self.module)

    def supports(self, case: Case, device: str) -> str | None:
        """None, or why this case cannot run on a device of kind "cpu" or "cuda"."""
        return None

    def mode(self) -> AbstractContextManager[None]:
        """Holds around every forward and backward of this provider."""
        return contextlib.nullcontext()

    def make(self, case: Case, device: str) -> Attend:
        raise NotImplementedError

    def plan(self, case: Case, device: str) -> dict[str, Any] | None:
        """Of a provider that plans: its backward's plan, as docs/schema.md describes it."""
        return None

    def workspace_bytes(self, case: Case, device: str) -> int | None:
        """Of a backward, where it says so; None: unknown."""
        return None


def missing(module: str) -> str | None:
    """None when `module` can be imported; else why not, in words."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        mine = error.name and module.startswith(error.name)
        return f"not installed: {error.name}" if mine else str(error)
    except Exception as error:  # a broken installation must not end a benchmark
        return f"cannot be imported: {error}"
    return None


def version_of(module: str) -> str | None:
    """The distributions that a module's package is from, or what it says itself."""
    package = module.partition(".")[0]
    if names := sorted(set(_distributions().get(package, ()))):
        return ", ".join(f"{name} {metadata.version(name)}" for name in names)
    version = getattr(sys.modules.get(package), "__version__", None)
    return f"{package} {version}" if version else None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


class Verbatim(Provider):
    """This package, at a level of docs/determinism.md or without order."""

    def __init__(self, name: str, level: str = "invariant"):
        self.name, self.level, self.ours = name, level, True
        self.deterministic = level != "not_guaranteed"

    def make(self, case: Case, device: str) -> Attend:
        from ..attention import attention

        settings: dict[str, Any] = (
            {"level": self.level}
            if self.deterministic
            else {"order": "none", "deterministic": False}
        )
        return lambda q, k, v: attention(q, k, v, mask=case.mask, **settings)

    def _plan(self, case: Case, device: str) -> Any:
        from ..plan import Plan  # whose making again is cheap: the library keeps plans

        problem = case.problem._replace(seed=0)  # as attention() asks for it
        return Plan(problem, case.mask, level=self.level, device=device)

    def plan(self, case: Case, device: str) -> dict[str, Any] | None:
        plan = self._plan(case, device)
        backward = plan.backward_pass
        return {
            "order": "/".join(backward.orders) or "none",
            "placement": backward.placement,
            "level": plan.level,
            "fingerprint": backward.fingerprint,
            "residency": backward.residency,
        }

    def workspace_bytes(self, case: Case, device: str) -> int | None:
        return self._plan(case, device).backward_pass.workspace_bytes


class Kernels(Verbatim):
    """This package by kernels in TL, at most one a pass: on a CPU programs (.tl), on a GPU the
    libraries that `verbatim tl build` made of them (.so). A pass without one runs as ever."""

    selects = True

    def __init__(self, files: Sequence[str]):
        super().__init__("verbatim:" + "+".join(os.path.basename(file) for file in files))
        self.files = files

    def supports(self, case: Case, device: str) -> str | None:
        wanted = ".tl" if device == "cpu" else ".so"
        if wrong := [file for file in self.files if not file.endswith(wanted)]:
            return f"on this device kernels are files {wanted}, not {wrong[0]}"
        if case.selected and len(self.files) > 1:
            return f"blocks that queries select take one program, not {len(self.files)}"
        return None

    def make(self, case: Case, device: str) -> Attend:
        import torch

        if case.selected:
            return self._selected(case, device)
        plan = self._plan(case, device)

        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
                o, lse = plan.forward(q, k, v)
                ctx.save_for_backward(q, k, v, o, lse)
                return o

            @staticmethod
            def backward(ctx: Any, dout: Any) -> Any:
                return plan.backward(dout, *ctx.saved_tensors)

        return Attention.apply

    def _plan(self, case: Case, device: str) -> Any:
        from ..plan import Plan

        return Plan(case.problem, case.mask, kernels=self._kernels(), device=device)

    def _kernels(self) -> list[str]:
        return [Path(file).read_text() if file.endswith(".tl") else file for file in self.files]

    def _selected(self, case: Case, device: str) -> Attend:
        import torch

        from ..tl import SelectedAttention

        attention = SelectedAttention(case.problem, case.mask, *self._kernels(), device=device)
        assert case.selected
        lists = torch.from_numpy(case.selected.lists).to(device)  # where a model makes them
        lists = lists.expand(case.problem.batch, *lists.shape).contiguous()
        return lambda q, k, v: attention.forward(q, k, v, lists)[0]

    def plan(self, case: Case, device: str) -> dict[str, Any] | None:
        return None if case.selected else super().plan(case, device)

    def workspace_bytes(self, case: Case, device: str) -> int | None:
        return None if case.selected else super().workspace_bytes(case, device)


class Gather(Provider):
    """Selected blocks in plain PyTorch: the keys and values of each query gathered, some queries at
    a time."""

    name = "torch:gather"
    selects = True

    def supports(self, case: Case, device: str) -> str | None:
        return None if case.selected else "takes blocks that queries select alone"

    def make(self, case: Case, device: str) -> Attend:
        import torch

        selected, p = case.selected, case.problem
        assert selected
        lists = torch.from_numpy(selected.lists).to(device, torch.int64)  # (heads, rows, count)
        offsets = torch.arange(selected.block, device=device)
        head = torch.arange(p.kv_heads, device=device)[:, None, None]
        scale, group = p.head_dim**-0.5, p.q_heads // p.kv_heads
        rows = max(1, 2**28 // (p.kv_heads * selected.count * selected.block * p.head_dim))

        def one(q: Any, k: Any, v: Any) -> Any:  # (length, heads, dim)
            k, v = k.transpose(0, 1), v.transpose(0, 1)  # (heads, length, dim)
            found = torch.empty(p.q_len, p.q_heads, p.head_dim_v, dtype=q.dtype, device=q.device)
            for begin in range(0, p.q_len, rows):
                part = slice(begin, min(begin + rows, p.q_len))
                queries = torch.arange(part.start, part.stop, device=q.device)[None, :, None]
                keys = (lists[:, part, :, None] * selected.block + offsets).flatten(2)
                hidden = (keys < 0) | (keys > queries)  # (heads, rows, keys)
                keys = keys.clamp(0, p.kv_len - 1)
                grouped = q[part].unflatten(1, (p.kv_heads, group)).transpose(0, 1)
                s = torch.einsum("hrgd,hrsd->hrgs", grouped, k[head, keys]) * scale
                weights = s.float().masked_fill(hidden[:, :, None], -torch.inf).softmax(-1)
                o = torch.einsum("hrgs,hrsd->hrgd", weights.to(q.dtype), v[head, keys])
                found[part] = o.transpose(0, 1).flatten(1, 2)
            return found

        return lambda q, k, v: torch.stack([one(*each) for each in zip(q, k, v, strict=True)])


class Sdpa(Provider):
    """torch.nn.functional.scaled_dot_product_attention, held to one backend."""

    BACKENDS: ClassVar = {
        "flash": "FLASH_ATTENTION",
        "cudnn": "CUDNN_ATTENTION",
        "efficient": "EFFICIENT_ATTENTION",
        "math": "MATH",
    }

    def __init__(self, backend: str, deterministic: bool = False):
        self.name = f"torch:{backend}" + (":deterministic" if deterministic else "")
        self.backend, self.deterministic = backend, deterministic

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu" and self.backend in ("cudnn", "efficient"):
            return "runs on CUDA devices only"
        if self.backend == "flash" and device == "cuda" and not self._named(case):
            return "takes no mask but causal"
        if self.backend == "math":
            return too_large(case, 4, "scores", device)
        return None if self._named(case) else too_large(case, 1, "mask", device)

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        held = deterministic_algorithms() if self.deterministic else contextlib.nullcontext()
        with sdpa_kernel(SDPBackend.__members__[self.BACKENDS[self.backend]]), held:
            yield

    def make(self, case: Case, device: str) -> Attend:
        from torch.nn.functional import scaled_dot_product_attention

        group = case.problem.q_heads // case.problem.kv_heads
        # These two take as many KV heads as query heads; the copies are part of their cost.
        repeated = group if self.backend in ("cudnn", "efficient") else 1
        settings: dict[str, Any] = {"enable_gqa": group > repeated}
        if self._named(case):
            settings["is_causal"] = isinstance(case.mask, masks.Causal)
        else:
            settings["attn_mask"] = dense_mask(case, device, group)

        def attend(q: Any, k: Any, v: Any) -> Any:
            if repeated > 1:
                k, v = (x.repeat_interleave(repeated, dim=2) for x in (k, v))
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return scaled_dot_product_attention(q, k, v, **settings).transpose(1, 2)

        return attend

    @staticmethod
    def _named(case: Case) -> bool:
        """Whether a flag says it; SDPA aligns causal top-left, we bottom-right."""
        p = case.problem
        return isinstance(case.mask, masks.Full) or (
            isinstance(case.mask, masks.Causal) and p.q_len == p.kv_len
        )


class Packed(NamedTuple):
    """A mask in FlashAttention's terms: packed documents, each causal or not, and a window."""

    documents: tuple[int, ...]  # empty: one, of the tensors' lengths
    causal: bool
    window: int  # -1: none

    @staticmethod
    def lacks(case: Case) -> str | None:
        """None, or why those terms do not reach a case."""
        terms = packed(case.mask)
        if terms is None:
            return "takes no mask but causal, windows and packed documents"
        if terms.documents and case.problem.batch > 1:
            return "packed documents are one batch entry"
        return None


def packed(mask: masks.Mask) -> Packed | None:
    """None when those terms do not reach."""
    match mask:
        case masks.Full():
            return Packed((), False, -1)
        case masks.Causal():
            return Packed((), True, -1)
        case masks.FullSlidingWindow():
            return Packed((), False, mask.window)
        case masks.CausalSlidingWindow():
            return Packed((), True, mask.window)
        case masks.FullDocument() | masks.CausalDocument():
            documents = tuple(length for length in mask.doc_lengths if length)
            return Packed(documents, isinstance(mask, masks.CausalDocument), -1)
    return None


def cumulative(lengths: Iterable[int], device: str) -> Any:
    """int32 (documents + 1,): where each of `lengths` begins, and the end."""
    import torch

    edges = list(itertools.accumulate(lengths, initial=0))
    return torch.tensor(edges, dtype=torch.int32, device=device)


class Varlen(Provider):
    """torch.nn.attention.varlen.varlen_attn: PyTorch's FlashAttention-2 over packed sequences."""

    module = "torch.nn.attention.varlen"

    def __init__(self, deterministic: bool):
        self.name = "torch:varlen" + (":deterministic" if deterministic else "")
        self.deterministic = deterministic

    def supports(self, case: Case, device: str) -> str | None:
        return "runs on CUDA devices only" if device == "cpu" else Packed.lacks(case)

    def mode(self) -> AbstractContextManager[None]:
        return deterministic_algorithms() if self.deterministic else contextlib.nullcontext()

    def make(self, case: Case, device: str) -> Attend:
        from torch.nn.attention import varlen

        terms, p = packed(case.mask), case.problem
        assert terms is not None
        q_lens = terms.documents or (p.q_len,) * p.batch
        kv_lens = terms.documents or (p.kv_len,) * p.batch
        sequences = (
            cumulative(q_lens, device), cumulative(kv_lens, device), max(q_lens), max(kv_lens)
        )  # fmt: skip
        window = (terms.window, 0 if terms.causal else terms.window)

        def attend(q: Any, k: Any, v: Any) -> Any:
            tokens = (x.flatten(0, 1) for x in (q, k, v))
            o: Any = varlen.varlen_attn(*tokens, *sequences, window_size=window)
            return o.unflatten(0, q.shape[:2])

        return attend


class Flex(Provider):
    """FlexAttention: compiled on CUDA; eager on the CPU, where it has no backward."""

    name, module = "flex", "torch.nn.attention.flex_attention"

    def supports(self, case: Case, device: str) -> str | None:
        if device == "cpu" and case.area > 2**22:
            return "the eager form on a CPU is for small problems"
        return None

    def make(self, case: Case, device: str) -> Attend:
        import torch
        from torch.nn.attention.flex_attention import flex_attention

        on_cuda = device != "cpu"
        self.has_backward = on_cuda
        group = case.problem.q_heads // case.problem.kv_heads
        block_mask = self._block_mask(case, device, group)
        torch._dynamo.reset()  # a case of its own, not a recompilation of the last one
        # Its fixed choices of a kernel take blocks of 128: smaller ones need its search.
        small = min(block_mask.BLOCK_SIZE) < 128
        mode = "max-autotune-no-cudagraphs" if small else None
        compute: Any = flex_attention
        if on_cuda:
            compute = torch.compile(flex_attention, dynamic=False, mode=mode)

        def attend(q: Any, k: Any, v: Any) -> Any:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return compute(q, k, v, block_mask=block_mask, enable_gqa=group > 1).transpose(1, 2)

        return attend

    @staticmethod
    def _block_mask(case: Case, device: str, group: int) -> Any:
        """Of uniform blocks as lists of them, the form that costs least; of other blocks as the
        lists of tiles that create_block_mask() would find; of all else by asking for every
        position."""
        import torch
        from torch.nn.attention.flex_attention import BlockMask, create_block_mask

        from .check import mask_mod

        p, mod = case.problem, mask_mod(case, device, group)
        if isinstance(case.mask, masks.UniformBlockSparse):
            counts, columns = block_lists(case, device, group)
            return BlockMask.from_kv_blocks(
                torch.zeros_like(counts), columns, counts, columns,
                BLOCK_SIZE=(case.mask.block_q, case.mask.block_k), mask_mod=mod,
                seq_lengths=(p.q_len, p.kv_len),
            )  # fmt: skip
        if case.blocks is not None:
            partly, columns, wholly, whole_columns = tile_lists(case, device, group, 128)
            return BlockMask.from_kv_blocks(partly, columns, wholly, whole_columns, mask_mod=mod,
                                            seq_lengths=(p.q_len, p.kv_len))  # fmt: skip
        heads = p.q_heads if case.masks_differ_by_head else None
        # Compiling is slow, and only needed where a mask of all positions would take gigabytes.
        large = (heads or 1) * p.q_len * p.kv_len > 2**30
        return create_block_mask(
            mod, None, heads, p.q_len, p.kv_len, device=device, _compile=device != "cpu" and large
        )  # fmt: skip


def too_large(case: Case, entry_bytes: int, what: str, device: str) -> str | None:
    """Why a matrix of query by key positions cannot be held; None when it can."""
    import torch

    p = case.problem
    rows = p.batch * p.q_heads * p.q_len if what == "scores" else p.q_len
    if what == "mask" and case.masks_differ_by_head:
        rows *= p.q_heads
    needed = rows * p.kv_len * entry_bytes
    if what == "mask" and p.q_len * p.kv_len > 2**28:
        return f"its mask of {p.q_len} x {p.kv_len} positions cannot be made dense"
    if device == "cpu":  # Linux promises memory that is not there: refuse before it is touched
        free = available_memory() // 4
    else:
        free = torch.cuda.mem_get_info()[1]
    if needed > free:
        return f"its {what} take {needed / 2**30:.1f} GiB, more than {free / 2**30:.1f} GiB"
    return None


def available_memory() -> int:
    """Bytes of host memory that programs may still take."""
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def dense_mask(case: Case, device: str, group: int) -> Any:
    """bool (1, heads or 1, q_len, kv_len)."""
    import torch

    p = case.problem
    heads = p.kv_heads if case.masks_differ_by_head else 1
    shown = torch.from_numpy(case.mask.dense(p.q_len, p.kv_len, kv_heads=heads)).to(device)
    return shown.repeat_interleave(group, dim=1) if heads > 1 else shown


@contextlib.contextmanager
def deterministic_algorithms(fill: bool = False) -> Iterator[None]:
    """torch.use_deterministic_algorithms(True); `fill` also fills new memory with NaN, which must
    not be part of what is timed."""
    import torch

    was = torch.are_deterministic_algorithms_enabled()
    switch: Any = torch.utils.deterministic
    filled = switch.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    switch.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was)
        switch.fill_uninitialized_memory = filled


def unordered_twin(name: str) -> str | None:
    """The provider that does the same without determinism, when `name` promises it."""
    if name == "verbatim":
        return "verbatim:unordered"
    base, _, mode = name.rpartition(":")
    return base if mode == "deterministic" else None
