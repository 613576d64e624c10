"""Stands in for the module `cython` where `codec` and `values` run as plain Python on a machine without Cython.

Compiled, they import neither: these names are resolved at compile time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

compiled = False
longlong = ulonglong = Py_ssize_t = int


def cast(_type: object, value: Any) -> Any:
    return value


def cfunc(function: F) -> F:
    return function


inline = cclass = final = no_gc = cfunc


def freelist(_size: int) -> Callable[[F], F]:
    return cfunc


class _NoGil:
    """Both a decorator and a context, as Cython has it."""

    def __call__(self, function: F) -> F:
        return function

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


nogil = _NoGil()


def exceptval(**_options: object) -> Callable[[F], F]:
    return cfunc


def returns(_type: object) -> Callable[[F], F]:
    return cfunc
