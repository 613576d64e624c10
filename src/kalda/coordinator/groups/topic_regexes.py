"""Subscriptions by regular expression: RE2 over the names of all topics, in steps.

A pattern is resolved for whoever asks, so only topics that this caller may describe are found.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.patterns import BadPattern, re2_pattern
from kalda.protocol.access import DESCRIBE_TOPIC
from kalda.protocol.caller import Caller

_WORK_A_STEP = 500_000
"""Instructions of a pattern, times the characters of topic names."""


def check_regex(pattern: str) -> None:
    """Raises INVALID_REGULAR_EXPRESSION."""
    try:
        re2_pattern(pattern)
    except BadPattern as error:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern[:100]}` is not a valid regular expression: {error}.",
        ) from None


def resolve_regexes(
    caller: Caller, patterns: Collection[str], topics: Sequence[str]
) -> Steps[dict[str, frozenset[str]]]:
    """The topics that each pattern matches and the caller may describe. A pattern that cannot be compiled here, as
    another product may have accepted it, matches none."""
    resolved: dict[str, frozenset[str]] = {}
    allowed: dict[str, bool] = {}
    work = 0
    for text in patterns:
        found: set[str] = set()
        try:
            pattern = re2_pattern(text)
        except BadPattern:
            resolved[text] = frozenset()
            continue
        for topic in topics:
            work += pattern.size * (len(topic) + 1)
            if work >= _WORK_A_STEP:
                work = 0
                yield
            if pattern.matches(topic):
                if topic not in allowed:
                    allowed[topic] = DESCRIBE_TOPIC.holds_quietly(caller, topic)
                if allowed[topic]:
                    found.add(topic)
        resolved[text] = frozenset(found)
    return resolved
