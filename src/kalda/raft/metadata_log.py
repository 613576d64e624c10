"""The metadata partition on disk: log, snapshots and `quorum-state` in one directory, as Kafka lays them out.

A synchronous store over a `Disk`. What may wait long for the device (syncing the log, writing a snapshot) is returned
as a job for another thread. The rest is in the page cache, or rare.

Not obvious:

- The log start offset of the metadata log is in no file: opening it derives the offset from the leader epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kalda.base.disk import Buffer, Disk
from kalda.base.errors import CorruptRecord
from kalda.base.ids import (
    METADATA_TOPIC_ID,
    METADATA_TOPIC_NAME,
    TopicPartition,
)
from kalda.protocol.messages.log_records import KRaftVersionRecord, VotersRecord
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft.log_state import RaftLogState
from kalda.raft.quorum_state import FILE_NAME, MAX_FILE_BYTES, ElectionState, decode_quorum_state, encode_quorum_state
from kalda.raft.rpc import Control
from kalda.raft.snapshots import (
    MAX_BATCH_BYTES,
    PARTIAL_SUFFIX,
    SUFFIX,
    CommittedBatch,
    SnapshotReader,
    decode_all,
    iter_whole,
    parse_snapshot_name,
    publish_snapshot,
    snapshot_name,
    write_snapshot,
)
from kalda.raft.voters import OffsetAndEpoch, VoterHistory, VoterSet
from kalda.records.control import read_control_batch
from kalda.storage.checkpoints import DISK_FAILED_FILE, mark_failed, replace_file
from kalda.storage.config import LogConfig
from kalda.storage.job import Job
from kalda.storage.log.deletion import delete_old_segments, truncate_fully_and_start_at, truncate_to
from kalda.storage.log.loader import Unopened
from kalda.storage.log.log import Log
from kalda.storage.values import FetchInfo

METADATA_PARTITION = TopicPartition(METADATA_TOPIC_NAME, 0)
READ_BYTES = 1 << 20


class MetadataLogConfig(NamedTuple):
    """Kafka's `metadata.log.*` and `metadata.max.retention.*`, with its defaults."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    retention_bytes: int = 100 * 1024 * 1024
    retention_ms: int = 7 * 86_400_000

    def log_config(self) -> LogConfig:
        return LogConfig(
            cleanup_policy=frozenset({"none"}),
            segment_bytes=self.segment_bytes,
            segment_ms=self.segment_ms,
            retention_bytes=-1,
            retention_ms=-1,
            max_message_bytes=MAX_BATCH_BYTES,
        )


class MetadataLog:
    """The files of `__cluster_metadata-0`."""

    def __init__(self, disk: Disk, directory: str, config: MetadataLogConfig, log: Log) -> None:
        self.disk = disk
        self.directory = directory
        self.config = config
        self.log = log
        self.snapshots: list[OffsetAndEpoch] = []
        """Complete on disk, oldest first; none ends before the log start offset."""
        self.partial: OffsetAndEpoch | None = None
        """The snapshot that is being fetched, of which there is an incomplete file."""

    @classmethod
    def open(cls, disk: Disk, directory: str, config: MetadataLogConfig, *, now_ms: int) -> MetadataLog:
        """`directory` is the partition's own. Incomplete snapshots are removed. A log that does not continue the newest
        snapshot begins anew at its end: it ends before the snapshot's end or begins after it, or has another epoch
        there, because the snapshot was fetched in the place of records that were never committed."""
        disk.make_dirs(directory)
        has_failed = disk.stat(f"{directory}/{DISK_FAILED_FILE}") is not None
        snapshots: list[OffsetAndEpoch] = []
        for name in disk.list_dir(directory):
            parsed = parse_snapshot_name(name)
            if parsed is None:
                continue
            if parsed[1] == SUFFIX:
                snapshots.append(parsed[0])
            else:
                disk.remove(f"{directory}/{name}")
        try:
            log = Log.open(
                Unopened(
                    disk,
                    directory,
                    config.log_config(),
                    topic_partition=METADATA_PARTITION,
                    topic_id=METADATA_TOPIC_ID,
                    now_ms=now_ms,
                    clean=False,
                    cache_is_unreliable=has_failed,
                )
            )
            # After an unclean stop the end of the log may be in the page cache only, and the next vote or fetch claims
            # that all of it is durable.
            log.flush()
        except OSError:
            mark_failed(disk, directory)
            raise
        if has_failed:
            _write_anew(disk, f"{directory}/{FILE_NAME}")
            disk.remove(f"{directory}/{DISK_FAILED_FILE}")
        metadata_log = cls(disk, directory, config, log)
        metadata_log.snapshots = sorted(snapshots)
        metadata_log._advance_start_to_epochs()
        latest = metadata_log.latest_snapshot
        if latest is not None and not metadata_log.state().continues(latest):
            truncate_fully_and_start_at(log, latest.offset)
        metadata_log._drop_snapshots([old for old in metadata_log.snapshots if old.offset < log.log_start_offset])
        return metadata_log

    def _advance_start_to_epochs(self) -> None:
        """The log start offset that `clean` has advanced is in no file: the log starts at a segment again, before the
        first epoch of the checkpoint. Without their epochs the records in between cannot be compared with another log,
        so the log start offset is advanced past them. A follower that lacks them fetches the snapshot."""
        log, epochs, latest = self.log, self.log.leader_epochs.entries, self.latest_snapshot
        first = epochs[0][1] if epochs else log.log_end_offset
        if latest is not None and log.log_start_offset < first <= latest.offset:
            log.update_high_watermark(first)
            log.advance_log_start_offset(first)

    @property
    def latest_snapshot(self) -> OffsetAndEpoch | None:
        return self.snapshots[-1] if self.snapshots else None

    def state(self) -> RaftLogState:
        return RaftLogState(
            start_offset=self.log.log_start_offset,
            end_offset=self.log.log_end_offset,
            epochs=list(self.log.leader_epochs.entries),
            snapshots=self.snapshots,
        )

    # The election state.

    def read_election(self) -> ElectionState:
        """Raises `ValueError` where the file is there and cannot be understood."""
        path = f"{self.directory}/{FILE_NAME}"
        if self.disk.stat(path) is None:
            return ElectionState()
        try:
            return decode_quorum_state(self.disk.read_file(path, MAX_FILE_BYTES))
        except ValueError as error:
            raise ValueError(
                f"{path} cannot be read: {error}. Without it this node might vote twice in one epoch: "
                "restore it, or let the node join anew with an empty directory"
            ) from error

    def write_election(self, state: ElectionState, voter_ids: tuple[int, ...], kraft_version: int) -> None:
        data = encode_quorum_state(state, voter_ids, kraft_version)
        replace_file(self.disk, f"{self.directory}/{FILE_NAME}", data)

    # Reading.

    def history(self, static_voters: VoterSet) -> VoterHistory:
        """Voters and kraft.versions of the newest snapshot and of the log after it."""
        history = VoterHistory(static_voters)
        latest = self.latest_snapshot
        if latest is not None:
            for control in self.snapshot_controls(latest):
                apply_control(history, control.offset, control.record)
        start = max(self.log.log_start_offset, latest.offset if latest is not None else 0)
        for buf in self._read_pieces(start, self.log.log_end_offset):
            for pos, header in iter_whole(buf):
                if header.is_control and header.last_offset >= start:
                    for found in read_control_batch(buf, pos, header):
                        apply_control(history, found.offset, found.message)
        return history

    def snapshot_controls(self, snapshot: OffsetAndEpoch) -> tuple[Control, ...]:
        """The control records at the beginning of a snapshot; their offset is its last one."""
        for batch in self.reader(snapshot):
            return tuple(Control(snapshot.offset - 1, found.message) for found in batch.control_records)
        return ()

    def reader(self, snapshot: OffsetAndEpoch) -> SnapshotReader:
        return SnapshotReader(self.disk, self.directory, snapshot)

    def _read_pieces(self, start: int, end: int) -> Iterator[Buffer]:
        while start < end:
            found = self.log.read(start, READ_BYTES, end, True)
            if found.next_offset <= start:
                return
            yield found.records
            start = found.next_offset

    def read_batches(self, start: int, end: int) -> Iterator[CommittedBatch]:
        """The batches from the one that holds `start` up to `end`, exclusive, read piece by piece."""
        for buf in self._read_pieces(start, end):
            yield from decode_all(buf)

    def read_for_fetch(self, offset: int, max_bytes: int) -> Buffer | Callable[[], Buffer]:
        """Batches for a replica, committed or not, at least one; a job that reads them where the page cache does not
        have them."""
        end = self.log.log_end_offset
        found = self.log.read_nowait(offset, max_bytes, end, True)
        if isinstance(found, FetchInfo):
            return found.records
        cold = found

        def read() -> Buffer:
            try:
                return cold.read().records
            except FileNotFoundError:
                return b""  # the segment was removed
            except CorruptRecord:
                if not cold.is_outdated:
                    raise
                return b""  # a former leader has cut its log: the replica fetches from the new one
            finally:
                cold.close()

        return read

    # Changing.

    def append(self, batch: bytearray, epoch: int) -> None:
        """A batch that this node has made as the leader, with its offset and epoch."""
        self.log.append_as_follower(batch, epoch)

    def append_fetched(self, records: Buffer, end_offset: int, epoch: int) -> None:
        """The whole batches at the beginning of `records`, up to the one that ends at `end_offset`."""
        size = 0
        for pos, header in iter_whole(records):
            size = pos + header.size_bytes
            if header.next_offset >= end_offset:
                break  # what follows may be damaged
        self.log.append_as_follower(memoryview(records)[:size], epoch)

    def truncate(self, offset: int) -> None:
        truncate_to(self.log, offset)

    # Snapshots.

    def snapshot_job(
        self,
        snapshot: OffsetAndEpoch,
        records: Iterable[VersionedRecord],
        history: VoterHistory,
        *,
        last_contained_timestamp_ms: int,
        now_ms: int,
    ) -> Callable[[], int]:
        """A job that writes a snapshot and returns its size in bytes; `add_snapshot` then. It draws `records` on the
        thread that runs it."""
        version = history.kraft_version_at(snapshot.offset - 1)
        voters = history.voters_at(snapshot.offset - 1)
        disk, directory = self.disk, self.directory

        def write() -> int:
            return write_snapshot(
                disk,
                directory,
                snapshot,
                records,
                last_contained_timestamp_ms=last_contained_timestamp_ms,
                kraft_version=version,
                voters=voters,
                now_ms=now_ms,
            )

        return write

    def add_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        if snapshot not in self.snapshots:
            self.snapshots.append(snapshot)
            self.snapshots.sort()

    def read_chunk(self, snapshot: OffsetAndEpoch, position: int, max_bytes: int) -> tuple[int, Buffer] | None:
        """The file's size, and bytes from `position`; no bytes where that is at or past the end. None where there is no
        such file: it may be removed any time, since this runs on another thread."""
        try:
            file = self.disk.open(f"{self.directory}/{snapshot_name(snapshot)}", writable=False)
        except FileNotFoundError:
            return None
        try:
            size = file.size()
            return size, file.read(position, max_bytes) if position < size else b""
        finally:
            file.close()

    def save_chunk(self, snapshot: OffsetAndEpoch, position: int, data: Buffer) -> None:
        self.drop_partial(snapshot)
        self.partial = snapshot
        file = self.disk.open(f"{self.directory}/{snapshot_name(snapshot, PARTIAL_SUFFIX)}", create=True)
        try:
            if position == 0:
                file.truncate(0)
            file.write(position, data)
        finally:
            file.close()

    def drop_partial(self, wanted: OffsetAndEpoch | None) -> None:
        """Remove the incomplete file of a snapshot that is not fetched any more, as `wanted` is."""
        if self.partial is not None and self.partial != wanted:
            self.disk.remove(f"{self.directory}/{snapshot_name(self.partial, PARTIAL_SUFFIX)}")
            self.partial = None

    def publish_job(self, snapshot: OffsetAndEpoch) -> Callable[[], None]:
        """A job that verifies, syncs and renames a fetched snapshot; `restart_at` it then. It removes a file that is
        damaged, and raises `CorruptRecord`."""
        self.partial = None  # the job's from now on
        disk, directory = self.disk, self.directory
        partial = f"{directory}/{snapshot_name(snapshot, PARTIAL_SUFFIX)}"

        def publish() -> None:
            try:
                SnapshotReader(disk, directory, snapshot, PARTIAL_SUFFIX).verify()
            except CorruptRecord:
                disk.remove(partial)
                raise
            file = disk.open(partial)
            try:
                file.sync()
            finally:
                file.close()
            publish_snapshot(disk, directory, snapshot)

        return publish

    def restart_at(self, snapshot: OffsetAndEpoch) -> None:
        """Empty the log, and begin it at the end of `snapshot`, which replaces all other snapshots."""
        truncate_fully_and_start_at(self.log, snapshot.offset)
        self._drop_snapshots([old for old in self.snapshots if old != snapshot])
        self.snapshots = [snapshot]

    @property
    def latest_snapshot_bytes(self) -> int:
        """The size of the latest snapshot, 0 where there is none."""
        latest = self.latest_snapshot
        stat = None if latest is None else self.disk.stat(f"{self.directory}/{snapshot_name(latest)}")
        return 0 if stat is None else stat.size_bytes

    def _drop_snapshots(self, dropped: Iterable[OffsetAndEpoch]) -> None:
        for old in dropped:
            self.disk.remove(f"{self.directory}/{snapshot_name(old)}")
            self.snapshots.remove(old)

    def clean(self, now_ms: int) -> tuple[int, tuple[OffsetAndEpoch, ...]] | None:
        """Delete the oldest snapshots, and the log before the oldest one that is kept, as far as size or age demand.
        The newest is always kept. The new log start offset and the deleted snapshots; None where none was deleted."""
        dropped: list[OffsetAndEpoch] = []
        kept = list(self.snapshots)
        while len(kept) > 1 and (self._too_large(kept) or self._too_old(kept[0], now_ms)):
            dropped.append(kept.pop(0))
        if not dropped:
            return None
        start = max(self.log.log_start_offset, kept[0].offset)
        self.log.advance_log_start_offset(start)
        self._drop_snapshots(dropped)
        delete_old_segments(self.log, now_ms)
        return start, tuple(dropped)

    def _too_large(self, snapshots: list[OffsetAndEpoch]) -> bool:
        limit = self.config.retention_bytes
        if limit < 0:
            return False
        size = self.log.size_bytes
        for snapshot in snapshots:
            stat = self.disk.stat(f"{self.directory}/{snapshot_name(snapshot)}")
            size += stat.size_bytes if stat is not None else 0
        return size > limit

    def _too_old(self, snapshot: OffsetAndEpoch, now_ms: int) -> bool:
        limit = self.config.retention_ms
        return limit >= 0 and self.reader(snapshot).last_contained_timestamp_ms() + limit < now_ms

    def flush_job(self, offset: int) -> Job[None]:
        """Sync everything before `offset`. Indexes are not synced: `open` rebuilds them."""
        return self.log.flush_job(offset, indexes=False, is_promised=True).on_failure(self._on_failed_flush)

    def _on_failed_flush(self, error: OSError) -> None:
        raise self.log.failed(error) from error

    def close(self) -> None:
        self.log.close(True)


def _write_anew(disk: Disk, path: str) -> None:
    """Sync what the file holds, of which the device may have another version."""
    if disk.stat(path) is not None:
        replace_file(disk, path, disk.read_file(path, MAX_FILE_BYTES))


def apply_control(history: VoterHistory, offset: int, record: object) -> None:
    if isinstance(record, VotersRecord):
        history.set_voters(offset, VoterSet.from_record(record))
    elif isinstance(record, KRaftVersionRecord):
        history.set_kraft_version(offset, record.kraft_version)
