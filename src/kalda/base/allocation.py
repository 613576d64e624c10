"""Buffers and tuples that are made at less than their usual cost.

Memory that is about to be written, and need not be filled with zeros before. It can grow where it is.

Makes a named tuple at half the cost, for values that each record, batch or request has one of.

`new_tuple(Kind, (a, b))` is `Kind(a, b)` without the call of a Python function that `NamedTuple` generates. The fields
are given in their order and all of them, defaults too: nothing checks that, at run time or before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final

_UNFILLED_BYTES = 64 * 1024
"""For a buffer of at least this size, `_make` is faster than `bytearray`, which writes zeros."""


def unfilled(size: int) -> bytearray:
    """So many bytes of any content. The caller hands out none that was not written."""
    return bytearray(size) if size < _UNFILLED_BYTES else _make()(size)


def grow(buffer: bytearray, size: int) -> None:
    """Make the buffer so long; the new bytes have any content. The kernel moves the pages of a large one, which are
    not copied. Raises `BufferError` where a view of it is in use."""
    _resize()(buffer, size)


@cache
def _make() -> Callable[[int], bytearray]:
    from ctypes import c_char_p, c_ssize_t, py_object, pythonapi

    make = pythonapi.PyByteArray_FromStringAndSize
    make.restype, make.argtypes = py_object, (c_char_p, c_ssize_t)
    return partial(make, None)


@cache
def _resize() -> Callable[[bytearray, int], Any]:
    from ctypes import c_int, c_ssize_t, py_object, pythonapi

    resize = pythonapi.PyByteArray_Resize
    resize.restype, resize.argtypes = c_int, (py_object, c_ssize_t)
    return resize


new_tuple: Final = tuple.__new__
