"""Attention in NumPy and double precision, row by row of the formula: too simple to share a bug."""

import numpy as np


def forward(q, k, v, visible, scale=None, softcap=0.0):
    """(o, lse, p) for (b, l, h, d) inputs and bool `visible` that broadcasts to (b, h_kv, q, k)."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (np.repeat(x, group, axis=2) for x in (k, v))
    visible = np.broadcast_to(visible, (q.shape[0], visible.shape[1], q.shape[1], k.shape[1]))
    visible = np.repeat(visible, q.shape[2] // visible.shape[1], axis=1)
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    s = np.where(visible, s, -np.inf)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    p = e / np.where(total == 0, 1, total)
    return np.einsum("bhqk,bkhd->bqhd", p, v), lse, p


def backward(dout, q, k, v, visible, scale=None, softcap=0.0):
    """(dq, dk, dv)."""
    o, _, p = forward(q, k, v, visible, scale, softcap)
    dout, q64, k64, v64 = (x.astype(np.float64) for x in (dout, q, k, v))
    heads, kv_heads = q.shape[2], k.shape[2]
    kr, vr = (np.repeat(x, heads // kv_heads, axis=2) for x in (k64, v64))
    scale = 1 / np.sqrt(q.shape[3]) if scale is None else scale
    dp = np.einsum("bqhd,bkhd->bhqk", dout, vr)
    delta = np.einsum("bqhd,bqhd->bhq", dout, o)[..., None]
    ds = p * (dp - delta)
    if softcap:
        ds *= 1 - np.tanh(np.einsum("bqhd,bkhd->bhqk", q64, kr) * scale / softcap) ** 2

    def of_groups(x):  # sums over the query heads of each KV head
        return x.reshape(*x.shape[:2], kv_heads, heads // kv_heads, x.shape[3]).sum(3)

    return (
        scale * np.einsum("bhqk,bkhd->bqhd", ds, kr),
        of_groups(scale * np.einsum("bhqk,bqhd->bkhd", ds, q64)),
        of_groups(np.einsum("bhqk,bqhd->bkhd", p, dout)),
    )


def assert_close(name, got, expected, eps=2e-6):
    """Elements within a few hundred units of f32's (or `eps`'s) last place of the largest one."""
    got = np.asarray(got, np.float64)
    finite = np.isfinite(expected)
    assert (got[~finite] == expected[~finite]).all(), f"{name}: rows without a key"
    error = np.abs(got[finite] - expected[finite]).max(initial=0)
    bound = eps * max(1, np.abs(expected[finite]).max(initial=0))
    assert error <= bound, f"{name}: error {error:.3g}, allowed {bound:.3g}"
