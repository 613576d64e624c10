"""A lock in a store, which has no locks: a file that its holder writes again and again.

Who wants the lock writes a file of its own into a directory, and then reads what else is there. Stores list what was
written before, so of two that begin together at least one sees the other. A file that changes has a holder that lives:
the lock is refused. One that does not change for `EXPIRES_S` belongs to a process that has ended, and is removed. No
clocks are compared: what counts is whether a file changes while it is watched.

A holder whose file was removed, such as a process that had been halted, finds that out when it looks next: `is_lost`.
Files of this machine are removed at once, since their processes have ended: the caller holds a lock of the machine.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final
from uuid import uuid4

from kalda.pipeline.session import PipelineError, Unavailable
from kalda.pipeline.stores import StorePath

BEAT_S: Final = 5.0
EXPIRES_S: Final = 30.0


def _machine() -> str:
    """The same for processes that see each other's locks of files: of one user, container and start of the machine."""
    parts = [platform.node(), str(os.getuid())]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/mnt")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Lease:
    """The lock at a place, held for a block."""

    def __init__(self, place: StorePath, refusal: str, beat_s: float = BEAT_S, expires_s: float = EXPIRES_S) -> None:
        self._place = place
        self._refusal = refusal
        self._beat_s = beat_s
        self._expires_s = expires_s
        self._machine = _machine()
        self._name = f"{self._machine}-{uuid4().hex}"
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self.is_lost = False

    def __enter__(self) -> Lease:
        """Raises `PipelineError` where another process holds it, `Unavailable`."""
        self._write()
        self._thread.start()
        try:
            self._outlast()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()
        with suppress(Unavailable):
            (self._place / self._name).unlink(missing_ok=True)

    def _write(self) -> None:
        (self._place / self._name).write_text(f"{platform.node()}, process {os.getpid()}\n")

    def _beat(self) -> None:
        while not self._ends.wait(self._beat_s) and not self.is_lost:
            with suppress(Unavailable):  # a store that does not answer has let nobody else in
                self.ask()
                if not self.is_lost:
                    self._write()

    def ask(self) -> None:
        """Look whether the lock is still held. Raises `Unavailable`."""
        self.is_lost = self.is_lost or self._name not in self._place.times_in()

    def _others(self) -> dict[str, float]:
        found = self._place.times_in()
        for name in found:
            if name.startswith(self._machine) and name != self._name:
                (self._place / name).unlink(missing_ok=True)
        return {name: changed for name, changed in found.items() if not name.startswith(self._machine)}

    def _outlast(self) -> None:
        """Wait until the files of others have not changed for long enough, and remove them."""
        others, until_s = self._others(), time.monotonic() + self._expires_s
        if not others:
            return
        while others and time.monotonic() < until_s:
            self._ends.wait(self._beat_s)
            found = self._others()
            if any(others.get(name) != changed for name, changed in found.items()):
                raise PipelineError(self._refusal)
            others = found
        for name in others:
            (self._place / name).unlink(missing_ok=True)
        self._ends.wait(self._beat_s)
        if self._others():  # a holder that was only slow has written its file again
            raise PipelineError(self._refusal)


def is_held(place: StorePath) -> bool:
    """Whether a process seems to hold the lock, by this machine's clock."""
    return any(changed > time.time() - 2 * EXPIRES_S for changed in place.times_in().values())
