"""Which keys every query sees: the patterns of docs/masks.md, and how to combine them.

A mask is a small value without sizes of its own; those that the parameters leave open are the
tensors'. Causal masks and windows are aligned bottom-right when the lengths differ.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, ClassVar

import numpy as np

from . import _library
from ._json import json_of
from ._meant import meant
from ._planes import host, of_kv_heads
from ._reads import one_each, plain, read_once, read_together
from ._untraced import untraced

Ints = tuple[int, ...]
Blocks = tuple[tuple[tuple[int, int], ...], ...]

_HIDES = -1e4  # what a mask that adds to scores has where it hides, or less


def _lengths(q_len: Any, kv_len: Any) -> tuple[int, int]:
    """Of both axes; None: as many keys as queries."""
    given = q_len, q_len if kv_len is None else kv_len
    try:
        return index(given[0]), index(given[1])
    except TypeError:
        raise ValueError(
            f"[mask] lengths are integers; got {given[0]!r} and {given[1]!r}, expected numbers of "
            "queries and keys"
        ) from None


def _edges(lengths: Ints) -> Ints:
    return tuple(itertools.accumulate(lengths, initial=0))


@dataclass(frozen=True)
class Mask:
    """Base of all masks. `a & b` keeps what both show."""

    name: ClassVar[str]
    _parameters: ClassVar[tuple[str, ...]]
    spec: str = dataclasses.field(init=False, repr=False, compare=False)  # JSON for the library

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        cls._parameters = tuple(cls.__annotations__)

    def __post_init__(self) -> None:
        for name in self._parameters:
            object.__setattr__(self, name, plain(getattr(self, name)))
        object.__setattr__(self, "spec", self._spec())

    def _spec(self) -> str:
        values = {name.rstrip("_"): getattr(self, name) for name in self._parameters}
        return self._described({k: v for k, v in values.items() if v is not None})

    def _described(self, params: dict[str, Any]) -> str:
        written = json_of(params, "mask", f"mask.{self.name}")
        return f'{{"name": "{self.name}", "params": {written}}}'

    def __and__(self, other: Mask) -> Mask:
        if not isinstance(other, Mask):
            raise _no_mask(other, "one of verbatim_attn.masks")
        return Intersection((self, other))

    def with_key_lengths(self, key_lengths: Any) -> Mask:
        """Hides the keys from `key_lengths[b]` on in batch entry b (padding)."""
        one_each("key_lengths", key_lengths)
        return KeyLengths(self, key_lengths)

    def padded(self, q_lengths: Any, key_lengths: Any = None, side: str = "right") -> Mask:
        """Hides the padding of batch entries, queries and keys: entry b has q_lengths[b] and
        key_lengths[b] (None: as many), the first ones or, with padding on the left, the last.
        Nothing moves: a causal mask stays aligned with the last query and key of all entries, so
        chunks whose caches differ in length are padded on the left."""
        one_each("q_lengths", q_lengths)
        one_each("key_lengths", key_lengths)
        # By name what has a default, for torch.compile: positions it takes to be one too many.
        keys = q_lengths if key_lengths is None else key_lengths
        return Padded(self, q_lengths, keys, side=side)

    @untraced
    def dense(
        self, q_len: int, kv_len: int | None = None, *, batch: int = 1, kv_heads: int = 1
    ) -> np.ndarray:
        """True where visible: bool (batch, kv_heads, q_len, kv_len)."""
        q_len, kv_len = _lengths(q_len, kv_len)
        shown = np.empty((batch, kv_heads, q_len, kv_len), np.uint8)
        _library.mask_to_dense(self.spec, *shown.shape, shown.ctypes.data)
        return shown.view(np.bool_)

    def area(
        self,
        q_len: int,
        kv_len: int | None = None,
        *,
        batch: int = 1,
        q_heads: int = 1,
        kv_heads: int = 1,
    ) -> int:
        """Visible positions, summed over batch entries and query heads."""
        q_len, kv_len = _lengths(q_len, kv_len)
        return _library.mask_area(self.spec, batch, q_heads, kv_heads, q_len, kv_len)

    def to_json(self, q_len: int, kv_len: int | None = None, *, kv_heads: int = 1) -> str:
        """The whole mask as the tool reads it: `verbatim run --mask @file.json`."""
        return _library.mask_json(self.spec, *_lengths(q_len, kv_len), kv_heads)

    def to_cu_seqlens(self) -> tuple[Ints, Ints, bool]:
        """(cu_seqlens_q, cu_seqlens_k, causal), as flash_attn_varlen_func takes them. Only packed
        sequences have them: full and causal documents, and what from_cu_seqlens() made."""
        raise NotImplementedError(
            f"[masks] cumulative lengths are of packed sequences; got {self.name}, expected "
            "full_document, causal_document or cu_seqlens (nearest: to_mask_mod(length))"
        )

    def to_mask_mod(
        self,
        q_len: int,
        kv_len: int | None = None,
        *,
        kv_heads: int = 1,
        group: int = 1,
        device: Any = "cpu",
    ) -> Callable[[Any, Any, Any, Any], Any]:
        """FlexAttention's `mask_mod(b, h, q_idx, kv_idx)`, h a query head, `group` of which share
        a KV head. A mask of many slices looks its bounds up in tensors on `device`."""
        source = _library.mask_mod(self.spec, *_lengths(q_len, kv_len), kv_heads)
        names: dict[str, Any] = {}
        if "import torch" in source:
            import torch

            with torch.device(device):
                exec(source, names)
        else:
            exec(source, names)
        names["GROUP"] = group
        return names["mask_mod"]

    def to_block_mask(
        self,
        q_len: int,
        kv_len: int | None = None,
        *,
        batch: int | None = None,
        kv_heads: int = 1,
        group: int = 1,
        device: Any = "cpu",
    ) -> Any:
        """FlexAttention's BlockMask of it. `batch` where entries differ, `kv_heads` where heads do,
        each for `group` query heads; else one mask serves all. Raises ValueError where it does
        not."""
        from torch.nn.attention.flex_attention import create_block_mask

        q_len, kv_len = _lengths(q_len, kv_len)
        self.area(q_len, kv_len, batch=batch or 1, q_heads=kv_heads, kv_heads=kv_heads)
        shown = self.to_mask_mod(q_len, kv_len, kv_heads=kv_heads, group=group, device=device)
        q_heads = kv_heads * group if kv_heads > 1 else None
        return create_block_mask(shown, batch, q_heads, q_len, kv_len, device=device)


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key."""


_FULL = Full()


@dataclass(frozen=True)
class Causal(Mask):
    """Query q sees keys k <= q + kv_len - q_len."""


@dataclass(frozen=True)
class FullSlidingWindow(Mask):
    """Keys at most `window` positions away, on both sides; 0 is the diagonal."""

    window: int


@dataclass(frozen=True)
class CausalSlidingWindow(Mask):
    """The key at the query's own position and `window` before it."""

    window: int


@dataclass(frozen=True)
class FullDocument(Mask):
    """Packed documents; every query sees its own. Lengths sum to the sequence length."""

    doc_lengths: Ints

    def to_cu_seqlens(self) -> tuple[Ints, Ints, bool]:
        edges = _edges(self.doc_lengths)
        return edges, edges, False


@dataclass(frozen=True)
class CausalDocument(Mask):
    """Packed documents, causal inside each."""

    doc_lengths: Ints

    def to_cu_seqlens(self) -> tuple[Ints, Ints, bool]:
        edges = _edges(self.doc_lengths)
        return edges, edges, True


@dataclass(frozen=True)
class ShareQuestion(Mask):
    """Causal documents that all see document 0, the question."""

    doc_lengths: Ints


@dataclass(frozen=True)
class CausalBlockwise(Mask):
    """Causal documents; the last one, the test example, sees all before it."""

    doc_lengths: Ints


@dataclass(frozen=True)
class GlobalSliding(Mask):
    """A window, and `global_` first tokens that see all and are seen by all."""

    global_: int
    window: int


@dataclass(frozen=True)
class PrefixLmCausal(Mask):
    """Causal, and everybody sees the first `prefix` keys."""

    prefix: int


@dataclass(frozen=True)
class PrefixLmDocument(Mask):
    """PrefixLmCausal inside each document; one prefix, or one per document."""

    doc_lengths: Ints
    prefix: Ints

    def __post_init__(self) -> None:
        prefix = plain(self.prefix)
        object.__setattr__(self, "prefix", prefix if isinstance(prefix, tuple) else (prefix,))
        super().__post_init__()


@dataclass(frozen=True)
class BlockCausalDocument(Mask):
    """Causal between blocks of `block` tokens of a document, full inside a block."""

    doc_lengths: Ints
    block: int


@dataclass(frozen=True)
class UniformBlockSparse(Mask):
    """Blocks of block_q x block_k positions: those listed per KV head as (q_block, k_block), or the
    share `density` of each row's key blocks, picked by `seed`."""

    block_q: int
    block_k: int
    density: float | None = None
    seed: int | None = None
    blocks: Blocks | None = None

    def __post_init__(self) -> None:
        _one_selection(self)
        super().__post_init__()


@dataclass(frozen=True)
class VariableBlockSparse(Mask):
    """The same with unequal blocks: edges run from 0 to the length."""

    q_edges: Ints
    k_edges: Ints
    density: float | None = None
    seed: int | None = None
    blocks: Blocks | None = None

    def __post_init__(self) -> None:
        _one_selection(self)
        super().__post_init__()


def spec_of(mask: Mask | None) -> str:
    """A mask's JSON; that of `Full()` for None."""
    if mask is not None and not isinstance(mask, Mask):
        raise _no_mask(mask, "one of verbatim_attn.masks or None")
    return (_FULL if mask is None else mask).spec


def _no_mask(got: object, expected: str) -> ValueError:
    return ValueError(
        f"[mask] not a mask; got {type(got).__name__}, expected {expected} (nearest: {meant(got, Mask)})"
    )


def _one_selection(mask: UniformBlockSparse | VariableBlockSparse) -> None:
    if (mask.density is None) == (mask.blocks is None):
        got = "neither" if mask.blocks is None else "both"
        raise ValueError(
            f"[mask.{mask.name}] blocks are selected by a density or by a list; got {got}, "
            "expected density= or blocks= (nearest: density=0.5)"
        )
    if mask.density is not None and mask.seed is None:
        object.__setattr__(mask, "seed", 0)


@dataclass(frozen=True)
class CuSeqlens(Mask):
    """Packed sequences with their own query and key lengths: entries run from 0 to the totals."""

    cu_seqlens_q: Ints
    cu_seqlens_k: Ints
    causal: bool = False

    def to_cu_seqlens(self) -> tuple[Ints, Ints, bool]:
        return self.cu_seqlens_q, self.cu_seqlens_k, self.causal


@dataclass(frozen=True)
class Windows(Mask):
    """Packed sequences whose queries see some keys before and after: windows() makes them."""

    cu_seqlens_q: Ints
    cu_seqlens_k: Ints
    left: int | None = None
    right: int | None = None


@dataclass(frozen=True)
class Explicit(Mask):
    """A mask as slices, in the JSON of docs/masks.md; from_dense() makes them."""

    json: str

    def _spec(self) -> str:
        return self.json


@dataclass(frozen=True)
class Intersection(Mask):
    """What all of `masks` show."""

    masks: tuple[Mask, ...]


@dataclass(frozen=True)
class KeyLengths(Mask):
    """`mask` without the keys from `key_lengths[b]` on in batch entry b."""

    mask: Mask
    key_lengths: Ints

    def _spec(self) -> str:
        return self._described({"masks": (self.mask,), "key_lengths": self.key_lengths})


@dataclass(frozen=True)
class Padded(Mask):
    """`mask` in batch entries of q_lengths[b] queries and key_lengths[b] keys: the first ones, or
    with `side` "left" the last ones. Queries outside see nothing: O = 0, LSE = -inf, dQ = 0."""

    mask: Mask
    q_lengths: Ints
    key_lengths: Ints
    side: str = "right"

    def _spec(self) -> str:
        return self._described(
            {
                "masks": (self.mask,),
                "q_lengths": self.q_lengths,
                "key_lengths": self.key_lengths,
                "side": self.side,
            }
        )


def from_cu_seqlens(
    cu_seqlens_q: Any, cu_seqlens_k: Any = None, *, causal: bool = False
) -> CuSeqlens:
    """Packed sequences from cumulative lengths, (sequences + 1). Tensors on a GPU are waited for,
    both at once, when they first come and after each write; those on the CPU never are."""
    cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    read_together(cu_seqlens_q, cu_seqlens_k)
    return CuSeqlens(cu_seqlens_q, cu_seqlens_k, causal=causal)


def windows(cu_seqlens_q: Any, cu_seqlens_k: Any, left: int | None, right: int | None) -> Mask:
    """Packed sequences in which every query sees `left` keys before and `right` keys after its own
    position, None: all, aligned bottom-right in each sequence. A negative number hides the nearest
    keys too. (0, length) is one sequence."""
    read_together(cu_seqlens_q, cu_seqlens_k)
    edges_q, edges_k = plain(cu_seqlens_q), plain(cu_seqlens_k)
    count_q, count_k = (len(x) if isinstance(x, tuple) else 0 for x in (edges_q, edges_k))
    if count_q != count_k or not count_q:
        raise ValueError(
            "[masks.windows] cumulative lengths of queries and keys are one more than sequences; "
            f"got {count_q} and {count_k}, expected as many of both, 1 or more "
            "(nearest: (0, length) is one sequence)"
        )
    if left is None and right in (None, 0):
        return from_cu_seqlens(edges_q, edges_k, causal=right == 0)
    return Windows(edges_q, edges_k, left=left, right=right)


def window_bounds(window_size: Any, causal: bool) -> tuple[int | None, int | None]:
    """FlashAttention's (left, right), where -1 and None mean all, as arguments of windows()."""
    is_pair = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    if not is_pair or not all(x is None or isinstance(x, (int, np.integer)) for x in window_size):
        raise ValueError(
            f"[flash_attn] window_size is a pair of integers; got {window_size}, expected (left, "
            "right) (nearest: (-1, -1), which is all)"
        )
    left, right = (None if side is None or side < 0 else side for side in window_size)
    return left, 0 if causal else right


@untraced
def from_additive(mask: Any, q_len: int, kv_len: int, *, group: int = 1) -> Explicit:
    """The mask of a PyTorch tensor that broadcasts to (batch, q_heads, q_len, kv_len): bool, or
    numbers that are 0 where visible and lower than -10^4 (half precision's least is -65504) where
    hidden. `group` query heads share a KV head and must share its mask. One on a GPU is waited for
    when it first comes, and after each write."""
    return read_once(_from_additive, mask, q_len, kv_len, group)


def _from_additive(mask: Any, q_len: int, kv_len: int, group: int) -> Explicit:
    if not hasattr(mask, "untyped_storage"):
        raise ValueError(
            f"[masks.from_additive] mask is no tensor of PyTorch; got {type(mask).__name__}, "
            "expected one (nearest: torch.from_numpy(mask), or masks.from_dense(mask == 0))"
        )
    visible = mask if mask.dtype.is_floating_point is False else mask == 0
    if mask.dtype.is_floating_point and not ((mask == 0) | (mask <= _HIDES)).all():
        raise NotImplementedError(
            "[masks] scores take no bias; got a mask with numbers between -10000 and 0, or above, "
            "expected 0 where visible, and -10000 or less (nearest: a bool mask)"
        )
    if any(n not in (1, each) for n, each in zip(mask.shape[::-1], (kv_len, q_len), strict=False)):
        raise ValueError(
            f"[masks.from_additive] mask is of other lengths; got shape {list(mask.shape)}, "
            f"expected (batch, q_heads, {q_len}, {kv_len}), or 1 in the place of each"
        )
    visible = visible.expand(*visible.shape[:-2], q_len, kv_len)
    visible = visible.reshape((1,) * (4 - visible.dim()) + tuple(visible.shape))
    return from_dense(of_kv_heads(visible, group).cpu().numpy())


@untraced
def from_dense(visible: Any) -> Explicit:
    """A mask from visible positions, bool or 0 and 1: (q_len, kv_len), (batch, ...) or (batch,
    kv_heads, q_len, kv_len). One on a GPU is waited for when it first comes, and after each
    write."""
    return read_once(_from_dense, visible)


def _from_dense(visible: Any) -> Explicit:
    given = host(visible)
    if given.dtype != np.bool_ and (other := given[(given != 0) & (given != 1)]).size:
        adds = given.dtype.kind == "f" and ((given == 0) | (given <= _HIDES)).all()
        nearest = "masks.from_additive(mask, q_len, kv_len), where 0 is visible"
        raise ValueError(
            f"[mask.from_dense] positions are visible or not; got {other[0]}, expected bool, or 1 "
            "where visible and 0 where hidden (nearest: "
            f"{nearest if adds else 'a bool array, of which True is seen'})"
        )
    plane = np.ascontiguousarray(given, np.bool_)
    if not 2 <= plane.ndim <= 4:
        raise ValueError(
            f"[mask.from_dense] wrong number of dimensions; got {plane.ndim}, expected "
            "(batch, kv_heads, q_len, kv_len), the first two optional"
        )
    batch, kv_heads = (*plane.shape[:-2], 1, 1)[:2]
    q_len, kv_len = plane.shape[-2:]
    if not batch:  # of which any mask will do
        return _from_dense(np.ones((q_len, kv_len), np.bool_))
    return Explicit(_library.mask_from_dense(plane.ctypes.data, batch, kv_heads, q_len, kv_len))
