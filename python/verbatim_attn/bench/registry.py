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


def names(given: str) -> list[str]:
    """The names that a comma separates; "all" are all. "verbatim:f.tl", "verbatim:f.so+b.so": kernels
    from these files, which need not be here."""
    every = known()
    if given == "all":
        return list(every)
    return [name if _files(name) else one_of("--providers", name, every)
            for name in given.split(",")]  # fmt: skip


def chosen(given: str) -> list[Provider]:
    """The providers of these names; their files are here."""
    every = known()
    return [_kernels(name) if _files(name) else every[name] for name in names(given)]


def _files(name: str) -> list[str]:
    files = name.removeprefix("verbatim:").split("+")
    ours = name.startswith("verbatim:") and all(f.endswith((".tl", ".so")) for f in files)
    return files if ours else []


def _kernels(name: str) -> Provider:
    for file in _files(name):
        if not os.path.isfile(file):
            raise Refused("there is no such file", "--providers", file,
                          "a program in TL, or a library of `verbatim tl build`")  # fmt: skip
    return Kernels(_files(name))
