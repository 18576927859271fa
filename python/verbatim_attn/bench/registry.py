"""The names of all providers."""

from __future__ import annotations

import os

from .._errors import Refused, one_of
from . import peers
from .providers import Flex, Gather, Kernels, Provider, Sdpa, Varlen, Verbatim


def known() -> dict[str, Provider]:
    """Every provider by name, ours first."""
    every: list[Provider] = [
        Verbatim("verbatim"),
        Verbatim("verbatim:gpu_to_gpu", "gpu_to_gpu"),
        Verbatim("verbatim:unordered", "not_guaranteed"),
        *(Sdpa(backend, mode) for backend in Sdpa.BACKENDS for mode in (False, True)),
        Varlen(False),
        Varlen(True),
        Flex(),
        Gather(),
        *peers.every(),
    ]
    return {provider.name: provider for provider in every}


def chosen(names: str) -> list[Provider]:
    """The providers that a comma separates; "all" are all. "verbatim:f.tl", "verbatim:f.so+b.so":
    kernels from these files."""
    every = known()
    if names == "all":
        return list(every.values())
    return [
        _kernels(name) or every[one_of("--providers", name, every)] for name in names.split(",")
    ]


def _kernels(name: str) -> Provider | None:
    files = name.removeprefix("verbatim:").split("+")
    if not name.startswith("verbatim:") or not all(f.endswith((".tl", ".so")) for f in files):
        return None
    for file in files:
        if not os.path.isfile(file):
            raise Refused("there is no such file", "--providers", file,
                          "a program in TL, or a library of `verbatim tl build`")  # fmt: skip
    return Kernels(files)
