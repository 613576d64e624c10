"""ISR changes on their way to the controller (AlterPartition, KIP-497).

Every partition has at most one proposal waiting; all that wait go in one request, and one request is under way at a
time. So a broker that loses many followers at once asks the controller a few times, not once a partition.

Whoever proposed is told the outcome, unless the controller could not decide: then the proposal is sent again, later.
A newer proposal for a partition takes the place of one that waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.base.scheduling import Timer, Timers
from kalda.protocol.messages.brokers import (
    AlterPartitionRequest,
    AlterPartitionRequestBrokerState,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
)
from kalda.replication.followers import IsrOutcome, IsrProposal

log = logging.getLogger("kalda.isr")

MAX_A_REQUEST = 1_000
_RETRY_MS = 50
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
"""The proposal was decided on, or can never be: metadata will say what is true now."""

Key = tuple[Uuid, int]


class _Item(NamedTuple):
    proposal: IsrProposal
    answered: Callable[[IsrOutcome], None]


class AlterPartitionQueue:
    """One broker's proposals."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Callable[[AlterPartitionRequest], Pending[AlterPartitionResponse]],
        timers: Timers,
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._timers = timers
        self._waiting: dict[Key, _Item] = {}
        self._under_way: dict[Key, _Item] = {}
        self._timer: Timer | None = None
        self._closed = False

    def propose(
        self, topic_id: Uuid, partition: int, proposal: IsrProposal, answered: Callable[[IsrOutcome], None]
    ) -> None:
        """Send a proposal, with others that come in the same turn."""
        self._waiting[topic_id, partition] = _Item(proposal, answered)
        self._send_later(0)

    def close(self) -> None:
        """Send nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _send_later(self, delay_ms: int) -> None:
        if self._timer is None and not self._under_way and not self._closed:
            self._timer = self._timers.call_later_ms(delay_ms, self._send_waiting)

    def _send_waiting(self) -> None:
        self._timer = None
        assert not self._under_way, "one request at a time"
        topics: dict[Uuid, AlterPartitionRequestTopicData] = {}
        for key in list(self._waiting)[:MAX_A_REQUEST]:
            item = self._under_way[key] = self._waiting.pop(key)
            topic = topics.setdefault(key[0], AlterPartitionRequestTopicData(topic_id=key[0]))
            topic.partitions.append(
                AlterPartitionRequestPartitionData(
                    partition_index=key[1],
                    leader_epoch=item.proposal.leader_epoch,
                    new_isr_with_epochs=[
                        AlterPartitionRequestBrokerState(broker_id=broker_id, broker_epoch=epoch)
                        for broker_id, epoch in item.proposal.members
                    ],
                    partition_epoch=item.proposal.partition_epoch,
                )
            )
        if self._under_way:
            request = AlterPartitionRequest(
                broker_id=self._broker_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
            )
            self._send(request).then(self._on_answer)

    def _on_answer(self, response: AlterPartitionResponse | None, error: ApiError | None) -> None:
        items, self._under_way = self._under_way, {}
        code = error.code if error is not None else ErrorCode(response.error_code) if response is not None else None
        delay_ms = 0
        if code is ErrorCode.NONE:
            assert response is not None
            for topic in response.topics:
                for data in topic.partitions:
                    item = items.pop((topic.topic_id, data.partition_index), None)
                    if item is not None and not self._settle(item, data):
                        items[topic.topic_id, data.partition_index] = item
        else:
            log.info("%d ISR changes could not be proposed: %s", len(items), error or code)
        for key, item in items.items():
            # What was proposed since then knows better.
            self._waiting.setdefault(key, item)
            delay_ms = _RETRY_MS
        if self._waiting:
            self._send_later(delay_ms)

    def _settle(self, item: _Item, data: AlterPartitionResponsePartitionData) -> bool:
        """Tell the proposer; False where the controller has to be asked again."""
        code = ErrorCode(data.error_code)
        if code not in _FINAL:
            return False
        item.answered(IsrOutcome(code, tuple(data.isr), data.leader_epoch, data.partition_epoch))
        return True
