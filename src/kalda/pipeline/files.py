"""Files beside a pipeline: read up to a bound, replaced whole or not at all, locked by one process.

A lake and a snapshot's table keep their state in their directory `_kalda`. A directory with other files and without
such a state belongs to somebody else. It is refused, because files that are no part of a table are deleted.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kalda.pipeline.session import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Raises `PipelineError` where the file is too large, `OSError` where it cannot be read."""
    with open(path, "rb") as file:
        found = file.read(max_bytes + 1)
    if len(found) > max_bytes:
        raise PipelineError(f"{path} has more than {max_bytes} bytes")
    return found


def read_text(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """A text file. Raises `PipelineError` where it is too large or not UTF-8, `OSError` where it cannot be read."""
    found = read_bytes(path, max_bytes)
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        raise PipelineError(
            f"{path}, line {line}, is not a text in UTF-8: it has the byte {found[error.start]:#x}"
        ) from None


def read_state(path: Path, expected: Mapping[str, type]) -> dict[str, Any] | None:
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
def locked(file: Path, refusal: str, spark: SparkSession | None = None) -> Iterator[None]:
    """Hold a lock that ends with the process at the latest, and with `spark` not before that session's Java has ended.
    Raises `PipelineError` where another process holds it."""
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
        yield


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


def replace_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a file, whole or not at all. `mode`: its permissions, of which the process's umask takes some."""
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
