"""Failures of commands: one line on stderr, and an exit code that scripts can use."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any, NoReturn

import click

from kalda.base.errors import ApiError, Portable
from kalda.base.texts import printable

FAILED = 1
UNREACHABLE = 3
"""Exit code 2 is click's, for a wrong command line."""
INTERRUPTED = 130
"""The exit code of shells after Ctrl-C: 128 and the number of SIGINT."""


class Failure(Portable, click.ClickException):
    """A failure whose message names the problem, the value and the remedy."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    def also(self, note: str) -> Failure:
        """The same failure with a note at the end of its message."""
        return type(self)(f"{self.message} ({note})")

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kalda: {printable(self.message)}", file=file, err=file is None)


class CannotReach(Failure):
    """No broker could be reached."""

    exit_code = UNREACHABLE


def end_by_closed_pipe() -> NoReturn:
    """End the process by SIGPIPE, as `cat` ends when the command that reads its output has ended: without a message,
    and a shell gets the exit code 141. Python ignores SIGPIPE, and raises `BrokenPipeError` instead."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGPIPE)
    raise AssertionError("SIGPIPE ends the process")


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a wait as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            # When a terminal is closed, several SIGHUPs come. The next must not interrupt what ends then.
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                before[number] = signal.signal(number, interrupt)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_UNKNOWN_KEY = re.compile(r"Unknown (?:topic|group) config name: (\S+)")
"""As brokers of Kalda and of Apache Kafka answer."""


def _meant_key(message: str) -> str:
    """What an unknown config in a broker's message was perhaps meant to be."""
    found = _UNKNOWN_KEY.search(message)
    if found is None:
        return ""
    from kalda.base.configs.group import GROUP
    from kalda.base.configs.topic import TOPIC

    near = (TOPIC if "topic config" in message else GROUP).near(found[1])
    return f"; did you mean {near}?" if near else ""


def failure_of(error: ApiError) -> Failure:
    """The failure for an error of the client."""
    from kalda.clientcore.connections.errors import Unreachable

    message = error.message or error.code.name
    message += _meant_key(message)
    if isinstance(error, Unreachable):
        return CannotReach(f"{message}. --bootstrap-server or KALDA_BOOTSTRAP_SERVER sets the address.")
    return Failure(f"{message} [{error.code.name}]")
