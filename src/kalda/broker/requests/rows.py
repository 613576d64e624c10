"""A row for each API that a listener serves: its handler, and all that the request pipeline does around it.

Rows are declared beside the handlers. What the pipeline can decide without the handler is a field of the row: whether
the caller may send such a request at all (`authorize`), which quota pays for it (`quota`), and how its response reports
that the whole request failed (`failed`).

Not obvious:

- The lists of a request have at most `Row.max_elements` elements together, which the decoder checks before it
  allocates memory for them; beyond that the connection is closed. So a request is decoded and handled whole, and what
  is per item is handled in steps. Kalda's own clients and nodes name at most half as many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.item_checks import Stage
from kalda.protocol.access import Caller, Need
from kalda.protocol.apis import API, ApiKey, Listener
from kalda.protocol.messages.security import AclOperation
from kalda.protocol.notation import Request, Response


class Authorization(Enum):
    """Where a request is authorized that the pipeline lets through without a check."""

    ANYONE = auto()
    """Nowhere: every caller may send it."""
    PER_ITEM = auto()
    """In its handler, or in the controller that the handler calls, item by item (`Caller.allows`); or by the stage
    `Row.items`."""
    UNCHECKED = auto()
    """Nowhere: the handler has no check of single items. A pipeline with an authorizer refuses all such requests."""
    AT_CONTROLLER = auto()
    """On the controller's listener, which the broker forwards it to."""


class QuotaClass(Enum):
    """Which quotas of a client a request counts against. All but EXEMPT count against its request time too."""

    PRODUCE = auto()
    """`producer_byte_rate`"""
    FETCH = auto()
    """`consumer_byte_rate`"""
    REQUEST = auto()
    """`request_percentage` alone"""
    CONTROLLER_MUTATION = auto()
    """`controller_mutation_rate`: partitions created and deleted (KIP-599)"""
    EXEMPT = auto()
    """None: requests between nodes are never charged, nor is their connection muted."""


MAX_ELEMENTS = 20_000
"""Elements of a request: those of all of its lists together, at all depths. Decoded it takes some ten megabytes."""
MAX_ELEMENTS_BETWEEN_NODES = 50_000
"""The same for APIs with which nodes name partitions to each other."""


class Row(NamedTuple):
    """One API on one kind of listener. The handler, `failed` and `authorize` are of the same request and response."""

    key: ApiKey
    handler: Callable[[RequestContext, Any], Reply[Any]]
    failed: Callable[[Any, int, ApiError], Response | None]
    """`(request, version, error)`: the response to a request that failed as a whole, as `getErrorResponse` of
    Apache Kafka's class of that request. None where the client expects no response: its connection is closed instead.
    """
    authorize: Callable[[Caller, Any], ApiError | None] | Authorization
    """Either a check of the whole request, which returns why it is refused; or where the request is checked instead."""
    quota: QuotaClass = QuotaClass.REQUEST
    forwarded: bool = False
    """On a broker: the handler sends the request on to the active controller. On a controller: an envelope may hold
    it."""
    throttled: Callable[[Any, Any], Response] | None = None
    """`(request, response)`: what is sent in place of a response to a client that has to pause, as a Fetch without
    records. None where the response itself is sent."""
    items: Stage | None = None
    """The stage that checks single items, after `authorize`; None where there are none, or the handler checks them."""
    max_elements: int = MAX_ELEMENTS
    """A request with more elements closes its connection. The decoder checks this before it allocates memory for them.
    """
    has_large_answer: bool = False
    """The answer may be much larger than its request, and is made of what the node has, without another node: few of
    these are made at the same time where they take steps."""


class LateRow(NamedTuple):
    """The row of an API whose handler is made when the first request for it comes."""

    key: ApiKey
    make: Callable[[], Row]


R = TypeVar("R", bound=Row | LateRow)


def joined(listener: Listener, *groups: Iterable[R]) -> list[R]:
    """All rows of one kind of listener. No API has two, and each belongs on such a listener."""
    rows = [row for group in groups for row in group]
    assert len({row.key for row in rows}) == len(rows), "an API has two rows"
    for row in rows:
        assert API[row.key].listeners & listener, f"{row.key.name} is not an API of {listener} listeners"
    return rows


# Checks of whole requests.


class _NamesGroup(Protocol):
    group_id: str


def on_cluster(operation: AclOperation) -> Callable[[Caller, Request], ApiError | None]:
    """The caller needs `operation` on the cluster; otherwise CLUSTER_AUTHORIZATION_FAILED."""

    def check(caller: Caller, request: Request) -> ApiError | None:
        return caller.refusal_on_cluster(operation)

    return check


def on_group(need: Need) -> Callable[[Caller, _NamesGroup], ApiError | None]:
    """The caller needs this for the group that the request names; otherwise GROUP_AUTHORIZATION_FAILED."""

    def check(caller: Caller, request: _NamesGroup) -> ApiError | None:
        return need.refusal(caller, request.group_id)

    return check


def message_of(error: ApiError) -> str | None:
    """The `error_message` of a response. A fault of the server itself has none: its text is not for clients."""
    return None if error.code is ErrorCode.UNKNOWN_SERVER_ERROR else error.message or None
