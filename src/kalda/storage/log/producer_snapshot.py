"""Producer state as a file: `<offset>.snapshot`.

An int16 version, a CRC32C of all that follows it, an int32 count, then one entry a producer with its last batch only.
Loading the latest snapshot and applying the batches after it gives the state at the log's end, without reading the
whole log. A damaged snapshot is removed and the one before it used.

A file has as many entries as its count and its size say, whatever the number: it is written and read piece by piece,
never as one buffer. That of many producers is written by a job (`SnapshotFiles.pending`), from a state that was set
aside. A crash may leave such a file torn: its CRC, which is written last, shows that.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from itertools import islice
from struct import Struct

from kalda.base.disk import Disk, File, NoHandleLeft
from kalda.base.errors import CorruptRecord, UnsupportedFormat
from kalda.records.batch import NO_SEQUENCE, crc32c
from kalda.storage.config import MAX_INT64
from kalda.storage.file_names import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from kalda.storage.job import Job
from kalda.storage.log.producer_state import BatchMetadata, ProducerState, ProducerStates

log = logging.getLogger("kalda.logs")

_VERSION = 1
_PREFIX = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")  # `ProducerEntry` of protocol/messages/records.py, which has no variable part
_ENTRIES_AT = _PREFIX.size + _COUNT.size
_ENTRIES_A_WRITE = 1_024
"""Encoding so many takes about a millisecond; a thread that does it lets others run with each write."""
_ENTRIES_A_READ = 16_384
_CHECKED_AT_ONCE = _ENTRIES_A_READ * _ENTRY.size
_WRITTEN_AT_ONCE = 1_000
"""With more producers than that, the snapshot of a roll is written by a job."""


def write_snapshot(file: File, states: Collection[ProducerState]) -> None:
    """Replace the contents of `file`. On any thread, if the states do not change meanwhile."""
    file.truncate(0)
    count = _COUNT.pack(len(states))
    checksum, position = crc32c(count), _ENTRIES_AT
    entries = map(_packed, states)
    while piece := b"".join(islice(entries, _ENTRIES_A_WRITE)):
        file.write(position, piece)
        checksum = crc32c(piece, checksum)
        position += len(piece)
    file.write(0, _PREFIX.pack(_VERSION, checksum) + count)


_NO_BATCH = (NO_SEQUENCE, -1, 0, -1)
"""As a producer without a batch is stored."""


def _packed(state: ProducerState) -> bytes:
    batches = state.batches
    last_sequence, last_offset, offset_delta, _ = batches[-1] if batches else _NO_BATCH
    return _ENTRY.pack(
        state.producer_id,
        state.epoch,
        last_sequence,
        last_offset,
        offset_delta,
        state.last_timestamp,
        state.coordinator_epoch,
        state.txn_first_offset,
    )


def read_snapshot(disk: Disk, path: str) -> list[ProducerState]:
    """The producers in a file. Raises `CorruptRecord`, and `OSError` where the disk fails."""
    file = disk.open(path, writable=False)
    try:
        size = file.size()
        head = bytes(file.read(0, _ENTRIES_AT))
        if len(head) < _ENTRIES_AT:
            raise CorruptRecord(f"a producer snapshot of {size} bytes is too short")
        version, checksum = _PREFIX.unpack_from(head)
        if version != _VERSION:
            _check_later(file, path, version, checksum)
            raise CorruptRecord(f"a producer snapshot has version {version}")
        (count,) = _COUNT.unpack_from(head, _PREFIX.size)
        found: list[ProducerState] = []
        actual = crc32c(head[_PREFIX.size :])
        for piece in _pieces(file, size):
            actual = crc32c(piece, actual)
            whole = piece[: min(count - len(found), len(piece) // _ENTRY.size) * _ENTRY.size] if count > 0 else b""
            found += [_state(*entry) for entry in _ENTRY.iter_unpack(whole)]
    finally:
        file.close()
    if actual != checksum:
        raise CorruptRecord("a producer snapshot's CRC does not match its bytes")
    if len(found) != count:
        raise CorruptRecord(f"a producer snapshot announces {count} producers and holds {len(found)}")
    return found


def _check_later(file: File, path: str, version: int, checksum: int) -> None:
    """Raise `UnsupportedFormat` for a whole file of a later version. One with a wrong CRC is damaged, and so may be its
    version: a loss of power may have left anything."""
    if version <= _VERSION:
        return
    actual, size = 0, file.size()
    for position in range(_PREFIX.size, size, _CHECKED_AT_ONCE):
        actual = crc32c(file.read(position, min(_CHECKED_AT_ONCE, size - position)), actual)
    if actual == checksum:
        raise UnsupportedFormat(f"{path} has version {version}, only {_VERSION} is known")


def _pieces(file: File, size: int) -> Iterator[bytes]:
    """All that follows the count, in pieces of whole entries; the last one may end within an entry."""
    length = _ENTRIES_A_READ * _ENTRY.size
    for position in range(_ENTRIES_AT, size, length):
        yield bytes(file.read(position, length))


def _state(
    producer_id: int,
    epoch: int,
    last_sequence: int,
    last_offset: int,
    offset_delta: int,
    timestamp: int,
    coordinator_epoch: int,
    txn_first_offset: int,
) -> ProducerState:
    batches: tuple[BatchMetadata, ...] = ()
    if last_offset >= 0:
        batches = (BatchMetadata(last_sequence, last_offset, offset_delta, timestamp),)
    return ProducerState(producer_id, epoch, coordinator_epoch, timestamp, txn_first_offset, batches)


class SnapshotFiles:
    """The snapshot files of one log, by offset. Written without a sync: the next flush job syncs what it covers."""

    __slots__ = ("_disk", "directory", "offsets", "pending", "unsynced")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self.directory = directory
        self.offsets = sorted(offsets)
        """Of all files, rising."""
        self.unsynced: list[int] = []
        """Those of files that were written and not synced."""
        self.pending: Job[None] | None = None
        """Writes and syncs the file of a roll; to be run by whoever takes it from here. Recovery needs no file: without
        it, it reads more batches."""

    def path(self, offset: int) -> str:
        return f"{self.directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    @property
    def latest(self) -> int | None:
        return self.offsets[-1] if self.offsets else None

    def take(self, states: ProducerStates) -> bool:
        """Write the state at its `map_end_offset`; False where there is a snapshot as late as that already."""
        offset = states.map_end_offset
        if offset <= states.snapshot_offset:
            return False
        file = self._disk.open(self.path(offset), create=True)
        try:
            write_snapshot(file, list(states))
        finally:
            file.close()
        self._add(offset)
        self.unsynced.append(offset)
        states.snapshot_offset = offset
        return True

    def take_at_roll(self, states: ProducerStates) -> None:
        """`take`; with many producers their state is set aside, and the file is left to a job, `pending`. While such a
        job is under way, and where no file can be opened, a roll gets no snapshot."""
        if states.is_frozen:
            return
        try:
            if len(states) <= _WRITTEN_AT_ONCE:
                self.take(states)
            elif states.map_end_offset > states.snapshot_offset:
                self.pending = self._job(states)
        except NoHandleLeft as error:
            log.warning("%s has no producer snapshot at %d: %s", self.directory, states.map_end_offset, error)

    def take_at_close(self, states: ProducerStates) -> Job[None] | None:
        """`take`, of a log that does not change any more; with many producers by the job that is returned, which syncs
        the file. A flush that is to sync the directory must follow it."""
        if not states.is_frozen and len(states) <= _WRITTEN_AT_ONCE:
            self.take(states)
            return None
        self.pending = None
        if states.is_frozen and states.map_end_offset == states.snapshot_offset:
            self.remove(states.snapshot_offset)  # another job may have it half written: it goes on with a file unnamed
            return self._job(states)
        return self._job(states) if states.map_end_offset > states.snapshot_offset else None

    def _job(self, states: ProducerStates) -> Job[None]:
        offset, frozen = states.map_end_offset, states.freeze()
        try:
            file = self._disk.open(self.path(offset), create=True)
        except OSError:
            states.thaw(frozen)
            raise
        self._add(offset)
        states.snapshot_offset = offset

        def work() -> None:
            try:
                write_snapshot(file, frozen.values())
                file.sync()
            finally:
                file.close()

        return Job(f"write {self.path(offset)}", work, lambda _: states.thaw(frozen))

    def _add(self, offset: int) -> None:
        if offset not in self.offsets:
            self.offsets.append(offset)
            self.offsets.sort()

    def latest_at(self, offset: int) -> int | None:
        """The offset of the latest snapshot at `offset` or before."""
        return next((each for each in reversed(self.offsets) if each <= offset), None)

    def load_latest(
        self,
        states: ProducerStates,
        start_offset: int,
        upto: int,
        now_ms: int,
        expiration_ms: int,
        at_most: int = MAX_INT64,
    ) -> None:
        """Load the latest undamaged snapshot in (start_offset, upto] into `states`, that at `at_most` or the last one
        before; without one, clear them as of `start_offset`. Producers that have expired by `now_ms` are left out.

        Snapshots outside that range, and damaged ones, are removed: they are not of this log as it is now. Raises
        `UnsupportedFormat` for one of a later version.
        """
        self.remove_outside(start_offset, upto)
        while (offset := self.latest_at(at_most)) is not None:
            try:
                found = read_snapshot(self._disk, self.path(offset))
            except UnsupportedFormat:
                raise
            except CorruptRecord as error:
                log.warning("%s is removed: %s; the producers are read from an earlier one", self.path(offset), error)
                self.remove(offset)
                continue
            alive = [
                state for state in found if state.txn_first_offset >= 0 or now_ms - state.last_timestamp < expiration_ms
            ]
            states.load(alive, offset)
            return
        states.clear(start_offset)

    def remove(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets.remove(offset)
        if offset in self.unsynced:
            self.unsynced.remove(offset)
        self._disk.remove(self.path(offset))

    def check_versions(self) -> None:
        """Raise `UnsupportedFormat` where a whole file is of a later version. Those that do not fit a recovered log are
        removed without being read."""
        for offset in self.offsets:
            file = self._disk.open(self.path(offset), writable=False)
            try:
                head = bytes(file.read(0, _PREFIX.size))
                if len(head) == _PREFIX.size:
                    _check_later(file, self.path(offset), *_PREFIX.unpack(head))
            finally:
                file.close()

    def keep(self, offsets: list[int]) -> None:
        """There are only these files any more; the others have been removed."""
        self.offsets = offsets
        self.unsynced = [offset for offset in self.unsynced if offset in offsets]

    def remove_outside(self, start_offset: int, upto: int) -> None:
        """Remove all but those in (start_offset, upto]."""
        for offset in list(self.offsets):
            if offset > upto or offset <= start_offset:
                self.remove(offset)

    def remove_strays(self, bases: list[int]) -> None:
        """Remove all but those at a segment's base and, beyond every base, the last one: the state at the log's end."""
        strays = [offset for offset in self.offsets if offset not in bases]
        if strays and (not bases or strays[-1] > bases[-1]):
            strays.pop()
        for offset in strays:
            self.remove(offset)

    def mark_deleted(self, offset: int) -> list[str]:
        """Rename the one at `offset` for a later deletion; its new path, nothing where there is none."""
        if offset not in self.offsets:
            return []
        path = self.path(offset) + DELETED_SUFFIX
        self._disk.rename(self.path(offset), path)
        self.offsets.remove(offset)
        if offset in self.unsynced:
            self.unsynced.remove(offset)
        return [path]
