"""Deadlines and backoff: how long to retry, and how long to wait between attempts."""

from __future__ import annotations

import random
import time

from kalda.base.errors import ApiError, ErrorCode


class Deadline:
    """A moment on the monotonic clock."""

    __slots__ = ("_at", "timeout_ms")

    def __init__(self, timeout_ms: float) -> None:
        self.timeout_ms = int(timeout_ms)
        self._at = time.monotonic() + timeout_ms / 1000

    @property
    def remaining_ms(self) -> int:
        """Never negative."""
        return max(0, int((self._at - time.monotonic()) * 1000))

    @property
    def is_past(self) -> bool:
        return time.monotonic() >= self._at


class Retry:
    """Attempts of one request until a deadline. Each pause is twice as long as the last, with 20 % of jitter."""

    def __init__(self, deadline: Deadline, backoff_ms: int = 50, backoff_max_ms: int = 1_000) -> None:
        self.deadline = deadline
        self.attempts = 0
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms

    def pause(self, error: ApiError, *, within_ms: int | None = None) -> None:
        """Wait after a failed attempt. Raises `error` instead where it is not retriable, or where the pause would
        pass the deadline or, where it is given and earlier, `within_ms` since the start."""
        self.attempts += 1
        if not error.code.retriable:
            raise error
        wait_ms = min(self._backoff_max_ms, self._backoff_ms * 2 ** min(self.attempts - 1, 16))
        wait_ms = int(wait_ms * random.uniform(0.8, 1.2))
        remaining_ms = self.deadline.remaining_ms
        if within_ms is not None:
            remaining_ms = min(remaining_ms, within_ms - (self.deadline.timeout_ms - remaining_ms))
        if remaining_ms <= wait_ms:
            raise self._with_attempts(error) if within_ms is None else error
        time.sleep(wait_ms / 1000)

    def _with_attempts(self, error: ApiError) -> ApiError:
        if self.attempts > 1 and error.code is not ErrorCode.REQUEST_TIMED_OUT:
            text = error.message or error.code.name
            error.message = f"{text} (after {self.attempts} attempts)"
            error.args = (f"{error.code.name}: {error.message}",)
        return error
