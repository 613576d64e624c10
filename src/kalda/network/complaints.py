"""Log lines about peers, at most so many a second.

A peer that sends garbage in a loop must not be able to fill the disk with log lines: beyond the first few of a second
lines are counted instead, and the next line that passes tells how many were left out.
"""

from __future__ import annotations

import logging

log = logging.getLogger("kalda.network")

_OPENINGS: tuple[tuple[bytes, str], ...] = (
    (b"\x16\x03", "a TLS handshake on a plaintext listener"),
    (b"GET ", "an HTTP request"),
    (b"POST", "an HTTP request"),
    (b"PUT ", "an HTTP request"),
    (b"HEAD", "an HTTP request"),
    (b"DELE", "an HTTP request"),
    (b"OPTI", "an HTTP request"),
    (b"CONN", "an HTTP request"),
    (b"PRI ", "an HTTP/2 preface"),
    (b"SSH-", "an SSH greeting"),
    (b"\x03\x00", "a remote desktop (TPKT) request"),
)


def describe_opening(seen: bytes) -> str:
    """What the first bytes of a stream look like, for a person."""
    for opening, what in _OPENINGS:
        if seen.startswith(opening):
            return what
    return f"bytes {seen[:16].hex(' ')}"


class Complaints:
    """`per_second` lines a second; the clock comes with each call."""

    __slots__ = ("_left_out", "_per_second", "_room", "_since_ms")

    def __init__(self, per_second: int = 10) -> None:
        self._per_second = per_second
        self._room = per_second
        self._since_ms = 0
        self._left_out = 0

    def __call__(self, now_ms: int, message: str, *args: object) -> None:
        """Log a warning, or count it."""
        if now_ms - self._since_ms >= 1000:
            self._since_ms = now_ms
            self._room = self._per_second
        if self._room == 0:
            self._left_out += 1
            return
        self._room -= 1
        if self._left_out:
            message += f" ({self._left_out} more of such lines were left out)"
            self._left_out = 0
        log.warning(message, *args)
