"""Attention and its gradients on NumPy arrays: the same bits alone, packed and padded."""

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
for mine, packed in zip(gradients, (dq, dk, dv), strict=True):
    assert mine.tobytes() == packed[:, part].tobytes()

queries, keys, values = np.full((3, 2, 64, 8, 64), np.nan, np.float32)  # a batch of two entries
keys, values = keys[:, :, :2], values[:, :, :2]
for entry, document in enumerate((slice(0, 64), part)):  # of 64 and 37 positions, the rest padding
    for padded, packed in ((queries, q), (keys, k), (values, v)):
        padded[entry, : document.stop - document.start] = packed[0, document]
mask = va.masks.Causal().padded((64, 37))
o, lse = va.attention(queries, keys, values, mask=mask, return_lse=True)
dq, dk, dv = va.attention_backward(o, queries, keys, values, o, lse, mask=mask)
assert alone.tobytes() == o[1:, :37].tobytes()
for mine, padded in zip(gradients, (dq, dk, dv), strict=True):
    assert mine.tobytes() == padded[1:, :37].tobytes()
assert not o[1, 37:].any()
print("a document alone, packed and padded: the same bits, gradients included")
