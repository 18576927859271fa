"""Code that calls PyTorch's own attention, on Verbatim without being changed."""

import torch
import torch.nn.functional as F
import verbatim_attn as va

torch.manual_seed(0)
q, k, v = (torch.randn(2, 4, 64, 32) for _ in range(3))  # (batch, heads, length, dim)
theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
with va.activate():
    ours = F.scaled_dot_product_attention(q, k, v, is_causal=True)
direct = va.attention(*(x.transpose(1, 2) for x in (q, k, v)), mask=va.masks.Causal())

assert torch.equal(ours, direct.transpose(1, 2)) and torch.allclose(ours, theirs, atol=1e-5)
assert torch.equal(F.scaled_dot_product_attention(q, k, v, is_causal=True), theirs)
print("inside the block PyTorch's attention was Verbatim's; outside it is its own again")
