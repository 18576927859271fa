"""An entry's result in a line a card: rates and memory of one over another's.

A row with a time whose calls spread by more than NOISE of their median is in no ratio of rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .evidence import EARLIER, Part, dated, rows
from .pairs import Contrast
from .rates import card_of, of_case, value
from .registry import Entry, Row, sizes

NOISE = 0.2
_TIMED = ("forward", "backward", "block")
Values = dict[str, float]  # by provider


def compared(entry: Entry, of: list[Part]) -> str:
    """On every axis, of each pair the first over the second, on cases that one run has of both: the
    least, the greatest, the mean. Where no run has both, what the second reaches; where there is
    nothing to compare, what ours does. A line a card, and a value of `split`."""
    found = [row for row in rows(of) if row["status"] == "ok"]
    cards = [card for card, _ in Counter(card_of(row["run"]) for row in found).most_common()]
    lines = []
    for card in cards:
        of_card = [row for row in found if card_of(row["run"]) == card]
        head = [card] if len(cards) > 1 else []
        for part in sorted({_part(entry, row) for row in of_card}, key=_natural):
            members = [row for row in of_card if _part(entry, row) == part]
            said = [text for axis in entry.axes for text in _compared(entry, members, axis)]
            lines += _line([*head, part], said + _contrasts(entry, members))
        lines += _line(head, _contrasts(entry, of_card, of_split=True))
    return "\n".join(lines)


def _contrasts(entry: Entry, found: list[Row], of_split: bool = False) -> list[str]:
    """Those between the parts that ratios are told apart by, or all others."""
    return [said for contrast in entry.contrasts if (contrast.size == entry.split) == of_split
            for axis in contrast.axes or entry.axes
            for said in _contrasted(entry, contrast, found, axis)]  # fmt: skip


def _line(heads: list[str], said: list[str]) -> list[str]:
    head = ", ".join(filter(None, heads))
    return [(f"{head}: " if head else "") + "; ".join(said)] if said else []


_SPLIT = {"dim": "head dim {}", "mask": "{} masks", "block": "blocks of {}"}


def _part(entry: Entry, row: Row) -> str:
    """What a row is told apart by, in words."""
    if not entry.split:
        return ""
    found = sizes(row)[entry.split]
    return "unequal blocks" if found == "variable" else _SPLIT[entry.split].format(found)


def _natural(part: str) -> tuple[int, str]:
    """64 before 128."""
    return len(part), part


def steady(row: Row, axis: str) -> float:
    """What an axis shows of a row; NaN where it has none, and of a rate where a pass spreads too
    much: then the other pass was disturbed, too."""
    noises = [(row.get(which) or {}).get("noise") or 0.0 for which in _TIMED]
    disturbed = max(noises) > NOISE and not axis.startswith("memory")
    return math.nan if disturbed else value(row, axis)


def cases(entry: Entry, found: list[Row], axis: str) -> dict[tuple[Any, ...], Values]:
    """Of every case of a run what each provider reaches."""
    by_case: dict[tuple[Any, ...], Values] = {}
    for row in dated(found, axis):
        if row["status"] == "ok" and not math.isnan(y := steady(row, axis)):
            model = row["name"] if entry.view == "blocks" else ""
            key = (row["run"], of_case(row), row["problem"]["q_len"], model)
            by_case.setdefault(key, {})[row["provider"]] = y
    return by_case


def _compared(entry: Entry, found: list[Row], axis: str) -> list[str]:
    by_case = cases(entry, found, axis).values()
    memory = axis.startswith("memory")
    which = f"{_which(axis)} of "
    earlier = tuple((EARLIER, theirs) for mine, theirs in entry.over if mine == "verbatim")
    said, before = list[str](), ""
    met = set[str]()
    for mine, theirs in entry.over + earlier:
        found_of_both = [case[mine] / case[theirs] for case in by_case
                         if {mine, theirs} <= case.keys()]  # fmt: skip
        if found_of_both:
            first = "" if mine == before else f"{which}{mine} "
            said.append(f"{first}over {theirs} {extent(found_of_both)}")
            before = mine
            met.add(theirs)
    rest = {theirs: None for _, theirs in entry.over if theirs not in met}
    for name in () if axis == "block" else (*rest, *(["verbatim"] if not said else [])):
        if reached := [case[name] for case in by_case if name in case]:
            said.append(f"{which}{name} {_range(reached, '.3g')}"
                        f" {'GiB' if memory else 'TFLOP/s'}, {cases_of(reached)}")  # fmt: skip
    return said


def _contrasted(entry: Entry, contrast: Contrast, found: list[Row], axis: str) -> list[str]:
    """Of everybody that the entry compares the cases with the contrast's first size over those with
    its second, of one run."""
    by_case: dict[Any, dict[Any, float]] = {}
    for row in dated(found, axis):
        of = sizes(row)
        size = of.pop(contrast.size)
        if not math.isnan(y := steady(row, axis)):
            key = row["provider"], row["run"], tuple(of.items())
            by_case.setdefault(key, {})[size] = y
    both = [(key[0], by[contrast.first] / by[contrast.second]) for key, by in by_case.items()
            if {contrast.first, contrast.second} <= by.keys()]  # fmt: skip
    asked = ("verbatim", EARLIER, *(theirs for _, theirs in entry.over))
    names = [name for name in dict.fromkeys(asked) if name in dict(both)]
    told = [f"{name} {extent(ratio for of, ratio in both if of == name)}" for name in names]
    return [f"{_which(axis)}, {contrast.words}: " + "; ".join(told)] if told else []


def _which(axis: str) -> str:
    kind, _, of = axis.rpartition(" ")
    return f"{of} {kind or 'rate'}"


def extent(ratios: Iterable[float]) -> str:
    """The least, the greatest, the mean and how many."""
    found = list(ratios)
    said = _range(found, ".2f")
    mean = math.exp(sum(map(math.log, found)) / len(found))
    among = f", mean {mean:.2f}" if " to " in said else ""
    return f"{said}{among}, {cases_of(found)}"


def _range(found: list[float], form: str) -> str:
    least, most = format(min(found), form), format(max(found), form)
    return least if least == most else f"{least} to {most}"


def cases_of(found: list[float]) -> str:
    return f"{len(found)} case" + "s" * (len(found) != 1)
