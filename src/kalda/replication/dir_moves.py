"""Moves replicas between this broker's log directories (KIP-113, KIP-858): AlterReplicaLogDirs.

A replica is copied into a future log of the target directory, batch by batch and as a follower would, while it goes on
to lead or to follow. When the copy has once caught up, the controller is told of the new directory; when it has agreed
and the copy has caught up again, and is as durable, the two logs change places. So a directory that fails afterwards
takes the replica along in the controller's eyes too.

Reads for the copy run as jobs, of bounded size, for a bounded number of moves at a time, and so does whatever syncs the
copy: also where it is cut back, because its log has taken records back. The last piece is read from the page cache in
the turn in which the logs change places. A move that meets a failing disk, or whose replica leaves this broker, ends;
where the controller was told of the new directory by then, it is told of the old one again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Timer, Timers
from kalda.base.turn import Turn
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.future_logs import may_move
from kalda.storage.job import Job
from kalda.storage.log import FetchInfo, Log, UnexpectedAppendOffset
from kalda.storage.log_dir import LogDir
from kalda.storage.log_manager import LogManager
from kalda.storage.truncating import cut_job, start_within

log = logging.getLogger("kalda.moves")

_BATCH_BYTES = 1 << 20
_TAIL_BYTES = 1 << 18
_PAUSE_MS = 20
_LONGEST_HOLD_MS = 5_000
_MAX_FAILURES = 10

Assign = Callable[[Uuid, int, Uuid, Callable[[], None]], None]
"""Tell the controller: (topic id, partition, directory, called when it knows)."""


class _State(Enum):
    COPYING = auto()
    SYNCED = auto()
    """what there was when the copy had first caught up is on disk, and so is every name in the directory"""
    TOLD = auto()
    """the controller has been asked to take the new directory for the replica's"""
    AGREED = auto()
    HOLDING = auto()
    """flushes of the partition are held up, for the last piece; goes back to `AGREED` where that takes too long"""


class _Move:
    """One replica on its way."""

    __slots__ = ("failures", "future", "held_since_ms", "home_id", "partition", "state", "target")

    def __init__(self, partition: Partition, future: Log, target: LogDir, home_id: Uuid | None) -> None:
        self.partition = partition
        self.future = future
        self.target = target
        self.home_id = home_id
        self.state = _State.COPYING
        self.failures = 0
        """in a row"""
        self.held_since_ms = 0
        """while `HOLDING`"""

    @property
    def caught_up(self) -> bool:
        return self.future.log_end_offset == self.partition.log.log_end_offset


class DirMoves:
    """All moves of one broker."""

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
    ) -> None:
        """`at_a_time`: `num.replica.alter.log.dirs.threads`."""
        self._replicas = replicas
        self._logs = logs
        self._jobs = jobs
        self._timers = timers
        self._now_ms = now_ms
        self._assign = assign
        self._at_a_time = max(1, at_a_time)
        self.bytes_per_second: int | None = None
        """`replica.alter.log.dirs.io.max.bytes.per.second`; None: no limit"""
        self._moves: dict[TopicPartition, _Move] = {}
        self._ready: deque[_Move] = deque()
        self._turn = Turn(self._work)
        self._running = 0
        self._not_before_ms = 0
        self._timer: Timer | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._moves)

    # -- orders

    def alter(self, topic_partition: TopicPartition, path: str) -> None:
        """Move the partition's replica to the log directory `path`, or have it made there; a move elsewhere is given
        up for that, and a move back to where it is, is none. Raises `ApiError`."""
        if not may_move(topic_partition):
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
        under_way = self._logs.futures.dir_of(topic_partition)
        if under_way is not None and under_way is not target:
            self._cancel(topic_partition)
        home = self._logs.dir_of(topic_partition)
        if home is target or under_way is target:
            return
        if not self._logs.all_online:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} is not moved while a log directory is offline"
            )
        self._logs.futures.create(topic_partition, target)
        log.info("%s moves from %s to %s", topic_partition, "nowhere" if home is None else home.path, path)
        self._start(partition)

    def resume(self) -> None:
        """Go on with the moves that the last stop, or a crash, has interrupted."""
        with self._turn.held():
            for future in self._logs.futures:
                partition = self._replicas.find(*future.topic_partition)
                if partition is not None and future.topic_partition not in self._moves:
                    log.info("%s goes on with its move to %s", partition, future.directory)
                    self._start(partition)

    def close(self) -> None:
        """Copy nothing more."""
        self._closed = True
        for move in list(self._moves.values()):
            self._release(move)
        if self._timer is not None:
            self._timer.cancel()

    def _start(self, partition: Partition) -> None:
        futures, topic_partition = self._logs.futures, partition.topic_partition
        future, target, home = futures.get(topic_partition), futures.dir_of(topic_partition), None
        assert future is not None
        assert target is not None
        home = self._logs.dir_of(topic_partition)
        move = _Move(partition, future, target, None if home is None else home.directory_id)
        self._moves[topic_partition] = move
        self._ready.append(move)
        self._turn.run()

    def _cancel(self, topic_partition: TopicPartition) -> None:
        self._logs.futures.drop(topic_partition)
        move = self._moves.get(topic_partition)
        if move is not None:
            log.info("%s is not moved to %s any more", topic_partition, move.target.path)
            self._end(move)

    # -- time

    def _work(self) -> None:
        """Take one step of each move that is ready."""
        if self._closed:
            return
        now_ms = self._now_ms()
        for _ in range(len(self._ready)):
            if not self._ready or self._running >= self._at_a_time or now_ms < self._not_before_ms:
                break
            self._step(self._ready.popleft())
        if self._moves and self._timer is None:
            # Also for those who wait for the controller: the replica may leave, or a disk fail, meanwhile.
            self._timer = self._timers.call_later_ms(max(_PAUSE_MS, self._not_before_ms - now_ms), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        for move in list(self._moves.values()):
            if not self._is_under_way(move):
                self._end(move)
        self._turn.run()

    def _is_under_way(self, move: _Move) -> bool:
        topic_partition = move.partition.topic_partition
        return (
            self._replicas.find(*topic_partition) is move.partition
            and self._logs.futures.get(topic_partition) is move.future
            and not move.future.offline
            and not move.partition.log.offline
        )

    def _end(self, move: _Move) -> None:
        """It is over without success."""
        topic_partition = move.partition.topic_partition
        if self._moves.get(topic_partition) is not move:
            return
        del self._moves[topic_partition]
        if move in self._ready:
            self._ready.remove(move)
        self._release(move)
        if move.state in (_State.TOLD, _State.AGREED) and move.home_id is not None:
            self._assign(move.partition.topic_id, topic_partition.partition, move.home_id, _nothing)

    def _release(self, move: _Move, new: Log | None = None) -> None:
        if move.state is _State.HOLDING:
            move.state = _State.AGREED
            move.partition.release_flushes(new)

    def _later(self, move: _Move) -> None:
        """In a while, when others had their turn."""
        self._ready.append(move)
        if self._timer is None and not self._closed:
            self._timer = self._timers.call_later_ms(_PAUSE_MS, self._on_timer)

    def _soon(self, move: _Move) -> None:
        """A job of this move is done, and there is more to do."""
        self._ready.append(move)
        self._turn.run()

    # -- one step of one move

    def _step(self, move: _Move) -> None:
        if not self._is_under_way(move):
            self._end(move)
            return
        if move.state is _State.HOLDING and self._now_ms() - move.held_since_ms > _LONGEST_HOLD_MS:
            self._release(move)
        try:
            if not self._align(move):
                return
            if not move.caught_up and move.state is _State.HOLDING:
                self._copy_tail(move)
            if not move.caught_up:
                self._copy(move)
            elif move.state is _State.COPYING:
                # A loss of power must not leave a former log of the partition where the metadata has the replica.
                move.state = _State.SYNCED
                self._sync(move)
            elif move.state is _State.SYNCED:
                self._tell(move)
            elif move.state in (_State.AGREED, _State.HOLDING):
                self._change_places(move)
        except (ApiError, UnexpectedAppendOffset, OSError) as error:
            self._fail(move, error)

    def _fail(self, move: _Move, error: BaseException) -> None:
        """A disk that fails has ended the move. What a truncation in the middle of it has garbled is copied again."""
        move.failures += 1
        if not self._is_under_way(move):
            log.warning("%s is not moved: %s", move.partition, error)
            self._end(move)
        elif move.failures > _MAX_FAILURES:
            log.error("%s cannot be moved: %s", move.partition, error)
            self._cancel(move.partition.topic_partition)
        else:
            log.info("%s is copied on in a while: %s", move.partition, error)
            self._release(move)
            self._later(move)

    def _align(self, move: _Move) -> bool:
        """Take back what the log has taken back, or does not have any more. False where a job does that."""
        current, future = move.partition.log, move.future
        end = _common_end(current, future)
        if future.log_end_offset < current.log_start_offset:
            future.truncate_fully_and_start_at(current.log_start_offset)
        elif end < future.log_end_offset:
            log.info("the copy of %s is cut back from %d to %d", move.partition, future.log_end_offset, end)
            if end >= future.log_start_offset:
                self._run(move, cut_job(future, end))
                return False
            future.truncate_to(end)
        self._take_watermarks(current, future)
        if future.config != current.config:
            future.update_config(current.config)
        return True

    @staticmethod
    def _take_watermarks(current: Log, future: Log) -> None:
        future.update_high_watermark(min(current.high_watermark, future.log_end_offset))
        if current.log_start_offset > future.log_start_offset:
            future.advance_log_start_offset(min(current.log_start_offset, future.high_watermark))

    def _copy(self, move: _Move) -> None:
        """One piece, read by a job."""
        current, offset = move.partition.log, move.future.log_end_offset
        read, end = current.cold_read(offset), current.log_end_offset
        self._running += 1

        def finish(info: FetchInfo | None, error: BaseException | None) -> None:
            self._running -= 1
            if self._closed:
                return
            current.take_over(read)
            if self._moves.get(move.partition.topic_partition) is not move:
                self._turn.run()
                return
            try:
                if info is None:
                    raise error if error is not None else AssertionError("a read without a result")
                if not self._is_under_way(move):
                    self._end(move)
                elif move.future.log_end_offset == offset and info.next_offset <= current.log_end_offset:
                    self._append(move, info)
            except (ApiError, UnexpectedAppendOffset, OSError) as failure:
                self._fail(move, failure)
                self._turn.run()
                return
            if not self._is_under_way(move):
                self._end(move)
                self._turn.run()
            elif not info.size_bytes:
                self._skip(move, end)
            else:
                if info.next_offset >= end:
                    self._try_tail(move)
                self._soon(move)

        self._jobs.run(lambda: read(offset, _BATCH_BYTES, end, True), finish)

    def _skip(self, move: _Move, end_offset: int) -> None:
        """Compaction has left no record up to the end: an empty copy begins there, any other waits for the next one."""
        current, future = move.partition.log, move.future
        if not future.size_bytes and current.log_end_offset == end_offset:
            try:
                future.truncate_fully_and_start_at(end_offset, current.log_start_offset)
            except ApiError as error:
                self._fail(move, error)
                return
            self._soon(move)
        else:
            self._later(move)

    def _append(self, move: _Move, info: FetchInfo) -> None:
        future = move.future
        if not info.size_bytes:
            return
        records, epoch = info.records, move.partition.leader_epoch
        try:
            future.append_as_follower(records, epoch)
        except UnexpectedAppendOffset as error:
            end = future.log_end_offset
            if not (future.log_start_offset == end and error.first_offset < end <= error.last_offset):
                raise
            start_within(future, records, epoch, error)
        move.failures = 0
        self._take_watermarks(move.partition.log, future)
        if self.bytes_per_second is not None:
            now_ms = self._now_ms()
            cost_ms = info.size_bytes * 1000 // max(1, self.bytes_per_second)
            self._not_before_ms = max(self._not_before_ms, now_ms) + cost_ms

    def _try_tail(self, move: _Move) -> None:
        """Appends have gone on while a piece was copied: the few of them are copied here and now."""
        try:
            self._copy_tail(move)
        except (ApiError, UnexpectedAppendOffset, OSError) as error:
            log.debug("the end of %s is copied later: %s", move.partition, error)

    def _copy_tail(self, move: _Move) -> None:
        current, future = move.partition.log, move.future
        info = current.read_nowait(future.log_end_offset, _TAIL_BYTES, current.log_end_offset, True)
        if info is not None:
            self._append(move, info)

    # -- the end of a move

    def _tell(self, move: _Move) -> None:
        """Caught up: the controller is to know before the logs change places."""
        move.state = _State.TOLD

        def agreed() -> None:
            if move.state is _State.TOLD and self._moves.get(move.partition.topic_partition) is move:
                move.state = _State.AGREED
                self._soon(move)

        if move.target.directory_id is None:
            agreed()
            return
        self._assign(
            move.partition.topic_id, move.partition.topic_partition.partition, move.target.directory_id, agreed
        )

    def _change_places(self, move: _Move) -> None:
        """As soon as the copy is as durable as the log. Flushes of the log wait for that, so that it stays so."""
        partition, futures, now_ms = move.partition, self._logs.futures, self._now_ms()
        topic_partition = partition.topic_partition
        if move.state is _State.AGREED:
            if not partition.hold_flushes():
                self._later(move)
                return
            move.state, move.held_since_ms = _State.HOLDING, now_ms
            self._sync(move)
        elif not futures.is_as_durable(topic_partition):
            self._sync(move)
        else:
            new = futures.swap(topic_partition)
            del self._moves[topic_partition]
            self._release(move, new)
            log.info("%s is now in %s", topic_partition, move.target.path)

    def _sync(self, move: _Move) -> None:
        self._logs.futures.align_epochs(move.partition.topic_partition)
        self._run(move, move.future.flush_job())

    def _run(self, move: _Move, job: Job[None]) -> None:
        """Something that waits for the disk of the copy; then the next step."""
        self._running += 1
        self._jobs.run(job.run, lambda _, error: self._done(move, job, error))

    def _done(self, move: _Move, job: Job[None], error: BaseException | None) -> None:
        self._running -= 1
        if self._closed:
            return
        if not self._is_under_way(move):
            # Its files may have been renamed under the job: what that met says nothing about the disk.
            self._end(move)
            self._turn.run()
            return
        try:
            if error is not None:
                move.future.on_io_error(error)
            job.finish()
        except (ApiError, OSError) as failure:
            self._fail(move, failure)
        else:
            self._ready.append(move)
        self._turn.run()


def _common_end(current: Log, future: Log) -> int:
    """Up to where the copy says what the log says, by leader epochs."""
    epoch = future.latest_epoch
    if epoch is None:
        return min(future.log_end_offset, current.log_end_offset)
    known, end = current.end_offset_for_epoch(epoch)
    if known != epoch:
        # The log has given up all of this epoch: at least where that began, the copy ends.
        _, copy_end = future.end_offset_for_epoch(known if known >= 0 else (current.latest_epoch or 0))
        end = min(copy_end, current.log_end_offset if known < 0 else end)
    return max(0, min(end, future.log_end_offset))


def _nothing() -> None:
    return None
