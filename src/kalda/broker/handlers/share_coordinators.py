"""How the share partitions and the groups of this broker reach what is elsewhere: the share coordinators of their
state, and the leaders that know the ends of partitions."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.auto_topics import AutoTopics
from kalda.broker.channels.node_channels import BrokerChannels
from kalda.broker.channels.share_persister import SharePersister, StateRequest
from kalda.broker.handlers.transactions import leader_of
from kalda.broker.module import BrokerContext, Module
from kalda.broker.replicas.coordinators import coordinator_lookup
from kalda.coordinator.internal_topics import SHARE_STATE
from kalda.protocol.messages.partitions import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic, OffsetSpec

_CONSUMER = -1


class ShareCoordinators(Module):
    """Of one broker."""

    def __init__(
        self, context: BrokerContext, handle_here: Callable[[StateRequest], Any], auto_topics: AutoTopics
    ) -> None:
        """`handle_here` is the share coordinator of this broker; `auto_topics` creates the topic of share coordinators
        where it is missing."""
        cache = context.cache
        self.channels = BrokerChannels("share-persister", context.config, cache, context.to_brokers)
        coordinator_of = coordinator_lookup(context.config, cache, SHARE_STATE.name)
        self.persister = SharePersister(
            context.config.node_id,
            lambda key: coordinator_of(key.coordinator_key),
            self.channels.send,
            handle_here,
            context.timers,
            lambda: auto_topics.create([SHARE_STATE.name]),
        )
        """Of the share partitions that are led here, and of the groups that are coordinated here."""
        self.latest = LatestOffsetsOfLeaders(partial(leader_of, cache), self.channels.send)

    async def close(self) -> None:
        """Write nothing more."""
        self.persister.close()
        await self.channels.close()


class LatestOffsetsOfLeaders:
    """One request to each leader."""

    def __init__(
        self,
        leader_of: Callable[[str, int], int | None],
        send: Callable[[int, ListOffsetsRequest], Pending[Any]],
    ) -> None:
        """`leader_of(topic, partition)` is None where no broker leads it. `send` may be to this very broker."""
        self._leader_of = leader_of
        self._send = send

    def find(self, partitions: Collection[tuple[str, int]]) -> Pending[dict[tuple[str, int], int | ApiError]]:
        """The end that consumers see of each, or its error."""
        by_leader: dict[int, dict[str, list[int]]] = {}
        found: dict[tuple[str, int], int | ApiError] = {}
        for topic, number in partitions:
            leader = self._leader_of(topic, number)
            if leader is None or leader < 0:
                found[topic, number] = ApiError(ErrorCode.LEADER_NOT_AVAILABLE)
            else:
                by_leader.setdefault(leader, {}).setdefault(topic, []).append(number)
        answer: Pending[dict[tuple[str, int], int | ApiError]] = Pending()
        left = len(by_leader)
        if not left:
            answer.complete(found)
            return answer

        def take(asked: dict[str, list[int]], response: Any, error: ApiError | None) -> None:
            nonlocal left
            left -= 1
            for topic, numbers in asked.items():
                for number in numbers:
                    found[topic, number] = error or ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)
            for topic in response.topics if response is not None else ():
                for each in topic.partitions:
                    code = ErrorCode(each.error_code)
                    found[topic.name, each.partition_index] = each.offset if code is ErrorCode.NONE else ApiError(code)
            if not left:
                answer.complete(found)

        for leader, asked in by_leader.items():
            request = ListOffsetsRequest(
                replica_id=_CONSUMER,
                topics=[
                    ListOffsetsTopic(
                        name=topic,
                        partitions=[
                            ListOffsetsPartition(partition_index=number, timestamp=OffsetSpec.LATEST)
                            for number in numbers
                        ],
                    )
                    for topic, numbers in asked.items()
                ],
            )
            self._send(leader, request).then(partial(take, asked))
        return answer
