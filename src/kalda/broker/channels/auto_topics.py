"""Topics that are created by the first request that names them.

Metadata requests name topics that do not exist yet (`auto.create.topics.enable`), and the first FindCoordinator of a
key type needs the internal topic of its coordinator. The first request starts the creation, and is answered that there
is no such topic, or that the coordinator is not available; a retry finds it. A topic that could not be created is tried
again by the first request that names it after `RETRY_MS`, so that the controller and the log do not get each retry of
each client.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Timer, Timers
from kalda.broker.channels.node_channels import ControllerChannel
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

log = logging.getLogger("kalda.auto_topics")

_MAX_UNDER_WAY = 1000
"""Names, as well of those that were refused."""
RETRY_MS = 500


class TopicPlan(NamedTuple):
    """How an internal topic is made."""

    partitions: int
    replication_factor: int
    configs: dict[str, str]


_BY_CONTROLLER = TopicPlan(-1, -1, {})
"""By the defaults of the controller."""


class AutoTopics:
    """Creates missing topics through the controller, each once at a time."""

    def __init__(
        self,
        channel: ControllerChannel,
        enabled: bool,
        plan: Callable[[str], TopicPlan | None],
        timeout_ms: int,
        *,
        timers: Timers | None = None,
        ordinary: TopicPlan = _BY_CONTROLLER,
    ) -> None:
        """`enabled` is `auto.create.topics.enable`. Internal topics with a `plan` are created without it, others by
        `ordinary`. Without `timers` each request tries again."""
        self._channel = channel
        self.is_enabled = enabled
        self._plan = plan
        self._timeout_ms = timeout_ms
        self._under_way: set[str] = set()
        """Names in requests to the controller that are not answered."""
        self._timers = timers
        self._ordinary = ordinary
        self._refused: dict[str, Timer] = {}
        """Names that could not be created, each with the timer after which it is tried again."""

    def create(self, names: list[str]) -> None:
        """Start the creation of those that may be created and are not being created."""
        planned = {name: self._plan(name) or (self._ordinary if self.is_enabled else None) for name in names}
        self.create_planned({name: plan for name, plan in planned.items() if plan is not None})

    def create_planned(self, plans: Mapping[str, TopicPlan]) -> None:
        """Start the creation of topics that are not being created, by their plans."""
        topics = []
        for name, plan in plans.items():
            if name in self._under_way or name in self._refused or len(self._under_way) >= _MAX_UNDER_WAY:
                continue
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
            self._try_later(names)
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
                self._try_later([result.name])

    def _try_later(self, names: list[str]) -> None:
        for name in names:
            if self._timers is not None and name not in self._refused and len(self._refused) < _MAX_UNDER_WAY:
                self._refused[name] = self._timers.call_later_ms(RETRY_MS, partial(self._refused.__delitem__, name))


def plan_of_others(config: ServerConfig) -> TopicPlan:
    """How topics are made that are not internal: what this broker's file sets, else what the controller has."""

    def own(name: str) -> int:
        return int(config[name]) if config.is_set(name) else -1

    return TopicPlan(own("num.partitions"), own("default.replication.factor"), {})
