"""A training step on PyTorch tensors: autograd and torch.compile give the same bits."""

import torch
import verbatim_attn as va

torch.manual_seed(0)
q, k, v = (torch.randn(2, 128, heads, 64, requires_grad=True) for heads in (8, 2, 2))


def step(q, k, v):
    return va.attention(q, k, v, mask=va.masks.CausalSlidingWindow(32)).square().mean()


def gradients(function):
    return torch.autograd.grad(function(q, k, v), (q, k, v))


eager, again = gradients(step), gradients(step)
compiled = gradients(torch.compile(step, fullgraph=True, backend="aot_eager"))
for a, b, c in zip(eager, again, compiled, strict=True):
    assert torch.equal(a, b) and torch.equal(a, c)
print("eager twice and compiled: the same gradients, bit by bit")
