"""Moves replicas between this broker's log directories (KIP-113, KIP-858): AlterReplicaLogDirs.

A replica is copied into a future log in the target directory, batch by batch as a follower would, while it goes on to
lead or to follow. Once the copy has caught up and is on disk, the new directory is reported to the controller. Once the
controller has recorded it, and the copy has caught up again and is as durable as the log, the copy takes the place of
the log. So a directory that fails afterwards takes the replica along in the controller's metadata too.

Reads for the copy run as jobs of bounded size, for a bounded number of moves at a time. Whatever syncs the copy is a
job too, also where the copy is cut back because the log was. The last piece is read from the page cache in the step in
which the copy takes the place of the log. A move ends early where one of the disks fails, or where the replica leaves
this broker; if the new directory has been reported by then, the old one is reported again.

A driver: steps are taken in a `Reentrancy`, because a job may finish, and a report be recorded, before the call that
started it returns.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from math import ceil

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Reentrancy, Timer, Timers
from kalda.base.stats import MetricConfig, SimpleRate
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import RETRY_MS, ReplicaManager
from kalda.storage.dirs.future_logs import future_name_fits
from kalda.storage.dirs.log_dirs import LogDir
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.job import Job
from kalda.storage.log.deletion import (
    append_fetched,
    begin_truncation,
    start_truncations,
    truncate_fully_and_start_at,
)
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import run_snapshot
from kalda.storage.values import FetchInfo, UnexpectedAppendOffset

log = logging.getLogger("kalda.moves")

_BATCH_BYTES = 1 << 20
_TAIL_BYTES = 1 << 18
_PAUSE_MS = 20
_LONGEST_HOLD_MS = 5_000
_MAX_FAILURES = 10

Assign = Callable[[Uuid, int, Uuid, Callable[[], None]], None]
"""Report a directory to the controller: (topic id, partition, directory, what to call once it is recorded)."""


class _State(Enum):
    """In this order; only from `HOLDING` does a move go back, to `RECORDED`, where that takes too long."""

    COPYING = auto()
    SYNCED = auto()
    """What the copy held when it first caught up is on disk, and so is every name in its directory."""
    REPORTED = auto()
    """The new directory has been reported to the controller."""
    RECORDED = auto()
    """The controller has recorded it."""
    HOLDING = auto()
    """The partition's flushes are held up, so that the copy can become as durable as the log."""


class _Move:
    """The move of one replica."""

    __slots__ = ("current_dir_id", "failures", "future", "held_since_ms", "partition", "state", "target")

    def __init__(self, partition: Partition, future: Log, target: LogDir, current_dir_id: Uuid | None) -> None:
        self.partition = partition
        self.future = future
        """The copy."""
        self.target = target
        """Where the copy is."""
        self.current_dir_id = current_dir_id
        """Of the directory where the log is; None where that has no id."""
        self.state = _State.COPYING
        self.failures = 0
        """Failed steps since the last successful append."""
        self.held_since_ms = 0
        """Set in `HOLDING`."""

    @property
    def is_caught_up(self) -> bool:
        return self.future.log_end_offset == self.partition.log.log_end_offset


class DirMoves:
    """All moves of one broker. Invariants: a replica has one move at most; a move is in `_ready` at most once; a move
    that is neither in `_ready` nor has a job running waits for the controller."""

    def __init__(
        self,
        replicas: ReplicaManager,
        logs: LogManager,
        jobs: Jobs,
        timers: Timers,
        now_ms: Callable[[], int],
        assign: Assign,
        *,
        at_a_time: int,
        windows: MetricConfig | None = None,
    ) -> None:
        """`at_a_time`: `num.replica.alter.log.dirs.threads`. `windows`: `alter.log.dirs.replication.quota.window.*`,
        over which the rate of moves is measured; None: Kafka's defaults."""
        self._replicas = replicas
        self._logs = logs
        self._jobs = jobs
        self._timers = timers
        self._now_ms = now_ms
        self._assign = assign
        self._at_a_time = max(1, at_a_time)
        """How many jobs run at a time."""
        self._bytes_per_second: int | None = None
        self.rate = SimpleRate(windows or MetricConfig(1_000, 11))
        """Bytes a second that were copied."""
        self._moves: dict[TopicPartition, _Move] = {}
        self._ready: deque[_Move] = deque()
        """Moves that take their next step when the work is done next."""
        self._reentrancy = Reentrancy(self._work)
        self._jobs_running = 0
        self._timer: Timer | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._moves)

    # -- orders

    @property
    def bytes_per_second(self) -> int | None:
        """`replica.alter.log.dirs.io.max.bytes.per.second`; None: no limit. Another limit holds from now on, also for
        moves that wait."""
        return self._bytes_per_second

    @bytes_per_second.setter
    def bytes_per_second(self, limit: int | None) -> None:
        self._bytes_per_second = limit
        self._reentrancy.run()

    def alter(self, topic_partition: TopicPartition, path: str) -> None:
        """Move the partition's replica to the log directory `path`. A replica that this broker does not have yet is
        going to be made there. A move to another directory is cancelled; a replica that is in `path` stays there.
        Raises `ApiError`."""
        if not future_name_fits(topic_partition):
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic name is too long.")
        target = next((each for each in self._logs.dirs if each.path == path), None)
        if target is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"Log dir {path} is not found in the config.")
        if not target.online:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"Log directory {path} is offline")
        if target.cordoned:
            raise ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"Log directory {path} is cordoned")
        partition = self._replicas.find(*topic_partition)
        if partition is None:
            code = self._replicas.missing_code(topic_partition.topic, None, topic_partition.partition)
            if code is not ErrorCode.KAFKA_STORAGE_ERROR:
                self._logs.futures.prefer(topic_partition, path)
            if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                code = ErrorCode.REPLICA_NOT_AVAILABLE
            raise ApiError(code, f"{topic_partition} is not on this broker")
        future_dir = self._logs.futures.dir_of(topic_partition)
        if future_dir is not None and future_dir is not target:
            self._cancel(topic_partition)
        current_dir = self._logs.dir_of(topic_partition)
        if current_dir is target or future_dir is target:
            return
        if not self._logs.dirs.all_online:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} is not moved while a log directory is offline"
            )
        self._logs.futures.create(topic_partition, target)
        log.info(
            "%s moves from %s to %s", topic_partition, "nowhere" if current_dir is None else current_dir.path, path
        )
        self._start(partition)

    @property
    def max_lag(self) -> int:
        """By how many offsets the copy that is furthest behind is behind its log."""
        pairs = ((self._logs.get(copy.topic_partition), copy) for copy in list(self._logs.futures))
        return max((log.log_end_offset - copy.log_end_offset for log, copy in pairs if log is not None), default=0)

    @property
    def failed(self) -> int:
        """How many copies had their last step fail, and are tried again."""
        return sum(move.failures > 0 for move in self._moves.values())

    def resume(self) -> None:
        """Go on with the moves that a stop or a crash of the process has interrupted. Steps are taken when all have
        begun: a step may find that a directory has failed, which removes other copies."""
        with self._reentrancy.held():
            for future in self._logs.futures:
                partition = self._replicas.find(*future.topic_partition)
                if partition is not None and future.topic_partition not in self._moves:
                    log.info("%s goes on with its move to %s", partition, future.directory)
                    self._start(partition)

    def close(self) -> None:
        """Take no more steps."""
        self._closed = True
        for move in list(self._moves.values()):
            self._release(move)
        if self._timer is not None:
            self._timer.cancel()

    def _start(self, partition: Partition) -> None:
        futures, topic_partition = self._logs.futures, partition.topic_partition
        future, target = futures.get(topic_partition), futures.dir_of(topic_partition)
        assert future is not None
        assert target is not None
        current_dir = self._logs.dir_of(topic_partition)
        move = _Move(partition, future, target, None if current_dir is None else current_dir.directory_id)
        self._moves[topic_partition] = move
        self._ready.append(move)
        self._reentrancy.run()

    def _cancel(self, topic_partition: TopicPartition) -> None:
        self._logs.futures.drop(topic_partition)
        move = self._moves.get(topic_partition)
        if move is not None:
            log.info("%s is not moved to %s any more", topic_partition, move.target.path)
            self._abandon(move)

    # -- time

    def _work(self) -> None:
        """Take one step of each move that is ready."""
        if self._closed:
            return
        now_ms = self._now_ms()
        for _ in range(len(self._ready)):
            if not self._ready or self._jobs_running >= self._at_a_time or self._excess_ms(now_ms):
                break
            self._step(self._ready.popleft())
        if self._moves and self._timer is None:
            # Also for moves that wait for the controller or their rate: the replica may leave, or a disk fail,
            # meanwhile.
            pause_ms = max(_PAUSE_MS, min(self._excess_ms(now_ms), RETRY_MS))
            self._timer = self._timers.call_later_ms(pause_ms, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for move in list(self._moves.values()):
            if not self._is_under_way(move):
                self._abandon(move)
        self._reentrancy.run()

    def _is_under_way(self, move: _Move) -> bool:
        topic_partition = move.partition.topic_partition
        return (
            self._replicas.find(*topic_partition) is move.partition
            and self._logs.futures.get(topic_partition) is move.future
            and not move.future.offline
            and not move.partition.log.offline
        )

    def _abandon(self, move: _Move) -> None:
        """The move has ended without success."""
        topic_partition = move.partition.topic_partition
        if self._moves.get(topic_partition) is not move:
            return
        del self._moves[topic_partition]
        if move in self._ready:
            self._ready.remove(move)
        self._release(move)
        if move.state in (_State.REPORTED, _State.RECORDED) and move.current_dir_id is not None:
            self._assign(move.partition.topic_id, topic_partition.partition, move.current_dir_id, _nothing)

    def _release(self, move: _Move) -> None:
        if move.state is _State.HOLDING:
            move.state = _State.RECORDED
            move.partition.release_flushes()

    def _retry_later(self, move: _Move) -> None:
        """Take the next step after a pause."""
        self._ready.append(move)
        if self._timer is None and not self._closed:
            self._timer = self._timers.call_later_ms(_PAUSE_MS, self._on_timer)

    def _continue(self, move: _Move) -> None:
        """Take the next step, behind those that are ready."""
        self._ready.append(move)
        self._reentrancy.run()

    # -- one step of one move

    def _step(self, move: _Move) -> None:
        if not self._is_under_way(move):
            self._abandon(move)
            return
        if move.state is _State.HOLDING and self._now_ms() - move.held_since_ms > _LONGEST_HOLD_MS:
            self._release(move)
        if move.partition.log.truncation is not None:
            self._retry_later(move)  # what the copy is compared with is being changed
            return
        try:
            if not self._cut_to_match(move):
                return
            if not move.is_caught_up and move.state is _State.HOLDING:
                self._copy_tail(move)
            if not move.is_caught_up:
                self._copy(move)
            elif move.state is _State.COPYING:
                # Before the report: after a loss of power the directory that the metadata names must hold this copy,
                # and no older log of the partition.
                move.state = _State.SYNCED
                self._sync(move)
            elif move.state is _State.SYNCED:
                self._report(move)
            elif move.state in (_State.RECORDED, _State.HOLDING):
                self._swap(move)
        except (ApiError, UnexpectedAppendOffset, OSError) as error:
            self._fail(move, error)

    def _fail(self, move: _Move, error: BaseException) -> None:
        """A step failed. A failed disk has ended the move; after anything else, such as a truncation of the log while a
        piece of it was copied, the step is tried again."""
        move.failures += 1
        if not self._is_under_way(move):
            log.warning("%s is not moved: %s", move.partition, error)
            self._abandon(move)
        elif move.failures > _MAX_FAILURES:
            log.error("%s cannot be moved: %s", move.partition, error)
            self._cancel(move.partition.topic_partition)
        else:
            log.info("a step of the move of %s is tried again: %s", move.partition, error)
            self._release(move)
            self._retry_later(move)

    def _cut_to_match(self, move: _Move) -> bool:
        """Cut the copy back to what it has in common with the log. False where a job does that."""
        current, future = move.partition.log, move.future
        end = _common_end(current, future)
        if future.log_end_offset < current.log_start_offset:
            truncate_fully_and_start_at(future, current.log_start_offset)
        elif end < future.log_end_offset:
            log.info("the copy of %s is cut back from %d to %d", move.partition, future.log_end_offset, end)
            truncation = begin_truncation(future, end)
            assert truncation is not None
            if end < future.log_start_offset:
                truncation.complete()
            else:
                cut = Job(f"truncate the copy of {move.partition}", _nothing, lambda _: future.check_online())
                self._jobs_running += 1
                start_truncations(self._jobs, [truncation], lambda: self._done(move, cut, None))
                return False
        self._copy_watermarks(current, future)
        if future.config != current.config:
            future.update_config(current.config)
        return True

    @staticmethod
    def _copy_watermarks(current: Log, future: Log) -> None:
        future.update_high_watermark(min(current.high_watermark, future.log_end_offset))
        if current.log_start_offset > future.log_start_offset:
            future.advance_log_start_offset(min(current.log_start_offset, future.high_watermark))

    def _copy(self, move: _Move) -> None:
        """Copy one piece, read by a job."""
        current, offset = move.partition.log, move.future.log_end_offset
        end = current.log_end_offset
        read = current.read_later(offset, _BATCH_BYTES, end, True)
        self._jobs_running += 1

        def finish(info: FetchInfo | None, error: ApiError | None) -> None:
            self._jobs_running -= 1
            if self._closed:
                return
            if self._moves.get(move.partition.topic_partition) is not move:
                self._reentrancy.run()
                return
            try:
                if info is None:
                    assert error is not None, "one of the two is set"
                    raise error
                if not self._is_under_way(move):
                    self._abandon(move)
                elif move.future.log_end_offset == offset and not read.is_outdated:
                    self._append(move, info)
                else:
                    self._continue(move)  # the log is not what was read any more
                    return
            except (ApiError, UnexpectedAppendOffset, OSError) as failure:
                self._fail(move, failure)
                self._reentrancy.run()
                return
            if not self._is_under_way(move):
                self._abandon(move)
                self._reentrancy.run()
            elif not info.size_bytes:
                self._skip(move, end)
            else:
                if info.next_offset >= end:
                    self._try_tail(move)
                self._continue(move)

        run_snapshot(self._jobs, read).then(finish)

    def _skip(self, move: _Move, end_offset: int) -> None:
        """Compaction has left no record up to the log's end: an empty copy begins there, any other waits until a record
        is appended. Where a log is not compacted, a read that returns nothing has met a damaged batch: the move waits
        until the log is repaired, or the copy would lack the records."""
        current, future = move.partition.log, move.future
        if not future.size_bytes and current.log_end_offset == end_offset and current.config.compacts:
            try:
                truncate_fully_and_start_at(future, end_offset, current.log_start_offset)
            except ApiError as error:
                self._fail(move, error)
                return
            self._continue(move)
        else:
            self._retry_later(move)

    def _append(self, move: _Move, info: FetchInfo) -> None:
        future = move.future
        if not info.size_bytes:
            return
        append_fetched(future, info.records, move.partition.leader_epoch)
        move.failures = 0
        self._copy_watermarks(move.partition.log, future)
        self.rate.record(info.size_bytes, self._now_ms())

    def _excess_ms(self, now_ms: int) -> int:
        """After so long without a copied byte the rate is at the limit again, as a throttled client's. No step is taken
        before."""
        if self._bytes_per_second is None:
            return 0
        bound, observed = max(1, self._bytes_per_second), self.rate.measure(now_ms)
        return max(0, ceil((observed - bound) / bound * self.rate.window_size_ms(now_ms)))

    def _try_tail(self, move: _Move) -> None:
        """Copy what was appended while the last piece was copied, where the page cache has it."""
        try:
            self._copy_tail(move)
        except (ApiError, UnexpectedAppendOffset, OSError) as error:
            log.debug("the end of %s is copied later: %s", move.partition, error)

    def _copy_tail(self, move: _Move) -> None:
        current, future = move.partition.log, move.future
        info = current.read_nowait(future.log_end_offset, _TAIL_BYTES, current.log_end_offset, True)
        if isinstance(info, FetchInfo):
            self._append(move, info)

    # -- the end of a move

    def _report(self, move: _Move) -> None:
        """The copy has caught up: report its directory, which must be recorded before the copy replaces the log."""
        move.state = _State.REPORTED

        def recorded() -> None:
            if move.state is _State.REPORTED and self._moves.get(move.partition.topic_partition) is move:
                move.state = _State.RECORDED
                self._continue(move)

        if move.target.directory_id is None:
            recorded()
            return
        self._assign(
            move.partition.topic_id, move.partition.topic_partition.partition, move.target.directory_id, recorded
        )

    def _swap(self, move: _Move) -> None:
        """Replace the log by the copy as soon as that is as durable. Flushes of the log are held up until then, so that
        it cannot become more durable meanwhile."""
        partition, futures, now_ms = move.partition, self._logs.futures, self._now_ms()
        topic_partition = partition.topic_partition
        if move.state is _State.RECORDED:
            if not partition.hold_flushes():
                self._retry_later(move)
                return
            move.state, move.held_since_ms = _State.HOLDING, now_ms
            self._sync(move)
        elif not futures.is_as_durable(topic_partition):
            self._sync(move)
        else:
            home = self._logs.dir_of(topic_partition)
            assert home is not None, f"{topic_partition} has a log"
            partition.log = futures.swap(topic_partition)
            del self._moves[topic_partition]
            log.info("%s is now in %s", topic_partition, move.target.path)
            self._sync_names(move, home)

    def _sync_names(self, move: _Move, home: LogDir) -> None:
        """Sync what was renamed, and only then begin flushes again."""
        job = self._logs.futures.names_job(home, move.target)
        self._jobs_running += 1

        def finish(_: None, error: BaseException | None) -> None:
            self._jobs_running -= 1
            assert error is None, "the job keeps its errors until it is finished"
            job.finish()
            self._release(move)
            self._reentrancy.run()

        self._jobs.run(job.run, finish)

    def _sync(self, move: _Move) -> None:
        self._logs.futures.align_epochs(move.partition.topic_partition)
        self._run(move, move.future.flush_job())

    def _run(self, move: _Move, job: Job[None]) -> None:
        """Run a job that waits for the disk of the copy; then take the next step."""
        self._jobs_running += 1
        self._jobs.run(job.run, lambda _, error: self._done(move, job, error))

    def _done(self, move: _Move, job: Job[None], error: BaseException | None) -> None:
        self._jobs_running -= 1
        if self._closed:
            return
        if not self._is_under_way(move):
            # The job's files may have been renamed: its failure does not mean that the disk has failed.
            self._abandon(move)
            self._reentrancy.run()
            return
        try:
            if error is not None:
                move.future.on_io_error(error)
            job.finish()
        except (ApiError, OSError) as failure:
            self._fail(move, failure)
        else:
            self._ready.append(move)
        self._reentrancy.run()


def _common_end(current: Log, future: Log) -> int:
    """The end offset of the records that copy and log have in common, by leader epochs."""
    epoch = future.leader_epochs.latest
    if epoch is None:
        return min(future.log_end_offset, current.log_end_offset)
    known, end = current.end_offset_for_epoch(epoch)
    if known != epoch:
        # The log has truncated all of this epoch: the copy ends at most where the epoch began.
        _, copy_end = future.end_offset_for_epoch(known if known >= 0 else (current.leader_epochs.latest or 0))
        end = min(copy_end, current.log_end_offset if known < 0 else end)
    return max(0, min(end, future.log_end_offset))


def _nothing() -> None:
    return None
