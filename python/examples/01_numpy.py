"""Attention and its gradients on NumPy arrays: the same bits every time, alone or packed."""

import numpy as np
import verbatim_attn as va

rng = np.random.default_rng(0)
q = rng.standard_normal((1, 300, 8, 64), np.float32)  # (batch, length, heads, dim)
k, v = rng.standard_normal((2, 1, 300, 2, 64), np.float32)  # 4 query heads share a KV head
mask = va.masks.CausalDocument((100, 37, 163))  # three documents, packed

o, lse = va.attention(q, k, v, mask=mask, return_lse=True)
dq, dk, dv = va.attention_backward(o, q, k, v, o, lse, mask=mask)

part = slice(100, 137)  # the second document on its own
alone, alone_lse = va.attention(
    q[:, part], k[:, part], v[:, part], mask=va.masks.Causal(), return_lse=True
)
gradients = va.attention_backward(
    alone, q[:, part], k[:, part], v[:, part], alone, alone_lse, mask=va.masks.Causal()
)
assert alone.tobytes() == o[:, part].tobytes()
assert gradients[0].tobytes() == dq[:, part].tobytes()
print("a document alone and packed: the same bits, dQ included")
