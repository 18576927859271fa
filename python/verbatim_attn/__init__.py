"""Exact attention whose gradients are the same bits every time.

    import verbatim_attn as va
    o = va.attention(q, k, v, mask=va.masks.Causal())     # (batch, length, heads, dim)

NumPy arrays on the CPU, PyTorch tensors on the CPU and on NVIDIA GPUs; verbatim_attn.jax has the
same for JAX. Importing changes nothing
elsewhere: activate() and register_huggingface() do, when they are called.
"""

from typing import TYPE_CHECKING, Any

from . import _library, masks
from .attention import attention, attention_backward
from .audit import audit
from .blocks import from_block_lists, from_block_map
from .context_parallel import ContextParallel
from .flash import flash_attn_func, flash_attn_varlen_func
from .flex import from_block_mask, from_mask_mod
from .huggingface import register as register_huggingface
from .masks import from_cu_seqlens
from .plan import PassPlan, Plan, Problem
from .waits import check, set_wait_limit

if TYPE_CHECKING:
    from .activation import Activation

__version__: str = _library.info()["version"]
__all__ = [
    "ContextParallel",
    "PassPlan",
    "Plan",
    "Problem",
    "activate",
    "attention",
    "attention_backward",
    "audit",
    "check",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "from_block_lists",
    "from_block_map",
    "from_block_mask",
    "from_cu_seqlens",
    "from_mask_mod",
    "masks",
    "orders",
    "register_huggingface",
    "set_wait_limit",
]


def orders() -> list[dict[str, Any]]:
    """The orders of both passes: name, pass, strongest level kept, summary."""
    return _library.info()["orders"]


def activate() -> "Activation":
    """Makes Verbatim PyTorch's flash attention until .remove(), or inside a `with` block: calls of
    torch.nn.functional.scaled_dot_product_attention and varlen_attn that reach flash attention, on
    CUDA and on the CPU. PyTorch 2.11 or newer. What is not supported raises; nothing falls back."""
    from .activation import activate as activate_torch

    return activate_torch()
