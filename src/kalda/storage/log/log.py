"""One partition's log.

Appends go to the active segment, at the log's end; reads take whole batches from any segment. Where the log begins and
ends, and what of it is committed and synced, its `LogOffsets` say.

Invariants: those of `offsets.py`; a batch is in one segment; the producers' state is that at the log's end; the leader
epochs cover each record.

The log belongs to one thread. What may wait for a device is given out as a `Job` or a `SnapshotJob`, whose half for
another thread works on a snapshot. A disk that fails raises KAFKA_STORAGE_ERROR, here and in every later call, and
calls the hooks. A file that could merely not be opened, because no descriptor was left, fails that one call.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from kalda.base.allocation import new_tuple
from kalda.base.disk import Buffer, Disk, NoHandleLeft
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Jobs
from kalda.records.batch import NO_TIMESTAMP, BatchHeader, check_crc, iter_batches, stamp
from kalda.records.validation import Inspection, validate_produced
from kalda.storage.checkpoints import stored_topic_id, write_partition_metadata
from kalda.storage.config import LogConfig
from kalda.storage.job import Job
from kalda.storage.log.index import WouldWait, read_cached, read_waiting
from kalda.storage.log.loader import Loaded, Loading, Unopened
from kalda.storage.log.producer_state import Marker, Verification, read_marker
from kalda.storage.log.reads import LEAST_BYTES, SLICED_BYTES
from kalda.storage.log.segment import MAX_GAP, Placed, Segment, remove_segment_files
from kalda.storage.log.snapshot_jobs import ColdRead, SnapshotJob
from kalda.storage.log.state import LogHooks, LogState, StandaloneHooks
from kalda.storage.values import AppendInfo, AppendOrigin, FetchInfo, UnexpectedAppendOffset


class Batches(NamedTuple):
    """Whole batches at the front of a buffer, with the offsets that they have in the log.

    There may be several in a replica that has fetched them, and in the leader of a raft quorum. A client's batch comes
    alone; `records.validate` checks it.
    """

    headers: list[BatchHeader]
    placed: list[Placed]
    size_bytes: int
    max_timestamp: int
    """-1 where there are none"""


def stamped_batches(records: bytearray | memoryview, offset: int, leader_epoch: int) -> Batches:
    """All batches, which get the offsets from `offset` on and this epoch; both are written to `records`."""
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
    return Batches(headers, placed, end, max_timestamp)


def replicated_batches(records: Buffer, log_end_offset: int, leader_epoch: int, log_name: object) -> Batches:
    """The whole batches at the front of `records`, up to the first one of a later epoch than `leader_epoch`, or of
    offsets so far from the first ones that they do not fit into one segment: it is fetched again.

    Raises `UnexpectedAppendOffset` where the first one begins below `log_end_offset`, `CorruptRecord` for bad bytes.
    """
    headers: list[BatchHeader] = []
    placed: list[Placed] = []
    end, expected, max_timestamp = 0, log_end_offset, -1
    for position, header in iter_batches(records):
        if header.partition_leader_epoch > leader_epoch:
            break
        if headers and header.last_offset - headers[0].base_offset >= MAX_GAP:
            break
        check_crc(records, position, header)
        if header.base_offset < expected or header.last_offset_delta < 0:
            if not headers:
                raise UnexpectedAppendOffset(
                    f"{log_name} ends at {expected}; the first batch from the leader begins at {header.base_offset}",
                    header.base_offset,
                    header.last_offset,
                )
            raise CorruptRecord(f"{log_name}: offset {header.base_offset} follows {expected - 1}")
        expected = header.next_offset
        size = header.size_bytes
        end = position + size
        headers.append(header)
        placed.append(Placed(expected - 1, header.max_timestamp, size))
        if header.max_timestamp > max_timestamp:
            max_timestamp = header.max_timestamp
    return Batches(headers, placed, end, max_timestamp)


logger = logging.getLogger("kalda.logs")
_CLIENT, _RAFT_LEADER = AppendOrigin.CLIENT, AppendOrigin.RAFT_LEADER


class Log(LogState):
    """Made by `Log.open`. What else is done with a log is done by functions that take one: `deletion`, `snapshot_jobs`,
    `compaction`."""

    __slots__ = ("_jitter", "_rules", "verify_transactions")

    def __init__(self, given: Unopened, topic_id: Uuid | None, loaded: Loaded, hooks: LogHooks) -> None:
        super().__init__(given, topic_id, loaded, hooks)
        self.verify_transactions = given.verify_transactions
        """Whether the first batch of a transaction needs the guard that `start_verification` gave:
        `transaction.partition.verification.enable`, which may change while the log is open."""
        self._jitter = given.jitter
        """A random number below its argument: how much earlier than `segment.ms` a new segment is rolled."""
        self.update_config(given.config)

    @classmethod
    def open(cls, given: Unopened, hooks: LogHooks | None = None) -> Log:
        """Open a log, making it where it is missing. Raises INCONSISTENT_TOPIC_ID where the directory belongs to
        another topic than that given, and `OSError` where the disk fails. Without `hooks` it has no manager."""
        disk, directory, topic_id = given.disk, given.directory, given.topic_id
        if fresh := disk.stat(directory) is None:
            disk.make_dirs(directory)
        found = None if fresh else _checked_topic_id(disk, directory, given.clean, topic_id)
        log = cls(given, found, Loading(given).load(), StandaloneHooks(disk) if hooks is None else hooks)
        log.producer_states.limit = given.producer_limit
        log._settle(fresh, topic_id, given.cache_is_unreliable)
        return log

    def _settle(self, fresh: bool, expected: Uuid | None, cache_is_unreliable: bool) -> None:
        """The last part of `open`, where `fresh` says that there was no log."""
        self.cold = not fresh
        if self.topic_id is not None and cache_is_unreliable:
            # Synced at once: the file that it replaces may be on the device, and has to be there whenever records are.
            write_partition_metadata(self.disk, self.unsynced.metadata_path, self.topic_id)
        if self.topic_id is None and expected is not None:
            self.assign_topic_id(expected)

    # Properties

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    @property
    def flush_due(self) -> bool:
        """Whether `flush.messages` records have been appended since the last flush."""
        return self.log_end_offset - self.recovery_point >= self.config.flush_messages

    def update_config(self, config: LogConfig) -> None:
        """Go by other settings from now on."""
        self.config = config
        for segment in self.segments:
            segment.config = config
        self._rules = config.record_rules(self.hooks.conversions)

    def assign_topic_id(self, topic_id: Uuid) -> None:
        """Write `partition.metadata`. The next flush syncs it: a log with synced records always has a synced id."""
        self.check_online()
        if self.topic_id is not None:
            if self.topic_id != topic_id:
                raise ApiError(ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.directory} has topic id {self.topic_id.hex()}")
            return
        try:
            write_partition_metadata(self.disk, self.unsynced.metadata_path, topic_id, durable=False)
        except OSError as error:
            raise self.refused(error) from error
        self.topic_id = topic_id
        self.unsynced.metadata = True
        self.unsynced.names += 1

    # Appending

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: Verification | None = None,
        transaction_version: int = 0,
        inspection: Inspection | None = None,
    ) -> AppendInfo:
        """Validate one batch, give it offsets and write it. `records` is written to.

        A duplicate of one of its producer's last five batches is not appended again: the offsets that it got the first
        time are returned. `transaction_version`: of the transaction that a marker ends. A raft leader may append
        several batches, which are not validated. Raises `ApiError` with Kafka's codes, or
        `InspectionUnfinished` where a client's batch has too many records to check them at once; nothing has been
        appended then. `inspection` is the finished one of that batch.
        """
        if self.blocked:
            self.unblock()
        first_offset = self.log_end_offset
        if origin is _RAFT_LEADER:
            return self._append_many(records, stamped_batches(records, first_offset, leader_epoch), now_ms)
        buf, header, max_timestamp, last_offset, append_time_ms = validate_produced(
            records, self._rules, first_offset, leader_epoch, now_ms, origin is _CLIENT, inspection
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
                if header.is_transactional:
                    states.check_transactional(header, verification, self.verify_transactions)
                states.check_data(header, origin)
            elif (duplicate := states.admit(header, verification, self.verify_transactions)) is not None:
                first, last, timestamp = duplicate.first_offset, duplicate.last_offset, duplicate.timestamp
                return AppendInfo(first, last, timestamp, timestamp, self.log_start_offset, size, duplicate=True)
        try:
            segment = self.segments.active
            if segment.should_roll(size, max_timestamp, last_offset, now_ms):
                segment = self._roll(now_ms, first_offset)
            if leader_epoch > self._latest_epoch:
                self.assign_leader_epoch(leader_epoch, first_offset)
            if marker is not None and not marker.commit:
                segment.txn_index.prepare()
            segment.append_one(buf, size, last_offset, max_timestamp)
        except OSError as error:
            raise self.refused(error) from error
        self.log_end_offset = self.producer_states.map_end_offset = last_offset + 1
        if size >= LEAST_BYTES and self.recent is not None:
            self.recent.put(self, first_offset, last_offset + 1, buf)
        if idempotent:
            self._apply_producer(header, marker)
        start_offset = self.log_start_offset
        return new_tuple(
            AppendInfo, (first_offset, last_offset, max_timestamp, append_time_ms, start_offset, size, False)
        )

    def append_as_follower(self, records: Buffer, leader_epoch: int, now_ms: int = 0) -> AppendInfo:
        """Write batches as a leader sent them: with their offsets and epochs. A cut-off batch at the end is left out.

        Batches of a later epoch than `leader_epoch` are left out too: they were fetched in an older leader's epoch.
        Raises `UnexpectedAppendOffset` where the first batch does not follow the log, `CorruptRecord` for bad bytes.
        """
        if self.blocked:
            self.unblock()
        batches = replicated_batches(records, self.log_end_offset, leader_epoch, self.topic_partition)
        return self._append_many(records, batches, now_ms)

    def _append_many(self, records: Buffer, batches: Batches, now_ms: int) -> AppendInfo:
        """Write batches that have their offsets."""
        headers, placed, size, max_timestamp = batches
        if not headers:
            end = self.log_end_offset
            return AppendInfo(end, end - 1, -1, NO_TIMESTAMP, self.log_start_offset, 0)
        data = memoryview(records)[:size]
        first_offset, last_offset = headers[0].base_offset, placed[-1].last_offset
        assert self.log_end_offset <= first_offset <= last_offset, (
            f"{self.topic_partition}: batches of [{first_offset}, {last_offset}] are appended at {self.log_end_offset}"
        )
        markers = _markers(data, headers)
        try:
            segment = self.segments.active
            if segment.should_roll(size, max_timestamp, last_offset, now_ms):
                segment = self._roll(now_ms, first_offset)
            for header in headers:
                if header.partition_leader_epoch > self._latest_epoch:
                    self.assign_leader_epoch(header.partition_leader_epoch, header.base_offset)
                elif header.is_legacy and self._latest_epoch >= 0:
                    # Its epoch is not known, and neither is where the logs of two replicas part, as in Kafka.
                    logger.warning(
                        "%s gets a batch of magic %d: leader epochs are dropped", self.topic_partition, header.magic
                    )
                    self.leader_epochs.replace([])
                    self.refresh()
            if any(not marker.commit for marker in markers.values()):
                segment.txn_index.prepare()
            segment.append(data, placed)
        except OSError as error:
            raise self.refused(error) from error
        self.log_end_offset = self.producer_states.map_end_offset = last_offset + 1
        for header in headers:
            if header.producer_id >= 0:
                self._apply_producer(header, markers.get(header.base_offset))
        return AppendInfo(first_offset, last_offset, max_timestamp, NO_TIMESTAMP, self.log_start_offset, size)

    def _apply_producer(self, header: BatchHeader, marker: Marker | None) -> None:
        states = self.producer_states
        if not header.is_control:
            if states.apply_data(header):
                self.refresh()
        elif marker is not None:
            completed = states.apply_marker(header, marker)
            if completed is not None:
                try:
                    states.finish(completed, self.segments.active.txn_index)
                except OSError as error:
                    raise self.failed(error) from error
                self.refresh()

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int, *, supports_epoch_bump: bool = False
    ) -> Verification | None:
        """The guard for a transactional append that must first be verified with the coordinator; None where it need
        not, as the transaction is open here (KIP-890). Raises INVALID_PRODUCER_EPOCH."""
        return self.producer_states.verify(producer_id, sequence, epoch, now_ms, supports_epoch_bump)

    # Reading

    def read(self, offset: int, max_bytes: int, end_offset: int, min_one_message: bool = False) -> FetchInfo:
        """Whole batches from the one that holds `offset`, up to `end_offset` and `max_bytes`; may wait for the device.

        With `min_one_message` the first batch comes however large it is. Raises OFFSET_OUT_OF_RANGE.
        """
        self.check_range(offset)
        log_end = self.log_end_offset
        end_offset = min(end_offset, log_end)
        if offset >= end_offset:
            return FetchInfo(offset, offset, b"")
        try:
            return self.reads.here(offset, max_bytes, end_offset, log_end, min_one_message, read_waiting)
        except OSError as error:
            raise self.refused(error) from error

    def read_nowait(
        self,
        offset: int,
        max_bytes: int,
        end_offset: int,
        min_one_message: bool = False,
        slices: Jobs | None = None,
    ) -> FetchInfo | SnapshotJob[FetchInfo]:
        """As `read`, never waiting: where the page cache cannot answer, a read for `run_snapshots`.

        With `slices` a large part may come as a `FileSlice`, which these jobs read where it is not in the page cache.
        That part must not be truncated later: it must be below the high watermark.
        """
        log_end = self.log_end_offset
        if not self.log_start_offset <= offset <= log_end or self.offline:
            self.check_range(offset)
        if end_offset > log_end:
            end_offset = log_end
        if offset >= end_offset:
            return FetchInfo(offset, offset, b"")
        if slices is None and self.recent is not None:
            kept = self.recent.find(self, offset, max_bytes, end_offset)
            if kept is not None:
                return kept
        try:
            if slices is not None and max_bytes >= SLICED_BYTES:
                sliced = self.reads.slice(offset, max_bytes, end_offset, slices, self.on_io_error)
                if sliced is not None:
                    return sliced
            return self.reads.here(offset, max_bytes, end_offset, log_end, min_one_message, read_cached)
        except WouldWait:
            return ColdRead(self, offset, max_bytes, end_offset, min_one_message, slices)
        except OSError as error:
            raise self.refused(error) from error

    def read_later(
        self, offset: int, max_bytes: int, end_offset: int, min_one_message: bool = False
    ) -> SnapshotJob[FetchInfo]:
        """As `read`, on another thread even where the page cache could answer: for bulk reads, which would otherwise
        occupy the log's thread. The result is a read for `run_snapshots`."""
        return ColdRead(self, offset, max_bytes, end_offset, min_one_message)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch at most `epoch`, its end offset); (-1, -1) where unknown (KIP-101)."""
        return self.leader_epochs.end_offset_for(epoch, self.log_end_offset)

    # Offsets

    def update_high_watermark(self, offset: int) -> int:
        """Called by replication; kept within the log. Returns what it became."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            offset = self.nearest(offset)
        self.high_watermark = offset
        if self.first_unstable_offset is not None:
            self.producer_states.on_high_watermark(offset)
            self.refresh()
        return offset

    def advance_log_start_offset(self, offset: int) -> bool:
        """Serve nothing below `offset` any more; False where the log starts there or later already. Raises
        OFFSET_OUT_OF_RANGE above the high watermark."""
        self.check_online()
        if offset > self.high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic_partition} is beyond its high watermark {self.high_watermark}",
            )
        if offset <= self.log_start_offset:
            return False
        self.raise_log_start(offset)
        self.producer_states.on_log_start_offset(offset)
        self.refresh()
        self.unsynced.names += 1
        try:
            self.leader_epochs.truncate_from_start(offset)
        except OSError as error:
            raise self.refused(error) from error
        return True

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Epoch `epoch` begins at `start_offset`: called in a new leader before its first append."""
        if self.blocked:
            self.unblock()
        self.leader_epochs.assign(epoch, start_offset)
        self.refresh()

    # Segments

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the log's end."""
        self.unblock()
        try:
            self._roll(now_ms, self.log_end_offset)
        except OSError as error:
            raise self.refused(error) from error

    def _roll(self, now_ms: int, first_offset: int) -> Segment:
        """Nothing is synced here, and the snapshot of many producers is left to a job. The names of the new files stay:
        the batch that is appended next has to be in a file that every start finds by that name, or the end of the
        process would lose it. They are named by the log's end, so they cannot be made before. The last index entries
        go to the page cache, as batches do."""
        # At the log's end even where the first batch leaves a gap: a segment that begins where the one before it ends
        # shows recovery that nothing is missing between them.
        base = self.log_end_offset if first_offset - self.log_end_offset <= MAX_GAP else first_offset
        active = self.segments.active
        assert active.base_offset <= base, f"{self.topic_partition}: {base} is rolled below {active.base_offset}"
        jitter = self._jitter(min(self.config.segment_jitter_ms, self.config.segment_ms))
        if active.base_offset == base:
            # Empty, but over age, or its index is full: it is made anew in place.
            segment = Segment.create(self.segment_disk, self.directory, base, self.config, now_ms, jitter)
            self.segments.remove(active)
            active.close()
        else:
            self.unsynced.seal(active)
            try:
                segment = Segment.create(self.segment_disk, self.directory, base, self.config, now_ms, jitter)
            except NoHandleLeft:
                # Appends may go on in the old segment: recovery would cut it where an empty one begins.
                remove_segment_files(self.disk, self.directory, base)
                raise
            self.reads.keep_open(active)
        self.segments.add(segment)
        self.unsynced.names += 1
        states = self.producer_states
        states.map_end_offset = base
        self.snapshots.take_at_roll(states)
        self.hooks.on_rolled(self)
        return segment

    # Flushing and closing

    def flush(self, upto: int | None = None) -> None:
        """`flush_job`, here and now."""
        self.flush_job(upto).complete()

    def close_job(self) -> Job[None]:
        """A job that leaves the files as a clean stop does: complete indexes, a producer snapshot, all of it synced."""
        self.unblock()
        try:
            snapshot = self.snapshots.take_at_close(self.producer_states)
            self.unsynced.seal(self.segments.active)
            self.unsynced.names += snapshot is not None
            job = self._sync_job(self.log_end_offset)
        except OSError as error:
            raise self.failed(error) from error

        def work() -> None:
            if snapshot is not None:
                snapshot.run()
            job.run()

        def finish(_: None) -> None:
            job.finish()
            self.close(clean=False)

        return Job(f"close {self.topic_partition}", work, finish)

    def close(self, clean: bool = True) -> None:
        """`close_job` here and now; with `clean` false, close the files and write nothing."""
        if clean and not self.offline:
            self.close_job().complete()
            return
        for segment in self.segments:
            segment.close()
        self.reads.forget()
        self.keep_recent(None)
        self.offline = self.blocked = True
        self.truncation = None

    def rename_dir(self, directory: str) -> None:
        """Rename the log's directory; open files stay open. Raises KAFKA_STORAGE_ERROR."""
        self.check_online()
        try:
            self.disk.rename(self.directory, directory)
        except OSError as error:
            raise self.failed(error) from error
        self.directory = directory
        for segment in self.segments:
            segment.move(directory)
        self.leader_epochs.directory = directory
        self.unsynced.directory = directory
        self.unsynced.names += 1
        self.unsynced.truncations += 1  # a flush job under way does not sync the new name
        self.snapshots.directory = directory


def _checked_topic_id(disk: Disk, directory: str, clean: bool, expected: Uuid | None) -> Uuid | None:
    """`stored_topic_id`. Raises INCONSISTENT_TOPIC_ID where it is another one than expected."""
    found = stored_topic_id(disk, directory, clean)
    if found is not None and expected is not None and found != expected:
        raise ApiError(
            ErrorCode.INCONSISTENT_TOPIC_ID, f"{directory} holds topic id {found.hex()}, not {expected.hex()}"
        )
    return found


def _markers(data: memoryview, headers: list[BatchHeader]) -> dict[int, Marker]:
    """The ends of transactions among these batches, which are all of `data`, by base offset."""
    found: dict[int, Marker] = {}
    position = 0
    for header in headers:
        if header.is_control and header.producer_id >= 0:
            marker = read_marker(data[position : position + header.size_bytes], header)
            if marker is not None:
                found[header.base_offset] = marker
        position += header.size_bytes
    return found
