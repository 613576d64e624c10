"""Producer state as a file: `<offset>.snapshot`.

An int16 version, a CRC32C of all that follows it, then one entry a producer with its last batch only. Loading the
latest snapshot and applying the batches after it gives the state at the log's end, without reading the whole log.
A damaged snapshot is removed and the one before it used.
"""

from __future__ import annotations

from struct import Struct

from kalda.base.disk import Disk
from kalda.base.errors import ApiError, CorruptRecord
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.storage_records import ProducerEntry, ProducerSnapshot
from kalda.records.checksum import crc32c
from kalda.storage.naming import DELETED_SUFFIX, SNAPSHOT_SUFFIX, file_name
from kalda.storage.producer_state import BatchMetadata, ProducerState, ProducerStates

_VERSION = 1
_PREFIX = Struct(">hI")


def encode_snapshot(states: ProducerStates) -> bytes:
    """The file's bytes."""
    entries = [
        ProducerEntry(
            producer_id=state.producer_id,
            epoch=state.epoch,
            last_sequence=state.last_sequence,
            last_offset=state.last_data_offset,
            offset_delta=state.last_offset_delta,
            timestamp=state.last_timestamp,
            coordinator_epoch=state.coordinator_epoch,
            current_txn_first_offset=state.txn_first_offset,
        )
        for state in sorted(states, key=lambda state: state.producer_id)
    ]
    body = encode(ProducerSnapshot(crc=0, producer_entries=entries), _VERSION)[4:]
    return _PREFIX.pack(_VERSION, crc32c(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerState]:
    """The producers in a file. Raises `CorruptRecord`."""
    if len(data) < _PREFIX.size:
        raise CorruptRecord(f"a producer snapshot of {len(data)} bytes is too short")
    version, crc = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise CorruptRecord(f"a producer snapshot has version {version}, only {_VERSION} is known")
    if crc32c(data[_PREFIX.size :]) != crc:
        raise CorruptRecord("a producer snapshot's CRC does not match its bytes")
    try:
        snapshot = decode(ProducerSnapshot, data, version, 2)
    except ApiError as error:
        raise CorruptRecord(f"a producer snapshot cannot be read: {error.message}") from error
    return [_state(entry) for entry in snapshot.producer_entries]


def _state(entry: ProducerEntry) -> ProducerState:
    batches: tuple[BatchMetadata, ...] = ()
    if entry.last_offset >= 0:
        last = BatchMetadata(entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
        batches = (last,)
    return ProducerState(
        entry.producer_id,
        entry.epoch,
        entry.coordinator_epoch,
        entry.timestamp,
        entry.current_txn_first_offset,
        batches,
    )


class SnapshotFiles:
    """The snapshot files of one log, by offset. Written without a sync: the next flush job syncs what it covers."""

    __slots__ = ("_disk", "directory", "offsets", "unsynced")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self.directory = directory
        self.offsets = sorted(offsets)
        """Of all files, rising."""
        self.unsynced: list[int] = []
        """Those of files that were written and not synced."""

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
            file.truncate(0)
            file.write(0, encode_snapshot(states))
        finally:
            file.close()
        states.snapshot_offset = offset
        if offset not in self.offsets:
            self.offsets.append(offset)
            self.offsets.sort()
        self.unsynced.append(offset)
        return True

    def load_latest(
        self, states: ProducerStates, start_offset: int, upto: int, now_ms: int, expiration_ms: int
    ) -> None:
        """Load the latest undamaged snapshot in (start_offset, upto] into `states`; without one, clear them as of
        `start_offset`. Producers that have expired by `now_ms` are left out.

        Snapshots outside that range, and damaged ones, are removed: they are not of this log as it is now.
        """
        for offset in list(self.offsets):
            if offset > upto or offset <= start_offset:
                self.remove(offset)
        while self.offsets:
            offset = self.offsets[-1]
            try:
                found = decode_snapshot(self._disk.read_file(self.path(offset)))
            except CorruptRecord:
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
