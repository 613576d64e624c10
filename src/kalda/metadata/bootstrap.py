"""The first records of a cluster: metadata.version, the other features, SCRAM credentials.

They are made when storage is formatted, and written into the log by the first active controller of an empty log. So
metadata.version precedes all records that depend on it. On disk they are a file of batches between a snapshot's header
and footer: `bootstrap.checkpoint` beside the logs, or the quorum's own snapshot 0-0, which also holds the first voters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kalda.base.disk import Disk
from kalda.metadata.features import KRAFT_VERSION, feature_names
from kalda.metadata.metadata_version import FEATURE_NAME, LATEST_PRODUCTION, MetadataVersion, from_level
from kalda.protocol.messages.control_records import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from kalda.protocol.messages.metadata_records import FeatureLevelRecord
from kalda.protocol.record_framing import VersionedRecord, decode_metadata_record, encode_metadata_record
from kalda.records.batch import iter_batches, read_header
from kalda.records.builder import build_batch, read_records
from kalda.records.control import control_batch

BOOTSTRAP_FILE = "bootstrap.checkpoint"
METADATA_DIR = "__cluster_metadata-0"
BOOTSTRAP_SNAPSHOT_FILE = f"{0:020d}-{0:010d}.checkpoint"
_MAX_BYTES = 64 * 1024 * 1024


class BootstrapMetadata(NamedTuple):
    """Records, one of which sets metadata.version; `source` is where they come from, for messages."""

    records: tuple[VersionedRecord, ...]
    metadata_version: MetadataVersion
    source: str

    @classmethod
    def from_levels(cls, version: MetadataVersion, levels: Mapping[str, int], source: str) -> BootstrapMetadata:
        """Records of the levels that are not 0. kraft.version is left out: the quorum's control records hold it."""
        records = [FeatureLevelRecord(name=FEATURE_NAME, feature_level=version.value)]
        records += [
            FeatureLevelRecord(name=name, feature_level=levels[name])
            for name in feature_names(levels)
            if levels[name] != 0 and name not in (FEATURE_NAME, KRAFT_VERSION)
        ]
        return cls(tuple(VersionedRecord(record, 0) for record in records), version, source)

    @classmethod
    def from_records(cls, records: Iterable[VersionedRecord], source: str) -> BootstrapMetadata:
        """Raises `ValueError` where no record sets metadata.version, or sets one that this release does not have."""
        kept = tuple(records)
        level = None
        for record, _ in kept:
            if isinstance(record, FeatureLevelRecord) and record.name == FEATURE_NAME:
                level = record.feature_level
        if level is None:
            raise ValueError(
                f"No FeatureLevelRecord for {FEATURE_NAME} was found in the bootstrap metadata from {source}"
            )
        return cls(kept, from_level(level), source)

    @classmethod
    def default(cls) -> BootstrapMetadata:
        """For a controller whose storage has no bootstrap records."""
        return cls.from_levels(LATEST_PRODUCTION, {}, "the default bootstrap")

    def with_records(self, more: Iterable[VersionedRecord]) -> BootstrapMetadata:
        return BootstrapMetadata((*self.records, *more), self.metadata_version, self.source)

    def level(self, name: str) -> int:
        """The level of a feature; 0 for one that is off."""
        level = 0
        for record, _ in self.records:
            if isinstance(record, FeatureLevelRecord) and record.name == name:
                level = record.feature_level
        return level

    def to_file(self, now_ms: int) -> bytes:
        """The content of `bootstrap.checkpoint`."""
        return snapshot_file(self.records, now_ms=now_ms, last_contained_log_time_ms=0)


def read_bootstrap(disk: Disk, metadata_log_dir: str) -> BootstrapMetadata:
    """The records of the quorum's first snapshot where it has any, else of `bootstrap.checkpoint`, else the default.

    Raises `ValueError` where a file exists and cannot be read: a cluster must not start with guessed levels.
    """
    for name in (f"{METADATA_DIR}/{BOOTSTRAP_SNAPSHOT_FILE}", BOOTSTRAP_FILE):
        path = f"{metadata_log_dir}/{name}"
        if disk.stat(path) is None:
            continue
        try:
            records = list(snapshot_records(disk.read_file(path, _MAX_BYTES)))
        except Exception as error:
            raise ValueError(f"Cannot read the bootstrap metadata in {path}: {error}") from error
        if records or name == BOOTSTRAP_FILE:
            return BootstrapMetadata.from_records(records, f"the binary bootstrap metadata file: {path}")
    return BootstrapMetadata.default()


def snapshot_records(data: bytes) -> Iterator[VersionedRecord]:
    """The metadata records of a file of batches. Raises `CorruptRecord` or `InvalidRequest` on anything malformed."""
    for position, header in iter_batches(data):
        if not header.is_control:
            for record in read_records(data, position, header):
                if record.value is None:
                    raise ValueError(f"the record at offset {record.offset} has no value")
                yield decode_metadata_record(record.value)


def snapshot_file(
    records: Iterable[VersionedRecord],
    *,
    now_ms: int,
    last_contained_log_time_ms: int,
    kraft_version: int | None = None,
    voters: VotersRecord | None = None,
) -> bytes:
    """Batches from a snapshot's header to its footer, at epoch 0. The quorum's control records follow the header."""
    head: list[SnapshotHeaderRecord | KRaftVersionRecord | VotersRecord] = [
        SnapshotHeaderRecord(last_contained_log_timestamp=last_contained_log_time_ms)
    ]
    if kraft_version is not None:
        head.append(KRaftVersionRecord(kraft_version=kraft_version))
    if voters is not None:
        head.append(voters)
    out = control_batch(head, timestamp_ms=now_ms, base_offset=0, leader_epoch=0)
    next_offset = len(head)
    rows = [(now_ms, None, encode_metadata_record(record, version), ()) for record, version in records]
    if rows:
        batch = build_batch(rows, base_offset=next_offset, leader_epoch=0)
        next_offset = read_header(batch).next_offset
        out += batch
    out += control_batch([SnapshotFooterRecord()], timestamp_ms=now_ms, base_offset=next_offset, leader_epoch=0)
    return bytes(out)
