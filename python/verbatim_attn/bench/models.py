"""Sizes of the models whose attention and blocks are measured: those of the DASH paper's Figure 10,
and DeepSeek-V3's multi-head latent attention as its kernels see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Model:
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int  # width of the feed-forward network; 0: attention only
    causal: bool
    head_dim_v: int = 0  # 0: head_dim
    gated: bool = True  # SwiGLU; False: two layers and GELU
    experts: int = 1  # more: two per token, dealt evenly, so that no routing decides the time
    qkv_bias: bool = False
    rotary: bool = True
    batch: int = 1
    lengths: tuple[int, ...] = (8192, 16384, 32768)


def _image(hidden: int, heads: int) -> Model:
    """A vision or diffusion transformer's: no mask, plain feed-forward network four times as wide."""
    return Model(
        hidden, heads, heads, hidden // heads, ffn=4 * hidden, causal=False, gated=False,
        rotary=False, qkv_bias=True, batch=16, lengths=(4096,),
    )  # fmt: skip


MODELS = {
    "llama3-8b": Model(4096, 32, 8, 128, ffn=14336, causal=True),
    "qwen2.5-7b": Model(3584, 28, 4, 128, ffn=18944, causal=True, qkv_bias=True),
    "mixtral-like": Model(4096, 32, 8, 128, ffn=14336, causal=True, experts=8),
    "llada-1b": Model(2048, 32, 4, 64, ffn=5632, causal=False, batch=16, lengths=(4096,)),
    "sam-vit-h": _image(1280, 16),
    "sd3.5-medium": _image(1536, 24),
    "sd3.5-large": _image(2432, 38),
    "deepseek-v3": Model(7168, 128, 128, 192, ffn=0, causal=True, head_dim_v=128, lengths=(8192,)),
}
