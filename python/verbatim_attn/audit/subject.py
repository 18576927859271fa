"""What is audited: a function with its inputs, run again and again, whole or in parts."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .bits import as_result, copied, is_floating, torch_of

GARBAGE = (float("nan"), float("inf"), float("-inf"), 6e4)  # the last is finite in float16, too
Outputs = dict[str, Any]  # tensors or arrays by name; a gradient's name is d + that of its input


class NotChecked(Exception):
    """Why a check cannot be made."""


@dataclass(frozen=True)
class Subject:
    """A function, its inputs and, for gradients, one fixed dout for each of its outputs."""

    fn: Callable[..., Any]
    inputs: dict[str, Any]
    by_name: bool  # whether fn takes its inputs by name
    layout: dict[str, str]  # tensor name: a letter an axis; "*": every other tensor
    grad: bool
    dout_seed: int
    dout: Outputs = field(default_factory=dict)  # drawn when an output is first seen

    def run(self) -> Outputs:
        """The outputs and the gradients of the inputs that require them, where fn left them."""
        args, named = ((), self.inputs) if self.by_name else (self.inputs.values(), {})
        outputs = _named(self.fn(*args, **named))
        found = {name: as_result(name, x) for name, x in outputs.items()}
        wanted = [name for name, x in self.inputs.items() if _requires_grad(x)]
        sources = [name for name, x in outputs.items() if _requires_grad(x)]
        if not (self.grad and wanted and sources):
            return found
        import torch

        gradients = torch.autograd.grad(
            [outputs[name] for name in sources],
            [self.inputs[name] for name in wanted],
            [self._dout(name, outputs[name]) for name in sources],
            allow_unused=True,
        )
        for name, gradient in zip(wanted, gradients, strict=True):
            if gradient is not None and f"d{name}" in outputs:
                raise ValueError(
                    f"[audit] two results have one name; got an output d{name} beside the gradient "
                    f"of {name}, expected another name (nearest: grad=False)"
                )
            if gradient is not None:
                found[f"d{name}"] = as_result(f"d{name}", gradient)
        return found

    def run_to_keep(self) -> Outputs:
        """The same in memory of its own: fn may return one buffer, which its next call writes."""
        return {name: copied(x) for name, x in self.run().items()}

    def _dout(self, name: str, x: Any) -> Any:
        if name not in self.dout:
            import torch

            generator = torch.Generator().manual_seed(self.dout_seed)
            self.dout[name] = torch.randn(x.shape, generator=generator).to(x)
        return self.dout[name]

    @property
    def device(self) -> Any:
        """The torch.device of the first tensor, None when there is none."""
        return next((x.device for x in self.inputs.values() if torch_of(x)), None)

    @property
    def on_cuda(self) -> bool:
        return self.device is not None and self.device.type == "cuda"

    def axis(self, name: str, x: Any, letter: str) -> int | None:
        """The axis that the layout calls by this letter, None when the tensor has none."""
        of_input = name[1:] if name[:1] == "d" and name[1:] in self.inputs else name
        letters = next((self.layout[n] for n in (name, of_input, "*") if n in self.layout), "")
        found = letters.find(letter)
        return found if found >= 0 and getattr(x, "ndim", 0) >= len(letters) else None

    def sizes(self, letter: str) -> dict[str, int]:
        """Of an axis, by the name of the input."""
        axes = {name: self.axis(name, x, letter) for name, x in self.inputs.items()}
        return {n: self.inputs[n].shape[axis] for n, axis in axes.items() if axis is not None}

    def units(self, letter: str) -> int:
        """How many parts an axis has: the shortest among the inputs, as that of KV heads, which
        divides the others. Raises NotChecked."""
        sizes = self.sizes(letter)
        units = min(sizes.values(), default=0)
        if not units:
            raise NotChecked(f"no input has an axis '{letter}' in layout {self.layout}")
        if any(size % units for size in sizes.values()):
            raise NotChecked(f"the inputs' sizes along '{letter}' differ: {sizes}")
        return units

    def part(self, letter: str, indices: Iterable[int], **changes: Any) -> Subject:
        """The same function on these units of an axis, in this order; they may repeat."""
        units, indices = self.units(letter), list(indices)

        def cut(tensors: Outputs) -> Outputs:
            return {n: self._take(n, x, letter, units, indices) for n, x in tensors.items()}

        changes = {"inputs": cut(self.inputs), "dout": cut(self.dout), **changes}
        return dataclasses.replace(self, **changes)

    def part_of(self, outputs: Outputs, letter: str, indices: Iterable[int]) -> Outputs:
        """The outputs of these units; those without such an axis are left out."""
        units, indices = self.units(letter), list(indices)
        found = {}
        for name, x in outputs.items():
            axis = self.axis(name, x, letter)
            if axis is not None and x.shape[axis] % units == 0:
                found[name] = self._take(name, x, letter, units, indices)
        if not found:
            raise NotChecked(f"no output has an axis '{letter}' in layout {self.layout}")
        return found

    def spoiled(self, letter: str, indices: Iterable[int]) -> Subject:
        """The same function with NaN, infinities and large numbers in these units of an axis, in
        the inputs and in the gradients of the outputs."""
        units, indices = self.units(letter), list(indices)

        def spoil(tensors: Outputs) -> Outputs:
            return {n: self._spoil(n, x, letter, units, indices) for n, x in tensors.items()}

        return dataclasses.replace(self, inputs=spoil(self.inputs), dout=spoil(self.dout))

    def _spoil(self, name: str, x: Any, letter: str, units: int, indices: list[int]) -> Any:
        axis = self.axis(name, x, letter)
        if axis is None or not is_floating(x):  # other numbers may be places, which must exist
            return x
        each = x.shape[axis] // units
        places = [unit * each + i for unit in indices for i in range(each)]
        at = (slice(None),) * axis + (places,)
        if torch := torch_of(x):
            found = x.detach().clone()
            size = found[at].numel()
            garbage = torch.tensor(GARBAGE).repeat(-(-size // len(GARBAGE)))[:size]
            found[at] = garbage.to(found).reshape(found[at].shape)
            return found.requires_grad_(x.requires_grad)
        found = x.copy()
        found[at] = np.resize(np.array(GARBAGE).astype(x.dtype), found[at].shape)
        return found

    def _take(self, name: str, x: Any, letter: str, units: int, indices: list[int]) -> Any:
        axis = self.axis(name, x, letter)
        if axis is None:
            return x
        each = x.shape[axis] // units
        places = [unit * each + i for unit in indices for i in range(each)]
        if torch := torch_of(x):
            places = torch.tensor(places, dtype=torch.int64, device=x.device)
            return x.detach().index_select(axis, places).requires_grad_(x.requires_grad)
        return np.take(x, np.array(places, np.int64), axis)


def make_subject(
    fn: Callable[..., Any],
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    layout: str | Mapping[str, str],
    grad: bool,
    dout_seed: int,
) -> Subject:
    """A subject from what a caller of audit() has."""
    if not isinstance(inputs, tuple | list | Mapping):
        raise TypeError(
            f"[audit] inputs are the arguments of fn; got {type(inputs).__name__}, expected a "
            "tuple, a list or a dict (nearest: (x,))"
        )
    by_name = isinstance(inputs, Mapping)
    if isinstance(inputs, Mapping):
        named = dict(inputs)
    else:
        names = [*_parameters(fn), *(f"in{i}" for i in range(len(inputs)))]
        named = dict(zip(names, inputs, strict=False))
    leaves = {
        name: x.detach().requires_grad_(x.requires_grad) if torch_of(x) else x
        for name, x in named.items()
    }
    layout = {"*": layout} if isinstance(layout, str) else dict(layout)
    for name, letters in layout.items():
        if any(letters.count(letter) > 1 for letter in "blh"):
            raise ValueError(
                f"[audit] an axis has two places in the layout; got {letters!r} of {name}, "
                "expected each of b, l and h once at most"
            )
    return Subject(fn, leaves, by_name, layout, grad, dout_seed)


def _parameters(fn: Callable[..., Any]) -> list[str]:
    """Names of the arguments that have a place of their own."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # builtins
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


def _requires_grad(x: Any) -> bool:
    return torch_of(x) is not None and x.requires_grad


def _named(result: Any) -> Outputs:
    if isinstance(result, Mapping):
        found = dict(result)
    elif hasattr(result, "_asdict"):
        found = result._asdict()
    elif isinstance(result, tuple | list):
        found = {f"out{i}": x for i, x in enumerate(result)}
    else:
        found = {"out": result}
    return {str(name): x for name, x in found.items() if x is not None}
