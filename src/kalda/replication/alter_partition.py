"""ISR changes on their way to the controller (AlterPartition, KIP-497).

Every partition has at most one proposal waiting, and all that wait go in one request (`controller_queue`). The proposer
gets the outcome, unless the controller could not decide: then the proposal is sent again. A driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending, Timers
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
)
from kalda.replication.controller_queue import ControllerQueue
from kalda.replication.followers import IsrOutcome, IsrProposal

log = logging.getLogger("kalda.isr")

_MAX_ITEMS = 1_000
_BACKOFF_MS = 50
_FINAL = frozenset(
    (
        ErrorCode.NONE,
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.INELIGIBLE_REPLICA,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
"""Error codes of a partition that decide a proposal. After any other the same proposal may still be accepted."""

Key = tuple[Uuid, int]
"""Topic id and partition."""


class _Item(NamedTuple):
    proposal: IsrProposal
    answered: Callable[[IsrOutcome], None]


class AlterPartitionQueue:
    """The ISR proposals of one broker."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Callable[[AlterPartitionRequest], Pending[AlterPartitionResponse]],
        timers: Timers,
    ) -> None:
        self._queue: ControllerQueue[Key, _Item, AlterPartitionResponse, IsrOutcome] = ControllerQueue(
            _Exchange(broker_id, broker_epoch, send),
            timers,
            max_items=_MAX_ITEMS,
            first_backoff_ms=_BACKOFF_MS,
            max_backoff_ms=_BACKOFF_MS,
        )

    def propose(
        self, topic_id: Uuid, partition: int, proposal: IsrProposal, answered: Callable[[IsrOutcome], None]
    ) -> None:
        """Send a proposal in place of an older one of that partition. `answered` is called with its outcome."""
        self._queue.put((topic_id, partition), _Item(proposal, answered))

    def close(self) -> None:
        """Send nothing more, and call nothing back."""
        self._queue.close()


class _Exchange:
    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Callable[[AlterPartitionRequest], Pending[AlterPartitionResponse]],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send

    def is_needed(self, key: Key, item: _Item) -> bool:
        return True

    def send(self, items: dict[Key, _Item]) -> Pending[AlterPartitionResponse]:
        topics: dict[Uuid, AlterPartitionRequestTopicData] = {}
        for (topic_id, partition), (proposal, _) in items.items():
            topic = topics.setdefault(topic_id, AlterPartitionRequestTopicData(topic_id=topic_id))
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=partition,
                    leader_epoch=proposal.leader_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionRequestBrokerState(broker_id=broker_id, broker_epoch=epoch)
                        for broker_id, epoch in proposal.members
                    ],
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return self._send(
            AlterPartitionRequest(
                broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
            )
        )

    def outcomes(
        self, items: dict[Key, _Item], response: AlterPartitionResponse | None, error: ApiError | None
    ) -> dict[Key, IsrOutcome]:
        if response is None or response.error_code:
            reason = error if response is None else ErrorCode(response.error_code)
            log.info("%d ISR changes are proposed again: the controller answered %s", len(items), reason)
            return {}
        return {
            key: IsrOutcome(code, tuple(data.isr), data.leader_epoch, data.partition_epoch)
            for topic in response.topics
            for data in topic.partitions
            if (key := (topic.topic_id, data.partition_index)) in items
            and (code := ErrorCode(data.error_code)) in _FINAL
        }

    def settle(self, key: Key, item: _Item, outcome: IsrOutcome | None) -> None:
        assert outcome is not None, "every proposal is sent"
        item.answered(outcome)
