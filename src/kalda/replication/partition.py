"""One replica of one partition: leadership, in-sync replicas, high watermark.

The leader appends and serves; a follower copies. The high watermark is the smallest log end among the in-sync
replicas: what is below it has survived as many failures as the in-sync set has members, and only that is shown to
consumers. It never goes back while a leader leads.

Where the topic asks for flushes (`flush.messages`), the leader counts its own log only as far as it is on disk: a
record is not committed before its fsync, so an acknowledgement survives a loss of power, as in Kafka, where the
append itself waits for the disk.

Invariants: `high_watermark <= log_end_offset`; a leader is a member of its ISR; `leader_epoch` and `partition_epoch`
never decrease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs
from kalda.storage.job import Job
from kalda.storage.log import AppendInfo, AppendOrigin, FetchInfo, Log

if TYPE_CHECKING:
    from kalda.replication.waiting import Waiter

NO_LEADER = -1


@dataclass(slots=True)
class RemoteReplica:
    """What a leader knows of a follower."""

    broker_id: int
    log_end_offset: int = -1
    log_start_offset: int = -1
    last_caught_up_ms: int = 0


class Partition:
    """A replica on this broker."""

    __slots__ = (
        "__weakref__",
        "_broker_id",
        "_flush_to",
        "_flushing",
        "_jobs",
        "isr",
        "leader_epoch",
        "leader_id",
        "log",
        "on_high_watermark",
        "partition_epoch",
        "remotes",
        "replicas",
        "topic_id",
        "topic_partition",
        "waiters",
    )

    def __init__(self, topic_partition: TopicPartition, topic_id: Uuid, broker_id: int, log: Log, jobs: Jobs) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.remotes: dict[int, RemoteReplica] = {}
        self.waiters: dict[Waiter, None] = {}
        self.on_high_watermark: Callable[[int], None] | None = None
        """A coordinator whose log this is; told after waiting requests are."""
        self._broker_id = broker_id
        self._jobs = jobs
        self._flush_to = 0
        self._flushing = False

    @property
    def is_leader(self) -> bool:
        """True where this replica leads."""
        return self.leader_id == self._broker_id

    def become_leader(
        self, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> None:
        """Lead, or take the news of a changed ISR while leading."""
        assert self._broker_id in isr, f"{self.topic_partition}: leader {self._broker_id} is not in its ISR {isr}"
        if leader_epoch > self.leader_epoch or not self.is_leader:
            self.log.assign_leader_epoch(leader_epoch, self.log.log_end_offset)
            self.remotes = {}
        for broker_id in replicas:
            if broker_id != self._broker_id:
                self.remotes.setdefault(broker_id, RemoteReplica(broker_id))
        for broker_id in [other for other in self.remotes if other not in replicas]:
            del self.remotes[broker_id]
        self._take(self._broker_id, leader_epoch, partition_epoch, replicas, isr)
        self._advance_high_watermark(0)

    def become_follower(
        self, leader_id: int, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> None:
        """Follow `leader_id`, or nobody while there is no leader. Whoever waits on this replica is sent away."""
        self._take(leader_id, leader_epoch, partition_epoch, replicas, isr)
        self.remotes = {}
        self.release_waiters()

    def _take(
        self, leader_id: int, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> None:
        assert leader_epoch >= self.leader_epoch, (
            f"{self.topic_partition}: epoch {leader_epoch} after {self.leader_epoch}"
        )
        self.leader_id, self.leader_epoch, self.partition_epoch = leader_id, leader_epoch, partition_epoch
        self.replicas, self.isr = replicas, isr

    def check_leader(self, current_leader_epoch: int) -> None:
        """Raise unless this replica leads, in the epoch that the client believes in; -1 is no belief (KIP-320)."""
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)
        if self.leader_id != self._broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- appending

    def append(
        self, records: bytearray | memoryview, acks: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Append one batch as leader. The in-sync minimum is checked before: too few, and nothing is written."""
        if self.leader_id != self._broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if acks == -1 and len(self.isr) < self.min_isr:
            raise ApiError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"The size of the current ISR {list(self.isr)} is insufficient to satisfy the min.isr requirement of "
                f"{self.min_isr} for partition {self.topic_partition}",
            )
        log = self.log
        info = log.append_as_leader(records, self.leader_epoch, now_ms, origin=origin)
        if log.flush_due:
            self._flush(log.log_end_offset)
        self._advance_high_watermark(len(records))
        return info

    @property
    def min_isr(self) -> int:
        """`min.insync.replicas`, which cannot ask for more replicas than there are."""
        return min(self.log.config.min_insync_replicas, max(1, len(self.replicas)))

    def committed(self, offset: int) -> bool:
        """True once everything below `offset` is committed."""
        return self.log.high_watermark >= offset

    def durable(self, offset: int) -> bool:
        """True once everything below `offset` is as durable as the topic asks for: flushed, where it wants flushes."""
        return offset > self._flush_to or self.log.recovery_point >= offset

    def _flush(self, offset: int) -> None:
        """Have everything below `offset` synced by a job; appends that come meanwhile share the next one."""
        self._flush_to = max(self._flush_to, offset)
        if not self._flushing:
            self._flushing = True
            job = self.log.flush_job(self._flush_to)
            self._jobs.run(job.run, lambda _, error: self._flushed(job, error))

    def _flushed(self, job: Job[None], error: BaseException | None) -> None:
        self._flushing = False
        try:
            if error is not None:
                self.log.on_io_error(error)
            job.finish()
        except (ApiError, OSError):
            # The log has told its keeper, and takes no more appends; nobody waits for what will not be durable.
            self.release_waiters()
            return
        if self.log.recovery_point < self._flush_to:
            self._flush(self._flush_to)
        self._advance_high_watermark(0)
        self.tell_waiters(0)

    def _local_end(self) -> int:
        """How far this replica counts towards the high watermark."""
        end = self.log.log_end_offset
        if self.log.recovery_point < self._flush_to:
            return min(end, self.log.recovery_point)
        return end

    def _advance_high_watermark(self, appended_bytes: int) -> None:
        if len(self.isr) == 1:
            target = self._local_end()
        else:
            target = min(
                self._local_end() if broker_id == self._broker_id else self.remotes[broker_id].log_end_offset
                for broker_id in self.isr
            )
        if target > self.log.high_watermark:
            self.log.update_high_watermark(target)
            if self.waiters:
                self.tell_waiters(appended_bytes)
            if self.on_high_watermark is not None:
                self.on_high_watermark(target)

    # -- reading

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one_message: bool) -> FetchInfo | None:
        """Read below `end_offset` from the page cache; None where only the disk knows (then `Log.read`, in a job)."""
        self.check_range(offset)
        return self.log.read_nowait(offset, max_bytes, end_offset, min_one_message)

    def check_range(self, offset: int) -> None:
        """Raise where the log does not have `offset`. Its end is in range: the next record will be there."""
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"Received request for offset {offset} for partition {self.topic_partition}, but we only have log "
                f"segments from offset {log.log_start_offset} up to {log.log_end_offset}.",
            )

    def readable_end(self, read_committed: bool) -> int:
        """The offset up to which a consumer may read."""
        return self.log.last_stable_offset if read_committed else self.log.high_watermark

    # -- waiting

    def tell_waiters(self, appended_bytes: int) -> None:
        """Tell whoever waits that the partition moved."""
        for waiter in list(self.waiters):
            waiter.on_moved(self, appended_bytes)

    def release_waiters(self) -> None:
        """Send everybody away: this replica no longer is what they waited for."""
        for waiter in list(self.waiters):
            waiter.leave()

    # -- deleting records

    def delete_records(self, offset: int) -> int:
        """Move the log start offset up to `offset` (-1: the high watermark). Returns the new low watermark."""
        self.check_leader(-1)
        config = self.log.config
        if not config.deletes and not config.remote_storage_enable:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION,
                f"Cannot delete records of {self.topic_partition}: its cleanup.policy is "
                f"{','.join(sorted(config.cleanup_policy))}, without delete",
            )
        target = self.log.high_watermark if offset == -1 else offset
        if target < 0 or target > self.log.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"The specified offset {target} of {self.topic_partition} is beyond its high watermark "
                f"{self.log.high_watermark}",
            )
        self.log.advance_log_start_offset(target)
        return self.log.log_start_offset
