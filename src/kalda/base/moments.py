"""Times that people write: ISO 8601, or milliseconds since 1970. As with Kafka's tools, one without a zone is UTC on
every machine."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_TIME = re.compile(
    r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d([.,]\d+)?)?)?)?(Z|[+-]\d\d(:?\d\d)?)?", re.ASCII | re.IGNORECASE
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment_ms(text: str) -> int | None:
    """A time in milliseconds since 1970, a part of one cut off; None where the text is no time."""
    if text.isascii() and text.isdecimal():
        return int(text) if len(text) < 20 else None
    if not _TIME.fullmatch(text):
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
        return ((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):  # such as the 30th of February
        return None
