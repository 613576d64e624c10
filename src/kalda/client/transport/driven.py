"""What the I/O of a client runs: its core, with what the shell adds to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NoReturn, Protocol

from kalda.base.errors import ApiError
from kalda.clientcore.connections.connections import Action, Connections


class Core(Protocol):
    """The machines of one client, put together."""

    connections: Connections

    def at(self, now_ms: int) -> Connections: ...
    def take_actions(self) -> list[Action]: ...


class OfOneProcess:
    """The base of all clients: what has connections and threads, and so cannot pass to another process."""

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(f"a {name} cannot be pickled: make it in the process that uses it, from the same configuration")

    if not TYPE_CHECKING:  # else it would have every attribute

        def __getattr__(self, name: str) -> NoReturn:
            """Is called for a name that is not there: one of another client's is answered with Kalda's."""
            from kalda.client.other_clients import METHODS

            kind = next((each.__name__ for each in type(self).__mro__ if each.__name__ in METHODS), "")
            here = METHODS.get(kind, {}).get(name)
            more = f"; here it is {here}" if here else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{more}", name=name, obj=self)


class Driven(ABC):
    """A client's core, and how far the client is: it ends at the turn behind which `is_over`, and then has `on_end`."""

    core: Core

    def __init__(self, core: Core) -> None:
        self.core = core
        self.metrics = core.connections.metrics
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
