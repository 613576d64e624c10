"""What the I/O of a client runs: its core, with what the shell adds to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kalda.base.errors import ApiError
from kalda.clientcore.client_core import ClientCore

if TYPE_CHECKING:
    from kalda.network.client.security import ClientSecurity


def security_of(values: Mapping[str, object]) -> ClientSecurity | None:
    """By `security.protocol` and the keys of TLS and SASL; None for plain text. Raises `InvalidConfig`."""
    if str(values.get("security.protocol") or "PLAINTEXT").upper() == "PLAINTEXT":
        return None
    from kalda.network.client.security import require

    return require(values)


class Driven(ABC):
    """A client's core, and how far the client is: it ends at the turn behind which `is_over`, and then has `on_end`."""

    core: ClientCore
    security: ClientSecurity | None = None
    """Of its connections; None for plain text."""
    socket_bytes = -1, -1
    """The sizes of the buffers of its sockets, for sending and receiving; -1: the system's."""

    def __init__(self, core: ClientCore) -> None:
        self.core = core
        self.security = security_of(core.config.values)
        self.socket_bytes = core.config.send_buffer_bytes, core.config.receive_buffer_bytes
        self.metrics = core.metrics
        """The client's metrics: I/O is counted there."""
        self.is_ending = False
        """It was closed, or has ended."""
        self.is_ended = False
        self.failure: ApiError | None = None
        """Why it has ended, where that is a fault of the program."""

    @abstractmethod
    def run(self, now_ms: int) -> None:
        """Do what can be done now."""

    @abstractmethod
    def deadline_ms(self, now_ms: int) -> int | None:
        """When `run` is due again, after a `run` at `now_ms`, which has done all that was due by then."""

    def finish(self) -> None:  # noqa: B027  # a shell whose calls look themselves has nothing to call
        """Call what is done."""

    def is_over(self) -> bool:
        """Whether this client ends now."""
        return self.is_ending

    def on_fork(self) -> None:
        """This is a forked child: the client is the parent's."""
        self.is_ending = True

    @abstractmethod
    def on_end(self, error: ApiError | None) -> None:
        """This client ends; `error`: by a fault of the program."""
