"""An entry's result in ratios: rates and memory of one over another's.

A row with a time whose calls spread by more than NOISE of their median is in no ratio of rates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from .evidence import EARLIER, Part, dated, rows
from .pairs import Contrast, named
from .rates import card_of, of_case, value
from .registry import Entry, Row, sizes

NOISE = 0.2
_TIMED = ("forward", "backward", "block")
Values = dict[str, float]  # by provider


class Found(NamedTuple):
    """What one provider reaches over another in the cases that one run has of both; over itself,
    for a contrast; or alone, where no run has both."""

    name: str
    over: str  # a provider, the words of a contrast, or "" for alone
    axis: str
    card: str
    part: str  # a value of what the entry is split by, or ""
    values: list[float]

    def label(self) -> str:
        if not self.over:
            return f"{named(self.name)} alone"
        return f"{named(self.name)} over {named(self.over)}"

    def cell(self) -> str:
        if self.over:
            return extent(self.values)
        unit = "GiB" if self.axis.startswith("memory") else "TFLOP/s"
        return f"{range_of(self.values, '.3g')} {unit}, {cases_of(self.values)}"


def found(entry: Entry, of: list[Part]) -> tuple[list[Found], dict[str, list[Found]]]:
    """Of pairs on every axis, and of contrasts by their words; the card with most rows first."""
    made = [row for row in rows(of) if row["status"] == "ok"]
    pairs: list[Found] = []
    contrasts: dict[str, list[Found]] = {contrast.words: [] for contrast in entry.contrasts}
    for card, _ in Counter(card_of(row["run"]) for row in made).most_common():
        of_card = [row for row in made if card_of(row["run"]) == card]
        for part in sorted({_part(entry, row) for row in of_card}, key=_natural):
            members = [row for row in of_card if _part(entry, row) == part]
            for axis in entry.axes:
                pairs += _pairs(entry, members, axis, card, part)
            for contrast in (c for c in entry.contrasts if c.size != entry.split):
                contrasts[contrast.words] += _contrasted(entry, contrast, members, card, part)
        for contrast in (c for c in entry.contrasts if c.size == entry.split):
            contrasts[contrast.words] += _contrasted(entry, contrast, of_card, card, "")
    return pairs, contrasts


_SPLIT = {"dim": "head dim {}", "mask": "{} masks", "block": "blocks of {}"}


def _part(entry: Entry, row: Row) -> str:
    """What a row is told apart by."""
    return str(sizes(row)[entry.split]) if entry.split else ""


def part_words(entry: Entry, part: str) -> str:
    """In words."""
    if part == "variable":
        return "unequal blocks"
    return _SPLIT[entry.split].format(part) if part else ""


def _natural(part: str) -> tuple[int, str]:
    """64 before 128."""
    return len(part), part


def steady(row: Row, axis: str) -> float:
    """What an axis shows of a row; NaN where it has none, and of a rate where a pass spreads too
    much: then the other pass was disturbed, too."""
    noises = [(row.get(which) or {}).get("noise") or 0.0 for which in _TIMED]
    disturbed = max(noises) > NOISE and not axis.startswith("memory")
    return math.nan if disturbed else value(row, axis)


def cases(entry: Entry, made: list[Row], axis: str) -> dict[tuple[Any, ...], Values]:
    """Of every case of a run what each provider reaches."""
    by_case: dict[tuple[Any, ...], Values] = {}
    for row in dated(made, axis):
        if row["status"] == "ok" and not math.isnan(y := steady(row, axis)):
            model = row["name"] if entry.view == "blocks" else ""
            key = (row["run"], of_case(row), row["problem"]["q_len"], model)
            by_case.setdefault(key, {})[row["provider"]] = y
    return by_case


def _pairs(entry: Entry, made: list[Row], axis: str, card: str, part: str) -> list[Found]:
    """Where no run has both, what the second reaches; where there is nothing to compare, what ours
    does."""
    by_case = cases(entry, made, axis).values()
    earlier = tuple((EARLIER, theirs) for mine, theirs in entry.over if mine == "verbatim")
    ratios = {(mine, theirs): [case[mine] / case[theirs] for case in by_case
                               if {mine, theirs} <= case.keys()]
              for mine, theirs in entry.over + earlier}  # fmt: skip
    met = {theirs for (_, theirs), of in ratios.items() if of}
    rest = [theirs for _, theirs in entry.over if theirs not in met] + ["verbatim"] * (not met)
    alone = {name: [case[name] for case in by_case if name in case]
             for name in (rest if axis != "block" else ())}  # fmt: skip
    every = {**ratios, **{(name, ""): of for name, of in alone.items()}}
    return [Found(name, over, axis, card, part, of) for (name, over), of in every.items() if of]


def _contrasted(
    entry: Entry, contrast: Contrast, made: list[Row], card: str, part: str
) -> list[Found]:
    """Of everybody that the entry compares the cases with the contrast's first size over those with
    its second, of one run."""
    asked = dict.fromkeys(("verbatim", EARLIER, *(theirs for _, theirs in entry.over)))
    told = []
    for axis in contrast.axes or entry.axes:
        by_case: dict[Any, dict[Any, float]] = {}
        for row in dated(made, axis):
            of = sizes(row)
            size = of.pop(contrast.size)
            if not math.isnan(y := steady(row, axis)):
                key = row["provider"], row["run"], tuple(of.items())
                by_case.setdefault(key, {})[size] = y
        both = [(key[0], by[contrast.first] / by[contrast.second]) for key, by in by_case.items()
                if {contrast.first, contrast.second} <= by.keys()]  # fmt: skip
        for name in asked:
            if of_name := [ratio for provider, ratio in both if provider == name]:
                told.append(Found(name, contrast.words, axis, card, part, of_name))
    return told


def which(axis: str) -> str:
    kind, _, of = axis.rpartition(" ")
    return f"{of} {kind or 'rate'}"


def mean(ratios: list[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def extent(ratios: Iterable[float]) -> str:
    """The least, the greatest, the mean and how many."""
    every = list(ratios)
    said = range_of(every, ".2f")
    among = f", mean {mean(every):.2f}" if " to " in said else ""
    return f"{said}{among}, {cases_of(every)}"


def range_of(every: list[float], form: str) -> str:
    least, most = format(min(every), form), format(max(every), form)
    return least if least == most else f"{least} to {most}"


def cases_of(every: list[float]) -> str:
    return f"{len(every)} case" + "s" * (len(every) != 1)
