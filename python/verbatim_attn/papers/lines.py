"""Ratios as tables, which have all of them, and as the line of an entry, which has a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from .evidence import EARLIER, Part
from .pairs import named
from .ratios import Found, found, mean, part_words, range_of, which
from .registry import Entry
from .tables import Table

Key = TypeVar("Key")

# As tables

_WIDEST = 4  # columns
_TITLES = {"card": "card", "part": "cases"}


def tables(entry: Entry, of: list[Part]) -> list[Table]:
    """Of each kind of ratio the least, the greatest, the mean and the cases."""
    pairs, contrasts = found(entry, of)
    kinds = {"": pairs, **contrasts}
    return [_table(entry, title, members) for title, members in kinds.items() if members]


def _table(entry: Entry, title: str, members: list[Found]) -> Table:
    """A column a pass, a card and a value of the split, as far as there is room; what has none is
    in the first columns of a line."""
    wide: list[str] = []
    for field in ("axis", "card", "part"):
        if len({_of(one, [*wide, field]) for one in members}) <= _WIDEST:
            wide.append(field)
    narrow = [field for field in _TITLES if field not in wide]
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for one in _in_order(members, narrow):
        head = *_words(entry, one, narrow), named(one.name) if title else one.label()
        lines.setdefault(head, {})[_joined(entry, one, wide)] = one.cell()
    columns = [_joined(entry, one, wide) for one in _in_order(members, wide)]
    titles = [*(_TITLES[field] for field in narrow), title, *dict.fromkeys(columns)]
    return Table(titles, [[*head, *(by.get(column, "-") for column in titles[len(head) :])]
                          for head, by in lines.items()])  # fmt: skip


def _of(one: Found, fields: list[str]) -> tuple[str, ...]:
    return tuple(getattr(one, field) for field in fields)


def _words(entry: Entry, one: Found, fields: list[str]) -> list[str]:
    said = {"axis": which(one.axis), "card": one.card, "part": part_words(entry, one.part)}
    return [said[field] for field in fields]


def _joined(entry: Entry, one: Found, fields: list[str]) -> str:
    return ", ".join(filter(None, _words(entry, one, fields)))


def _in_order(members: list[Found], fields: list[str]) -> list[Found]:
    """Values of each field in the order in which they come."""
    orders = [list(dict.fromkeys(getattr(one, field) for one in members)) for field in fields]

    def place(one: Found) -> list[int]:
        return [order.index(value) for order, value in zip(orders, _of(one, fields), strict=True)]

    return sorted(members, key=place)


# As one line

_TOLD = 5  # pairs are fewer by the means of each
_BEHIND, _FAR_BEHIND = 0.005, 0.05  # from where on a mean, and a case, is named


def line(entry: Entry, of: list[Part]) -> str:
    """Means over all cards, those of passes or of values of the split beside each other, and the
    least and the greatest of them all: of the first pairs, and of those that lead ours; then the
    worst case of the others. What was timed under earlier orders, and contrasts inside values of
    the split, are in the tables alone. "" without a result."""
    pairs, contrasts = found(entry, of)
    pairs = [one for one in pairs if one.name != EARLIER] or pairs
    said = [_contrast(entry, members, words) for words, members in contrasts.items()
            if not any(one.part for one in members)]  # fmt: skip
    said = list(filter(None, said))
    compared = [one for one in pairs if one.over]
    if compared:
        said.append(_pairs(entry, compared, bool(said)))
    return "; ".join(
        said or [f"{which(one.axis)} of {named(one.name)} {one.cell()}" for one in pairs]
    )


def _contrast(entry: Entry, members: list[Found], words: str) -> str:
    """Of ours and the first other."""
    members = [one for one in members if one.axis in entry.axes and one.name != EARLIER]
    by_name = _grouped(members, lambda one: one.name)
    texts = [f"{named(name)} {_means(entry, of, members)}" for name, of in by_name.items()]
    return f"{_head(entry, members)}, {words}: {', '.join(texts[:2])}" if texts else ""


def _pairs(entry: Entry, compared: list[Found], beside: bool) -> str:
    """`beside` a contrast, of the same passes."""
    by_pair = _grouped(compared, lambda one: (one.name, one.over))
    columns = len(_grouped(compared, _column(entry)))
    most = 1 if beside else max(1, _TOLD - columns)
    order = [pair for pair in (*entry.over, *by_pair) if pair in by_pair]
    told = dict.fromkeys(pair for number, pair in enumerate(dict.fromkeys(order))
                         if number < most or _behind(entry, by_pair[pair]))  # fmt: skip
    split = any(one.part for one in compared) and len(entry.axes) == 1
    texts, before = [], ""
    for number, (name, over) in enumerate(told):
        mine = "" if name == before or (name, number) == ("verbatim", 0) else f"{named(name)} "
        of = "of " if mine and not split and not number else ""
        joint = "" if name == before else f"{of}{mine}over "
        texts.append(f"{joint}{named(over)} {_means(entry, by_pair[name, over], compared)}")
        before = name
    head = "" if beside else _head(entry, compared) + (": " if split else " ")
    return head + ", ".join(texts) + _worst(entry, compared, told)


def _worst(entry: Entry, compared: list[Found], told: Iterable[tuple[str, str]]) -> str:
    """The case in which ours is furthest behind, where no peer that is told leads by as much."""
    losses = [(_loss(entry, y), y, one) for one in compared for y in one.values
              if not one.over.startswith("verbatim")
              and (one.name == "verbatim" or (one.name, one.over) in told)]  # fmt: skip
    for loss, y, one in sorted(losses, key=lambda of: -of[0])[:1]:
        if loss >= _FAR_BEHIND and (one.name, one.over) not in told:
            return f", at worst {named(one.over)} {y:.2f}"
    return ""


def _loss(entry: Entry, y: float) -> float:
    """How far ours is behind: memory is better below 1, a rate above."""
    return y - 1 if entry.axes[0].startswith("memory") else 1 - y


def _behind(entry: Entry, members: list[Found]) -> bool:
    """Whether ours is, in one of the means that a line shows."""
    means = [mean(_values(of)) for of in _grouped(members, _column(entry)).values()]
    return members[0].name == "verbatim" and any(_loss(entry, y) > _BEHIND for y in means)


def _column(entry: Entry) -> Callable[[Found], str]:
    return (lambda one: one.axis) if len(entry.axes) > 1 else (lambda one: one.part)


def _head(entry: Entry, members: list[Found]) -> str:
    """What the means beside each other are of."""
    columns = list(_grouped(members, _column(entry)))
    if len(entry.axes) > 1:
        passes = [which(axis).split() for axis in columns]
        return f"{' / '.join(of for of, _ in passes)} {passes[0][1]}"
    words = part_words(entry, " / ".join(columns))
    return f"{which(entry.axes[0])}, {words}" if words else which(entry.axes[0])


def _means(entry: Entry, members: list[Found], every: list[Found]) -> str:
    columns = _grouped(members, _column(entry))
    means = [f"{mean(_values(columns[column])):.2f}" if column in columns else "-"
             for column in _grouped(every, _column(entry))]  # fmt: skip
    whole = range_of(_values(members), ".2f")
    return " / ".join(means) + (f" ({whole})" if " to " in whole else "")


def _grouped(members: list[Found], key: Callable[[Found], Key]) -> dict[Key, list[Found]]:
    groups: dict[Key, list[Found]] = {}
    for one in members:
        groups.setdefault(key(one), []).append(one)
    return groups


def _values(members: list[Found]) -> list[float]:
    return [y for one in members for y in one.values]
