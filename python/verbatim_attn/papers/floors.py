"""What block-sparse masks were to reach on an H200, and whether what was measured does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from . import evidence, ratios
from .registry import BLOCKS, LENGTHS, STATIC, Entry, Row, sizes

_PASSES = ("forward", "backward")
_ENTRY = Entry("longca:floors", "", "", "gpu", files=(*BLOCKS, *STATIC, *LENGTHS))
_CARD = "NVIDIA H200"


class Floor(NamedTuple):
    words: str
    least: float
    reached: Callable[[list[Row], str], list[float]]  # of a pass


def _over(theirs: str, block: int | str) -> Callable[[list[Row], str], list[float]]:
    """Our rate over theirs in one run, under blocks of a size."""

    def reached(found: list[Row], axis: str) -> list[float]:
        rows = [row for row in found if sizes(row)["block"] == block]
        by_case = ratios.cases(_ENTRY, rows, axis).values()
        return [of["verbatim"] / of[theirs] for of in by_case if {"verbatim", theirs} <= of.keys()]

    return reached


def _of_dense(found: list[Row], axis: str) -> list[float]:
    """Our rate by exact area under blocks of 128 and a share of a half, over the best under a full
    mask of the same commit, heads and length."""
    dense: dict[tuple[str, str, int], float] = {}
    sparse = list[tuple[tuple[str, str, int], float]]()
    for row in evidence.dated(found, axis):
        of, y = sizes(row), ratios.steady(row, axis)
        at = row["run"].commit, of["heads"], of["length"]
        if row["provider"] != "verbatim" or math.isnan(y):
            continue
        if of["mask"] == "full":
            dense[at] = max(dense.get(at, 0.0), y)
        elif (of["block"], of["density"]) == (128, 0.5):
            sparse.append((at, y))
    return [y / dense[at] for at, y in sparse if at in dense]


_FLOORS = (
    Floor("1.5 times FlexAttention, blocks of 64", 1.5, _over("flex", 64)),
    Floor("1.5 times FlexAttention, blocks of 128", 1.5, _over("flex", 128)),
    Floor("1.5 times FlexAttention, unequal blocks", 1.5, _over("flex", "variable")),
    Floor("VSA's kernel for Hopper, blocks of 64", 1.0, _over("vsa:sm90", 64)),
    Floor("85 % of the dense rate by exact area, blocks of 128, share 0.5", 0.85, _of_dense),
)


def table(folder: Path) -> str:
    """A line a floor; of each pass the ratios, and how many cases are below it."""
    found = [row for row in evidence.rows(evidence.parts(_ENTRY, folder))
             if row["run"].card == _CARD]  # fmt: skip
    lines = ["| floor | forward | backward | |", "|---|---|---|---|"]
    for floor in _FLOORS:
        reached = [floor.reached(found, axis) for axis in _PASSES]
        below = [sum(ratio < floor.least for ratio in of) for of in reached]
        said = [ratios.extent(of) + f", {n} below" * (n > 0) if of else "-"
                for of, n in zip(reached, below, strict=True)]  # fmt: skip
        met = "met" if all(reached) and not any(below) else "not met"
        lines.append(f"| {floor.words} | {' | '.join(said)} | {met} |")
    return "\n".join(lines)
