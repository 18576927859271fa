"""Document lengths for packed sequences, drawn as LongCA-bench draws them.

Every result is a pure function of its arguments: of Python's generator only random() is used,
whose sequence Python promises to keep.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from .._errors import Refused

SHARES = (1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 98, 99, 99.5, 99.9)  # percent of documents

# Lengths in tokens below which SHARES of the documents lie: quantiles of the published histograms.
DISTRIBUTIONS = {
    "pile": (11, 42, 67, 115, 160, 206, 257, 331, 470, 765, 1711, 3438, 6211, 9080, 12387, 14208),
    "prolong64k": (
        16, 69, 98, 155, 218, 292, 383, 497, 645, 885, 1441, 2382, 5415, 15286, 35941, 54312,
    ),
    "prolong512k": (
        32, 66, 93, 145, 202, 269, 350, 455, 589, 805, 1279, 2034, 4161, 9203, 157911, 412280,
    ),
}  # fmt: skip
SOURCES = ("auto", *DISTRIBUTIONS, "mixed")

LONG_SHARE = 0.6  # of the tokens of "mixed" lie in long documents
LONG = (8192, 30720)  # their lengths, uniform


def document_lengths(
    total: int, source: str = "auto", seed: int = 0, lengths: Sequence[int] = ()
) -> tuple[int, ...]:
    """Lengths of documents that fill `total` tokens, the last one clipped.

    `source` names a distribution; "mixed" takes 60 % of the tokens from long documents and the
    rest from the distribution for `total`, shuffled; "auto" is "pile" up to 8192 tokens and
    "mixed" above. `lengths`, when given, is drawn from with replacement instead.
    """
    rng = Random(f"documents {seed} {total}")
    if lengths:
        return tuple(_fill(total, lambda: lengths[int(rng.random() * len(lengths))]))
    if source == "auto":
        source = "pile" if total <= 8192 else "mixed"
    if source != "mixed":
        return tuple(_fill(total, lambda: quantile(source, rng.random())))
    base = "pile" if total <= 8192 else "prolong64k" if total <= 65536 else "prolong512k"
    long = round(LONG_SHARE * total)
    drawn = _fill(long, lambda: LONG[0] + int(rng.random() * (LONG[1] - LONG[0] + 1)))
    drawn += _fill(total - long, lambda: quantile(base, rng.random()))
    for last in range(len(drawn) - 1, 0, -1):  # Fisher and Yates, from random() alone
        other = int(rng.random() * (last + 1))
        drawn[last], drawn[other] = drawn[other], drawn[last]
    return tuple(drawn)


def quantile(distribution: str, share: float) -> int:
    """The length below which `share` (0 to 1) of the documents lie: log-linear between the known
    quantiles, constant outside them."""
    known = DISTRIBUTIONS[distribution]
    percent = min(max(100 * share, SHARES[0]), SHARES[-1])
    above = max(bisect.bisect_left(SHARES, percent), 1)
    low, high = SHARES[above - 1], SHARES[above]
    t = (percent - low) / (high - low)
    return round(math.exp((1 - t) * math.log(known[above - 1]) + t * math.log(known[above])))


def read_lengths(path: str) -> tuple[int, ...]:
    """Positive integers from a text file, separated by white space or commas."""
    try:
        words = Path(path).read_text().replace(",", " ").split()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(str(error), "--lengths", path, "a text file of lengths") from None
    for word in words:
        if not (word.isascii() and word.isdecimal() and 0 < int(word) < 2**31):
            raise Refused("not a document length", "--lengths", word, "positive integers", 256)
    if not words:
        raise Refused("the file holds no lengths", "--lengths", path, "positive integers", 256)
    return tuple(map(int, words))


def _fill(total: int, draw: Callable[[], int]) -> list[int]:
    drawn: list[int] = []
    left = total
    while left > 0:
        drawn.append(min(draw(), left))
        left -= drawn[-1]
    return drawn
