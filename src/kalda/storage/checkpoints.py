"""The small text files: offset checkpoints, leader epochs, a partition's topic id, the clean-shutdown marker.

Each replaces its predecessor whole: it is written beside it, synced, and renamed over it, and the directory is synced.
So after a crash there is the old file or the new one. `durable=False` leaves the syncs to a later flush: a loss of
power may then lose or tear the file, and its reader must have another source.

A checkpoint's lines: version, number of entries, one line an entry. Bytes from disk are hostile: sizes are bounded,
and anything malformed raises `ValueError` with the file's name. A file of a later version is not malformed: it raises
`UnsupportedFormat`, and is not replaced.
"""

from __future__ import annotations

import errno
import json
import logging
import re
from collections.abc import Iterable, Mapping

from kalda.base.disk import Disk
from kalda.base.errors import UnsupportedFormat
from kalda.base.ids import TopicPartition, Uuid, uuid_from_text, uuid_to_text
from kalda.base.texts import decode_text, format_properties, parse_properties
from kalda.storage.job import Job

log = logging.getLogger("kalda.logs")

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
CLEANER_OFFSET_FILE = "cleaner-offset-checkpoint"
LEADER_EPOCH_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
META_PROPERTIES_FILE = "meta.properties"
LOCK_FILE = ".lock"
DISK_FAILED_FILE = ".kalda_disk_failed"
"""Empty. The disk failed under the directory: bytes that the page cache returns may not be on the device. Apache Kafka
passes the file over."""

_CHECKPOINT_VERSION = "0"
"""Of all checkpoints, and of `partition.metadata`."""
_LATER_VERSION = re.compile("[1-9][0-9]{0,4}")
_MAX_BYTES = 64 * 1024 * 1024
_MAX_INT32, _MAX_INT64 = 2**31 - 1, 2**63 - 1


def mark_failed(disk: Disk, directory: str) -> None:
    """Leave `DISK_FAILED_FILE`, if the disk takes it. It is not synced: where the page cache is lost, so is the reason
    for the mark."""
    try:
        disk.open(f"{directory}/{DISK_FAILED_FILE}", create=True).close()
    except OSError as error:
        log.warning(
            "%s cannot be marked as failed, a start should follow a restart of the machine: %s", directory, error
        )


def replace_file(disk: Disk, path: str, data: bytes, *, durable: bool = True) -> None:
    """Put `data` at `path`, whole or not at all."""
    temporary = f"{path}.tmp"
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.write(0, data)
        if durable:
            file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    if durable:
        disk.sync_dir(path.rpartition("/")[0])


def _read_small(disk: Disk, path: str, max_bytes: int) -> bytes:
    """The file's bytes. Raises `ValueError` where they are more than such a file can have: that is no failure of the
    disk."""
    try:
        return disk.read_file(path, max_bytes)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(f"{path} has more than {max_bytes} bytes") from error


def _check_version(path: str, text: str) -> None:
    if _LATER_VERSION.fullmatch(text.strip()):
        raise UnsupportedFormat(f"{path} has version {text.strip()}, only {_CHECKPOINT_VERSION} is known")


def read_lines(disk: Disk, path: str) -> list[str] | None:
    """The entries of a checkpoint; None where there is no such file. Raises `ValueError` on a malformed one,
    `UnsupportedFormat` on one of a later version."""
    try:
        text = _read_small(disk, path, _MAX_BYTES).decode("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    lines = text.splitlines()
    if not lines:
        return []  # Kafka makes the file empty, and fills it with the first entry
    _check_version(path, lines[0])
    if len(lines) < 2 or lines[0].strip() != _CHECKPOINT_VERSION:
        raise ValueError(f"{path} does not begin with version {_CHECKPOINT_VERSION} and a count")
    if not lines[1].strip().isdecimal() or int(lines[1]) != len(lines) - 2:
        raise ValueError(f"{path} announces {lines[1]!r} entries and holds {len(lines) - 2}")
    if not text.endswith("\n"):
        raise ValueError(f"{path} ends within its last line")  # which may be a number that lacks digits
    return lines[2:]


def write_lines(disk: Disk, path: str, lines: Iterable[str], *, durable: bool = True) -> None:
    entries = list(lines)
    text = "\n".join([_CHECKPOINT_VERSION, str(len(entries)), *entries]) + "\n"
    replace_file(disk, path, text.encode("utf-8"), durable=durable)


def _number(text: str, largest: int) -> int:
    """Raises `ValueError` for what no checkpoint has: it would break invariants of the log, or could not be written."""
    if not (text.isascii() and text.isdigit()) or len(text) > 20 or int(text) > largest:
        raise ValueError(text)
    return int(text)


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """An offset checkpoint; empty where there is no such file."""
    offsets = {}
    for line in read_lines(disk, path) or ():
        try:
            topic, partition, offset = line.split()
            offsets[TopicPartition(topic, _number(partition, _MAX_INT32))] = _number(offset, _MAX_INT64)
        except ValueError as error:
            raise ValueError(f"{path} has the malformed line {line!r}") from error
    return offsets


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    write_lines(disk, path, (f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()))


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset) entries; empty where there is no such file."""
    entries = []
    for line in read_lines(disk, path) or ():
        try:
            epoch, offset = line.split()
            entries.append((_number(epoch, _MAX_INT32), _number(offset, _MAX_INT64)))
        except ValueError as error:
            raise ValueError(f"{path} has the malformed line {line!r}") from error
    return entries


def write_epochs(disk: Disk, path: str, entries: Iterable[tuple[int, int]], *, durable: bool) -> None:
    write_lines(disk, path, (f"{epoch} {offset}" for epoch, offset in entries), durable=durable)


def read_partition_metadata(disk: Disk, path: str) -> Uuid | None:
    """The topic id; None where there is no such file."""
    try:
        text = _read_small(disk, path, 4096).decode("utf-8", "replace")
    except FileNotFoundError:
        return None
    values = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            values[key.strip()] = value.strip()
    _check_version(path, values.get("version", ""))
    if values.get("version") != "0" or "topic_id" not in values:
        raise ValueError(f"{path} has no version 0 and topic_id")
    return uuid_from_text(values["topic_id"])


def write_partition_metadata(disk: Disk, path: str, topic_id: Uuid, *, durable: bool = True) -> None:
    text = f"version: 0\ntopic_id: {uuid_to_text(topic_id)}"
    replace_file(disk, path, text.encode("ascii"), durable=durable)


def read_clean_shutdown(disk: Disk, path: str) -> int | None:
    """The broker epoch in the marker of a clean shutdown, -1 where it does not say; None where there is no marker."""
    if disk.stat(path) is None:
        return None
    try:
        epoch = json.loads(_read_small(disk, path, 4096))["brokerEpoch"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def write_clean_shutdown(disk: Disk, path: str, broker_epoch: int) -> None:
    text = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
    replace_file(disk, path, text.encode("ascii"))


def read_meta_properties(disk: Disk, path: str) -> dict[str, str] | None:
    """`meta.properties`; None where there is no such file. Raises `ValueError` with file and line."""
    if disk.stat(path) is None:
        return None
    try:
        return parse_properties(decode_text(_read_small(disk, path, 1 << 20)))
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None


def write_meta_properties(disk: Disk, path: str, values: Mapping[str, str], now_ms: int) -> None:
    replace_file(disk, path, format_properties(values, now_ms).encode("latin-1"))


def stored_topic_id(disk: Disk, directory: str, clean: bool) -> Uuid | None:
    """The topic id in a partition's directory, None where it has none. Raises `ValueError` where the file cannot be
    read after a clean stop. After any other stop such a file counts as none: it was torn before its first sync, and so
    before that of any record."""
    try:
        return read_partition_metadata(disk, f"{directory}/{PARTITION_METADATA_FILE}")
    except ValueError:
        if clean:
            raise
        return None


_TEMPORARY = ".new"


class CheckpointFile:
    """A checkpoint that is replaced now and then, while a job that writes the contents before it may still run.

    The `run` of a job writes and syncs a file of its own; its `finish` renames that into place, unless a newer job was
    made meanwhile. So the newest contents win in whatever order jobs end, and no two jobs write to the same file. The
    rename is not synced: after a loss of power the file may have the contents before it, whole. Belongs to one thread.
    """

    __slots__ = ("_disk", "_number", "durable", "offsets", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.offsets: dict[TopicPartition, int] | None = None
        """The contents once the newest job is finished; None where they are not known, and the next job must write."""
        self.durable: dict[TopicPartition, int] = {}
        """The contents that a loss of power leaves, if it does not leave newer ones."""
        self._number = 0
        """The number of jobs that were made; the last one made wins."""

    def job(self, offsets: dict[TopicPartition, int]) -> Job[None] | None:
        """A job that replaces the contents; None where they are the same. Both halves raise `OSError`."""
        if offsets == self.offsets:
            return None
        self.offsets = offsets
        self._number += 1
        number = self._number
        temporary = f"{self.path}.{number}{_TEMPORARY}"

        def work() -> None:
            try:
                write_offsets(self._disk, temporary, offsets)
            except OSError:
                self.offsets = None
                raise

        def finish(_: None) -> None:
            if number == self._number:
                self._disk.rename(temporary, self.path)
            else:
                self._disk.remove(temporary)

        return Job(f"checkpoint {self.path}", work, finish)

    def durable_jobs(self, offsets: dict[TopicPartition, int]) -> list[Job[None]]:
        """Jobs that replace the contents durably, to be done one after the other. Where a newer job is made between
        them, `durable` stays as it was. All halves raise `OSError`."""
        self.offsets = None
        write = self.job(offsets)
        assert write is not None
        number = self._number

        def finish(_: None) -> None:
            if number == self._number:
                self.durable = offsets

        directory = self.path.rpartition("/")[0]
        return [write, Job(f"sync {directory}", lambda: self._disk.sync_dir(directory), finish)]

    def replace_durably(self, offsets: dict[TopicPartition, int]) -> None:
        """`durable_jobs`, here and now; jobs under way do not replace these contents."""
        for job in self.durable_jobs(offsets):
            job.complete()


def leftovers(names: Iterable[str]) -> list[str]:
    """The temporary files of jobs that were never finished."""
    return [name for name in names if name.endswith((_TEMPORARY, f"{_TEMPORARY}.tmp"))]
