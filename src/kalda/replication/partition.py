"""One replica of one partition: leadership, in-sync replicas, high watermark.

The leader appends and serves; a follower copies. The high watermark is the smallest log end among the in-sync
replicas: a record below it is in the log of every member of the ISR, and only such records are shown to consumers.
While a leader leads, its high watermark does not decrease.

Where the topic's `flush.messages` asks for flushes, the leader counts its own log only as far as it is on disk: a
record is not committed before its fsync, so an acknowledgement survives a loss of power, as in Kafka, where the
append itself waits for the disk.

Invariants: `log_start_offset <= high_watermark <= log_end_offset`, at every moment that a callback can run; a leader is
a member of its ISR; `leader_epoch` and `partition_epoch` never decrease. While the ISR is smaller than
`min.insync.replicas`, the high watermark does not advance (KIP-966): a committed record has been in as many logs as the
topic asks for.

A driver: it answers waiting requests, reports its high watermark and starts jobs, and all of these may call it back
before its own call returns. So each method completes its state before it calls out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from kalda.base.disk import Buffer
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs
from kalda.base.sensors import Sensors
from kalda.records.validation import Inspection
from kalda.replication.counters import DelayedOperation, ReplicaCounters
from kalda.replication.followers import FollowerState, InSync, IsrOutcome, IsrProposal, NoPeers, ReplicationPeers
from kalda.storage.job import Job
from kalda.storage.log.deletion import append_fetched
from kalda.storage.log.log import Log
from kalda.storage.log.producer_state import Verification
from kalda.storage.log.reads import RecentAppends
from kalda.storage.log.snapshot_jobs import SnapshotJob
from kalda.storage.values import AppendInfo, AppendOrigin, FetchInfo

NO_LEADER = -1
_MAX_UNCOMMITTED = 1_000
"""Appends that are remembered one by one until they are committed; beyond that the last ones share an entry."""


class _FlushState(Enum):
    """Whether a flush of the log begins when one is due."""

    IDLE = auto()
    """Its job begins at once."""
    RUNNING = auto()
    """A job runs: the next one begins when that is finished."""
    HELD = auto()
    """No job begins until `release_flushes`: the log may be replaced by a copy."""


_IDLE = _FlushState.IDLE


class PartitionWaiter(Protocol):
    """A request that waits for partitions to advance (`waiters.py`)."""

    operation: DelayedOperation

    def on_moved(self, partition: Partition, appended_bytes: int) -> None:
        """A watched partition has advanced; `appended_bytes` became readable."""
        ...

    def complete(self) -> None:
        """Nothing that it waits for will come any more: answer."""
        ...


class Partition:
    """A replica on this broker; leader, follower, or neither while the partition has no leader."""

    __slots__ = (
        "__weakref__",
        "_broker_id",
        "_cluster",
        "_counters",
        "_flush_to",
        "_flushes",
        "_jobs",
        "_recent",
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
        recent: RecentAppends | None = None,
    ) -> None:
        """`recent`: where a leader keeps large batches for its followers; None for nowhere."""
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.log = log
        """Replaced where the replica moves to another log directory."""
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        """Of the leader; every change of leader increments it."""
        self.partition_epoch = -1
        """Every change of the partition's metadata increments it, ISR changes included. Metadata of an older one is
        ignored."""
        self.replicas: tuple[int, ...] = ()
        """Broker ids of all replicas, this one included."""
        self.adding_replicas: tuple[int, ...] = ()
        """Those of `replicas` that a reassignment adds: the partition is not under-replicated for want of them."""
        self._counters = ReplicaCounters(Sensors()) if counters is None else counters
        """Of the broker."""
        self.topic_counters = self._counters.add_partition(topic_partition.topic)
        self._cluster: ReplicationPeers = NoPeers() if cluster is None else cluster
        self.in_sync = InSync(broker_id, self._cluster)
        """The ISR, and the leader's view of its followers."""
        self.waiters: dict[PartitionWaiter, None] = {}
        """Requests that wait for the high watermark, the log start offset or a flush."""
        self.end_waiters: dict[PartitionWaiter, None] = {}
        """Requests that wait for the log end offset: followers' fetches."""
        self.on_high_watermark: Callable[[int], None] | None = None
        """Called with each new high watermark, after waiting requests have been answered: for the coordinator whose
        log this is."""
        self.on_flushed: Callable[[], None] | None = None
        """Called when all that had to be flushed is on disk: a follower may fetch again."""
        self._broker_id = broker_id
        self._jobs = jobs
        self._recent = recent
        self._flush_to = 0
        """Everything below this offset must be on disk before it counts as committed."""
        self._flushes = _IDLE
        self._uncommitted: deque[tuple[int, int]] = deque()
        """(end offset, size in bytes) of appends that are not committed yet, oldest first: waiting fetches count bytes
        when they are committed."""

    def __str__(self) -> str:
        return str(self.topic_partition)

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas that the controller has decided on last."""
        return self.in_sync.isr

    @property
    def is_leader(self) -> bool:
        """True where this replica leads."""
        return self.leader_id == self._broker_id

    def become_leader(
        self, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> None:
        """Lead in a new epoch, or adopt a changed ISR or replica set in the same one. Metadata whose partition epoch is
        not newer than what an AlterPartition response has brought already changes nothing."""
        assert self._broker_id in isr, f"{self.topic_partition}: leader {self._broker_id} is not in its ISR {isr}"
        assert self._broker_id in replicas, f"{self.topic_partition}: leader {self._broker_id} is none of {replicas}"
        was_leader = self.is_leader
        new_epoch = leader_epoch > self.leader_epoch
        if partition_epoch < self.partition_epoch or (
            was_leader and not new_epoch and partition_epoch == self.partition_epoch
        ):
            return
        # Where an epoch lies between, another leader's, followers may have truncated to that leader's log.
        led_previous_epoch = was_leader and leader_epoch == self.leader_epoch + 1
        if new_epoch or not was_leader:
            self.log.unblock()  # a truncation that is under way has still to move the log's end
        in_sync, end = self.in_sync, self.log.log_end_offset
        if new_epoch or not was_leader:
            self.log.assign_leader_epoch(leader_epoch, end)
        in_sync.set_isr(isr)
        in_sync.lead(replicas)
        if new_epoch or not was_leader:
            in_sync.start_epoch(end, keep_offsets=led_previous_epoch)
        self._set_leadership(self._broker_id, leader_epoch, partition_epoch, replicas)
        if new_epoch or not was_leader:
            self._finish_all(self.end_waiters)
        if self.log.flush_due:
            # Records recovered after an unclean stop may be in the page cache only: not committed before a flush.
            self._flush(self.log.log_end_offset)
        elif self.log.recovery_point < self._flush_to:
            # Cut off and written anew since it was flushed, as a follower: it would not count until the next flush.
            self._flush(self._flush_to)
        self._advance_high_watermark()

    def become_follower(
        self, leader_id: int, leader_epoch: int, partition_epoch: int, replicas: tuple[int, ...], isr: tuple[int, ...]
    ) -> None:
        """Follow `leader_id`, or no broker while there is no leader. Waiting requests are answered."""
        assert leader_id != self._broker_id, f"{self.topic_partition} would follow itself"
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
        self.log.keep_recent(self._recent if self.is_leader and len(replicas) > 1 else None)

    def check_leader(self, current_leader_epoch: int) -> None:
        """Raise unless this replica leads, and in the epoch that the request names; -1 names none (KIP-320)."""
        if current_leader_epoch != -1 and current_leader_epoch != self.leader_epoch:
            self.check_epoch(current_leader_epoch)
        if self.leader_id != self._broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Raise unless this replica leads or follows in the epoch that the request names; -1 names none."""
        if current_leader_epoch != -1 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                raise ApiError(ErrorCode.FENCED_LEADER_EPOCH)
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH)

    # -- appending

    def append(
        self,
        records: bytearray | memoryview,
        acks: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        inspection: Inspection | None = None,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append one batch as leader. Nothing is written where `acks` is -1 and the ISR is smaller than
        `min.insync.replicas`. Raises as `Log.append_as_leader` does, which takes the last three."""
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
        info = log.append_as_leader(
            records, self.leader_epoch, now_ms, origin, verification, transaction_version, inspection
        )
        if log.flush_due:
            self._flush(log.log_end_offset)
        if self.in_sync.followers:
            self._on_appended(len(records))
        elif log.recovery_point < self._flush_to:
            self._move_high_watermark(self._local_end(), len(records))
        else:
            self._move_high_watermark(log.log_end_offset, len(records))
        return info

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool
    ) -> Verification | None:
        """As `Log.start_verification`, as leader."""
        if self.leader_id != self._broker_id:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.log.start_verification(
            producer_id, sequence, epoch, now_ms, supports_epoch_bump=supports_epoch_bump
        )

    def _on_appended(self, size: int) -> None:
        """Records have been appended to a log that has followers."""
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
        """`min.insync.replicas`, or the number of replicas where that is smaller."""
        return min(self.log.config.min_insync_replicas, max(1, len(self.replicas)))

    def is_committed(self, offset: int) -> bool:
        """True once everything below `offset` is committed."""
        return self.log.high_watermark >= offset

    def is_durable(self, offset: int) -> bool:
        """True once everything below `offset` is on disk; always, where the topic asks for no flushes."""
        return offset > self._flush_to or self.log.recovery_point >= offset

    def _flush(self, offset: int) -> None:
        """Sync everything below `offset` in a job; appends that come while it runs share the next one."""
        self._flush_to = max(self._flush_to, offset)
        if self._flushes is _IDLE:
            job = self.log.flush_job(self._flush_to, is_promised=True)
            self._flushes = _FlushState.RUNNING
            self._jobs.run(job.run, lambda _, error: self._flushed(job, error))

    def _flushed(self, job: Job[None], error: BaseException | None) -> None:
        self._flushes = _IDLE
        try:
            if isinstance(error, OSError):
                self.log.failed(error)
            job.finish()
            # What was truncated meanwhile need not be flushed.
            self._flush_to = min(self._flush_to, self.log.log_end_offset)
            if self.log.recovery_point < self._flush_to:
                self._flush(self._flush_to)
        except (ApiError, OSError):
            # The log has reported its failure and takes no more appends: what is waited for will never be durable.
            self.finish_waiters()
            return
        if self.log.recovery_point >= self._flush_to and self.on_flushed is not None:
            self.on_flushed()
        if self.is_leader:
            self._advance_high_watermark()
        self.notify_waiters(0)

    def hold_flushes(self) -> bool:
        """Begin no flush until `release_flushes`, so that the log can be replaced by a copy that is as durable. False,
        and without effect, while a flush runs. Records that must be flushed are not committed meanwhile."""
        if self._flushes is not _IDLE:
            return False
        self._flushes = _FlushState.HELD
        return True

    def release_flushes(self) -> None:
        """Begin flushes again, of the log that there is now."""
        self._flushes = _IDLE
        if self.log.offline:
            return
        if self.log.recovery_point < self._flush_to:
            self._flush(self._flush_to)
        elif self.on_flushed is not None:
            self.on_flushed()

    def _local_end(self) -> int:
        """Up to where this leader's own log counts towards the high watermark."""
        end = self.log.log_end_offset
        if self.log.recovery_point < self._flush_to:
            return min(end, self.log.recovery_point)
        return end

    def _advance_high_watermark(self) -> None:
        """As a leader, compute the high watermark anew."""
        in_sync = self.in_sync
        if len(in_sync.isr) < self.min_isr:
            return
        target = self._local_end()
        if in_sync.followers:
            target = in_sync.committed_end(target, self.log.log_end_offset)
        self._move_high_watermark(target, 0)

    def _move_high_watermark(self, target: int, appended_bytes: int) -> None:
        """Advance the high watermark to `target`, where that is greater, and notify waiting requests. `appended_bytes`
        are readable with it, besides those of appends remembered as uncommitted."""
        log = self.log
        if target > log.high_watermark:
            assert target <= log.log_end_offset, f"{self.topic_partition}: {target} is committed of {log.describe()}"
            log.update_high_watermark(target)
            uncommitted = self._uncommitted
            while uncommitted and uncommitted[0][0] <= target:
                appended_bytes += uncommitted.popleft()[1]
            if self.waiters:
                self.notify_waiters(appended_bytes)
            # A waiter may have led to a further advance, which has been reported already.
            if self.on_high_watermark is not None and log.high_watermark == target:
                self.on_high_watermark(target)

    # -- leading others

    def follower(self, broker_id: int, epoch_known: bool) -> FollowerState:
        """What is known of a follower. Raises `ApiError` for a broker that is no replica; `epoch_known`: as of
        `on_follower_fetch`."""
        follower = self.in_sync.followers.get(broker_id)
        if follower is None:
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH if epoch_known else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return follower

    def on_follower_fetch(
        self, broker_id: int, broker_epoch: int, offset: int, log_start_offset: int, epoch_known: bool
    ) -> None:
        """Note that a follower has everything below `offset`. Raises `ApiError` for a broker that is no replica, or for
        an old incarnation of one. `epoch_known`: the fetch names this leader's epoch, so of the two brokers it is this
        one whose metadata lags behind."""
        follower = self.follower(broker_id, epoch_known)
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
        """Whether a follower that fetches from `offset` again is in the ISR and still has the whole log, in the same
        leader epoch. If so, and with `note_ms`, its fetch is noted as of that time."""
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
        """As a leader, propose an ISR without members that do not keep pace. Called twice in every
        `replica.lag.time.max.ms`."""
        if self.is_leader and (laggards := self.in_sync.laggards(self.log.log_end_offset)):
            self._propose(tuple(broker_id for broker_id in self.in_sync.isr if broker_id not in laggards))

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
        """Adopt the ISR that the controller has decided on, or withdraw the proposal where it is refused and cannot
        take effect later. After any other error it may have taken effect: the larger ISR counts until the metadata
        shows which one the controller has.

        Of a smaller ISR, too, the metadata decides. `min.insync.replicas` may have been raised before it: then the
        controller counts on those that have left (KIP-966), and nothing may be committed without them by the minimum
        that this broker still has. The metadata brings the new minimum first."""
        if outcome.error is not ErrorCode.NONE:
            self._counters.failed_isr_updates.value += 1
        if outcome.error is ErrorCode.NONE:
            if outcome.leader_epoch != self.leader_epoch or outcome.partition_epoch < self.partition_epoch:
                return
            counters = self._counters
            (counters.isr_expands if proposal.grows else counters.isr_shrinks).value += 1
            if not proposal.grows and outcome.partition_epoch > self.partition_epoch:
                return
            self.in_sync.set_isr(outcome.isr)
            self.partition_epoch = outcome.partition_epoch
        elif outcome.error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED):
            self.in_sync.withdraw()
        else:
            return
        self._advance_high_watermark()

    @property
    def predecessor_hw_unknown(self) -> bool:
        """True in a new leader until its high watermark has reached the log end at which its epoch began: until then
        the high watermark of its predecessor may have been greater."""
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
        """Whether the ISR has `min.insync.replicas` members, counting a proposed one, which may be a member already."""
        return len(self.in_sync.maximal) >= self.min_isr

    def on_config(self) -> None:
        """The topic's configs have changed: with another `min.insync.replicas` the high watermark may advance."""
        if self.is_leader:
            self._advance_high_watermark()

    # -- following

    def append_as_follower(self, records: Buffer, leader_epoch: int, high_watermark: int, leader_log_start: int) -> int:
        """Append the leader's records, and adopt its high watermark and log start offset as far as the log reaches.
        Returns the bytes appended. Raises `CorruptRecord`, `UnexpectedAppendOffset`, and `ApiError` where the disk
        fails."""
        assert not self.is_leader, f"{self.topic_partition} is led here, and gets records of a leader"
        log = self.log
        size = 0
        if len(records):
            size = append_fetched(log, records, leader_epoch).size_bytes
            self._counters.replication_bytes_in.value += size
            if self._broker_id in self.adding_replicas:
                self._counters.reassignment_bytes_in.value += size
            if log.flush_due:
                self._flush(log.log_end_offset)
        # The high watermark does not decrease, although that of a new leader may be behind for a moment.
        target = min(high_watermark, log.log_end_offset)
        if size and self.waiters:
            self._note_uncommitted(size)
        self._move_high_watermark(target, 0)
        if leader_log_start > log.log_start_offset:
            log.advance_log_start_offset(min(leader_log_start, log.high_watermark))
        return size

    @property
    def may_fetch(self) -> bool:
        """False while a flush is due or held up: a fetch would report records as replicated that a loss of power could
        still take."""
        return self._flushes is _IDLE

    # -- reading

    def read(
        self, offset: int, max_bytes: int, end_offset: int, min_one_message: bool, slices: Jobs | None = None
    ) -> FetchInfo | SnapshotJob[FetchInfo]:
        """Read below `end_offset`, as `Log.read_nowait` does."""
        self.check_range(offset)
        return self.log.read_nowait(offset, max_bytes, end_offset, min_one_message, slices)

    def check_range(self, offset: int) -> None:
        """Raise where the log does not have `offset`. The log end offset is in range: the next record will have it."""
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
        """Notify requests that wait for the high watermark; `appended_bytes` have become readable."""
        for waiter in list(self.waiters):
            waiter.on_moved(self, appended_bytes)

    def finish_waiters(self) -> None:
        """Answer all waiting requests: this replica's role has changed, or the replica is removed."""
        self._uncommitted.clear()
        self._finish_all(self.waiters)
        self._finish_all(self.end_waiters)

    def _finish_all(self, waiters: dict[PartitionWaiter, None]) -> None:
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
        """The smallest log start offset among the ISR and the other replicas that are not fenced: nothing below it is
        served by any of them."""
        low = self.log.log_start_offset
        for broker_id, follower in self.in_sync.followers.items():
            if follower.log_start_offset < low and (
                broker_id in self.in_sync.isr or self._cluster.eligible_epoch(broker_id) is not None
            ):
                low = follower.log_start_offset
        return low

    def is_deleted(self, offset: int) -> bool:
        """True once no replica counted in `low_watermark` serves anything below `offset`."""
        return self.low_watermark >= offset
