"""What the I/O of a client runs: its core, with what the shell adds to it."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kalda.base.errors import ApiError
from kalda.clientcore.client_core import ClientCore
from kalda.clientcore.connections.connections import Action, Connections


class Driven(ABC):
    """A client's core, and how far the client is: it ends at the turn behind which `is_over`, and then has `on_end`."""

    core: ClientCore

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self.metrics = core.metrics
        """The client's metrics: I/O is counted there."""
        self.is_ending = False
        """It was closed, or has ended."""
        self.is_ended = False
        self.failure: ApiError | None = None
        """Why it has ended, where that is a fault of the program."""

    def at(self, now_ms: int) -> Connections:
        """The connections, for an event at this time."""
        return self.core.at(now_ms)

    @abstractmethod
    def run(self, now_ms: int) -> None:
        """Do what can be done now."""

    @abstractmethod
    def deadline_ms(self, now_ms: int) -> int | None:
        """When `run` is due again, after a `run` at `now_ms`, which has done all that was due by then."""

    def take_actions(self) -> list[Action]:
        """What to do on connections."""
        return self.core.take_actions()

    def finish(self) -> None:  # noqa: B027  # a shell whose calls look themselves has nothing to call
        """Call what is done."""

    def is_over(self) -> bool:
        """Whether this client ends now."""
        return self.is_ending

    @abstractmethod
    def on_end(self, error: ApiError | None) -> None:
        """This client ends; `error`: by a fault of the program."""
