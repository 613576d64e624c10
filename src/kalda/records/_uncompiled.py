"""Stands in for the module `cython` where `codec` and `values` run as plain Python on a machine without Cython.

Compiled, they import neither: these names are resolved at compile time. What a user reads about an installation that is
not compiled is here too.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

ADVICE = (
    "this installation of Kalda is not compiled: everything works, but records are encoded and decoded some 50 times "
    "slower. Install a C compiler and Python's headers (Debian: gcc python3-dev), then install Kalda again with "
    "pip install --force-reinstall --no-cache-dir, since pip would take the wheel that it has made"
)
_WARNING = "kalda.records.codec runs uncompiled"
"""How the warning begins that the import of the codec gives."""


def say_once(say: Callable[[str], object]) -> None:
    """Have `say` called with `ADVICE` instead of Python's warning with a line of Kalda's source, where the codec is
    imported."""
    shown = warnings.showwarning

    def show(message: Warning | str, *details: Any, **more: Any) -> None:
        if str(message).startswith(_WARNING):
            say(ADVICE)
        else:
            shown(message, *details, **more)

    warnings.showwarning = show


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


def locals(**_types: object) -> Callable[[F], F]:  # noqa: A001
    return cfunc


longlong = int
