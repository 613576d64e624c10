"""Reports to the controller in which log directories this broker's replicas are (AssignReplicasToDirs, KIP-858).

The controller chooses a directory only where there is no choice; otherwise the broker does, when it makes the log. From
these reports the controller derives which partitions a failed directory takes along.

All directories that wait go in one request (`kalda.replication.controller_requests`). A report that was refused or not
answered is sent again, unless the replica has been placed anew since, or has left this broker. A driver: it sends
through an injected channel and waits on injected timers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending, Timers
from kalda.protocol.messages.brokers import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsRequestDirectoryData,
    AssignReplicasToDirsRequestPartitionData,
    AssignReplicasToDirsRequestTopicData,
    AssignReplicasToDirsResponse,
)
from kalda.replication.controller_requests import ControllerQueue

log = logging.getLogger("kalda.assignments")

_MAX_ITEMS = 2_250
_FIRST_BACKOFF_MS = 100
_MAX_BACKOFF_MS = 10_000
_NO_SUCH_PARTITION = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

Key = tuple[Uuid, int]
"""Topic id and partition."""


class DirectoryAssignments:
    """The directories of one broker's replicas."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Callable[[AssignReplicasToDirsRequest], Pending[AssignReplicasToDirsResponse]],
        timers: Timers,
        is_misplaced: Callable[[Uuid, int, Uuid], bool],
    ) -> None:
        """`is_misplaced(topic_id, partition, directory)`: the metadata gives the replica to this broker, in another
        directory."""
        self._exchange = _Exchange(broker_id, broker_epoch, send, is_misplaced)
        self._queue: ControllerQueue[Key, Uuid, AssignReplicasToDirsResponse, ErrorCode] = ControllerQueue(
            self._exchange,
            timers,
            max_items=_MAX_ITEMS,
            first_backoff_ms=_FIRST_BACKOFF_MS,
            max_backoff_ms=_MAX_BACKOFF_MS,
        )

    def __len__(self) -> int:
        return len(self._queue)

    def placed(
        self, topic_id: Uuid, partition: int, directory: Uuid, recorded: Callable[[], None] | None = None
    ) -> None:
        """A replica is in that directory, or will be: `recorded` is called once the controller has recorded it. It is
        never called where the replica is placed in another directory first."""
        self._exchange.on_placed((topic_id, partition), directory, recorded)
        self._queue.put((topic_id, partition), directory)

    def close(self) -> None:
        """Send nothing more, and call nothing back."""
        self._queue.close()


class _Exchange:
    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        send: Callable[[AssignReplicasToDirsRequest], Pending[AssignReplicasToDirsResponse]],
        is_misplaced: Callable[[Uuid, int, Uuid], bool],
    ) -> None:
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._send = send
        self._is_misplaced = is_misplaced
        self._sent: dict[Key, set[Uuid]] = {}
        """Directories that the controller may have recorded, whatever the metadata at hand shows: the one that it has
        confirmed last, and those that were sent since."""
        self._recorded: dict[Key, tuple[Uuid, Callable[[], None]]] = {}
        """What to call when the controller has recorded that directory."""

    def on_placed(self, key: Key, directory: Uuid, recorded: Callable[[], None] | None) -> None:
        self._recorded.pop(key, None)
        if recorded is not None:
            self._recorded[key] = directory, recorded

    def is_needed(self, key: Key, directory: Uuid) -> bool:
        """Where the metadata shows this directory, or has no replica here, a report is needed only to take back another
        directory that the controller may have recorded."""
        sent = self._sent.setdefault(key, set())
        if not self._is_misplaced(*key, directory) and sent <= {directory}:
            del self._sent[key]
            return False
        sent.add(directory)
        return True

    def send(self, items: dict[Key, Uuid]) -> Pending[AssignReplicasToDirsResponse]:
        directories: dict[Uuid, dict[Uuid, AssignReplicasToDirsRequestTopicData]] = {}
        for (topic_id, partition), directory in items.items():
            topics = directories.setdefault(directory, {})
            topic = topics.setdefault(topic_id, AssignReplicasToDirsRequestTopicData(topic_id=topic_id))
            topic.partitions.append(AssignReplicasToDirsRequestPartitionData(partition_index=partition))
        return self._send(
            AssignReplicasToDirsRequest(
                broker_id=self._broker_id,
                broker_epoch=self._broker_epoch(),
                directories=[
                    AssignReplicasToDirsRequestDirectoryData(id=directory, topics=list(topics.values()))
                    for directory, topics in directories.items()
                ],
            )
        )

    def outcomes(
        self, items: dict[Key, Uuid], response: AssignReplicasToDirsResponse | None, error: ApiError | None
    ) -> dict[Key, ErrorCode]:
        code = response.error_code if response is not None else error.code if error is not None else None
        if code == ErrorCode.UNSUPPORTED_VERSION:
            # The metadata.version has no directories yet: there is nothing to record.
            return dict.fromkeys(items, ErrorCode.UNSUPPORTED_VERSION)
        found: dict[Key, ErrorCode] = {}
        if response is not None and code == ErrorCode.NONE:
            for directory in response.directories:
                for topic in directory.topics:
                    for partition in topic.partitions:
                        key = topic.topic_id, partition.partition_index
                        if partition.error_code == ErrorCode.NONE and key in items:
                            self._sent[key] = {items[key]}
                            found[key] = ErrorCode.NONE
                        elif partition.error_code in _NO_SUCH_PARTITION:
                            self._sent.pop(key, None)
        if len(found) < len(items):
            log.info("%d directory assignments are sent again: %s", len(items) - len(found), error or "refused")
        return found

    def settle(self, key: Key, directory: Uuid, outcome: ErrorCode | None) -> None:
        recorded = self._recorded.get(key)
        if recorded is not None and recorded[0] == directory:
            del self._recorded[key]
            recorded[1]()
