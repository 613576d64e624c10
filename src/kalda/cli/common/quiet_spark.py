"""The stderr of Spark's JVM and of its Python workers, without what helps no user.

The JVM inherits file descriptor 2, and the workers write to the JVM's. While a session is made, that descriptor is a
pipe. What is written until the session is there (Spark's banner, Ivy's search for jars) goes to a file, which is left
where the session could not be made. Later lines are passed on: all but those of the banner, and the tracebacks of
workers whose pipe to the JVM was closed, as it is by each query that has read enough and at the end of the session.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from typing import TextIO

_BANNER = re.compile(
    r"WARNING: Using incubator modules|Using Spark's default log4j profile|Setting (default|Spark) log level to|"
    r"To adjust logging level use|WARNING: An illegal reflective|WARNING: (Use --|All illegal|Please consider)|"
    r"WARNING: A (terminally deprecated|restricted) method|WARNING: sun\.misc\.Unsafe|"
    r"[0-9/]+ [0-9:]+ WARN (Utils|NativeCodeLoader|SparkConf): "
)
_LAST_S = 2.0
_TRACEBACK = "Traceback (most recent call last):"
_LINKS = ("During handling of the above exception", "The above exception was the direct cause")
_CLOSED = ("BrokenPipeError", "ConnectionResetError", "EOFError")


def without_noise(lines: Iterable[str]) -> Iterator[str]:
    """The lines that are passed on. A traceback is held until the line that names its exception."""
    held: list[str] = []
    was_dropped = False
    for line in lines:
        text = line.rstrip("\n")
        if held:
            held.append(line)
            if not text.startswith((" ", "\t")):
                was_dropped = text.startswith(_CLOSED)
                yield from () if was_dropped else held
                held = []
            continue
        if was_dropped and (not text or text.startswith(_LINKS)):
            continue
        was_dropped = False
        if text.startswith(_TRACEBACK):
            held = [line]
        elif not _BANNER.match(text):
            yield line
    yield from held


@contextmanager
def _signals() -> Iterator[Callable[[], bool]]:
    """Whether a signal has come since then that Python handles, by whichever handler; never outside the main thread.
    The function may be called after the block, and is then true."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    is_main = current_thread() is main_thread()
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False) if is_main else -1
    try:
        yield lambda: bool(select.select([reading], [], [], 0)[0])
    finally:
        if is_main:
            signal.set_wakeup_fd(before)
        os.close(writing)


def _stream_on(fd: int, like: TextIO) -> TextIO:
    """A stream to the descriptor, in the place of `like`; itself, where it is not on the standard descriptor."""
    try:
        is_standard = like.fileno() == 2
    except OSError:  # of a test
        is_standard = False
    return open(fd, "w", 1, like.encoding, like.errors, closefd=False) if is_standard else like


@contextmanager
def quiet_spark() -> Iterator[Callable[[], None]]:
    """Within it, the pipe is there for processes that are started. The function that it gives puts this process's own
    stderr back, and is to be called when the session is made; the JVM keeps the pipe. Where it has not been called, an
    exception that leaves the block gets a note that names the file of what was written."""
    stream = sys.stderr
    stream.flush()
    own = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    sys.stderr = _stream_on(own, stream)
    is_own = False

    file, name = tempfile.mkstemp(prefix="kalda-spark-", suffix=".log")
    mark = f"\0{name}\n"  # behind it is what was written after `restore`, however late the thread reads it

    def restore() -> None:
        nonlocal is_own
        if not is_own:
            sys.stderr.flush()
            os.write(2, mark.encode())
            os.dup2(own, 2)
            sys.stderr = stream
            is_own = True

    def pass_on(is_ending: Callable[[], bool]) -> None:
        def later(lines: Iterable[str]) -> Iterator[str]:
            is_later = False
            for line in lines:
                if line.endswith(mark):
                    is_later, line = True, line.removesuffix(mark)
                elif is_later and is_made and not is_ending():
                    yield line
                    continue
                if not is_closed:
                    os.write(file, line.encode())

        with os.fdopen(reading, encoding="utf-8", errors="replace") as source:
            for line in without_noise(later(source)):
                os.write(own, line.encode())

    def restore_and_wait() -> None:
        restore()
        thread.join(_LAST_S)  # the JVM has closed the pipe, unless a worker of it still runs

    is_made, is_closed = True, False
    with _signals() as is_ending:
        thread = Thread(target=pass_on, args=[is_ending], daemon=True)
        thread.start()
        try:
            yield restore
        except Exception as error:
            is_made = is_own
            restore_and_wait()
            if not is_made and os.fstat(file).st_size:
                error.add_note(f"What Spark has written is in {name}")
            raise
        finally:
            restore_and_wait()
            if is_made or not os.fstat(file).st_size:
                os.unlink(name)
            is_closed = True
            os.close(file)
