"""Reads of a log's files on another thread, begun again while files are renamed, removed or replaced under them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Jobs

_ATTEMPTS = 5
"""How often a read whose files change under it is run. Each attempt takes a new snapshot of what the log has."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Read(Protocol[T_co]):
    """A read of a snapshot of the log."""

    def finish(self, last: bool = False) -> T_co | ApiError | None:
        """On the log's thread, after a run: its outcome; None where the read has taken a new snapshot and must run
        again, or an error instead with `last`."""
        ...


def start_repeated(
    jobs: Jobs,
    reads: Sequence[Read[T]],
    run: Callable[[Sequence[int], Sequence[T | ApiError | None]], None],
    done: Callable[[list[T | ApiError]], None],
) -> None:
    """Run reads by one job, one after another; `done` gets their results, in the same order, on the log's thread.

    `run(unread, results)` runs, on any thread, those reads whose indexes are `unread`; `results` has what the others
    have found."""
    results: list[T | ApiError | None] = [None] * len(reads)
    attempts_left = _ATTEMPTS

    def start() -> None:
        unread = [at for at, result in enumerate(results) if result is None]

        def finish(_: None, error: BaseException | None) -> None:
            nonlocal attempts_left
            attempts_left -= 1
            for at in unread:
                if error is None:
                    results[at] = reads[at].finish(last=not attempts_left)
                else:
                    results[at] = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            if None in results:
                start()
            else:
                done([result for result in results if result is not None])

        jobs.run(lambda: run(unread, results), finish)

    start()
