"""What a request handler receives besides the request, and what it may return.

A handler is `(context, request) -> reply`. The reply is a response; or one that is encoded already; or `Steps`, where
making it takes long; or a `Pending`, where it has to wait; or None where the request has no answer. What `Steps` return
and what a `Pending` settles with is any of these again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from kalda.base.background import Steps
from kalda.base.samples import FreeUse
from kalda.base.scheduling import Pending
from kalda.network.server.connection import Buffer, Connection
from kalda.protocol.access import ANONYMOUS, Authorizer, Caller
from kalda.protocol.apis import API
from kalda.protocol.framing import RequestHeader
from kalda.protocol.notation import Response

R = TypeVar("R")
A = TypeVar("A", bound=Response)


class RequestContext(Caller):
    """One request: who sent it, over which connection, and its bytes.

    The context of a request out of an envelope has the connection of the broker that sent the envelope, and
    `forwarded_by` is that broker's principal.
    """

    __slots__ = ("busy_ns", "connection", "forwarded_token", "frame", "free_use", "header")

    busy_ns: int
    """For how long the request has held the event loop; less the time of its clock while it holds it. Exists only where
    the time of requests is charged."""
    forwarded_token: bool
    """Whether the client of an envelope has authenticated with a delegation token. Exists only in such a context."""

    def __init__(
        self, connection: Connection, header: RequestHeader, frame: memoryview, authorizer: Authorizer | None = None
    ) -> None:
        # The attributes of `Caller` are set here: its own `__init__` would be one more call for each request.
        self.connection = connection
        self.header = header
        self.frame = frame
        self.api_version = header.api_version
        self.client_id = header.client_id or ""
        self.listener_name = connection.listener_name
        self.client_host = connection.peer_host
        self.principal = connection.principal
        self.forwarded_by = None
        self.authorizer = authorizer
        self.charge = None
        self.free_use: FreeUse | None = None
        """The use of its quota by the client of a Fetch, where that is charged by its bytes."""

    def __str__(self) -> str:
        """As the log names the request."""
        name, version, size = self.request_name, self.api_version, len(self.frame)
        return f"{name} v{version} of {size} bytes from client {self.client_id!r} at {self.connection}"

    @property
    def request_name(self) -> str:
        return API[self.header.api_key].name

    @property
    def is_token_authenticated(self) -> bool:
        if self.forwarded_by is not None:
            return self.forwarded_token
        return self.connection.token_authenticated

    @property
    def may_request_tokens(self) -> bool:
        """Not with a token, nor over a connection without authentication. The broker that forwards a request has
        checked the connection of its client."""
        if self.is_token_authenticated:
            return False
        if self.forwarded_by is not None:
            return True
        protocol = self.connection.security_protocol
        return protocol != "PLAINTEXT" and not (protocol == "SSL" and self.principal == ANONYMOUS)


MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of answers that may have any size. Clients take a response of 100 MiB, by default; the rest is for errors."""


class Encoded:
    """A response that is encoded already, with its header."""

    __slots__ = ("buffers", "errors")

    def __init__(self, buffers: list[Buffer], errors: Mapping[int, int] | None = None) -> None:
        """`errors`: how often each error code but NONE is in it, where that was counted."""
        self.buffers = buffers
        self.errors = errors


Reply: TypeAlias = A | Encoded | Pending[Any] | Steps[Any] | None
