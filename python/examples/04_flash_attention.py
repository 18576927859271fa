"""FlashAttention's functions: change the import, keep the calls."""

import torch
from verbatim_attn import flash_attn_func, flash_attn_varlen_func

torch.manual_seed(0)
q, k, v = (torch.randn(1, 48, 4, 32) for _ in range(3))
o, lse = flash_attn_func(q, k, v, causal=True, window_size=(16, 0), return_lse=True)
print("one sequence:", tuple(o.shape), tuple(lse.shape))

cu_seqlens = torch.tensor([0, 20, 48], dtype=torch.int32)
packed = flash_attn_varlen_func(q[0], k[0], v[0], cu_seqlens, cu_seqlens, 28, 28, causal=True)
first = flash_attn_func(q[:, :20], k[:, :20], v[:, :20], causal=True)
assert torch.equal(packed[:20], first[0])
print("packed and alone: the same bits")
