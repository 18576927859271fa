"""cudnn.flex_attention as its documentation has it, in double precision on the CPU, with faults to
plant."""

import itertools
import os
from typing import Any, NamedTuple

import torch

fault = os.environ.get("PLANTED", "")  # the environment reaches new processes
calls = 0


class MaskPlan(NamedTuple):
    shapes: Any
    sequences: Any  # of each: query and key tokens, and bool (heads or 1, queries, keys)


def create_mask_plan(
    mask_func, q, k, v, *, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None,
    max_seqlen_k=None, build_backward=None,
):  # fmt: skip
    assert build_backward and mask_func.dtype == torch.int32 and mask_func.is_contiguous()
    heads, count, tokens = mask_func.shape
    assert heads in (1, q.shape[-2]) and count % 2 == 1
    assert (mask_func.diff(dim=1) >= 0).all() and (mask_func >= 0).all()
    if cu_seqlens_q is None:
        batch, q_len, kv_len = *q.shape[:2], k.shape[1]
        cu_seqlens_q, cu_seqlens_k = (torch.arange(batch + 1) * n for n in (q_len, kv_len))
        max_seqlen_q, max_seqlen_k = q_len, kv_len
    else:
        assert q.dim() == 3 and cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert tokens == cu_seqlens_q[-1]
    sequences = []
    spans = zip(*(itertools.pairwise(cu.tolist()) for cu in (cu_seqlens_q, cu_seqlens_k)))
    for (q0, q1), (k0, k1) in spans:
        assert q1 - q0 <= max_seqlen_q and k1 - k0 <= max_seqlen_k
        ends = mask_func[:, :, q0:q1, None]
        assert (ends <= k1 - k0).all()
        keys = torch.arange(k1 - k0) + (fault == "mask")
        shown = keys < ends[:, 0]
        for i in range(1, count, 2):
            shown = shown | ((keys >= ends[:, i]) & (keys < ends[:, i + 1]))
        sequences.append((slice(q0, q1), slice(k0, k1), shown))
    return MaskPlan((q.shape, k.shape, v.shape), sequences)


def flex_attn_func(q, k, v, *, mask_plan, deterministic=False):
    global calls
    calls += 1
    assert (q.shape, k.shape, v.shape) == mask_plan.shapes
    group = q.shape[-2] // k.shape[-2]
    q2, k2, v2 = (x.flatten(0, -3).double() for x in (q, k, v))
    rows = []
    for queries, keys, shown in mask_plan.sequences:
        heads = []
        for head in range(q.shape[-2]):  # alone, so that no shape changes the bits of another
            s = q2[queries, head] @ k2[keys, head // group].T * q.shape[-1] ** -0.5
            s = s.masked_fill(~shown[head % len(shown)], -torch.inf)
            heads.append(torch.softmax(s, -1).nan_to_num(0.0) @ v2[keys, head // group])
        rows.append(torch.stack(heads, 1))
    o = torch.cat(rows)
    if fault == "bits" and not deterministic:
        o = o * (1 + torch.finfo(q.dtype).eps * (calls % 2))
    return o.to(q.dtype).unflatten(0, q.shape[:-2])
