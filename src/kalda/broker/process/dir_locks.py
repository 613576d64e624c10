"""Locks on a node's directories: two processes in one directory would destroy it.

All locks are taken before anything is written, and held until everything is closed. The metadata directory is locked
too, whatever the node's roles. The operating system releases the locks when the process ends, however it ends.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable

from kalda.base.disk import Disk, File
from kalda.storage.checkpoints import LOCK_FILE

log = logging.getLogger("kalda.node")
TAKEN = "another process has this directory; stop that one, or give each node a directory of its own"


class DirLocks:
    """The locks of one node."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._held: dict[str, File] = {}
        """By directory: the lock file, which is locked while it is open."""

    def take(self, directories: Iterable[str]) -> None:
        """Lock the directories that are not locked yet. Raises `BlockingIOError` where another process holds a lock.

        A directory whose disk fails is left out: the log manager takes it offline, or the start fails there.
        """
        for directory in directories:
            if directory in self._held:
                continue
            try:
                lock = self._disk.lock(f"{directory}/{LOCK_FILE}")
            except OSError as error:
                log.warning("%s cannot be locked: %s", directory, error)
                continue
            if lock is None:
                raise BlockingIOError(errno.EAGAIN, TAKEN, directory)
            self._held[directory] = lock

    def release(self) -> None:
        """Release all locks. May be called again."""
        for lock in self._held.values():
            lock.close()
        self._held.clear()
