"""Internal topics of streams groups (KIP-1071): repartition and changelog topics that a topology needs.

A heartbeat that finds some missing has them created by the controller, on behalf of the member: in an envelope with its
principal, which the controller authorizes and charges. Each name is requested once at a time. Why one could not be
created is kept for a while, for the statuses of the group's members; until then it is not tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.requests.context import RequestContext
from kalda.coordinator.groups.streams.topology import InternalTopic
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

log = logging.getLogger("kalda.streams_topics")

_MAX_FAILURES: Final = 1_000
_MAX_UNDER_WAY: Final = 10_000

CreateFor = Callable[[RequestContext, CreateTopicsRequest], "Pending[CreateTopicsResponse]"]
"""Sends the request to the active controller, with the principal of the context."""


class _Failure(NamedTuple):
    text: str
    until_ms: int


class StreamsTopics:
    """Creates them, and keeps why some could not be created."""

    def __init__(self, create: CreateFor, timeout_ms: int, now_ms: Callable[[], int]) -> None:
        self._create = create
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._under_way: set[str] = set()
        self._failures: dict[str, _Failure] = {}

    def create(self, context: RequestContext, topics: Mapping[str, InternalTopic], keep_ms: int) -> dict[str, str]:
        """Start the creation of those that are not being created and have not failed lately. Failures are kept for
        `keep_ms`; the result is those known now, by name."""
        now_ms = self._now_ms()
        known = {
            name: failure.text
            for name in topics
            if (failure := self._failures.get(name)) is not None and failure.until_ms > now_ms
        }
        names = [name for name in topics if name not in self._under_way and name not in known]
        names = names[: _MAX_UNDER_WAY - len(self._under_way)]
        if names:
            self._under_way.update(names)
            request = CreateTopicsRequest(
                topics=[_creatable(topics[name]) for name in names], timeout_ms=self._timeout_ms
            )
            self._create(context, request).then(lambda *answer: self._created(names, keep_ms, *answer))
        return known

    def _created(
        self, names: list[str], keep_ms: int, response: CreateTopicsResponse | None, error: ApiError | None
    ) -> None:
        self._under_way.difference_update(names)
        until_ms = self._now_ms() + keep_ms
        if response is None:
            assert error is not None
            log.warning("internal topics %s could not be created: %s", ", ".join(names[:3]), error)
            for name in names:
                self._keep(name, _Failure(error.message or error.code.name, until_ms))
            return
        for result in response.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                text = result.error_message or ErrorCode(result.error_code).name
                log.warning("the internal topic %s could not be created: %s", result.name, text)
                self._keep(result.name, _Failure(text, until_ms))

    def _keep(self, name: str, failure: _Failure) -> None:
        self._failures.pop(name, None)
        self._failures[name] = failure
        while len(self._failures) > _MAX_FAILURES:
            del self._failures[next(iter(self._failures))]


def _creatable(topic: InternalTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
    )
