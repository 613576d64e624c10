"""Names of topics: which are legal, and which are internal.

A name becomes that of a directory, so it has only characters that every file system takes. In metric names '.' becomes
'_', so two topics whose names differ in these only would have the same metrics: the second one is refused.
"""

from __future__ import annotations

import re

from kalda.base.errors import ApiError, ErrorCode

OFFSETS_TOPIC = "__consumer_offsets"
"""The group coordinator's."""
TRANSACTIONS_TOPIC = "__transaction_state"
"""The transaction coordinator's."""
SHARE_STATE_TOPIC = "__share_group_state"
"""The share coordinator's."""
CLIENT_METRICS_TOPIC = "__client_metrics"
"""Metrics that clients have pushed."""
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC, CLIENT_METRICS_TOPIC))
"""Topics of coordinators and brokers. They are listed as internal, and clients cannot append to them or delete their
records."""
MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Raises `ApiError` INVALID_TOPIC_EXCEPTION."""
    if (what := _fault(name)) is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {what}")


def is_topic_name(name: str) -> bool:
    """Whether the name is legal."""
    return _fault(name) is None


def can_be_requested(name: object) -> bool:
    """Whether a request can ask about a topic of this name, legal or not: a text that can be encoded."""
    if not isinstance(name, str) or not name.strip():
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _fault(name: str) -> str | None:
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}"
    if not _LEGAL.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def collision_key(name: str) -> str | None:
    """Equal for names that collide; None for a name that cannot."""
    return name.replace(".", "_") if "." in name or "_" in name else None
