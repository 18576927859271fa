"""What torch.compile must not look into: code that makes arrays and hands their addresses to C."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def untraced(function: Function) -> Function:
    """`function`, which torch.compile calls as it is. Traced, its arrays would be tensors of other
    strides, and gone by the time that C reads their addresses."""
    disabled: Any = None

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            # Nothing is compiled where it has not been imported, which takes seconds.
            disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
            if disable is None:
                return function(*arguments, **named)
            disabled = disable(function)
        return disabled(*arguments, **named)

    return call  # type: ignore[return-value]
