"""What the command line audits by name: attention on q, k, v of (batch, length, heads, dim).

Each target is a value that another process can unpickle, and is called with q, k and v; `packed`
takes doc_lengths as well, `padded` length and side.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .. import _cudnn_flex, masks
from ..masks import Mask
from ..plan import plan_of

LAYOUT = {"*": "blhd", "lse": "bhl"}


def packed_mask(mask: Mask, doc_lengths: Sequence[int]) -> Mask:
    """`mask` inside each document."""
    lengths = tuple(doc_lengths)
    if isinstance(mask, masks.Causal):
        return masks.CausalDocument(lengths)
    documents = masks.FullDocument(lengths)
    return documents if isinstance(mask, masks.Full) else mask & documents


@dataclass
class Target:
    """An attention function under one mask."""

    mask: Mask
    deterministic: bool = False  # what the command line asked for; PyTorch's own switch is set too

    def missing(self, device: str) -> str:
        """Why it cannot run on "cpu", "cuda" or "cuda:N" here; empty when it can."""
        if not installed("torch"):
            return "PyTorch is not installed"
        import torch

        has_device = device == "cpu" or torch.cuda.is_available()
        return "" if has_device else "PyTorch finds no CUDA device"

    def gradients(self, device: str) -> bool:
        return True

    def packed(self, q: Any, k: Any, v: Any, *, doc_lengths: Sequence[int]) -> Any:
        return dataclasses.replace(self, mask=packed_mask(self.mask, doc_lengths))(q, k, v)

    def padded(self, q: Any, k: Any, v: Any, *, length: int, side: str) -> Any:
        shown = self.mask.padded((length,), side=side)
        return dataclasses.replace(self, mask=shown)(q, k, v)

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        raise NotImplementedError


@dataclass
class Verbatim(Target):
    """verbatim_attn.attention; for NumPy arrays, with dout, its backward as well."""

    order: str = "auto"
    threads: int = 0  # of NumPy runs; 0: all cores

    def missing(self, device: str) -> str:
        return "" if device == "cpu" else super().missing(device)

    def set_threads(self, count: int) -> None:
        """For NumPy arrays; tensors follow torch.set_num_threads."""
        self.threads = count

    def __call__(self, q: Any, k: Any, v: Any, dout: Any = None) -> Any:
        deterministic = self.order != "none"
        if dout is None:
            from ..attention import attention

            o, lse = attention(
                q, k, v, mask=self.mask, order=self.order, deterministic=deterministic,
                return_lse=True,
            )  # fmt: skip
            return {"o": o, "lse": lse}
        settings = (None, 0.0, 0.0, self.order, "auto", "invariant", deterministic, "")
        plan = plan_of(q, k, v, self.mask.spec, settings)
        o, lse = plan.forward(q, k, v, threads=self.threads)
        dq, dk, dv = plan.backward(dout, q, k, v, o, lse, threads=self.threads)
        return {"o": o, "lse": lse, "dq": dq, "dk": dk, "dv": dv}

    def packed(
        self, q: Any, k: Any, v: Any, dout: Any = None, *, doc_lengths: Sequence[int]
    ) -> Any:
        whole = dataclasses.replace(self, mask=packed_mask(self.mask, doc_lengths))
        return whole(q, k, v, dout)

    def padded(self, q: Any, k: Any, v: Any, dout: Any = None, *, length: int, side: str) -> Any:
        shown = self.mask.padded((length,), side=side)
        return dataclasses.replace(self, mask=shown)(q, k, v, dout)


@dataclass
class TorchSdpa(Target):
    """torch.nn.functional.scaled_dot_product_attention on one of its backends."""

    backend: str = "MATH"  # of torch.nn.attention.SDPBackend
    on_cpu: bool = True

    def missing(self, device: str) -> str:
        if self.on_cpu or device != "cpu":
            return super().missing(device)
        return "PyTorch has it for CUDA devices only"

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        how: dict[str, Any] = {}
        if isinstance(self.mask, masks.Causal) and q.shape[1] == k.shape[1]:
            how["is_causal"] = True
        elif not isinstance(self.mask, masks.Full):
            shown = self.mask.dense(q.shape[1], k.shape[1])
            how["attn_mask"] = torch.from_numpy(shown).to(q.device)
        if q.shape[2] != k.shape[2]:
            how["enable_gqa"] = True
        with sdpa_kernel(getattr(SDPBackend, self.backend)):
            o = torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(1, 2) for x in (q, k, v)), **how
            )
        return {"o": o.transpose(1, 2)}


@dataclass
class Flex(Target):
    """torch's flex_attention: compiled on CUDA; on the CPU as it is, and forward only."""

    def gradients(self, device: str) -> bool:
        return device != "cpu"

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        from torch.nn.attention.flex_attention import flex_attention

        run: Callable[..., Any] = _compiled_flex() if q.is_cuda else flex_attention
        o = run(
            *(x.transpose(1, 2) for x in (q, k, v)),
            block_mask=_block_mask(self.mask, q.shape[1], k.shape[1], q.device),
            enable_gqa=q.shape[2] != k.shape[2],
        )
        return {"o": o.transpose(1, 2)}


@functools.lru_cache(maxsize=16)  # another mask_mod, though an equal one, is compiled again
def _block_mask(mask: Mask, q_len: int, kv_len: int, device: Any) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    mask_mod = mask.to_mask_mod(q_len, kv_len, device=device)
    return create_block_mask(mask_mod, None, None, q_len, kv_len, device=device)


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    # Batches, heads and documents are each a shape of their own: eight are not enough, and past the
    # limit another kernel would answer.
    torch.compiler.config.recompile_limit = 64
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@dataclass
class FlashAttention(Target):
    """flash_attn_func and flash_attn_varlen_func of FlashAttention 2 or 3."""

    def missing(self, device: str) -> str:
        if not any(map(installed, ("flash_attn", "flash_attn_interface"))):
            return "flash_attn is not installed"
        return "it runs on CUDA devices only" if device == "cpu" else super().missing(device)

    def _how(self) -> dict[str, Any]:
        if not isinstance(self.mask, masks.Full | masks.Causal):
            raise NotImplementedError(
                f"[audit] flash_attn is audited with two masks; got {self.mask.name}, expected "
                "full or causal (nearest: causal)"
            )
        return {
            "causal": isinstance(self.mask, masks.Causal),
            "deterministic": self.deterministic,
        }

    def _module(self) -> Any:
        three = installed("flash_attn_interface")
        return importlib.import_module("flash_attn_interface" if three else "flash_attn")

    def __call__(self, q: Any, k: Any, v: Any) -> Any:
        return {"o": _first(self._module().flash_attn_func(q, k, v, **self._how()))}

    def packed(self, q: Any, k: Any, v: Any, *, doc_lengths: Sequence[int]) -> Any:
        import torch

        lengths = torch.tensor([0, *(list(doc_lengths) * len(q))])
        edges = lengths.cumsum(0).to(q.device, torch.int32)
        longest = max(doc_lengths)
        o = self._module().flash_attn_varlen_func(
            *(x.flatten(0, 1) for x in (q, k, v)), edges, edges, longest, longest, **self._how()
        )
        return {"o": _first(o).unflatten(0, q.shape[:2])}


def _first(result: Any) -> Any:
    """O, which early versions of FlashAttention 3 return beside the LSE."""
    return result[0] if isinstance(result, tuple) else result


@dataclass
class CudnnFlex(Target):
    """flex_attn_func of cudnn.flex_attention; documents lie behind one another, each a sequence."""

    def missing(self, device: str) -> str:
        if not (installed("cudnn") and installed("cudnn.flex_attention")):
            return "cudnn.flex_attention is not installed"
        return "it runs on CUDA devices only" if device == "cpu" else super().missing(device)

    def __call__(self, q: Any, k: Any, v: Any, doc_lengths: tuple[int, ...] = ()) -> Any:
        from cudnn import flex_attn_func

        shapes = tuple(tuple(x.shape) for x in (q, k, v))
        plan = _cudnn_plan(self.mask, shapes, q.dtype, q.device, doc_lengths)
        return {"o": flex_attn_func(q, k, v, mask_plan=plan, deterministic=self.deterministic)}

    def packed(self, q: Any, k: Any, v: Any, *, doc_lengths: Sequence[int]) -> Any:
        lengths = tuple(length for length in doc_lengths if length) * len(q)
        tokens = [x.flatten(0, 1) for x in (q, k, v)]
        o = self(tokens[0], tokens[1], tokens[2], lengths)["o"]
        return {"o": o.unflatten(0, q.shape[:2])}


# Made once: what making it enqueues and waits for must not be captured into a graph.
_cudnn_plan = functools.lru_cache(maxsize=16)(_cudnn_flex.plan)


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


TARGETS: dict[str, Callable[..., Target]] = {
    "torch:math": functools.partial(TorchSdpa, backend="MATH"),
    "torch:flash": functools.partial(TorchSdpa, backend="FLASH_ATTENTION"),
    "torch:cudnn": functools.partial(TorchSdpa, backend="CUDNN_ATTENTION", on_cpu=False),
    "torch:efficient": functools.partial(TorchSdpa, backend="EFFICIENT_ATTENTION", on_cpu=False),
    "flex": Flex,
    "flash_attn": FlashAttention,
    "cudnn:flex": CudnnFlex,
    "verbatim": Verbatim,
}
