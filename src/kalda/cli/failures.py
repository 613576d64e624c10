"""Failures of commands: one line on stderr, and an exit code that scripts can use."""

from __future__ import annotations

from typing import IO, Any

import click

from kalda.base.errors import ApiError

FAILED = 1
UNREACHABLE = 3
"""Exit code 2 is click's, for a wrong command line."""
INTERRUPTED = 130
"""The exit code of shells after Ctrl-C: 128 and the number of SIGINT."""


class Failure(click.ClickException):
    """A failure whose message names the problem, the value and the remedy."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    def also(self, note: str) -> Failure:
        """The same failure with a note at the end of its message."""
        return type(self)(f"{self.message} ({note})")

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kalda: {self.message}", file=file, err=file is None)


class CannotReach(Failure):
    """No broker could be reached."""

    exit_code = UNREACHABLE


def failure_of(error: ApiError) -> Failure:
    """The failure for an error of the client."""
    from kalda.client.errors import Unreachable

    message = error.message or error.code.name
    if isinstance(error, Unreachable):
        return CannotReach(f"{message}. --bootstrap-server or KALDA_BOOTSTRAP_SERVER sets the address.")
    return Failure(f"{message} [{error.code.name}]")
