"""The ends of partitions, asked of the brokers that lead them: for the lags of share groups."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.pending import Pending
from kalda.protocol.messages.fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetSpec,
)

_CONSUMER = -1


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
