"""Masks to and from FlexAttention."""

import verbatim_attn as va

mask = va.masks.PrefixLmDocument((40, 88), prefix=(8, 16))
back = va.from_block_mask(mask.to_block_mask(128))
assert (back.dense(128) == mask.dense(128)).all()
print(f"{int(mask.dense(128).sum())} visible pairs, the same in both")

strided = va.from_mask_mod(lambda b, h, q, k: (k <= q) & ((q - k) % 4 == 0), 128)
print(f"every fourth key before a query: {strided.area(128)} visible pairs")
