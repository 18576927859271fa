"""What is compared before anything is timed: results with double precision, repeats bit by bit."""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .workloads import Case

ALLOWED_RATIO = 2.0
_WHOLE = 2**24  # positions of a problem that is compared whole
_CHUNK = 2**25  # positions of a step
_HELD = 2**26  # bytes of a tensor on the host at once
_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def inputs(case: Case, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and dout: N(0, 1) from the problem's seed, the same each time on one kind of device."""
    p = case.problem
    generator = torch.Generator(device).manual_seed(p.seed)

    def normal(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, device=device)
        return values.to(_DTYPES[p.dtype])

    q = normal(p.batch, p.q_len, p.q_heads, p.head_dim)
    k = normal(p.batch, p.kv_len, p.kv_heads, p.head_dim)
    v = normal(p.batch, p.kv_len, p.kv_heads, p.head_dim_v)
    dout = normal(p.batch, p.q_len, p.q_heads, p.head_dim_v)
    for x in (q, k, v):
        x.requires_grad_()
    return q, k, v, dout


class Expected(NamedTuple):
    """Of one (batch entry, KV head): exact results, and the error that is allowed of each."""

    entry: int
    kv_head: int
    exact: dict[str, Tensor]  # o, dq (group, q_len, dim); dk, dv (kv_len, dim); double; or o alone
    error: dict[str, float]  # of the same formula in the problem's dtype, or the floor below


def expectations(case: Case, tensors: tuple[Tensor, ...]) -> list[Expected]:
    """For every group of heads of a small problem; for the first and the last of a large one."""
    p = case.problem
    every = [(b, h) for b in range(p.batch) for h in range(p.kv_heads)]
    small = p.batch * p.q_heads * p.q_len * p.kv_len <= _WHOLE
    return [_expected(case, tensors, *one) for one in (every if small else {every[0], every[-1]})]


def _expected(case: Case, tensors: tuple[Tensor, ...], entry: int, kv_head: int) -> Expected:
    p = case.problem
    group = p.q_heads // p.kv_heads
    heads = slice(kv_head * group, (kv_head + 1) * group)
    q, k, v, dout = (x.detach()[entry] for x in tensors)
    parts = (q[:, heads].transpose(0, 1), k[:, kv_head], v[:, kv_head],
             dout[:, heads].transpose(0, 1))  # fmt: skip
    shown = _visible(case, kv_head, q.device)
    backward = case.selected is None  # such programs are forwards
    exact = _formula(parts, shown, torch.float64, torch.float64, p, backward)
    same = _formula(parts, shown, torch.float32, q.dtype, p, backward)
    u32 = 2.0**-24
    u = {torch.float32: u32, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[q.dtype]
    terms = {"o": p.kv_len, "dq": p.kv_len, "dk": group * p.q_len, "dv": group * p.q_len}
    # What storing a result and summing it in f32 may cost, with the size of S in f32 units: keeps
    # small problems honest, whose same-dtype error may be 0 by luck.
    scores = (
        u32
        * p.head_dim**-0.5
        * float(parts[0].float().norm(dim=-1).max() * parts[1].float().norm(dim=-1).max())
    )
    error = {
        name: max(
            float((same[name].double() - exact[name]).abs().max()),
            (2 * u + u32 * math.sqrt(terms[name]) / 4 + scores) * float(exact[name].abs().max()),
        )
        for name in exact
    }
    return Expected(entry, kv_head, exact, error)


def mask_mod(case: Case, device: Any, group: int = 1) -> Any:
    """FlexAttention's function of a case's mask; `group` query heads share a KV head."""
    p = case.problem
    if (blocks := case.blocks) is None:
        return case.mask.to_mask_mod(
            p.q_len, p.kv_len, kv_heads=p.kv_heads, group=group, device=device
        )
    shown = torch.from_numpy(blocks.shown).to(device)
    q_block, k_block = (
        torch.arange(len(sizes)).repeat_interleave(torch.from_numpy(sizes)).to(device)
        for sizes in (blocks.q_sizes, blocks.k_sizes)
    )
    return lambda b, h, q, k: shown[h // group, q_block[q], k_block[k]]


def _visible(case: Case, kv_head: int, device: Any) -> Any:
    """(first row, last row) -> bool (rows, kv_len) of one head's mask."""
    p = case.problem
    keys = torch.arange(p.kv_len, device=device)[None, :]
    if case.selected:
        return _selected(case, kv_head, keys)
    head = torch.tensor(kv_head, device=device)
    mod = mask_mod(case, device)

    def rows(begin: int, end: int) -> Tensor:
        queries = torch.arange(begin, end, device=device)[:, None]
        shown = torch.as_tensor(mod(torch.zeros_like(head), head, queries, keys), device=device)
        return shown.expand(end - begin, p.kv_len)

    return rows


def _selected(case: Case, kv_head: int, keys: Tensor) -> Any:
    """_visible() of lists of blocks and causality."""
    assert case.selected
    block = case.selected.block
    lists = torch.from_numpy(case.selected.lists[kv_head]).to(keys.device, torch.int64)

    def rows(begin: int, end: int) -> Tensor:
        chosen = torch.zeros(end - begin, keys.shape[1] // block + 2, dtype=torch.bool)
        chosen = chosen.to(keys.device).scatter_(1, lists[begin:end] + 1, True)  # 0: there is none
        queries = torch.arange(begin, end, device=keys.device)[:, None]
        return chosen[:, keys[0] // block + 1] & (keys <= queries)

    return rows


def _formula(
    parts: Any, shown: Any, sums: Any, stored: Any, p: Any, backward: bool
) -> dict[str, Tensor]:
    """Forward, or both passes, untiled in the keys: sums in `sums`, matrices rounded to `stored`."""
    q, k, v = (x.to(sums) for x in parts[:3])  # q (group, q_len, dim); k, v (kv_len, dim)

    def rounded(x: Tensor) -> Tensor:
        return x.to(stored).to(sums)

    o = q.new_empty(*q.shape[:2], v.shape[-1])
    if backward:
        dout = parts[3].to(sums)  # as o
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    scale = p.head_dim**-0.5
    step = max(1, _CHUNK // (p.kv_len * q.shape[0]))
    for begin in range(0, p.q_len, step):
        rows = slice(begin, min(begin + step, p.q_len))
        visible = shown(rows.start, rows.stop)
        s = rounded(q[:, rows] @ k.T * scale).masked_fill(~visible, -torch.inf)
        weights = rounded(torch.softmax(s, -1).nan_to_num(0.0))  # a row without a key: 0
        o[:, rows] = rounded(weights @ v)
        if not backward:
            continue
        dp = rounded(dout[:, rows] @ v.T)
        delta = (dout[:, rows] * o[:, rows]).sum(-1, keepdim=True)
        ds = rounded(weights * (dp - delta))
        dq[:, rows] = ds @ k * scale
        dk += ds.flatten(0, 1).T @ q[:, rows].flatten(0, 1) * scale
        dv += weights.flatten(0, 1).T @ dout[:, rows].flatten(0, 1)
    if not backward:
        return {"o": o}
    return {"o": o, "dq": rounded(dq), "dk": rounded(dk), "dv": rounded(dv)}


def error_ratio(found: dict[str, Tensor], expected: list[Expected]) -> float:
    """max |found - exact| over the allowed error, FlashAttention's rule: up to 2 is right."""
    worst = 0.0
    for one in expected:
        for name, x in found.items():
            got = x.detach()[one.entry]
            if name in ("o", "dq"):
                group = one.exact[name].shape[0]
                got = got[:, one.kv_head * group : (one.kv_head + 1) * group].transpose(0, 1)
            else:
                got = got[:, one.kv_head]
            error = (got.double() - one.exact[name]).abs().max().item()
            # A result that is not finite is as wrong as can be written in JSON.
            ratio = error / one.error[name] if one.error[name] else float(error > 0) * 1e300
            worst = max(worst, ratio if math.isfinite(ratio) else 1e300)
    return worst


def differing_words(a: dict[str, Tensor], b: dict[str, Tensor]) -> int:
    """32-bit words that differ, over all outputs."""
    return sum(int((_words(a[name]) != _words(b[name])).sum()) for name in a)


def deviation(a: dict[str, Tensor], b: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of each output (DASH, Table 1)."""
    found = {name: (a[name].detach() - b[name]).abs().max().item() for name in a}
    return {name: x if math.isfinite(x) else 1e300 for name, x in found.items()}


def _words(x: Tensor) -> Tensor:
    raw = x.detach().contiguous().view(-1).view(torch.uint8)
    return torch.nn.functional.pad(raw, (0, -raw.numel() % 4)).view(torch.int32)


def sha256(found: dict[str, Tensor]) -> dict[str, str]:
    """Of the elements in row-major order, as the tool hashes them."""

    def one(x: Tensor) -> str:
        hashed = hashlib.sha256()
        raw = x.detach().contiguous().view(-1).view(torch.uint8)
        # One buffer, again and again: gigabytes of fresh memory cost more than their hash.
        held = torch.empty(min(len(raw), _HELD), dtype=torch.uint8, pin_memory=x.is_cuda)
        for part in raw.split(_HELD):
            hashed.update(held[: len(part)].copy_(part).numpy())
        return hashed.hexdigest()

    with ThreadPoolExecutor() as threads:  # outputs of long sequences are gigabytes
        return dict(zip(found, threads.map(one, found.values()), strict=True))
