"""The names of all providers."""

from __future__ import annotations

from .._errors import one_of
from . import peers
from .providers import Flex, Provider, Sdpa, Varlen, Verbatim


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
        *peers.every(),
    ]
    return {provider.name: provider for provider in every}


def chosen(names: str) -> list[Provider]:
    """The providers that a comma separates; "all" are all."""
    every = known()
    if names == "all":
        return list(every.values())
    return [every[one_of("--providers", name, every)] for name in names.split(",")]
