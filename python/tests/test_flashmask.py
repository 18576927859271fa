"""The bounds that FlashMask is given, read as its documentation says, are the mask."""

import numpy as np
import pytest
from verbatim_attn.bench import flashmask, workloads

ONE = ("causal", "causal_document", "causal_sliding_window", "share_question")  # bound a column
CASES = list(workloads.cases("longca", workloads.Choice(seqlens=(4096,), heads=((2, 1),))))


def shown_by(bounds, causal):
    rows, columns = np.arange(len(bounds))[:, None], np.arange(len(bounds))
    if causal:
        end = bounds[:, 1] if bounds.shape[1] == 2 else len(bounds)
        return (rows >= columns) & ~((rows >= bounds[:, 0]) & (rows < end))
    if bounds.shape[1] == 2:
        return (rows < bounds[:, 0]) & (rows >= bounds[:, 1])
    below = (rows >= bounds[:, 0]) & (rows < bounds[:, 1])
    return ~below & ~((rows >= bounds[:, 2]) & (rows < bounds[:, 3]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.mask.name)
def test_bounds_are_the_mask(case):
    shown = case.mask.dense(4096, 4096)[0, 0]
    bounds, causal = flashmask.columns(shown)
    assert (shown_by(bounds, causal) == shown).all()
    fewest = 1 if case.mask.name in ONE else 4 if case.mask.name == "global_sliding" else 2
    assert bounds.shape[1] == fewest
    assert bounds.dtype == np.int32 and causal == (not np.triu(shown, 1).any())


def test_columns_with_holes_are_refused():
    shown = np.eye(8, dtype=bool)
    shown[6, 0] = True
    with pytest.raises(ValueError, match="not one interval"):
        flashmask.columns(shown)
