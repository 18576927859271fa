"""A whole transformer block, forward and backward, around one provider's attention: the end-to-end
measure of the DASH paper's Figure 10. Diffusion models are taken as one stream of tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .check import _DTYPES
from .measure import Device
from .models import Model
from .providers import Attend, Provider
from .workloads import Case


class Block(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)); x (batch, length, hidden)."""

    def __init__(self, model: Model, attend: Attend):
        super().__init__()
        norm = nn.RMSNorm if model.gated else nn.LayerNorm
        self.model, self.attend = model, attend
        widths = (model.q_heads + model.kv_heads) * model.head_dim + model.kv_heads * model.head_dim
        self.before_attention, self.before_ffn = norm(model.hidden), norm(model.hidden)
        self.qkv = nn.Linear(model.hidden, widths, bias=model.qkv_bias)
        self.out = nn.Linear(model.q_heads * model.head_dim, model.hidden, bias=not model.gated)
        self.ffn = Experts(model) if model.experts > 1 else FeedForward(model)

    def forward(self, x: Tensor) -> Tensor:
        m = self.model
        heads = self.qkv(self.before_attention(x)).unflatten(-1, (-1, m.head_dim))
        q, k, v = heads.split((m.q_heads, m.kv_heads, m.kv_heads), dim=2)
        if m.rotary:
            q, k = rotated(q), rotated(k)
        x = x + self.out(self.attend(q, k, v).flatten(2))
        return x + self.ffn(self.before_ffn(x))


class FeedForward(nn.Module):
    def __init__(self, model: Model):
        super().__init__()
        self.gate = nn.Linear(model.hidden, model.ffn, bias=False) if model.gated else None
        self.up = nn.Linear(model.hidden, model.ffn, bias=not model.gated)
        self.down = nn.Linear(model.ffn, model.hidden, bias=not model.gated)

    def forward(self, x: Tensor) -> Tensor:
        up = self.up(x)
        if self.gate is None:
            return self.down(nn.functional.gelu(up))
        return self.down(nn.functional.silu(self.gate(x)) * up)


class Experts(nn.Module):
    """Two experts per token, dealt evenly: token t goes to the pair t mod (experts / 2), so that
    no routing decides the time."""

    def __init__(self, model: Model):
        super().__init__()
        self.router = nn.Linear(model.hidden, model.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(model) for _ in range(model.experts))

    def forward(self, x: Tensor) -> Tensor:
        pairs = len(self.experts) // 2
        weights = self.router(x).softmax(-1)  # (batch, length, experts)
        y = torch.zeros_like(x)
        for pair in range(pairs):
            for expert in (2 * pair, 2 * pair + 1):
                mine = x[:, pair::pairs]
                y[:, pair::pairs] += weights[:, pair::pairs, expert, None] * self.experts[expert](
                    mine
                )
        return y


def rotated(x: Tensor) -> Tensor:
    """Rotary embedding of x (batch, length, heads, dim), halves paired."""
    half = x.shape[-1] // 2
    step = torch.arange(half, device=x.device, dtype=torch.float32) / half
    angle = torch.arange(x.shape[1], device=x.device)[:, None] * 500000.0**-step  # (length, half)
    cos, sin = (f(angle)[:, None].to(x.dtype) for f in (torch.cos, torch.sin))
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def measure(
    model: Model, case: Case, provider: Provider, device: Device, protocol: str, row: dict[str, Any]
) -> dict[str, Any]:
    """The block's time, and how it divides; `row` has the attention's own times. What the parts
    leave (projections, norms, residuals, rotary embedding) is "other"."""
    torch.manual_seed(case.problem.seed)
    dtype = _DTYPES[case.problem.dtype]
    block = Block(model, provider.make(case, device.name)).to(device.name, dtype)
    shape = (case.problem.batch, case.problem.q_len, model.hidden)
    x = torch.randn(shape, device=device.name).to(dtype).requires_grad_()
    dy = torch.randn(shape, device=device.name).to(dtype)

    def step(module: nn.Module) -> None:
        parameters = (x, *module.parameters())
        with provider.mode():
            torch.autograd.grad(module(x), parameters, dy)

    whole = device.measure(lambda: step(block), protocol)
    ffn = device.measure(lambda: step(block.ffn), protocol)["ms"]
    attention = {name: row[name]["ms"] for name in ("forward", "backward")}
    return {
        **whole,
        "parts_ms": {
            "attention_forward": attention["forward"],
            "attention_backward": attention["backward"],
            "ffn": ffn,
            "other": whole["ms"] - ffn - sum(attention.values()),
        },
    }
