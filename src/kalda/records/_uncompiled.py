"""What `codec` needs of Cython's own module when it runs as plain Python on a machine without Cython.

Compiled, `codec` needs neither: the names vanish at compile time.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

compiled = False
nogil: AbstractContextManager[None] = nullcontext()
longlong = ulonglong = uint = int


def cast(_type: object, value: Any) -> Any:
    return value


def cfunc(function: F) -> F:
    return function


inline = cfunc


def exceptval(**_kwargs: object) -> Callable[[F], F]:
    return cfunc


def returns(_type: object) -> Callable[[F], F]:
    return cfunc
