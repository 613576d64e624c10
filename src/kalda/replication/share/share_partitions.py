"""The share partitions of one broker, by group and partition; made by the first fetch of a group, dropped with the
leadership of the partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending, Timers
from kalda.base.share_states import RecordState, SharePartitionKey
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.replication.share.dead_letters import DeadLetterQueue
from kalda.replication.share.share_partition import Persister, Phase, SharePartition, ShareSettings
from kalda.storage.log.snapshot_jobs import TimeSearch
from kalda.storage.values import TimestampOffset

_MOST_EXPLAINED = 1_000
LATEST, EARLIEST = -1, -2
"""Special values of where a group begins; other values are times."""


class SharePartitions:
    """See the module's docstring."""

    def __init__(
        self,
        replicas: ReplicaManager,
        persister: Persister,
        dead_letters: DeadLetterQueue,
        settings_of: Callable[[str], ShareSettings],
        first_time_of: Callable[[str], int],
        timers: Timers,
        now_ms: Callable[[], int],
    ) -> None:
        """`settings_of(group)`: its configs now. `first_time_of(group)`: where it begins in a partition of which it has
        consumed nothing yet, as a timestamp or one of `LATEST` and `EARLIEST`."""
        self.settings_of = settings_of
        self.now_ms = now_ms
        self._replicas = replicas
        self._persister = persister
        self._dead_letters = dead_letters
        self._first_time_of = first_time_of
        self._timers = timers
        self._by_key: dict[SharePartitionKey, tuple[Partition, SharePartition]] = {}

    def __iter__(self) -> Iterator[SharePartition]:
        return iter([share for _, share in self._by_key.values()])

    def get(self, key: SharePartitionKey, topic: str) -> SharePartition:
        """The share partition, which may be INITIALIZING. Raises NOT_LEADER_OR_FOLLOWER and the codes of a partition
        that is not here."""
        partition = self._replicas.get(topic, key.partition)
        partition.check_leader(-1)
        if partition.topic_id != key.topic_id:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
        found = self.find(key)
        if found is not None:
            return found
        self._drop_stale()
        epoch = partition.leader_epoch
        share = SharePartition(
            key,
            epoch,
            lambda: self.settings_of(key.group_id),
            self._persister,
            self._dead_letters,
            self._timers,
            self.now_ms,
            lambda: partition.is_leader and partition.leader_epoch == epoch,
        )
        self._by_key[key] = partition, share
        share.initialize(lambda: self._first_offset(partition, key.group_id))
        return share

    def explain_locks(self, group_id: str) -> dict[str, Any]:
        """The records of a group that are in flight, as JSON: ranges in the order of their offsets, the first of them
        where there are very many; `all` is how many there are."""
        now_ms, rows, count = self.now_ms(), list[dict[str, Any]](), 0
        for partition, share in self._by_key.values():
            if share.key.group_id != group_id or share.phase is not Phase.ACTIVE:
                continue
            runs = share.in_flight.runs
            count += len(runs)
            rows += [
                {
                    "topic": partition.topic_partition.topic,
                    "partition": share.key.partition,
                    "first_offset": run.first,
                    "last_offset": run.last,
                    "state": run.state.name.lower(),
                    "deliveries": run.count,
                    "member": run.member or None,
                    "lock_left_ms": max(0, run.deadline_ms - now_ms) if run.state is RecordState.ACQUIRED else None,
                }
                for run in runs[: max(0, _MOST_EXPLAINED - len(rows))]
            ]
        return {"all": count, "in_flight": rows}

    def find(self, key: SharePartitionKey) -> SharePartition | None:
        """The share partition, unless there is none, or one that serves no more."""
        found = self._by_key.get(key)
        if found is None:
            return None
        if self._is_stale(*found):
            self._drop(key)
            return None
        return found[1]

    def _is_stale(self, partition: Partition, share: SharePartition) -> bool:
        return (
            share.phase in (Phase.FAILED, Phase.FENCED)
            or not partition.is_leader
            or partition.leader_epoch != share.leader_epoch
        )

    def _drop_stale(self) -> None:
        """Of partitions that this broker has ceased to lead."""
        for key, found in list(self._by_key.items()):
            if self._is_stale(*found):
                self._drop(key)

    def _drop(self, key: SharePartitionKey) -> None:
        _, share = self._by_key.pop(key)
        share.end_as_fenced(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def _first_offset(self, partition: Partition, group_id: str) -> Pending[int]:
        """Where a group begins. Fails with OFFSET_NOT_AVAILABLE, where the end that clients see is not known yet."""
        first: Pending[int] = Pending()
        time, log = self._first_time_of(group_id), partition.log
        if time == EARLIEST:
            first.complete(log.log_start_offset)
            return first
        if partition.predecessor_hw_unknown:
            first.fail(ApiError(ErrorCode.OFFSET_NOT_AVAILABLE))
            return first
        end = partition.readable_end(False)
        if time == LATEST:
            first.complete(end)
            return first

        def found(results: list[TimestampOffset | ApiError | None]) -> int:
            (record,) = results
            if isinstance(record, ApiError):
                raise record
            return end if record is None else min(record.offset, end)

        return self._replicas.read_later([TimeSearch(log, time)]).and_then(found)
