"""Answers out of pending ones: at once where these are settled already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from kalda.base.errors import ApiError
from kalda.base.pending import Pending

T = TypeVar("T")
R = TypeVar("R")


def now_or_later(pending: Pending[T]) -> T | Pending[T]:
    """The value where it is there, else the pending answer itself. For answers that never fail."""
    if pending.done and pending.error is None:
        return cast(T, pending.value)
    return pending


def answer_after(pending: Pending[Any], finish: Callable[[ApiError | None], R]) -> R | Pending[R]:
    """`finish(error)` once `pending` settles."""
    if pending.done:
        return finish(pending.error)
    answer: Pending[R] = Pending()
    pending.then(lambda _, error: answer.complete(finish(error)))
    return answer


def answer_after_all(pendings: Sequence[Pending[Any]], finish: Callable[[], R]) -> R | Pending[R]:
    """`finish()` once all of them have settled; it reads the value or error of each."""
    left = sum(not pending.done for pending in pendings)
    if not left:
        return finish()
    answer: Pending[R] = Pending()

    def settled(_: Any, __: ApiError | None) -> None:
        nonlocal left
        left -= 1
        if not left:
            answer.complete(finish())

    for pending in [pending for pending in pendings if not pending.done]:
        pending.then(settled)
    return answer
