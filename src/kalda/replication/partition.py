"""One replica of one partition: leadership, in-sync replicas, high watermark.

The leader appends and serves; a follower copies. The high watermark is the smallest log end among the in-sync
replicas: what is below it has survived as many failures as the in-sync set has members, and only that is shown to
consumers. It never goes back while a leader leads.

Where the topic asks for flushes (`flush.messages`), the leader counts its own log only as far as it is on disk: a
record is not committed before its fsync, so an acknowledgement survives a loss of power, as in Kafka, where the
append itself waits for the disk.

Invariants: `high_watermark <= log_end_offset`; a leader is a member of its ISR; `leader_epoch` and `partition_epoch`
never decrease. Below `min.insync.replicas` the high watermark stands still (KIP-966): what is committed has been in as
many logs as the topic asks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING

from kalda.base.disk import Buffer
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs
from kalda.base.sensors import Sensors
from kalda.replication.counters import ReplicaCounters
from kalda.replication.followers import FollowerState, IsrOutcome, IsrProposal, NoPeers, ReplicationPeers
from kalda.replication.in_sync import InSync
from kalda.storage.job import Job
from kalda.storage.log import AppendInfo, AppendOrigin, FetchInfo, Log, UnexpectedAppendOffset
from kalda.storage.truncating import start_within

if TYPE_CHECKING:
    from kalda.replication.waiting import Waiter

NO_LEADER = -1
_MAX_UNCOMMITTED = 1_000


class _FlushState(Enum):
    """What becomes of a wish to flush the log."""

    IDLE = auto()
    """a job begins at once"""
    RUNNING = auto()
    """one runs: the next begins when that is done"""
    HELD = auto()
    """none begins before the log has been replaced, or will not be"""


_IDLE = _FlushState.IDLE


class Partition:
    """A replica on this broker."""

    __slots__ = (
        "__weakref__",
        "_broker_id",
        "_cluster",
        "_counters",
        "_flush_to",
        "_flushes",
        "_jobs",
        "_uncommitted",
        "adding_replicas",
        "end_waiters",
        "in_sync",
        "leader_epoch",
        "leader_id",
        "log",
        "on_flushed",
        "on_high_watermark",
        "partition_epoch",
        "replicas",
        "topic_counters",
        "topic_id",
        "topic_partition",
        "waiters",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        broker_id: int,
        log: Log,
        jobs: Jobs,
        cluster: ReplicationPeers | None = None,
        counters: ReplicaCounters | None = None,
    ) -> None:
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.partition_epoch = -1
        self.replicas: tuple[int, ...] = ()
        self.adding_replicas: tuple[int, ...] = ()
        """Those of `replicas` that a reassignment adds: the partition is not under-replicated for want of them."""
        self._counters = ReplicaCounters(Sensors()) if counters is None else counters
        self.topic_counters = self._counters.add_partition(topic_partition.topic)
        self._cluster: ReplicationPeers = NoPeers() if cluster is None else cluster
        self.in_sync = InSync(broker_id, self._cluster)
        self.waiters: dict[Waiter, None] = {}
        """Requests that wait for the high watermark."""
        self.end_waiters: dict[Waiter, None] = {}
        """Requests that wait for the log's end: followers' fetches."""
        self.on_high_watermark: Callable[[int], None] | None = None
        """A coordinator whose log this is; told after waiting requests are."""
        self.on_flushed: Callable[[], None] | None = None
        """Told when a flush has made the whole log durable: a follower may fetch on."""
        self._broker_id = broker_id
        self._jobs = jobs
        self._flush_to = 0
        self._flushes = _IDLE
        self._uncommitted: deque[tuple[int, int]] = deque()
        """(end offset, size) of what was appended and is not committed, for those who wait for bytes."""

    def __str__(self) -> str:
        return str(self.topic_partition)

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas, as the controller has decided."""
        return self.in_sync.isr

    @property
    def is_leader(self) -> bool:
        """True where this replica leads."""
        return self.leader_id == self._broker_id

    def become_leader(
        self, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> None:
        """Lead, or take the news of a changed ISR while leading. What the controller has answered already, or what is
        older than that, is no news."""
        assert self._broker_id in isr, f"{self.topic_partition}: leader {self._broker_id} is not in its ISR {isr}"
        was_leader = self.is_leader
        new_epoch = leader_epoch > self.leader_epoch
        if partition_epoch < self.partition_epoch or (
            was_leader and not new_epoch and partition_epoch == self.partition_epoch
        ):
            return
        # In an epoch between, which this replica has not heard of, followers may have cut back to another leader's log.
        led_before = was_leader and leader_epoch == self.leader_epoch + 1
        in_sync, end = self.in_sync, self.log.log_end_offset
        if new_epoch or not was_leader:
            self.log.assign_leader_epoch(leader_epoch, end)
        in_sync.set_isr(isr)
        in_sync.lead(replicas)
        if new_epoch or not was_leader:
            in_sync.start_epoch(end, keep_offsets=led_before)
        self._set_leadership(self._broker_id, leader_epoch, partition_epoch, replicas)
        if new_epoch or not was_leader:
            self._finish_all(self.end_waiters)
        if self.log.flush_due:
            # Read back after an unclean stop, but perhaps not on disk yet: not committed before it is.
            self._flush(self.log.log_end_offset)
        self._advance_high_watermark()

    def become_follower(
        self, leader_id: int, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> None:
        """Follow `leader_id`, or nobody while there is no leader. Whoever waits on this replica is sent away."""
        if partition_epoch < self.partition_epoch:
            return
        self._set_leadership(leader_id, leader_epoch, partition_epoch, replicas)
        self.in_sync.set_isr(isr)
        self.in_sync.follow()
        self.finish_waiters()

    def _set_leadership(
        self, leader_id: int, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...]
    ) -> None:
        assert leader_epoch >= self.leader_epoch, (
            f"{self.topic_partition}: epoch {leader_epoch} after {self.leader_epoch}"
        )
        self.leader_id, self.leader_epoch, self.partition_epoch = leader_id, leader_epoch, partition_epoch
        self.replicas = replicas

    def check_leader(self, current_leader_epoch: int) -> None:
        """Raise unless this replica leads, in the epoch that the client believes in; -1 is no belief (KIP-320)."""
        if current_leader_epoch != -1 and current_leader_epoch != self.leader_epoch:
            self.check_epoch(current_leader_epoch)
        if self.leader_id != self._broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise unless this replica leads or follows in the epoch that the client believes in."""
        if current_leader_epoch != -1 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # -- appending

    def append(
        self, records: bytearray | memoryview, acks: int, now_ms: int, origin: AppendOrigin = AppendOrigin.CLIENT
    ) -> AppendInfo:
        """Append one batch as leader. The in-sync minimum is checked before: too few, and nothing is written."""
        if self.leader_id != self._broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        log = self.log
        if acks == -1:
            isr = self.in_sync.isr
            if len(isr) < log.config.min_insync_replicas and len(isr) < self.min_isr:
                raise ApiError(
                    ErrorCode.NOT_ENOUGH_REPLICAS,
                    f"The size of the current ISR {list(isr)} is insufficient to satisfy the min.isr requirement of "
                    f"{self.min_isr} for partition {self.topic_partition}",
                )
        info = log.append_as_leader(records, self.leader_epoch, now_ms, origin)
        if log.flush_due:
            self._flush(log.log_end_offset)
        if self.in_sync.followers:
            self._on_appended(len(records))
        elif log.recovery_point < self._flush_to:
            self._move_high_watermark(self._local_end(), len(records))
        else:
            self._move_high_watermark(log.log_end_offset, len(records))
        return info

    def _on_appended(self, size: int) -> None:
        """Records are at the end of a log that others copy: tell those who wait for the end."""
        self._note_uncommitted(size)
        if len(self.in_sync.maximal) == 1:
            self._advance_high_watermark()
        if self.end_waiters:
            for waiter in list(self.end_waiters):
                waiter.on_moved(self, size)

    def _note_uncommitted(self, size: int) -> None:
        uncommitted = self._uncommitted
        if len(uncommitted) >= _MAX_UNCOMMITTED:
            size += uncommitted.pop()[1]
        uncommitted.append((self.log.log_end_offset, size))

    @property
    def min_isr(self) -> int:
        """`min.insync.replicas`, which cannot ask for more replicas than there are."""
        return min(self.log.config.min_insync_replicas, max(1, len(self.replicas)))

    def is_committed(self, offset: int) -> bool:
        """True once everything below `offset` is committed."""
        return self.log.high_watermark >= offset

    def is_durable(self, offset: int) -> bool:
        """True once everything below `offset` is as durable as the topic asks for: flushed, where it wants flushes."""
        return offset > self._flush_to or self.log.recovery_point >= offset

    def _flush(self, offset: int) -> None:
        """Have everything below `offset` synced by a job; appends that come meanwhile share the next one."""
        self._flush_to = max(self._flush_to, offset)
        if self._flushes is _IDLE:
            job = self.log.flush_job(self._flush_to)
            self._flushes = _FlushState.RUNNING
            self._jobs.run(job.run, lambda _, error: self._flushed(job, error))

    def _flushed(self, job: Job[None], error: BaseException | None) -> None:
        self._flushes = _IDLE
        try:
            if error is not None:
                self.log.on_io_error(error)
            job.finish()
            # What was truncated meanwhile owes the disk nothing.
            self._flush_to = min(self._flush_to, self.log.log_end_offset)
            if self.log.recovery_point < self._flush_to:
                self._flush(self._flush_to)
        except (ApiError, OSError):
            # The log has told its keeper, and takes no more appends; nobody waits for what will not be durable.
            self.finish_waiters()
            return
        if self.log.recovery_point >= self._flush_to and self.on_flushed is not None:
            self.on_flushed()
        if self.is_leader:
            self._advance_high_watermark()
        self.notify_waiters(0)

    def hold_flushes(self) -> bool:
        """Let no flush begin, so that the log can be replaced by one that is as durable; false while one runs. Records
        that must be flushed are not committed meanwhile."""
        if self._flushes is not _IDLE:
            return False
        self._flushes = _FlushState.HELD
        return True

    def release_flushes(self, log: Log | None = None) -> None:
        """Flush again, and from now on in `log`, where that has taken the place of the log."""
        self._flushes = _IDLE
        if log is not None:
            self.log = log
        if self.log.offline:
            return
        if self.log.recovery_point < self._flush_to:
            self._flush(self._flush_to)
        elif self.on_flushed is not None:
            self.on_flushed()

    def _local_end(self) -> int:
        """How far this replica counts towards the high watermark."""
        end = self.log.log_end_offset
        if self.log.recovery_point < self._flush_to:
            return min(end, self.log.recovery_point)
        return end

    def _advance_high_watermark(self) -> None:
        """As a leader, look anew at what is committed."""
        in_sync = self.in_sync
        if len(in_sync.isr) < self.min_isr:
            return
        target = self._local_end()
        if in_sync.followers:
            target = in_sync.committed_end(target, self.log.log_end_offset)
        self._move_high_watermark(target, 0)

    def _move_high_watermark(self, target: int, appended_bytes: int) -> None:
        """Forward, where `target` is that; whoever waits for it is told."""
        log = self.log
        if target > log.high_watermark:
            log.update_high_watermark(target)
            uncommitted = self._uncommitted
            while uncommitted and uncommitted[0][0] <= target:
                appended_bytes += uncommitted.popleft()[1]
            if self.waiters:
                self.notify_waiters(appended_bytes)
            # One of the waiters may have led to a further advance, which has been reported already.
            if self.on_high_watermark is not None and log.high_watermark == target:
                self.on_high_watermark(target)

    # -- leading others

    def on_follower_fetch(
        self, broker_id: int, broker_epoch: int, offset: int, log_start_offset: int, epoch_known: bool
    ) -> None:
        """A follower has everything below `offset`. Raises `ApiError` for one that is none, or an old incarnation.
        `epoch_known`: it has named this leader's epoch, so it is this broker whose metadata lags behind."""
        follower = self.in_sync.followers.get(broker_id)
        if follower is None:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH if epoch_known else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        before, start_before = follower.log_end_offset, follower.log_start_offset
        end = self.log.log_end_offset
        follower.on_fetch(offset, log_start_offset, broker_epoch, end, self._cluster.now_ms())
        if broker_id not in self.in_sync.isr:
            self._maybe_expand(follower)
        if before != offset:
            self._advance_high_watermark()
        if start_before != log_start_offset and self.waiters:
            self.notify_waiters(0)

    def is_idle_follower(
        self, broker_id: int, broker_epoch: int, offset: int, leader_epoch: int, note_ms: int | None
    ) -> bool:
        """Whether a follower in the ISR that fetches what it fetched before, in this leader epoch, has everything
        still. Its fetch is noted as of `note_ms`, where that is given."""
        in_sync = self.in_sync
        if (
            self.log.log_end_offset != offset
            or self.leader_epoch != leader_epoch
            or self.leader_id != self._broker_id
            or broker_id not in in_sync.isr
        ):
            return False
        follower = in_sync.followers.get(broker_id)
        if follower is None or follower.broker_epoch != broker_epoch or follower.log_end_offset != offset:
            return False
        if note_ms is not None:
            follower.on_idle_fetch(offset, note_ms)
        return True

    def _maybe_expand(self, follower: FollowerState) -> None:
        if self.in_sync.may_join(follower, self.log.high_watermark):
            self._propose((*self.in_sync.isr, follower.broker_id))

    def shrink_isr(self) -> None:
        """Propose an ISR without those who do not keep pace. Looked at every half of `replica.lag.time.max.ms`."""
        if self.is_leader and (gone := self.in_sync.laggards(self.log.log_end_offset)):
            self._propose(tuple(broker_id for broker_id in self.in_sync.isr if broker_id not in gone))

    def _propose(self, isr: tuple[int, ...]) -> None:
        broker_epoch = self._cluster.eligible_epoch(self._broker_id)
        proposal = self.in_sync.propose(
            isr, -1 if broker_epoch is None else broker_epoch, self.leader_epoch, self.partition_epoch
        )

        def answered(outcome: IsrOutcome) -> None:
            if self.in_sync.proposal is proposal and self.is_leader and self.leader_epoch == proposal.leader_epoch:
                self._on_isr_outcome(proposal, outcome)

        self._cluster.propose(self.topic_partition, self.topic_id, proposal, answered)

    def _on_isr_outcome(self, proposal: IsrProposal, outcome: IsrOutcome) -> None:
        """Refused for good, the proposal is void. Refused for another reason, the metadata that comes will tell: until
        then the larger ISR counts."""
        if outcome.error is not ErrorCode.NONE:
            self._counters.failed_isr_updates.value += 1
        if outcome.error is ErrorCode.NONE:
            if outcome.leader_epoch != self.leader_epoch or outcome.partition_epoch < self.partition_epoch:
                return
            counters = self._counters
            (counters.isr_expands if proposal.grows else counters.isr_shrinks).value += 1
            self.in_sync.set_isr(outcome.isr)
            self.partition_epoch = outcome.partition_epoch
        elif outcome.error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED):
            self.in_sync.withdraw()
        else:
            return
        self._advance_high_watermark()

    @property
    def predecessor_hw_unknown(self) -> bool:
        """True in a new leader until its high watermark has reached where its epoch began: its predecessor may have
        committed more than this one knows of."""
        return self.in_sync.epoch_start > self.log.high_watermark

    @property
    def is_under_replicated(self) -> bool:
        """Led here, with fewer replicas in sync than there are, those not counted that a reassignment adds."""
        return self.is_leader and len(self.in_sync.isr) < len(self.replicas) - len(self.adding_replicas)

    @property
    def is_under_min_isr(self) -> bool:
        """Led here, with fewer replicas in sync than `min.insync.replicas`."""
        return self.is_leader and len(self.in_sync.isr) < self.min_isr

    @property
    def is_at_min_isr(self) -> bool:
        """Led here, with exactly as many replicas in sync as `min.insync.replicas`."""
        return self.is_leader and len(self.in_sync.isr) == self.min_isr

    @property
    def has_enough_replicas(self) -> bool:
        """Whether the in-sync minimum holds, counting those who may be members already."""
        return len(self.in_sync.maximal) >= self.min_isr

    def on_config(self) -> None:
        """The topic's configs changed: its in-sync minimum may be another."""
        if self.is_leader:
            self._advance_high_watermark()

    # -- following

    def append_as_follower(self, records: Buffer, leader_epoch: int, high_watermark: int, leader_log_start: int) -> int:
        """Take what the leader sent: records, its high watermark, its log start offset. Returns the bytes appended.
        Raises `CorruptRecord`, `UnexpectedAppendOffset`, and `ApiError` where the disk fails."""
        log = self.log
        size = 0
        if len(records):
            size = self._append_fetched(records, leader_epoch)
            self._counters.replication_bytes_in.value += size
            if log.flush_due:
                self._flush(log.log_end_offset)
        # What was committed stays so, though a new leader may not know it yet.
        target = min(high_watermark, log.log_end_offset)
        if size and self.waiters:
            self._note_uncommitted(size)
        self._move_high_watermark(target, 0)
        if leader_log_start > log.log_start_offset:
            log.advance_log_start_offset(min(leader_log_start, log.high_watermark))
        return size

    def _append_fetched(self, records: Buffer, leader_epoch: int) -> int:
        log = self.log
        try:
            return log.append_as_follower(records, leader_epoch).size_bytes
        except UnexpectedAppendOffset as error:
            end = log.log_end_offset
            if log.log_start_offset == end and error.first_offset < end <= error.last_offset:
                return start_within(log, records, leader_epoch, error).size_bytes
            raise

    @property
    def may_fetch(self) -> bool:
        """A follower that owes the disk a flush does not report records that it could still lose."""
        return self._flushes is _IDLE

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

    def notify_waiters(self, appended_bytes: int) -> None:
        """Tell whoever waits that the partition moved."""
        for waiter in list(self.waiters):
            waiter.on_moved(self, appended_bytes)

    def finish_waiters(self) -> None:
        """Send everybody away: this replica no longer is what they waited for."""
        self._uncommitted.clear()
        self._finish_all(self.waiters)
        self._finish_all(self.end_waiters)

    def _finish_all(self, waiters: dict[Waiter, None]) -> None:
        for waiter in list(waiters):
            waiter.complete()

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
        self._finish_all(self.end_waiters)
        return self.low_watermark

    @property
    def low_watermark(self) -> int:
        """The smallest log start offset among the living replicas: nothing below is served anywhere."""
        low = self.log.log_start_offset
        for broker_id, follower in self.in_sync.followers.items():
            if follower.log_start_offset < low and (
                broker_id in self.in_sync.isr or self._cluster.eligible_epoch(broker_id) is not None
            ):
                low = follower.log_start_offset
        return low

    def is_deleted(self, offset: int) -> bool:
        """True once no living replica serves anything below `offset`."""
        return self.low_watermark >= offset
