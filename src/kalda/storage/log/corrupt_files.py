"""What recovery has cut off a log, kept beside it for people and tools: `<offset>.log.corrupt`.

The offset is that of the first record that is missing from the log. The tail of a segment is copied; a later segment,
which is dropped because records before it are missing, is renamed. Neither Kalda nor Apache Kafka reads such a file
again: names in a partition's directory that end in neither `.log` nor a suffix of the files beside it are passed over.

All files of one log directory together have at most `limit_bytes`: more is not kept, and the oldest ones are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from kalda.base.disk import Disk, File
from kalda.storage.file_names import LOG_SUFFIX, file_name

log = logging.getLogger("kalda.logs")

CORRUPT_SUFFIX = ".corrupt"
KEPT_BYTES = 1 << 30
"""The default bound of one log directory."""
_CHUNK_BYTES = 4 * 1024 * 1024
_MAX_OF_ONE_OFFSET = 100


class _Kept(NamedTuple):
    modified_ms: int
    path: str
    size_bytes: int


class CorruptFiles:
    """Those of one log directory, over one start. Logs are opened on several threads: each call changes one list, and
    the bound is met again by `prune`."""

    __slots__ = ("_found", "_left", "limit_bytes")

    def __init__(self, limit_bytes: int = KEPT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._left = limit_bytes
        """How many bytes this start may still add."""
        self._found: list[_Kept] = []

    def note(self, disk: Disk, directory: str, names: Iterable[str]) -> None:
        """Count what earlier recoveries have left in a partition's directory. Raises `OSError`."""
        for name in names:
            if name.endswith(CORRUPT_SUFFIX):
                self._note(disk, f"{directory}/{name}")

    def _note(self, disk: Disk, path: str) -> None:
        found = disk.stat(path)
        if found is not None:
            self._found.append(_Kept(found.modified_ms, path, found.size_bytes))

    def keep_tail(self, disk: Disk, directory: str, offset: int, file: File, position: int, size: int) -> str | None:
        """Copy the file's bytes from `position` to `size`; the path of the copy. None where it has no room or cannot be
        written, and for zeros: a file that has grown, and whose bytes a loss of power took."""
        if size - position > self._left:
            return None
        path = None
        try:
            copy = None
            for at in range(position, size, _CHUNK_BYTES):
                data = bytes(file.read(at, min(_CHUNK_BYTES, size - at)))
                if copy is None:
                    if data.count(0) == len(data):
                        continue
                    path = _free_path(disk, directory, offset)
                    if path is None:
                        return None
                    copy = disk.open(path, create=True)
                    copy.truncate(0)
                copy.write(at - position, data)
            if copy is None or path is None:
                return None
            copy.close()
            self._left -= size - position
            self._note(disk, path)
        except OSError as error:
            log.warning("what is cut off %s cannot be kept: %s", directory, error)
            if path is not None:
                disk.remove(path)
            return None
        return path

    def keep_segment(self, disk: Disk, directory: str, offset: int, path: str, size: int) -> str | None:
        """Rename a segment's log file; its new path. None where it has no room."""
        if not 0 < size <= self._left:
            return None
        kept = _free_path(disk, directory, offset)
        if kept is not None:
            disk.rename(path, kept)
            self._left -= size
            self._note(disk, kept)
        return kept

    def prune(self) -> list[str]:
        """The oldest files, which are to be removed for the others to be within the bound; they are counted no more."""
        self._found.sort()
        excess = sum(kept.size_bytes for kept in self._found) - self.limit_bytes
        pruned: list[str] = []
        while excess > 0 and self._found:
            oldest = self._found.pop(0)
            excess -= oldest.size_bytes
            pruned.append(oldest.path)
            log.warning(
                "%s, cut off by a recovery, is removed: %d bytes are kept at most", oldest.path, self.limit_bytes
            )
        return pruned


def _free_path(disk: Disk, directory: str, offset: int) -> str | None:
    plain = f"{directory}/{file_name(offset, LOG_SUFFIX)}"
    names = [f"{plain}{CORRUPT_SUFFIX}", *(f"{plain}.{n}{CORRUPT_SUFFIX}" for n in range(1, _MAX_OF_ONE_OFFSET))]
    return next((name for name in names if disk.stat(name) is None), None)
