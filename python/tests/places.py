"""Where tests of PyTorch tensors run."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Place:
    """A device and what its kernels take."""

    device: str
    names: tuple[str, ...]  # of dtypes; the first is the one to test with
    step: int  # head dims are multiples of it

    @property
    def dtypes(self) -> list[Any]:
        import torch

        return [getattr(torch, name) for name in self.names]


PLACES = {
    "cpu": Place("cpu", ("float32", "bfloat16", "float16"), 1),
    "cuda": Place("cuda", ("bfloat16", "float16"), 8),
}
