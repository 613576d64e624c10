"""Members of share groups at one broker, in virtual time: requests in, answers now or later.

The persister keeps in memory what is written, as the share coordinator does.
"""

from __future__ import annotations

from collections.abc import Callable
from types import GeneratorType, SimpleNamespace
from typing import Any

from data_path_world import World

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.base.share_states import AcknowledgeType, SharePartitionKey, StateBatch, StateRead, StateWrite
from kalda.broker.handlers.share import ShareHandlers
from kalda.coordinator.share.shard import combined
from kalda.protocol.messages.share import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestAcknowledgementBatch,
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestFetchPartition,
    ShareFetchRequestFetchTopic,
    ShareFetchRequestForgottenTopic,
)
from kalda.records.batch import iter_batches
from kalda.replication.share.dead_letters import DeadRecords
from kalda.replication.share.share_fetch import ShareSessions
from kalda.replication.share.share_partition import ShareSettings
from kalda.replication.share.share_partitions import EARLIEST, SharePartitions

Ack = tuple[int, int, AcknowledgeType]


class MemoryPersister:
    """What was written, by share partition."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, StateRead] = {}
        self.writes = 0
        self.holds = False
        self.failure: ErrorCode | None = None
        self.waiting: list[tuple[Pending[Any], Any]] = []

    def _answer(self, value: Any) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        self.waiting.append((answer, value))
        if not self.holds:
            self.settle()
        return answer

    def settle(self) -> None:
        waiting, self.waiting = self.waiting, []
        for answer, value in waiting:
            if self.failure is not None:
                answer.fail(ApiError(self.failure))
            else:
                answer.complete(value)

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Pending[StateRead]:
        return self._answer(self.states.get(key, StateRead(1, -1, [])))

    def write(self, key: SharePartitionKey, write: StateWrite) -> Pending[None]:
        self.writes += 1
        held: list[StateBatch] = self.states.get(key, StateRead(1, -1, [])).batches
        if self.failure is None:
            batches = combined(held, write.batches, write.start_offset)
            self.states[key] = StateRead(write.state_epoch, write.start_offset, list(batches))
        return self._answer(None)


class NoDeadLetters:
    """No group names a topic for them."""

    def write(self, key: SharePartitionKey, records: DeadRecords, is_wanted: Callable[[], bool]) -> Pending[None]:
        raise AssertionError(f"a dead letter of {key} that nobody wants")


class ShareWorld(World):
    """A broker with its share partitions and sessions."""

    def __init__(self, *, most_sessions: int = 100, **settings: Any) -> None:
        super().__init__()
        self.settings = ShareSettings(**settings)
        self.first_time = EARLIEST
        self.persister = MemoryPersister()
        self.shares = SharePartitions(
            self.replicas,
            self.persister,
            NoDeadLetters(),
            lambda _: self.settings,
            lambda _: self.first_time,
            self,
            lambda: self.now_ms,
        )
        self.share_sessions = ShareSessions(most_sessions)
        self.counted: dict[AcknowledgeType, int] = {}
        self.denied: set[str] = set()
        metadata: Any = SimpleNamespace(
            topic_name=self.ids.get,
            topic_by_id=lambda topic_id: SimpleNamespace(partitions={0: SimpleNamespace(has_leader=False)}),
            broker_entries=lambda listener: [],
        )
        self.is_enabled = True
        self.handlers = ShareHandlers(
            self.replicas,
            self.shares,
            self.share_sessions,
            metadata,
            self,
            self._note_acknowledged,
            lambda: self.is_enabled,
        )

    def _note_acknowledged(self, kind: AcknowledgeType, records: int) -> None:
        self.counted[kind] = self.counted.get(kind, 0) + records

    def share_of(self, topic: str, group: str = "g") -> Any:
        return self.shares.find(SharePartitionKey(group, self.id_of(topic), 0))

    def id_of(self, topic: str) -> Uuid:
        return Uuid(topic.encode().ljust(16, b"\1"))

    def settle(self, reply: Any) -> Any:
        """The answer of a reply; the `Pending` where it waits."""
        while True:
            if isinstance(reply, GeneratorType):
                reply = run_to_end(reply)
            elif isinstance(reply, Pending) and reply.done:
                if reply.error is not None:
                    raise reply.error
                reply = reply.value
            else:
                return reply


class Member:
    """One member over one connection, which counts its requests."""

    def __init__(self, world: ShareWorld, name: str = "m", group: str = "g", connection: int = 1) -> None:
        self.world = world
        self.name = name
        self.group = group
        self.epoch = 0
        authorizer = SimpleNamespace(
            allows=lambda caller, operation, resource, topic, logs, references=1: topic not in world.denied
        )
        self.context: Any = SimpleNamespace(
            api_version=2,
            listener_name="PLAINTEXT",
            authorizer=authorizer,
            connection=SimpleNamespace(id=connection, answer_alone=lambda: None),
        )

    def fetch(
        self,
        *topics: str,
        acks: dict[str, list[Ack]] | None = None,
        forget: tuple[str, ...] = (),
        epoch: int | None = None,
        wait_ms: int = 0,
        records: int = 500,
        min_bytes: int = 1,
        mode: int = 0,
        renew: bool = False,
        max_bytes: int = 1 << 20,
    ) -> Any:
        """The response; the `Pending` where it waits. The session's next epoch where none is given."""
        acks = acks or {}
        request = ShareFetchRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            max_records=records,
            batch_size=records,
            share_acquire_mode=mode,
            is_renew_ack=renew,
            topics=[
                ShareFetchRequestFetchTopic(
                    topic_id=self.world.id_of(topic),
                    partitions=[
                        ShareFetchRequestFetchPartition(
                            partition_index=0,
                            acknowledgement_batches=[
                                ShareFetchRequestAcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=[kind]
                                )
                                for first, last, kind in acks.get(topic, ())
                            ],
                        )
                    ],
                )
                for topic in dict.fromkeys((*topics, *acks))
            ],
            forgotten_topics_data=[
                ShareFetchRequestForgottenTopic(topic_id=self.world.id_of(topic), partitions=[0]) for topic in forget
            ],
        )
        reply = self.world.settle(self.world.handlers.share_fetch(self.context, request))
        if epoch is None:
            self.epoch += 1
        return reply

    def acknowledge(self, topic: str, *acks: Ack, epoch: int | None = None, renew: bool = False) -> Any:
        """The error's name; the `Pending` while it is being written."""
        request = ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.name,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=renew,
            topics=[
                AcknowledgeTopic(
                    topic_id=self.world.id_of(topic),
                    partitions=[
                        AcknowledgePartition(
                            partition_index=0,
                            acknowledgement_batches=[
                                ShareAcknowledgeRequestAcknowledgementBatch(
                                    first_offset=first, last_offset=last, acknowledge_types=[kind]
                                )
                                for first, last, kind in acks
                            ],
                        )
                    ],
                )
            ],
        )
        reply = self.world.settle(self.world.handlers.share_acknowledge(self.context, request))
        if epoch is None:
            self.epoch += 1
        if isinstance(reply, Pending):
            return reply
        return ErrorCode(reply.responses[0].partitions[0].error_code).name if reply.responses else "nothing"


def acquired(world: ShareWorld, response: Any) -> dict[str, list[tuple[int, int, int]]]:
    """First and last offset, and deliveries, of what was acquired, by topic. The records must be those."""
    response = world.settle(response)
    assert not isinstance(response, Pending), "the fetch waits"
    found = {}
    for topic in response.responses:
        for answer in topic.partitions:
            ranges = [(each.first_offset, each.last_offset, each.delivery_count) for each in answer.acquired_records]
            if ranges:
                offsets = [
                    offset
                    for _, header in iter_batches(bytes(answer.records))
                    for offset in range(header.base_offset, header.last_offset + 1)
                ]
                assert {offset for first, last, _ in ranges for offset in range(first, last + 1)} <= set(offsets)
                found[world.ids[topic.topic_id]] = ranges
            else:
                assert not answer.records
    return found


def errors(response: Any) -> dict[int, tuple[str, str]]:
    """The errors of fetch and acknowledgement, of each partition in the order of the response."""
    answers = [answer for topic in response.responses for answer in topic.partitions]
    return {
        at: (ErrorCode(answer.error_code).name, ErrorCode(answer.acknowledge_error_code).name)
        for at, answer in enumerate(answers)
    }
