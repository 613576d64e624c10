"""Files beside a pipeline: read up to a bound, replaced whole or not at all, locked by one process.

A place is a `Path` of a local or mounted file system, or a `StorePath` of an object store.

A lake and a snapshot's table keep their state in their directory `_kalda`. A directory with other files and without
such a state belongs to somebody else. It is refused, because files that are no part of a table are deleted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from kalda.pipeline.session import PipelineError, Unavailable
from kalda.pipeline.stores import StorePath
from kalda.spark.java import user_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Place = Path | StorePath
OWN: Final = "_kalda"
"""The directory of a lake's or table's own state, in it."""
MAX_TEXT_BYTES: Final = 1 << 20
JAVA_ENDS_S: Final = 60.0
"""How long to wait for the Java of a process that was killed."""
_POLL_S: Final = 0.1
_PATTERN: Final = "{}[]*?\\"
"""Where a path has one of these, Spark reads the files that match it."""
_MAX_STATE_BYTES: Final = 1 << 30
"""Of a state, which may have offsets of any number of partitions."""
BEAT_S: Final = 5.0
EXPIRES_S: Final = 30.0


def place_of(given: str, settings: Mapping[str, str] | None = None, beside: Path | None = None) -> Place | None:
    """A place by its path, which may be relative to the directory `beside`, or by its URI; None for a URI of another
    kind. `settings`: of Spark, with the keys of its file systems."""
    parts = urlsplit(given)
    if parts.scheme in ("", "file") and parts.netloc in ("", "localhost"):
        return (Path() if beside is None else beside) / (unquote(parts.path) if parts.scheme else given)
    return StorePath.of(given, settings or {})


def read_bytes(path: Place, max_bytes: int) -> bytes:
    """Raises `PipelineError` where the file is too large, `OSError` or `Unavailable` where it cannot be read."""
    if isinstance(path, StorePath):
        found = path.read_bytes(max_bytes + 1)
    else:
        with open(path, "rb") as file:
            found = file.read(max_bytes + 1)
    if len(found) > max_bytes:
        raise PipelineError(f"{path} has more than {max_bytes} bytes")
    return found


def read_text(path: Place, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """A text file. Raises `PipelineError` where it is too large or not UTF-8, `OSError` where it cannot be read."""
    found = read_bytes(path, max_bytes)
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        raise PipelineError(
            f"{path}, line {line}, is not a text in UTF-8: it has the byte {found[error.start]:#x}"
        ) from None


def read_state(path: Place, expected: Mapping[str, type]) -> dict[str, Any] | None:
    """A JSON object with at least the `expected` entries; None where there is no such file. Raises `PipelineError`
    where the file has something else."""
    try:
        found = json.loads(read_text(path, _MAX_STATE_BYTES))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"{path} is damaged: {error}") from None
    if not isinstance(found, dict):
        raise PipelineError(f"{path} is damaged: a JSON object is expected")
    for name, kind in expected.items():
        if type(found.get(name)) is not kind:
            raise PipelineError(f"{path} is damaged: it has no {name} of type {kind.__name__}")
    return found


def check_directory(given: str, state: Path, what: str) -> None:
    """Raises `PipelineError` where the directory that was `given` cannot be a lake or a table with this file of its
    state: a URI, a name that Spark takes for a pattern, or a directory with the files of somebody else."""
    if "://" in given:
        raise PipelineError(f"{given}: a {what} is a directory of a local or mounted file system, not a URI")
    directory = state.parent.parent
    wrong = sorted({letter for letter in str(directory) if letter in _PATTERN or not letter.isprintable()})
    if wrong:
        raise PipelineError(f"{directory}: the path of a {what} has none of {_PATTERN} and no control characters")
    if not given:
        raise PipelineError(f"the directory of the {what} has no name")
    if state.exists() or not directory.exists():
        return
    own = list((directory / OWN).glob("*.json"))
    if own or (any(directory.iterdir()) and not (directory / OWN).is_dir()):
        raise PipelineError(f"{directory} is not empty, and no {what}: name a new or an empty directory")


@contextmanager
def locked(place: Place, refusal: str, spark: SparkSession | None = None) -> Iterator[None]:
    """Hold a lock that ends with the process at the latest, and with `spark` not before that session's Java has ended.
    In a store, one without `spark` is held against other machines too. Raises `PipelineError` where another process
    holds it, `Unavailable`."""
    file = _local_file(place)
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w") as opened, ExitStack() as stack:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(refusal) from None
        # The Java of Spark Connect belongs to a server, which outlives its clients.
        java = getattr(spark, "_jvm", None)
        if java is not None:
            stack.enter_context(_locked_by_java(java, file.with_name(f"{file.name}.java"), refusal))
        if isinstance(place, StorePath) and spark is None:
            _leases[place] = stack.enter_context(Lease(place, refusal))
            stack.callback(_leases.pop, place)
        yield


def _local_file(place: Place) -> Path:
    """What processes of this user and machine lock."""
    if isinstance(place, Path):
        return place
    digest = hashlib.sha256(place.identity.encode()).hexdigest()[:32]
    return user_cache() / "locks" / digest


def check_held(place: Place, *, asks: bool = False) -> None:
    """Raises `PipelineError` where this process has lost the lock to another machine, `Unavailable`. `asks`: the store,
    now; otherwise it is known after a few seconds."""
    lease = _leases.get(place) if isinstance(place, StorePath) else None
    if lease is None:
        return
    if asks:
        lease.ask()
    if lease.is_lost:
        raise PipelineError(f"{place} was taken by another machine, since this one had not written it for too long")


def is_locked(place: Place) -> bool:
    """Whether a process holds the lock."""
    try:
        with open(_local_file(place)) as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except OSError:
        return True
    return isinstance(place, StorePath) and is_held(place)


@contextmanager
def _locked_by_java(java: Any, file: Path, refusal: str) -> Iterator[None]:
    """Where SIGKILL ends Python alone, its Java still writes for a moment. Waits for the end of such a Java."""
    channel = java.java.io.RandomAccessFile(str(file), "rw").getChannel()
    try:
        until_s = time.monotonic() + JAVA_ENDS_S
        while channel.tryLock() is None:
            if time.monotonic() > until_s:
                raise PipelineError(refusal)
            time.sleep(_POLL_S)
        yield
    finally:
        channel.close()


def replace_text(path: Place, text: str, mode: int = 0o666) -> None:
    """Write a file, whole or not at all. `mode`: its permissions, of which the process's umask takes some. Raises
    `OSError`, `Unavailable`."""
    if isinstance(path, StorePath):
        path.write_text(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(opened, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's names, are on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def times_in(place: Place) -> dict[str, float]:
    """What is in a directory, and when each was written, in seconds since 1970; nothing where there is no such
    directory."""
    if isinstance(place, StorePath):
        return place.times_in()
    found = {}
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(place) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # a query removes old ones meanwhile
                found[entry.name] = entry.stat().st_mtime
    return found


def remove_tree(place: Place) -> None:
    """A directory with all that is in it, if there is one."""
    if isinstance(place, StorePath):
        place.remove()
    else:
        shutil.rmtree(place, ignore_errors=True)


# -- locks in stores


def _machine() -> str:
    """The same for processes that see each other's locks of files: of one user, container and start of the machine."""
    parts = [platform.node(), str(os.getuid())]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/mnt")]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


class Lease:
    """The lock at a place in a store, held for a block. A store has no locks: it is a file that its holder writes again
    and again.

    A run that takes the lock writes a file of its own into a directory, and then reads what else is there. Stores list
    what was written before, so of two that begin together at least one finds the other. A file that changes has a
    holder that runs: the lock is refused. One that does not change for `EXPIRES_S` belongs to a process that has ended,
    and is removed. No clocks are compared: what counts is whether a file changes while it is watched.

    A holder whose file was removed, such as a process that had been halted, finds that out at its next check:
    `is_lost`. Files of this machine are removed at once, since their processes have ended: the caller holds a lock of
    the machine."""

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
            with suppress(Unavailable):  # a store that does not answer has taken no other lease
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
    """Whether a process of another machine seems to hold the lock, by this machine's clock."""
    since, own = time.time() - 2 * EXPIRES_S, _machine()
    return any(changed > since for name, changed in place.times_in().items() if not name.startswith(own))


_leases: Final[dict[StorePath, Lease]] = {}
"""Those that this process holds."""
