"""One partition's log.

Appends go to the active segment; reads take whole batches from any. Offsets, lowest first:

- log start offset: nothing below is served; moved by retention and DeleteRecords
- recovery point: everything below has been synced
- last stable offset: everything below is of no open transaction, and committed
- high watermark: everything below is committed; told by replication
- log end offset: the next record's

Invariants: log start <= high watermark <= log end; recovery point <= log end; a batch is in one segment; the last
stable offset is never above the high watermark.

The log belongs to one thread. What may wait for a device is handed out as a `Job` (or, for reads, a `ColdRead`), whose
other-thread half works on a snapshot. A failing disk raises KAFKA_STORAGE_ERROR, here and in every later call, and is
told to the hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from kalda.base.disk import Buffer, Disk
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.file_slice import FileSlice
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs
from kalda.records.batch import NO_TIMESTAMP, BatchHeader, check_crc, iter_batches, stamp
from kalda.records.validate import validate_produced
from kalda.storage.checkpoints import stored_topic_id, write_partition_metadata
from kalda.storage.config import DAY_MS, LogConfig
from kalda.storage.flushing import Unsynced
from kalda.storage.hooks import LogHooks, StandaloneHooks
from kalda.storage.index import Reader, WouldWait, read_nowait, read_waiting
from kalda.storage.job import Job
from kalda.storage.loading import Loaded, Loading
from kalda.storage.naming import DELETED_SUFFIX, SWAP_SUFFIX
from kalda.storage.producer_state import Marker, ProducerState, Verification, read_marker
from kalda.storage.reading import (
    SLICED_BYTES,
    ColdRead,
    Places,
    collect_aborted,
)
from kalda.storage.searching import max_timestamp_job, timestamp_job
from kalda.storage.segment import MAX_GAP, Placed, Segment
from kalda.storage.segments import Segments
from kalda.storage.truncating import cut, empty
from kalda.storage.txn_index import AbortedTxn
from kalda.storage.values import AppendInfo, AppendOrigin, FetchInfo, TimestampOffset, UnexpectedAppendOffset

__all__ = ["AppendInfo", "AppendOrigin", "FetchInfo", "Log", "TimestampOffset", "UnexpectedAppendOffset"]

_HOT_BYTES = 1 << 20
_new_tuple = tuple.__new__  # a NamedTuple's own __new__ costs twice as much
_CLIENT, _RAFT_LEADER = AppendOrigin.CLIENT, AppendOrigin.RAFT_LEADER


class Log:
    """Made by `Log.open`."""

    __slots__ = (
        "__weakref__",
        "_expiration_ms",
        "_first_unstable",
        "_hooks",
        "_jitter",
        "_latest_epoch",
        "_places",
        "_rules",
        "_unsynced",
        "_verify",
        "cold",
        "config",
        "directory",
        "disk",
        "high_watermark",
        "last_flush_ms",
        "leader_epochs",
        "log_end_offset",
        "log_start_offset",
        "offline",
        "producer_states",
        "recovery_point",
        "segments",
        "snapshots",
        "topic_id",
        "topic_partition",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: LogConfig,
        topic_partition: TopicPartition,
        topic_id: Uuid | None,
        loaded: Loaded,
        *,
        now_ms: int,
        expiration_ms: int,
        verify_transactions: bool,
        hooks: LogHooks,
        jitter: Callable[[int], int],
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.segments: Segments = loaded.segments
        self.leader_epochs = loaded.epochs
        self.producer_states = loaded.producers
        self.snapshots = loaded.snapshots
        self.log_start_offset = loaded.log_start_offset
        self.log_end_offset = loaded.next_offset
        self.recovery_point = loaded.recovery_point
        self.high_watermark = loaded.log_start_offset
        self.last_flush_ms = now_ms
        self.offline = False
        self.cold = False  # true where the active segment has not been opened yet: `opening_job` does that
        self._expiration_ms = expiration_ms
        self._verify = verify_transactions
        self._hooks = hooks
        self._jitter = jitter
        self._unsynced = Unsynced(disk, directory, loaded.changed)
        self._places = Places(self.segments)
        self._first_unstable: int | None = None
        self._latest_epoch = -1
        self._refresh()
        self.update_config(config)

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: LogConfig,
        *,
        topic_partition: TopicPartition,
        topic_id: Uuid | None = None,
        now_ms: int,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        compacted_upto: int | None = None,
        producer_expiration_ms: int = DAY_MS,
        verify_transactions: bool = False,
        hooks: LogHooks | None = None,
        jitter: Callable[[int], int] = lambda _: 0,
    ) -> Log:
        """Open the log in `directory`, making it where it is missing.

        `clean`: the process that had it before stopped cleanly; otherwise it is recovered from `recovery_point`, which
        reads files: such a log is opened on a thread. Raises INCONSISTENT_TOPIC_ID where the directory belongs to
        another topic than `topic_id`, and `OSError` where the disk fails.
        """
        fresh = disk.stat(directory) is None
        if fresh:
            disk.make_dirs(directory)
        found = None if fresh else stored_topic_id(disk, directory, clean)
        if found is not None and topic_id is not None and found != topic_id:
            raise ApiError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"{directory} holds topic id {found.hex()}, not {topic_id.hex()}",
            )
        loaded = Loading(
            disk,
            directory,
            config,
            str(topic_partition),
            now_ms=now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            compacted_upto=compacted_upto,
            expiration_ms=producer_expiration_ms,
            jitter=jitter,
        ).load()
        log = cls(
            disk,
            directory,
            config,
            topic_partition,
            found,
            loaded,
            now_ms=now_ms,
            expiration_ms=producer_expiration_ms,
            verify_transactions=verify_transactions,
            hooks=StandaloneHooks(disk) if hooks is None else hooks,
            jitter=jitter,
        )
        log.cold = not fresh
        if found is None and topic_id is not None:
            log.assign_topic_id(topic_id)
        return log

    # Properties

    @property
    def last_stable_offset(self) -> int:
        """What a read_committed consumer may read up to."""
        first, high = self._first_unstable, self.high_watermark
        return high if first is None or first > high else first

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def flush_due(self) -> bool:
        """True where `flush.messages` records have been appended since the last flush."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    @property
    def vouched_recovery_point(self) -> int:
        """What a checkpoint may say of the recovery point; see `Unsynced.vouched`."""
        return self._unsynced.vouched(self.segments, self.recovery_point, self.log_end_offset)

    @property
    def latest_epoch(self) -> int | None:
        return self.leader_epochs.latest

    def update_config(self, config: LogConfig) -> None:
        self.config = config
        for segment in self.segments:
            segment.config = config
        self._rules = config.record_rules()

    def assign_topic_id(self, topic_id: Uuid) -> None:
        """Write `partition.metadata`. The next flush syncs it: a log with synced records always has its id."""
        self._online()
        if self.topic_id is not None:
            if self.topic_id != topic_id:
                raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.directory} has topic id {self.topic_id.hex()}")
            return
        try:
            write_partition_metadata(self.disk, self._unsynced.metadata_path, topic_id, durable=False)
        except OSError as error:
            raise self._failed(error) from error
        self.topic_id = topic_id
        self._unsynced.metadata = True
        self._unsynced.names += 1

    # Appending

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Validate one batch, give it offsets and write it. `records` is written to.

        A duplicate of one of its producer's last five batches is not appended again: its first offsets are returned.
        `transaction_version`: of the transaction that a marker ends. The raft leader's batches may be several, and are
        taken as they are. Raises `ApiError` with Kafka's codes; nothing has been appended then.
        """
        if self.offline:
            self._online()
        first_offset = self.log_end_offset
        if origin is _RAFT_LEADER:
            return self._append_raft(records, leader_epoch, now_ms)
        buf, header, max_timestamp, last_offset, append_time_ms = validate_produced(
            records, self._rules, first_offset, leader_epoch, now_ms, origin is _CLIENT
        )
        size = len(buf)
        if size > self.config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch has {size} bytes, segment.bytes allows {self.config.segment_bytes}",
            )
        marker = None
        idempotent = header.producer_id >= 0
        if idempotent:
            states = self.producer_states
            if header.is_control:
                marker = read_marker(buf, header)
                if marker is not None:
                    states.check_marker(header, marker, origin, transaction_version)
            elif origin is not _CLIENT:
                states.check_data(header, origin)
            elif (duplicate := states.admit(header, verification, self._verify)) is not None:
                first, last, timestamp = duplicate.first_offset, duplicate.last_offset, duplicate.timestamp
                return AppendInfo(first, last, timestamp, timestamp, self.log_start_offset, size, duplicate=True)
        try:
            segment = self.segments.active
            if segment.should_roll(size, max_timestamp, last_offset, now_ms):
                segment = self._roll(now_ms, first_offset)
            if leader_epoch > self._latest_epoch:
                self.assign_leader_epoch(leader_epoch, first_offset)
            segment.append_one(buf, size, last_offset, max_timestamp)
        except OSError as error:
            raise self._failed(error) from error
        self.log_end_offset = self.producer_states.map_end_offset = last_offset + 1
        if idempotent:
            self._apply_producer(header, marker)
        start_offset = self.log_start_offset
        return _new_tuple(
            AppendInfo, (first_offset, last_offset, max_timestamp, append_time_ms, start_offset, size, False)
        )

    def _append_raft(self, records: bytearray | memoryview, leader_epoch: int, now_ms: int) -> AppendInfo:
        offset = self.log_end_offset
        headers, placed, end = [], [], 0
        max_timestamp = -1
        for position, header in iter_batches(records):
            stamp(records, position, offset, leader_epoch)
            header = header._replace(base_offset=offset, partition_leader_epoch=leader_epoch)
            offset = header.next_offset
            end = position + header.size_bytes
            headers.append(header)
            placed.append(Placed(offset - 1, header.max_timestamp, header.size_bytes))
            max_timestamp = max(max_timestamp, header.max_timestamp)
        return self._append_many(memoryview(records)[:end], headers, placed, max_timestamp, now_ms)

    def append_as_follower(self, records: Buffer, leader_epoch: int, now_ms: int = 0) -> AppendInfo:
        """Write batches as a leader sent them: with their offsets and epochs. A cut-off batch at the end is left out.

        Batches of a later epoch than `leader_epoch` are left out too: the fetch belongs to an older leader.
        Raises `UnexpectedAppendOffset` where the first batch does not follow the log, `CorruptRecord` for bad bytes.
        """
        if self.offline:
            self._online()
        headers: list[BatchHeader] = []
        placed: list[Placed] = []
        end, expected, max_timestamp = 0, self.log_end_offset, -1
        for position, header in iter_batches(records):
            if header.partition_leader_epoch > leader_epoch:
                break
            check_crc(records, position, header)
            if header.base_offset < expected or header.last_offset_delta < 0:
                if not headers:
                    raise UnexpectedAppendOffset(
                        f"{self.topic_partition} ends at {expected}; the first batch from the leader begins at "
                        f"{header.base_offset}",
                        header.base_offset,
                        header.last_offset,
                    )
                raise CorruptRecord(f"{self.topic_partition}: offset {header.base_offset} follows {expected - 1}")
            expected = header.next_offset
            size = header.size_bytes
            end = position + size
            headers.append(header)
            placed.append(Placed(expected - 1, header.max_timestamp, size))
            if header.max_timestamp > max_timestamp:
                max_timestamp = header.max_timestamp
        return self._append_many(memoryview(records)[:end], headers, placed, max_timestamp, now_ms)

    def _append_many(
        self, data: memoryview, headers: list[BatchHeader], placed: list[Placed], max_timestamp: int, now_ms: int
    ) -> AppendInfo:
        """Write batches that have their offsets."""
        if not headers:
            end = self.log_end_offset
            return AppendInfo(end, end - 1, -1, NO_TIMESTAMP, self.log_start_offset, 0)
        first_offset, last_offset = headers[0].base_offset, placed[-1].last_offset
        try:
            segment = self.segments.active
            if segment.should_roll(len(data), max_timestamp, last_offset, now_ms):
                segment = self._roll(now_ms, first_offset)
            for header in headers:
                if header.partition_leader_epoch > self._latest_epoch:
                    self.assign_leader_epoch(header.partition_leader_epoch, header.base_offset)
            segment.append(data, placed)
        except OSError as error:
            raise self._failed(error) from error
        self.log_end_offset = self.producer_states.map_end_offset = last_offset + 1
        position = 0
        for header in headers:
            if header.producer_id >= 0:
                whole = data[position : position + header.size_bytes]
                self._apply_producer(header, read_marker(whole, header) if header.is_control else None)
            position += header.size_bytes
        return AppendInfo(
            headers[0].base_offset,
            headers[-1].last_offset,
            max_timestamp,
            NO_TIMESTAMP,
            self.log_start_offset,
            len(data),
        )

    def _apply_producer(self, header: BatchHeader, marker: Marker | None) -> None:
        states = self.producer_states
        if not header.is_control:
            if states.apply_data(header):
                self._first_unstable = states.first_unstable_offset
        elif marker is not None:
            completed = states.apply_marker(header, marker)
            if completed is not None:
                try:
                    states.finish(completed, self.segments.active.txn_index)
                except OSError as error:
                    raise self._failed(error) from error
                self._refresh()

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool = False
    ) -> Verification | None:
        """The guard for a transactional append that must first be verified with the coordinator; None: go ahead."""
        if not self._verify:
            return None
        return self.producer_states.verify(producer_id, sequence, epoch, now_ms, supports_epoch_bump)

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one_message: bool = False) -> FetchInfo:
        """Whole batches from the one that holds `offset`, up to `end_offset` and `max_bytes`; may wait for the device.

        With `min_one_message` the first batch comes however large it is. Raises OFFSET_OUT_OF_RANGE.
        """
        return self._read(offset, max_bytes, end_offset, min_one_message, read_waiting)

    def read_nowait(
        self, offset: int, max_bytes: int, end_offset: int, min_one_message: bool = False
    ) -> FetchInfo | None:
        """As `read`, or None where the page cache cannot answer: then `cold_read` goes to a thread."""
        try:
            return self._read(offset, max_bytes, end_offset, min_one_message, read_nowait)
        except WouldWait:
            return None

    def cold_read(self, offset: int, *, by_name: bool = False) -> ColdRead:
        """A reader for another thread, of the log as it is now: `read(offset, max_bytes, end_offset, min_one)`.
        `by_name`: it opens itself what is not open, and finds nothing where that is gone by then."""
        self._in_range(offset)
        found = self.segments.for_read(offset)
        try:
            views = [segment.snapshot() if by_name else segment.view() for segment in found]
        except OSError as error:
            raise self._failed(error) from error
        return ColdRead(self.topic_partition, views, self.log_end_offset, found if by_name else [])

    def take_over(self, read: ColdRead) -> None:
        """Keep open, for the next one, what a reader by name has opened. A disk that has failed it has failed."""
        if read.failure is not None:
            self.on_io_error(read.failure)
        if not self.offline:
            self._places.take_over(read)

    def _read(self, offset: int, max_bytes: int, end_offset: int, min_one: bool, read: Reader) -> FetchInfo:
        log_end = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end or self.offline:
            self._in_range(offset)
        end_offset = min(end_offset, log_end)
        if offset >= end_offset:
            return FetchInfo(offset, offset, b"")
        try:
            place = self._places.find(offset, read)
            if place is None:
                return FetchInfo(offset, offset, b"")
            segment, position = place
            if position >= segment.hot_from and position >= segment.size - _HOT_BYTES:
                read = read_waiting
            if end_offset < log_end:
                max_bytes = segment.bound(position, end_offset, max_bytes, read)
            found = segment.read_slice(position, max_bytes, end_offset, min_one, read)
        except OSError as error:
            raise self._failed(error) from error
        if found.next_offset >= 0:
            self._places.note(found.next_offset, segment, found.end_position)
        return found.info(offset)

    def slice_nowait(self, offset: int, max_bytes: int, end_offset: int, jobs: Jobs) -> FetchInfo | None:
        """As `read_nowait`, of much: a part of the file that is read as it is sent, by `jobs` where it is not in the
        page cache. None where there is too little to gain, or the index cannot say where it ends. What is sliced must
        not be truncated: a consumer's part of the log."""
        if max_bytes < SLICED_BYTES or self.offline or not self.log_start_offset <= offset < end_offset:
            return None
        try:
            found = self._places.slice(offset, max_bytes, end_offset)
        except WouldWait:
            return None
        except OSError as error:
            raise self._failed(error) from error
        if found is None:
            return None
        file, position, size, next_offset = found
        return FetchInfo(offset, next_offset, cast(Buffer, FileSlice(file, position, size, jobs, self.on_io_error)))

    def _in_range(self, offset: int) -> None:
        self._online()
        start, end = self.log_start_offset, self.log_end_offset
        if not start <= offset <= end:
            why = f"offset {offset} of {self.topic_partition} is not within [{start}, {end}]"
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, why)

    def aborted_transactions(self, first_offset: int, upto: int) -> list[AbortedTxn]:
        """Aborted transactions that overlap [first_offset, upto), by first offset."""
        self._online()
        try:
            return collect_aborted(self.segments, first_offset, upto)
        except OSError as error:
            raise self._failed(error) from error

    def timestamp_job(self, timestamp: int) -> Job[TimestampOffset | None]:
        """A job that finds the first record at or after `timestamp`; None where there is none."""
        self._online()
        return timestamp_job(str(self.topic_partition), self.segments, timestamp, self.log_start_offset)

    def max_timestamp_job(self) -> Job[TimestampOffset | None]:
        """A job that finds the record with the largest timestamp; None in a log without any."""
        self._online()
        return max_timestamp_job(str(self.topic_partition), self.segments)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch at most `epoch`, its end offset); (-1, -1) where unknown (KIP-101)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # Offsets

    def update_high_watermark(self, offset: int) -> int:
        """Told by replication; kept within the log. Returns what it became."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            offset = max(self.log_start_offset, min(offset, self.log_end_offset))
        self.high_watermark = offset
        if self._first_unstable is not None:
            self.producer_states.on_high_watermark(offset)
            self._refresh()
        return offset

    def advance_log_start_offset(self, offset: int) -> bool:
        """Serve nothing below `offset` any more; False where that is so already. Raises OFFSET_OUT_OF_RANGE."""
        self._online()
        if offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is beyond its high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self._start_at(offset)
        return True

    def _start_at(self, offset: int) -> None:
        self.log_start_offset = offset
        try:
            self.leader_epochs.truncate_from_start(offset)
        except OSError as error:
            raise self._failed(error) from error
        self._unsynced.names += 1
        self.producer_states.on_log_start_offset(offset)
        self.high_watermark = max(self.high_watermark, offset)
        self._refresh()

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Epoch `epoch` begins at `start_offset`: told to a new leader before its first append."""
        self._online()
        self.leader_epochs.assign(epoch, start_offset)
        self._refresh()

    def _refresh(self) -> None:
        """What is remembered of epochs and transactions for the hot path."""
        latest = self.leader_epochs.latest
        self._latest_epoch = -1 if latest is None else latest
        first = self.producer_states.first_unstable_offset
        self._first_unstable = None if first is None else max(first, self.log_start_offset)

    # Segments

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log's end."""
        self._online()
        try:
            self._roll(now_ms, self.log_end_offset)
        except OSError as error:
            raise self._failed(error) from error

    def _roll(self, now_ms: int, first_offset: int) -> Segment:
        # At the log's end even where the first batch leaves a gap: segments that meet show that none is missing.
        base = self.log_end_offset if first_offset - self.log_end_offset <= MAX_GAP else first_offset
        active = self.segments.active
        if active.base_offset == base:
            # Empty, but its clock or an index is used up: it is made anew in place.
            self.segments.remove(active)
            active.close()
        else:
            self._unsynced.seal(active)
            self._places.keep_open(active)
        jitter = self._jitter(min(self.config.segment_jitter_ms, self.config.segment_ms))
        segment = Segment.create(self.disk, self.directory, base, self.config, now_ms, jitter)
        self.segments.add(segment)
        self._unsynced.names += 1
        states = self.producer_states
        states.map_end_offset = base
        self.snapshots.take(states)
        self._hooks.on_rolled(self)
        return segment

    def delete_segments(self, segments: Sequence[Segment], *, kept_snapshot: int = -1) -> None:
        """Take segments out of the log and have their files deleted after `file.delete.delay.ms`.

        At least one must be left, or be added at once. The caller moves the log start offset.
        """
        doomed: list[str] = []
        removers: list[Callable[[Disk], None]] = []
        try:
            for segment in segments:
                self.segments.remove(segment)
                segment.close()
                segment.change_suffix(DELETED_SUFFIX)
                removers.append(segment.files())
                if segment.base_offset != kept_snapshot:
                    doomed += self.snapshots.mark_deleted(segment.base_offset)
        except OSError as error:
            raise self._failed(error) from error
        self._forget_places()
        self._unsynced.names += 1

        def remove(disk: Disk) -> None:
            for remover in removers:
                remover(disk)
            for path in doomed:
                disk.remove(path)

        if segments:
            self._hooks.delete_later(self, self.config.file_delete_delay_ms, remove)

    def _forget_places(self) -> None:
        self._places.forget()
        self._unsynced.truncations += 1

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention; the number of segments deleted."""
        from kalda.storage.retention import delete_old_segments

        return delete_old_segments(self, now_ms)

    def replace_segments(self, new: Segment, old: Sequence[Segment]) -> None:
        """A cleaned segment, synced, takes the place of those that it was made from.

        Its files go from `.cleaned` to `.swap`, which a crash finishes, before those of the old ones go.
        """
        try:
            new.change_suffix(SWAP_SUFFIX)
            self.delete_segments(old, kept_snapshot=new.base_offset)
            new.change_suffix("")
        except OSError as error:
            raise self._failed(error) from error
        self.segments.add(new)

    def truncate_to(self, offset: int) -> bool:
        """Give up everything from `offset` on; False where the log ends before. For followers."""
        if offset >= self.log_end_offset:
            # A former leader that wrote nothing in its epoch has noted its beginning all the same.
            self._online()
            try:
                self.leader_epochs.truncate_from_end(self.log_end_offset)
            except OSError as error:
                raise self._failed(error) from error
            self._refresh()
            return False
        self.cut_with(lambda: cut(self, offset))
        return True

    def truncate_fully_and_start_at(self, offset: int, log_start_offset: int | None = None) -> None:
        """Empty the log; it goes on at `offset`."""
        self.cut_with(lambda: empty(self, offset, log_start_offset))

    def cut_with(self, work: Callable[[], None]) -> None:
        self._online()
        try:
            self._forget_places()
            self._unsynced.names += 1
            work()
        except OSError as error:
            raise self._failed(error) from error
        self.producer_states.on_high_watermark(self.high_watermark)
        self._refresh()

    def lower_recovery_point(self, offset: int) -> None:
        """What is synced beyond `offset` is about to be cut off."""
        if offset < self.log_start_offset:
            self.log_start_offset = offset
            self._hooks.on_log_start_lowered(self)
        if offset < self.recovery_point:
            self.recovery_point = offset
            self._hooks.on_recovery_point_lowered(self)

    # Flushing and closing

    def flush(self, upto: int | None = None) -> None:
        """`flush_job`, here and now."""
        self.flush_job(upto).complete()

    def flush_job(self, upto: int | None = None, now_ms: int | None = None, *, indexes: bool = True) -> Job[None]:
        """A job that syncs everything below `upto` (the log's end); its finish moves the recovery point there. Without
        the `indexes` only for a log whose every opening makes them anew."""
        self._online()
        upto = self.log_end_offset if upto is None else min(upto, self.log_end_offset)

        def reached(whole: bool) -> None:
            if whole and upto > self.recovery_point:
                self.recovery_point = upto
            if now_ms is not None:
                self.last_flush_ms = now_ms

        try:
            return self._unsynced.job(
                f"flush {self.topic_partition}",
                self.segments,
                self.snapshots,
                self.leader_epochs,
                self.recovery_point,
                upto,
                reached,
                indexes,
            )
        except OSError as error:
            raise self._failed(error) from error

    def close_job(self) -> Job[None]:
        """A job that leaves the files as a clean stop does: complete indexes, a producer snapshot, all of it synced."""
        self._online()
        try:
            self.snapshots.take(self.producer_states)
            self._unsynced.seal(self.segments.active)
            job = self.flush_job()
        except OSError as error:
            raise self._failed(error) from error

        def finish(_: None) -> None:
            job.finish()
            self.close(clean=False)

        return Job(f"close {self.topic_partition}", job.run, finish)

    def close(self, clean: bool = True) -> None:
        """`close_job` here and now; with `clean` false only the file descriptors are let go."""
        if clean and not self.offline:
            self.close_job().complete()
            return
        for segment in self.segments:
            segment.close()
        self._places.forget()
        self.offline = True

    def rename_dir(self, directory: str) -> None:
        """Move the log; open files stay open."""
        self._online()
        try:
            self.disk.rename(self.directory, directory)
        except OSError as error:
            raise self._failed(error) from error
        self.directory = directory
        for segment in self.segments:
            segment.move(directory)
        self.leader_epochs.directory = directory
        self._unsynced.directory = directory
        self._unsynced.names += 1
        self._unsynced.truncations += 1  # jobs of before have not synced the new name
        self.snapshots.directory = directory

    # Producers

    def producers(self) -> list[ProducerState]:
        """Every producer that the log remembers."""
        return list(self.producer_states)

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers silent for `producer.id.expiration.ms`; the number forgotten."""
        return self.producer_states.expire(now_ms, self._expiration_ms)

    # Failures

    def _online(self) -> None:
        if self.offline:
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the log {self.topic_partition} is closed or its disk failed"
            )

    def on_io_error(self, error: BaseException) -> None:
        """A job's thread met this: the log goes offline and the hooks are told."""
        if isinstance(error, OSError):
            self._failed(error)

    def _failed(self, error: OSError) -> ApiError:
        if not self.offline:
            self.offline = True
            self._hooks.on_io_error(self, error)
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory}: {error}")
