"""Prepared calls: a pass over tensors of known layouts, which lacks only their addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from . import _library
from ._arrays import NAMES, Arrays, Key, seed_address, seed_of
from ._untraced import untraced


class Call:
    """Immutable, so that several threads may make it at once.

    `keys` are of q, k and v for a forward, which makes o and the LSE; of q, k, v, o, dout and the
    LSE for a backward, which makes dq, dk and dv. `outputs` are the shapes of what it makes but the
    LSE, whose shape is `rows`.
    """

    def __init__(
        self,
        handle: Any,  # with a pointer and the functions of both passes
        arrays: Arrays,
        keys: Sequence[Key],
        outputs: Sequence[Sequence[int]],
        rows: Sequence[int],
    ) -> None:
        is_forward = len(keys) == 3
        self._function = handle.functions[not is_forward]
        self._struct = _library.FORWARD if is_forward else _library.BACKWARD
        self._handle = handle
        self._arrays = arrays
        dtype = arrays.result_dtype(keys[0][2])
        self._layouts = [arrays.layout(n, x) for n, x in zip(NAMES, keys[:5], strict=False)]
        self._dense = [(arrays.dense_layout(x[0], x[2]), x[2]) for x in keys[:5]]  # of copies
        self._makers = [arrays.maker(shape, dtype) for shape in outputs]
        made = [arrays.dense_layout(shape, dtype) for shape in outputs]
        if is_forward:
            self._makers.append(arrays.maker(rows, arrays.rows_dtype))
            made += 4 * [b""]  # the LSE and scales have no layout
        else:
            self._layouts.append(arrays.row_layout(keys[5], rows))
            self._dense.append((b"", arrays.rows_dtype))
        self._copies = None in self._layouts
        self._fields = [field for layout in self._layouts + made for field in (0, layout)]

    @untraced
    def __call__(
        self, tensors: Sequence[Any], seed: Any, threads: int, scales: Sequence[Any] = 3 * (None,)
    ) -> tuple[Any, ...]:
        """The outputs for inputs of the layouts that this was made for, in the current stream.

        `seed` is an integer, a tensor of one int64, or None; `threads` 0: all cores of a CPU.
        `scales` are of q, k and v of a forward in e4m3, each dense f32 (heads) or None.
        """
        arrays = self._arrays
        made = [make() for make in self._makers]
        addresses = [*map(arrays.address, tensors), *map(arrays.address, made)]
        if len(tensors) == 3:
            addresses += [0 if x is None else arrays.address(x) for x in scales]
        fields: list[Any] = self._fields.copy()
        held: list[Any] = []  # until the library has read their addresses
        if self._copies or (arrays.alignment > 1 and self._is_misaligned(addresses)):
            held += self._copy_what_cannot_be_read(tensors, addresses, fields)
        fields[::2] = addresses
        value = seed_at = 0
        seed = None if seed is None else seed_of(seed)
        if seed is None:
            pass
        elif hasattr(seed, "data_ptr"):
            seed_at = seed_address(seed, arrays.device)
        else:
            held.append(ctypes.c_uint64(seed))
            value = ctypes.addressof(held[-1])
        limit = _library.wait_limit.value
        how = arrays.stream(), threads, value, seed_at, limit
        run = _library.RUN.pack(*how, 0, 0)
        if arrays.device != "cpu" and self._handle.takes_workspace:
            size = ctypes.c_int64()
            is_backward = len(tensors) > 3
            pointer = self._handle.pointer
            _library.check(_library.workspace(pointer, is_backward, run, ctypes.byref(size)))
            held.append(arrays.memory(size.value))
            run = _library.RUN.pack(*how, arrays.address(held[-1]), size.value)
        status = self._function(self._handle.pointer, self._struct.pack(*fields), run)
        if status:
            _library.check(status)
        return tuple(made)

    def _is_misaligned(self, addresses: list[int]) -> bool:
        return any([at % self._arrays.alignment for at in addresses])

    def _copy_what_cannot_be_read(
        self, tensors: Sequence[Any], addresses: list[int], fields: list[Any]
    ) -> list[Any]:
        """Dense copies, whose addresses and layouts replace those of what they are made from."""
        copies = []
        for i, (x, (layout, dtype)) in enumerate(zip(tensors, self._dense, strict=True)):
            if self._layouts[i] is None or addresses[i] % self._arrays.alignment:
                copies.append(self._arrays.dense(x, dtype))
                addresses[i], fields[2 * i + 1] = self._arrays.address(copies[-1]), layout
        return copies
