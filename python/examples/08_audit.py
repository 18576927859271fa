"""Is a function's result the same bits every time? Ours, and one that looks harmless."""

import numpy as np
import verbatim_attn as va


def ours(q, k, v):
    return va.attention(q, k, v, mask=va.masks.Causal())


def packed(q, k, v, doc_lengths):
    return va.attention(q, k, v, mask=va.masks.CausalDocument(doc_lengths))


def scaled_by_the_batch(q, k, v):
    """A scale taken over all entries: each result then depends on its neighbours."""
    return ours(q / np.abs(q).max(), k, v)


rng = np.random.default_rng(0)
inputs = rng.standard_normal((3, 2, 96, 4, 32), np.float32)  # (q, k, v) of (batch, length, ...)
how = {"layout": "blhd", "checks": ["repeats", "load", "batch", "packing"]}

good = va.audit(ours, tuple(inputs), packed=packed, doc_lengths=(40, 7, 49), **how)
print(good)
assert good.passed

bad = va.audit(scaled_by_the_batch, tuple(inputs), **how)
print(f"\n{bad}")
assert bad.verdicts["repeatable"] == "yes" and bad.verdicts["batch_invariant"] == "no"
