"""The libraries that commands name: the curve of each, and the lines that make it from kernels/tl,
called in the repository's root on a machine with nvcc."""

from __future__ import annotations

from collections.abc import Sequence

_DIMS = {"hd64": "--head-dim 64", "hd128": "--head-dim 128",
         "mla": "--head-dim 192 --head-dim-v 128"}  # fmt: skip
_SELECTED = "verbatim:selected.so"

# For an H200, but for those of a100, which is also the target of selected.tl.
GENERATED = {
    f"verbatim:{target}_{heads}.so": curve
    for target, curve in (("forward", "verbatim TL"), ("a100", "verbatim TL for an A100"))
    for heads in _DIMS
} | {_SELECTED: "verbatim TL"}


def builds(command: Sequence[str]) -> list[str]:
    """The lines that make the libraries among a command's providers."""
    names = [name for word in command for name in word.split(",")]
    return [line for name in names if name in GENERATED for line in _lines(name)]


def _lines(name: str) -> list[str]:
    library = name.removeprefix("verbatim:")
    stem = library.removesuffix(".so")
    sketch, kind, prepared = "kernels/tl/forward.tl", "forward", []
    if name == _SELECTED:  # a list for each query, whose rows are the heads of a group
        target, dims, sketch, kind = "a100", "--head-dim 128 --tile-q 16", "query.tl", "selected"
        prepared = [f"sed 's/= index/= query_index/' kernels/tl/selected.tl > {sketch}"]
    else:
        made_for, _, heads = stem.partition("_")
        target, dims = "a100" if made_for == "a100" else "h200", _DIMS[heads]
    arch = " --arch sm_90" if target == "a100" else ""  # it runs on an H200
    return [
        *prepared,
        f"verbatim tl reason {sketch} --target {target} --dtype bf16 {dims} --output {stem}.tl",
        f"verbatim tl build {stem}.tl{arch} --output generated",
        f"mv generated/{kind}_{target}.so {library}",
    ]
