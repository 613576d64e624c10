"""Share sessions (KIP-932): the partitions that a broker hands out to this member. A request names changes only.

A session begins with a ShareFetch of epoch 0, which names all its partitions and acknowledges nothing. Every further
ShareFetch and ShareAcknowledge has the next epoch. After an error of the session, or a lost request, the broker has
released what this member held, or will: the next request begins a new session. Epoch -1 ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition, Uuid

FINAL_EPOCH: Final = -1
_MAX_EPOCH: Final = 2**31 - 1
SESSION_ERRORS: Final = frozenset(
    (
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    )
)
"""Errors after which a new session begins."""

IdAndNumber = tuple[Uuid, int]


class SessionChange(NamedTuple):
    """What a ShareFetch names of its session: by topic id, the numbers of partitions."""

    epoch: int
    added: dict[Uuid, list[int]]
    forgotten: dict[Uuid, list[int]]


class ShareClientSession:
    """The session with one broker. At most one request is in flight."""

    def __init__(self) -> None:
        self.epoch = 0
        """Of the next request; 0: it begins a session."""
        self._partitions: dict[IdAndNumber, TopicPartition] = {}
        """What the broker has, once the request in flight has arrived."""
        self._names: dict[Uuid, str] = {}

    def build(self, wanted: Mapping[TopicPartition, Uuid]) -> SessionChange:
        """The next ShareFetch, after which the broker hands out `wanted` and nothing else."""
        partitions = {(topic_id, partition.partition): partition for partition, topic_id in wanted.items()}
        added: dict[Uuid, list[int]] = {}
        forgotten: dict[Uuid, list[int]] = {}
        for topic_id, number in partitions:
            if (topic_id, number) not in self._partitions:
                added.setdefault(topic_id, []).append(number)
        for topic_id, number in self._partitions:
            if (topic_id, number) not in partitions:
                forgotten.setdefault(topic_id, []).append(number)
        self._partitions = partitions
        self._names.update((topic_id, partition.topic) for partition, topic_id in wanted.items())
        return SessionChange(self.epoch, added, forgotten)

    def partition_of(self, topic_id: Uuid, number: int) -> TopicPartition | None:
        """A partition of a response; None where no request of this session has named it."""
        name = self._names.get(topic_id)
        return None if name is None else TopicPartition(name, number)

    @property
    def is_empty(self) -> bool:
        """Whether the broker hands out nothing."""
        return not self._partitions

    def on_answer(self) -> None:
        """The request was accepted."""
        self.epoch = self.epoch + 1 if self.epoch < _MAX_EPOCH else 1

    def restart(self) -> None:
        """The request was lost, or refused because of its session: the next one begins a new session."""
        self.epoch = 0
        self._partitions = {}
