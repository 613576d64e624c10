"""What a topic may be called.

A name becomes a directory, so it holds what every file system takes. In metric names '.' turns into '_', so two
topics that differ in these only could not be told apart: the second one is refused.
"""

from __future__ import annotations

import re

from kalda.base.errors import ApiError, ErrorCode

MAX_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def validate_topic_name(name: str) -> None:
    """Raises `ApiError` INVALID_TOPIC_EXCEPTION."""
    if not name:
        raise _invalid("the empty string is not allowed")
    if name in (".", ".."):
        raise _invalid(f"'{name}' is not allowed")
    if len(name) > MAX_LENGTH:
        raise _invalid(f"the length of '{name}' is longer than the max allowed length {MAX_LENGTH}")
    if not _LEGAL.fullmatch(name):
        raise _invalid(f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'")


def collision_key(name: str) -> str | None:
    """Equal for names that collide; None for a name that cannot."""
    return name.replace(".", "_") if "." in name or "_" in name else None


def _invalid(what: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {what}")
