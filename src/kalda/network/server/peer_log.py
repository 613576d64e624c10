"""Log lines about peers, a limited number per second.

A peer that sends garbage in a loop must not fill the disk with log lines. Lines beyond the limit of a second are
counted, and the next line that is logged has the count.
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


def describe_opening(first_bytes: bytes) -> str:
    """The protocol to which the first bytes of a stream belong, or else these bytes in hex; for log lines."""
    for opening, description in _OPENINGS:
        if first_bytes.startswith(opening):
            return description
    return f"bytes {first_bytes[:16].hex(' ')}"


class PeerLog:
    """Logs at most `per_second` warnings a second; each call passes the time."""

    __slots__ = ("_lines_left", "_per_second", "_suppressed", "_window_start_ms")

    def __init__(self, per_second: int = 10) -> None:
        self._per_second = per_second
        self._lines_left = per_second
        """Lines that may still be logged in this second."""
        self._window_start_ms = 0
        self._suppressed = 0
        """Lines that were not logged since the last one that was."""

    def warn(self, now_ms: int, message: str, *args: object) -> None:
        """Log a warning, or count it."""
        if now_ms - self._window_start_ms >= 1000:
            self._window_start_ms = now_ms
            self._lines_left = self._per_second
        if self._lines_left == 0:
            self._suppressed += 1
            return
        self._lines_left -= 1
        if self._suppressed:
            message += f" ({self._suppressed} lines like this were not logged)"
            self._suppressed = 0
        log.warning(message, *args)
