"""How a command ends when it cannot do what it was told: one line on stderr, and an exit code that scripts can use."""

from __future__ import annotations

from typing import IO, Any

import click

from kalda.base.errors import ApiError

FAILED = 1
UNREACHABLE = 3
"""2 is click's, for a wrong command line."""
INTERRUPTED = 130
"""Ctrl-C, as shells say it."""


class Failure(click.ClickException):
    """Says what was wrong, with which value, and what to do."""

    exit_code = FAILED

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

    def also(self, note: str) -> Failure:
        """The same, with more to say."""
        return type(self)(f"{self.message} ({note})")

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"kalda: {self.message}", file=file, err=file is None)


class CannotReach(Failure):
    """No broker answers."""

    exit_code = UNREACHABLE


def failure_of(error: ApiError) -> Failure:
    """The failure that a client's error is to the person who typed the command."""
    from kalda.client.errors import Unreachable

    message = error.message or error.code.name
    if isinstance(error, Unreachable):
        return CannotReach(f"{message} --bootstrap-server or KALDA_BOOTSTRAP_SERVER says where it is.")
    return Failure(f"{message} [{error.code.name}]")
