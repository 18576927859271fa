"""Where the functions live, as the package has it."""

from cudnn import MaskPlan, create_mask_plan, flex_attn_func

__all__ = ["MaskPlan", "create_mask_plan", "flex_attn_func"]
