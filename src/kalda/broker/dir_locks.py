"""Locks on a node's directories: two processes in one directory would destroy it.

All of them are taken before anything is written, and kept until everything is closed; the metadata directory is one
of them, whatever the node's roles. The system releases them with the process, however it ends.
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
    """The locks of one node, by directory."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._held: dict[str, File] = {}

    def take(self, directories: Iterable[str]) -> None:
        """Lock those that are not locked yet. Raises `BlockingIOError` where another process has one.

        A directory whose disk fails is left to whoever uses it, who may live without it.
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
        """Let go of all; may be called again."""
        for lock in self._held.values():
            lock.close()
        self._held.clear()
