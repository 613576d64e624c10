"""Tells the controller in which log directories this broker's replicas are (AssignReplicasToDirs, KIP-858).

The controller chooses a directory only where there is no choice; otherwise the broker does, when it makes the log. With
what it is told here the controller knows which partitions a failed directory takes along.

All that wait go in one request, and one request is under way at a time. What the controller refused or did not answer
is sent again, later each time, unless the partition has been placed anew since; what is not this broker's any more is
left out. A machine: it sends through an injected channel and waits on injected timers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.base.scheduling import Timer, Timers
from kalda.protocol.messages.brokers import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    AssignReplicasToDirsResponse,
)

log = logging.getLogger("kalda.assignments")

MAX_A_REQUEST = 2_250
_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 10_000
_GONE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

Key = tuple[Uuid, int]
"""Topic id and partition."""


class DirectoryAssignments:
    """One broker's placements, on their way to the controller."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Callable[[AssignReplicasToDirsRequest], Pending[AssignReplicasToDirsResponse]],
        timers: Timers,
        is_wanted: Callable[[Uuid, int, Uuid], bool],
    ) -> None:
        """`is_wanted(topic_id, partition, directory)`: the metadata gives the replica to this broker, and does not
        know yet that it is there."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._timers = timers
        self._is_wanted = is_wanted
        self._waiting: dict[Key, Uuid] = {}
        self._told: dict[Key, set[Uuid]] = {}
        """What the controller may believe, and the metadata at hand does not show yet: all that it was told since it
        last answered."""
        self._agreed: dict[Key, tuple[Uuid, Callable[[], None]]] = {}
        self._under_way: dict[Key, Uuid] = {}
        self._backoff_ms = 0
        self._timer: Timer | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def placed(self, topic_id: Uuid, partition: int, directory: Uuid, agreed: Callable[[], None] | None = None) -> None:
        """A replica is in that directory, or is to be: `agreed` is called once the controller knows, unless it is told
        of another directory first."""
        key = topic_id, partition
        self._waiting[key] = directory
        self._agreed.pop(key, None)
        if agreed is not None:
            self._agreed[key] = directory, agreed
        self._send_later(self._backoff_ms)

    def close(self) -> None:
        """Tell nothing more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _send_later(self, delay_ms: int) -> None:
        if self._timer is None and not self._under_way and not self._closed:
            self._timer = self._timers.call_later_ms(delay_ms, self._send_waiting)

    def _known(self, key: Key, directory: Uuid) -> None:
        """The controller knows, or need not know."""
        if (told := self._agreed.get(key)) is not None and told[0] == directory:
            del self._agreed[key]
            told[1]()

    def _send_waiting(self) -> None:
        self._timer = None
        directories: dict[Uuid, dict[Uuid, AssignReplicasToDirsRequestTopicData]] = {}
        for key in list(self._waiting):
            if len(self._under_way) == MAX_A_REQUEST:
                break
            directory = self._waiting.pop(key)
            told = self._told.setdefault(key, set())
            if not self._is_wanted(*key, directory) and told <= {directory}:
                del self._told[key]
                self._known(key, directory)
                continue
            told.add(directory)
            self._under_way[key] = directory
            topics = directories.setdefault(directory, {})
            topic = topics.setdefault(key[0], AssignReplicasToDirsRequestTopicData(topic_id=key[0]))
            topic.partitions.append(AssignReplicasToDirsRequestPartitionData(partition_index=key[1]))
        if self._under_way:
            request = AssignReplicasToDirsRequest(
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch(),
                directories=[
                    AssignReplicasToDirsRequestDirectoryData(id=directory, topics=list(topics.values()))
                    for directory, topics in directories.items()
                ],
            )
            self._send(request).then(self._on_answer)

    def _on_answer(self, response: AssignReplicasToDirsResponse | None, error: ApiError | None) -> None:
        asked, self._under_way = self._under_way, {}
        if response is not None and response.error_code == ErrorCode.NONE:
            for directory in response.directories:
                for topic in directory.topics:
                    for partition in topic.partitions:
                        key = topic.topic_id, partition.partition_index
                        if partition.error_code == ErrorCode.NONE and (told := asked.pop(key, None)) is not None:
                            self._told[key] = {told}
                            self._known(key, told)
                        elif partition.error_code in _GONE:
                            self._told.pop(key, None)
        elif (error is not None and error.code is ErrorCode.UNSUPPORTED_VERSION) or (
            response is not None and response.error_code == ErrorCode.UNSUPPORTED_VERSION
        ):
            # A metadata.version from before directories were told.
            for key, told in asked.items():
                self._known(key, told)
            asked.clear()
        for key, placed in asked.items():
            self._waiting.setdefault(key, placed)
        if asked:
            log.info("%d directory assignments could not be told: %s", len(asked), error or "refused")
            self._backoff_ms = min(_MAX_BACKOFF_MS, self._backoff_ms * 2 or _FIRST_BACKOFF_MS)
        else:
            self._backoff_ms = 0
        if self._waiting:
            self._send_later(self._backoff_ms)
