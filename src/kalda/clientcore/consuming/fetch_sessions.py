"""Incremental fetch sessions (KIP-227): a request names only the partitions that have changed since the last one.

The first request of a session names all partitions (id 0, epoch 0). The response has the session's id, or 0 where the
broker keeps none. Every further request has the next epoch, the partitions that were added or changed, and those that
were removed. After an error of the session, or a lost request, a new session begins; the old one is closed by naming
its id with epoch 0. Of very many partitions a request names some; the others follow with the next requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kalda.base.errors import ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition, Uuid
from kalda.protocol.messages.partitions import (
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    FetchResponse,
)
from kalda.protocol.naming import MAX_PARTITIONS_FETCHED, turn_of, within_one_request

FINAL_EPOCH = -1
_MAX_EPOCH = 2**31 - 1
SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
)


class Wanted(NamedTuple):
    """A partition in a session: what the next request names of it. `seeks` is its state's, and is not sent."""

    topic_id: Uuid
    offset: int
    leader_epoch: int
    max_bytes: int
    seeks: int


class SessionRequest(NamedTuple):
    """The fields of a Fetch request that the session decides."""

    session_id: int
    epoch: int
    topics: list[FetchRequestFetchTopic]
    forgotten: list[FetchRequestForgottenTopic]
    has_all: bool
    """Whether no partition is left for the next request."""


class FetchSession:
    """The session with one broker. At most one request is in flight."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        """Of the next request; 0: it begins a session."""
        self.by_name = False
        """Requests name topics by name: the broker, or some topic, has no topic ids."""
        self.partitions: dict[TopicPartition, Wanted] = {}
        """What the broker has, once the request in flight has arrived."""
        self._names: dict[Uuid, str] = {}
        self._begin = 0
        """The place, among those wanted, of the first partition of the next full request that cannot name all."""

    def build(self, wanted: Mapping[TopicPartition, Wanted], *, by_name: bool) -> SessionRequest:
        """The next request, after which the broker has all of `wanted` that can be named by now, and nothing else."""
        if by_name != self.by_name:
            self.restart()
            self.by_name = by_name
        some = None
        if self.epoch != 0:
            some = within_one_request(wanted, self.partitions, _differs, MAX_PARTITIONS_FETCHED)
        if some is None:
            self.restart()
            some = turn_of(wanted, self._begin, MAX_PARTITIONS_FETCHED)
            self._begin += MAX_PARTITIONS_FETCHED
        has_all, wanted = len(some) == len(wanted), some
        is_full = self.epoch == 0
        before = {} if is_full else self.partitions
        topics: dict[tuple[str, Uuid], FetchRequestFetchTopic] = {}
        forgotten: dict[tuple[str, Uuid], FetchRequestForgottenTopic] = {}
        for partition, entry in wanted.items():
            known = before.get(partition)
            if known is not None and known.topic_id != entry.topic_id:
                _forget(forgotten, partition, known.topic_id)
                known = None
            if known is not None and not _differs(known, entry):
                continue
            topic = topics.get((partition.topic, entry.topic_id))
            if topic is None:
                topic = topics[partition.topic, entry.topic_id] = FetchRequestFetchTopic(
                    topic=partition.topic, topic_id=entry.topic_id
                )
            topic.partitions.append(
                FetchRequestFetchPartition(
                    partition=partition.partition,
                    current_leader_epoch=entry.leader_epoch,
                    fetch_offset=entry.offset,
                    partition_max_bytes=entry.max_bytes,
                )
            )
        for partition, known in before.items():
            if partition not in wanted:
                _forget(forgotten, partition, known.topic_id)
        self.partitions = dict(wanted)
        self._names = {entry.topic_id: partition.topic for partition, entry in wanted.items()}
        return SessionRequest(self.session_id, self.epoch, list(topics.values()), list(forgotten.values()), has_all)

    def name_of(self, topic: str, topic_id: Uuid) -> str | None:
        """The name of a topic in a response; None where the session does not have it."""
        return topic if topic_id == ZERO_UUID else self._names.get(topic_id)

    def on_response(self, response: FetchResponse) -> bool:
        """Take over the session's id and epoch. False where the request has failed as a whole."""
        if response.error_code:
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self.session_id = 0
            self.restart()
            return False
        if response.session_id == 0:
            self.session_id = 0
            self.epoch = 0
        elif self.epoch == 0 or response.session_id != self.session_id:
            self.session_id = response.session_id
            self.epoch = 1
        else:
            self.epoch = self.epoch + 1 if self.epoch < _MAX_EPOCH else 1
        return True

    def restart(self) -> None:
        """The request was lost, or refused: the next one names all partitions, and closes this session."""
        self.epoch = 0
        self.partitions = {}


def _differs(one: Wanted, other: Wanted) -> bool:
    return one[:4] != other[:4]


def _forget(
    forgotten: dict[tuple[str, Uuid], FetchRequestForgottenTopic], partition: TopicPartition, topic_id: Uuid
) -> None:
    topic = forgotten.get((partition.topic, topic_id))
    if topic is None:
        topic = forgotten[partition.topic, topic_id] = FetchRequestForgottenTopic(
            topic=partition.topic, topic_id=topic_id
        )
    topic.partitions.append(partition.partition)
