"""Block-sparse masks as lists of blocks and of tiles, for peers that take these."""

from __future__ import annotations

from typing import Any

from .workloads import Case


def block_lists(case: Case, device: str, group: int) -> tuple[Any, Any]:
    """Of blocks, for every query head and row of them: int32 counts (1, heads, q_blocks) and
    columns (1, heads, q_blocks, k_blocks), the visible ones first."""
    import torch

    assert case.blocks is not None
    shown = torch.from_numpy(case.blocks.shown).to(device)
    return _lists(shown.repeat_interleave(group, dim=0))


def tile_lists(case: Case, device: str, group: int, tile: int) -> tuple[Any, Any, Any, Any]:
    """Of tiles of `tile` by `tile` positions, as block_lists(): those that blocks of any size show
    in part, then those that they show whole. Tiles at the end of a length that does not divide are
    never whole."""
    import torch

    assert case.blocks is not None
    shown = torch.from_numpy(case.blocks.shown).to(device, torch.float32)
    rows, columns = (_overlaps(torch.from_numpy(sizes), tile).to(device)
                     for sizes in (case.blocks.q_sizes, case.blocks.k_sizes))  # fmt: skip
    area = rows @ shown @ columns.T  # (KV heads, q_tiles, k_tiles); exact: at most 2^24
    whole = area == tile * tile
    heads = [x.repeat_interleave(group, dim=0) for x in ((area > 0) & ~whole, whole)]
    return *_lists(heads[0]), *_lists(heads[1])


def _lists(shown: Any) -> tuple[Any, Any]:
    import torch

    columns = shown.byte().sort(dim=-1, descending=True, stable=True).indices
    return shown.sum(-1, dtype=torch.int32)[None], columns.int()[None]


def _overlaps(sizes: Any, tile: int) -> Any:
    """How many positions each tile has of each block: f32 (tiles, blocks)."""
    import torch

    block = torch.arange(len(sizes)).repeat_interleave(sizes)
    found = torch.zeros(-(-len(block) // tile), len(sizes))
    return found.index_put_(
        (torch.arange(len(block)) // tile, block), torch.ones(len(block)), accumulate=True
    )
