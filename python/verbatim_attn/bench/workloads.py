"""What is measured: named sets of attention problems. Needs neither PyTorch nor a device."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from .. import masks
from .._errors import Refused, one_of
from .._intervals import Blocks, blocks_of
from ..masks import Mask
from ..plan import Problem
from .models import MODELS
from .sampling import document_lengths

Heads = tuple[int, int]  # query heads, KV heads

# bench/workloads.json, which the tool reads, too: beside this file, or in the tree.
_PLACES = (Path(__file__).parent, Path(__file__).parents[3] / "bench")
LISTS: dict[str, Any] = json.loads(
    next(f for place in _PLACES if (f := place / "workloads.json").exists()).read_text()
)


@dataclass(frozen=True)
class Selected:
    """Blocks of keys that each query selects, its own and others before it at random; the query
    heads of a group share them (the selected branch of native sparse attention)."""

    kv_heads: int
    length: int
    block: int  # keys
    count: int  # blocks of a query, if so many are visible
    seed: int

    @functools.cached_property
    def lists(self) -> np.ndarray:
        """int32 (KV heads, length, count): a query's blocks, ascending, then -1."""
        blocks = -(-self.length // self.block)
        rng, at = np.random.default_rng([self.seed, self.length]), np.arange(blocks)
        lists = np.full((self.kv_heads, self.length, self.count), -1, np.int32)
        for head, begin in itertools.product(range(self.kv_heads), range(0, self.length, 2048)):
            own = np.arange(begin, min(begin + 2048, self.length))[:, None] // self.block
            worth = rng.random((len(own), blocks), np.float32)  # (rows, blocks)
            worth[at > own] = -1.0
            worth[at == own] = 2.0
            best = np.argpartition(-worth, min(self.count, blocks) - 1, 1)[:, : self.count]
            hidden = np.take_along_axis(worth, best, 1) < 0
            best = np.sort(np.where(hidden, blocks, best), 1)
            lists[head, begin : begin + len(own), : best.shape[1]] = np.where(
                best == blocks, -1, best
            )
        return lists

    @property
    def area(self) -> int:
        """Visible positions of one query head."""
        row = np.arange(self.length)
        before = np.minimum(row // self.block, self.count - 1)
        return int((before * self.block + row % self.block + 1).sum())


@dataclass(frozen=True)
class Case:
    """One problem under one mask. Names are unique in a set."""

    set: str
    name: str
    problem: Problem
    mask: Mask
    sampling: dict[str, Any] | None = None  # how the mask's lengths or blocks were drawn
    selected: Selected | None = None  # of a forward over these blocks, besides the mask

    @functools.cached_property
    def area(self) -> int:
        """Visible positions, over batch entries and query heads."""
        p = self.problem
        if self.selected:
            return p.batch * p.q_heads * self.selected.area
        return self.mask.area(
            p.q_len, p.kv_len, batch=p.batch, q_heads=p.q_heads, kv_heads=p.kv_heads
        )

    @functools.cached_property
    def nominal_area(self) -> float:
        """What published tables count instead: half of each document's square where causal
        (FlashAttention, DASH), the causal half of a two-sided window (LongCA-bench), the density's
        share of all blocks. Exact for the other masks."""
        p, mask = self.problem, self.mask
        heads = p.batch * p.q_heads
        if isinstance(mask, masks.Causal):
            return heads * p.q_len * p.kv_len / 2
        if isinstance(mask, masks.CausalDocument):
            return heads * sum(length**2 for length in mask.doc_lengths) / 2
        if isinstance(mask, masks.FullSlidingWindow):
            return heads * masks.CausalSlidingWindow(mask.window).area(p.q_len, p.kv_len)
        if self.masks_differ_by_head and (density := getattr(mask, "density", None)) is not None:
            return heads * p.q_len * p.kv_len * density
        return self.area

    def flops(self, which: str, area: float) -> float:
        """Of one pass over `area` positions: two products forward, five of the same backward."""
        forward = 2 * area * (self.problem.head_dim + self.problem.head_dim_v)
        return forward if which == "forward" else 2.5 * forward

    @property
    def masks_differ_by_head(self) -> bool:
        return isinstance(self.mask, (masks.UniformBlockSparse, masks.VariableBlockSparse))

    @functools.cached_property
    def blocks(self) -> Blocks | None:
        """Of a block-sparse mask."""
        p = self.problem
        return blocks_of(self.mask, p.q_len, p.kv_len, p.kv_heads)


@dataclass(frozen=True)
class Choice:
    """What the command line says about all sets; None: what the set says."""

    seqlens: tuple[int, ...] | None = None
    heads: tuple[Heads, ...] | None = None
    head_dims: tuple[int, ...] | None = None
    batch: int | None = None
    dtype: str = "bf16"
    seed: int = 0
    samples: int = 1  # of each mask whose parameters are drawn, seeds from `seed` on
    documents: str = "auto"  # one of sampling.SOURCES
    lengths: tuple[int, ...] = field(default=(), repr=False)  # drawn from instead
    mask: Mask | None = None  # of the set "given"


def problem(
    choice: Choice, batch: int, heads: Heads, length: int, dim: int, dim_v: int = 0
) -> Problem:
    batch = batch if choice.batch is None else choice.batch
    return Problem(batch, *heads, length, length, dim, dim_v or dim, choice.dtype, seed=choice.seed)


def _listed(name: str, choice: Choice) -> Iterator[Case]:
    """A set of SETS whose masks are not drawn: every combination of its lists."""
    listed = LISTS["sets"][name]
    each = {**listed["each"], "mask": [*map(_mask, _entries(listed["each"]["mask"]))]}
    asked = {"head_dim": choice.head_dims, "heads": choice.heads, "seqlen": choice.seqlens}
    each |= {key: values for key, values in asked.items() if values}
    said = {"head_dim": "hd{head_dim}", "heads": "{heads}", "seqlen": "{seqlen}"}
    added = [said[key] for key in asked if asked[key] and key not in listed["name"]]
    template = " ".join([listed["name"], *added])  # names stay unique
    for values in itertools.product(*each.values()):
        chosen = dict(zip(each, values, strict=True))
        dim, length, mask = chosen["head_dim"], chosen["seqlen"], chosen["mask"]
        heads = chosen.get("heads") or (listed["hidden"] // dim,) * 2
        batch = max(1, listed["tokens"] // length) if "tokens" in listed else listed.get("batch", 1)
        title = template.format(
            head_dim=dim, heads=f"{heads[0]}:{heads[1]}", mask=mask.name, seqlen=length
        )
        yield Case(name, title, problem(choice, batch, tuple(heads), length, dim), mask)


def _entries(masks_of_set: list[Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for entry in masks_of_set:
        if isinstance(entry, str):
            yield entry, {}
        else:
            yield from ((name, entry["params"]) for name in entry["names"])


def _mask(entry: tuple[str, dict[str, Any]]) -> Mask:
    name, params = entry
    return next(made for made in Mask.__subclasses__() if made.name == name)(*params.values())


def longca(choice: Choice) -> Iterator[Case]:
    """LongCA-bench's twelve static masks, without the defects of its code: head dim 128."""
    each = LISTS["drawn"]["longca"]
    for dim in choice.head_dims or each["head_dim"]:
        for heads in choice.heads or each["heads"]:
            for length in choice.seqlens or each["seqlen"]:
                for make in STATIC_MASKS:
                    drawn = make not in (_full, _causal, _full_window, _causal_window)
                    for seed in range(choice.seed, choice.seed + (choice.samples if drawn else 1)):
                        mask = make(length, dataclasses.replace(choice, seed=seed))
                        name = f"{mask.name} {heads[0]}:{heads[1]} {length}"
                        name += f" hd{dim}" if choice.head_dims else ""
                        sizes = problem(choice, 1, heads, length, dim)
                        yield Case(
                            "longca", name + (f" s{seed}" if drawn else ""), sizes, mask,
                            _sampling(choice, seed) if drawn else None,
                        )  # fmt: skip


def sparse(choice: Choice) -> Iterator[Case]:
    """LongCA-bench's block-sparse masks: blocks of 64, of 128, and of unequal sizes around 128, the
    share 0.2, 0.5 or 0.8 of each row of blocks, another choice for every KV head."""
    each = LISTS["drawn"]["sparse"]
    for dim in choice.head_dims or each["head_dim"]:
        for heads in choice.heads or each["heads"]:
            for length in choice.seqlens or each["seqlen"]:
                for block in each["block"]:
                    for density in each["density"]:
                        mask = _blocks(block, length, density, choice.seed)
                        name = f"block {block} {density} {heads[0]}:{heads[1]} {length}"
                        name += f" hd{dim}" if choice.head_dims else ""
                        sizes = problem(choice, 1, heads, length, dim)
                        drawn = {"source": "blocks", "seed": choice.seed}
                        yield Case("sparse", name, sizes, mask, drawn)


def models(choice: Choice) -> Iterator[Case]:
    """The attention of known models (bench/models.py)."""
    for name, model in MODELS.items():
        for length in choice.seqlens or model.lengths:
            sizes = problem(
                choice, model.batch, (model.q_heads, model.kv_heads), length, model.head_dim,
                model.head_dim_v,
            )  # fmt: skip
            mask = masks.Causal() if model.causal else masks.Full()
            yield Case("models", f"{name} {length}", sizes, mask)


def given(choice: Choice) -> Iterator[Case]:
    """One problem: --mask with --seqlen, --heads, --head-dim, --batch."""
    if choice.mask is None:
        raise Refused("the problem has no mask", "--mask", "nothing", "a mask's name", "causal")
    for length in choice.seqlens or (4096,):
        for heads in choice.heads or ((16, 16),):
            for dim in choice.head_dims or (128,):
                name = f"{choice.mask.name} {heads[0]}:{heads[1]} {length} hd{dim}"
                yield Case("given", name, problem(choice, 1, heads, length, dim), choice.mask)


def selected(choice: Choice) -> Iterator[Case]:
    """Forwards over 32 blocks of 64 keys that each query selects (LongCA-bench, Table 10)."""
    for heads, dim, length in itertools.product(
        choice.heads or ((64, 4),), choice.head_dims or (128,),
        choice.seqlens or (8192, 16384, 32768, 65536)
    ):  # fmt: skip
        name = f"{heads[0]}:{heads[1]} {length} hd{dim} s{choice.seed}"
        lists = Selected(heads[1], length, 64, 32, choice.seed)
        sampling = {"source": "uniform", "seed": choice.seed}
        one = problem(choice, 1, heads, length, dim)
        yield Case("selected", name, one, masks.Causal(), sampling, lists)


SETS: dict[str, Callable[[Choice], Iterator[Case]]] = {
    **{name: functools.partial(_listed, name) for name in LISTS["sets"]},
    "longca": longca,
    "sparse": sparse,
    "models": models,
    "selected": selected,
    "given": given,
}


def about(name: str) -> str:
    """What a set holds."""
    listed = LISTS["sets"].get(name)
    return listed["about"] + "." if listed else SETS[name].__doc__ or ""


def cases(sets: str, choice: Choice) -> list[Case]:
    """The cases of the sets, whose names a comma separates."""
    return [case for name in sets.split(",") for case in SETS[one_of("--set", name, SETS)](choice)]


# LongCA-bench's parameters (docs/benchmarks.md). All masks of one length and seed that pack
# documents pack the same ones.


def _rng(choice: Choice, purpose: str, length: int) -> Random:
    return Random(f"{purpose} {choice.seed} {length}")


def _uniform(rng: Random, low: int, high: int) -> int:
    """In [low, high], which is made to hold `low`."""
    return low + int(rng.random() * (max(high, low) - low + 1))


def _documents(length: int, choice: Choice) -> tuple[int, ...]:
    return document_lengths(length, choice.documents, choice.seed, choice.lengths)


def _full(length: int, choice: Choice) -> Mask:
    return masks.Full()


def _causal(length: int, choice: Choice) -> Mask:
    return masks.Causal()


def _full_window(length: int, choice: Choice) -> Mask:
    return masks.FullSlidingWindow(1024)


def _causal_window(length: int, choice: Choice) -> Mask:
    return masks.CausalSlidingWindow(1024)


def _full_document(length: int, choice: Choice) -> Mask:
    return masks.FullDocument(_documents(length, choice))


def _causal_document(length: int, choice: Choice) -> Mask:
    return masks.CausalDocument(_documents(length, choice))


def _share_question(length: int, choice: Choice) -> Mask:
    return masks.ShareQuestion(_documents(length, choice))


def _causal_blockwise(length: int, choice: Choice) -> Mask:
    return masks.CausalBlockwise(_documents(length, choice))


def _global_sliding(length: int, choice: Choice) -> Mask:
    width = _uniform(_rng(choice, "global", length), 1, length // 3 - 1)
    return masks.GlobalSliding(width, width)


def _prefix_causal(length: int, choice: Choice) -> Mask:
    return masks.PrefixLmCausal(_uniform(_rng(choice, "prefix", length), 1, length))


def _prefix_document(length: int, choice: Choice) -> Mask:
    documents = _documents(length, choice)
    prefix = _uniform(_rng(choice, "document prefix", length), 1, documents[0])
    return masks.PrefixLmDocument(documents, (prefix,))


def _block_causal(length: int, choice: Choice) -> Mask:
    rng, documents = _rng(choice, "blocks", length), list[int]()
    while (left := length - sum(documents)) > 0:
        documents.append(min(1024 * _uniform(rng, 1, 8), left))
    return masks.BlockCausalDocument(tuple(documents), 1024)


STATIC_MASKS = (
    _full, _causal, _full_window, _causal_window, _full_document, _causal_document,
    _share_question, _causal_blockwise, _global_sliding, _prefix_causal, _prefix_document,
    _block_causal,
)  # fmt: skip


def _sampling(choice: Choice, seed: int) -> dict[str, Any]:
    return {"source": "file" if choice.lengths else choice.documents, "seed": seed}


def _blocks(block: str, length: int, density: float, seed: int) -> Mask:
    if block != "variable":
        return masks.UniformBlockSparse(int(block), int(block), density=density, seed=seed)
    edges = []
    for axis in ("q", "k"):
        rng, along = Random(f"edges {axis} {seed} {length}"), [0]
        while along[-1] < length:
            along.append(min(along[-1] + _uniform(rng, 64, 192), length))
        edges.append(tuple(along))
    return masks.VariableBlockSparse(edges[0], edges[1], density=density, seed=seed)
