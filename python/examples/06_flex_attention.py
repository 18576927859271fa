"""Masks to and from FlexAttention."""

import verbatim_attn as va
from torch.nn.attention.flex_attention import create_block_mask

mask = va.masks.PrefixLmDocument((40, 88), prefix=(8, 16))
block_mask = create_block_mask(mask.to_mask_mod(128), 1, 1, 128, 128, device="cpu")
back = va.from_block_mask(block_mask)
assert (back.dense(128) == mask.dense(128)).all()
print(f"{int(mask.dense(128).sum())} visible pairs, the same in both")
