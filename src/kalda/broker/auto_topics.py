"""Topics that are created by the first request that names them.

Metadata requests name topics that do not exist yet (`auto.create.topics.enable`), and the first FindCoordinator of a
key type needs the internal topic of its coordinator. The first request starts the creation, and is answered that there
is no such topic, or that the coordinator is not available; a retry finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.controller_channel import ControllerChannel
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

log = logging.getLogger("kalda.auto_topics")

_MAX_UNDER_WAY = 1000


class TopicPlan(NamedTuple):
    """How an internal topic is made."""

    partitions: int
    replication_factor: int
    configs: dict[str, str]


class AutoTopics:
    """Creates missing topics through the controller, each once at a time."""

    def __init__(
        self, channel: ControllerChannel, enabled: bool, plan: Callable[[str], TopicPlan | None], timeout_ms: int
    ) -> None:
        """`enabled` is `auto.create.topics.enable`. Internal topics with a `plan` are created without it."""
        self._channel = channel
        self.is_enabled = enabled
        self._plan = plan
        self._timeout_ms = timeout_ms
        self._under_way: set[str] = set()
        """Names in requests to the controller that are not answered."""

    def create(self, names: list[str]) -> None:
        """Start the creation of those that may be created and are not being created."""
        topics = []
        for name in names:
            plan = self._plan(name)
            if (
                name in self._under_way
                or len(self._under_way) >= _MAX_UNDER_WAY
                or (plan is None and not self.is_enabled)
            ):
                continue
            if plan is None:
                plan = TopicPlan(-1, -1, {})
            topics.append(
                CreatableTopic(
                    name=name,
                    num_partitions=plan.partitions,
                    replication_factor=plan.replication_factor,
                    configs=[CreatableTopicConfig(name=key, value=value) for key, value in plan.configs.items()],
                )
            )
            self._under_way.add(name)
        if topics:
            request = CreateTopicsRequest(topics=topics, timeout_ms=self._timeout_ms)
            created = [topic.name for topic in topics]
            self._channel.send(request, self._timeout_ms).then(lambda *answer: self._created(created, *answer))

    def _created(self, names: list[str], response: CreateTopicsResponse | None, error: ApiError | None) -> None:
        self._under_way.difference_update(names)
        if response is None:
            log.warning("automatic creation of %s failed: %s", ", ".join(names), error)
            return
        for result in response.topics:
            if result.error_code == ErrorCode.NONE:
                log.info("created topic %s, which a client has requested", result.name)
            elif result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                log.warning(
                    "automatic creation of %s failed: %s %s",
                    result.name,
                    ErrorCode(result.error_code).name,
                    result.error_message or "",
                )
