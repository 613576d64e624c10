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

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.requests.context import Encoded, Reply, RequestContext
from kalda.protocol.access import Caller, Need
from kalda.protocol.apis import API, ApiKey, Listener
from kalda.protocol.messages.security import AclOperation
from kalda.protocol.notation import Request, Response, shallow_copy

# Checks of the single items of a request: what the caller may not do is refused, the rest is handled.
#
# The pipeline puts these stages before handlers only where the node has an authorizer. A request whose items are all
# allowed reaches its handler unchanged. Otherwise the handler gets a copy with the items that are allowed, and the
# refusals are added to its response. They are made by the row's `failed`, so they are where each API has its errors.

Q = TypeVar("Q", bound=Request)
Handler = Callable[[RequestContext, Any], Reply[Any]]
Stage = Callable[[Handler], Handler]
Failed = Callable[[Any, int, ApiError], Response | None]


def own_name(item: Any) -> str | None:
    """The `name` of an item."""
    name: str = item.name
    return name


def itself(item: str) -> str | None:
    """An item that is a name."""
    return item


def _one(item: Any) -> int:
    return 1


class Items(NamedTuple):
    """Where the items of a request and their results are, and what the caller needs for each."""

    need: Need | Callable[[RequestContext, Any], Need | None]
    """`(context, request)`: the need, where it depends on the request; None for none."""
    failed: Failed
    """As `Row.failed`: makes the refusals of a request that has the refused items alone."""
    asked: str = "topics"
    """The list of the request; so is `answered` that of the response."""
    answered: str = "topics"
    name_of: Callable[[Any], str | None] = own_name
    """The resource of an item; None for an item that the handler refuses by itself."""
    references: Callable[[Any], int] = _one
    """How many items of the request's own data an item stands for, which the audit log has."""
    handles_none: bool = False
    """Whether the handler is called also where no item is allowed: the response has an error of the whole request."""

    def stage(self, handler: Handler) -> Handler:
        """`handler`, which gets what is allowed."""
        need, failed, asked, answered, name_of, references, handles_none = self

        def check_then_handle(context: RequestContext, request: Any) -> Reply[Any]:
            needed = need if isinstance(need, Need) else need(context, request)
            if needed is None:
                return handler(context, request)
            items: Sequence[Any] = getattr(request, asked)
            refused = needed.refused(context, _counted(items, name_of, references))
            if refused is None:
                return handler(context, request)
            allowed, refusals = _parted(request, asked, items, lambda item: name_of(item) in refused)
            refusal = failed(refusals, context.api_version, ApiError(needed.error))
            reply = handler(context, allowed) if getattr(allowed, asked) or handles_none else None
            if refusal is None:
                context.connection.close()  # the client expects no response
                return reply
            return refusal if reply is None else added(reply, answered, getattr(refusal, answered))

        return check_then_handle


def _counted(
    items: Iterable[Any], name_of: Callable[[Any], str | None], references: Callable[[Any], int]
) -> dict[str, int]:
    """How many items concern each resource, in the order of the request."""
    counts: dict[str, int] = {}
    for item in items:
        name = name_of(item)
        if name is not None:
            counts[name] = counts.get(name, 0) + references(item)
    return counts


def _parted(request: Q, asked: str, items: Iterable[Any], is_refused: Callable[[Any], bool]) -> tuple[Q, Q]:
    """The request with the items that are allowed, and with those that are refused."""
    allowed, refused = shallow_copy(request), shallow_copy(request)
    of_allowed: list[Any] = []
    of_refused: list[Any] = []
    for item in items:
        (of_refused if is_refused(item) else of_allowed).append(item)
    setattr(allowed, asked, of_allowed)
    setattr(refused, asked, of_refused)
    return allowed, refused


def added(reply: Reply[Any], answered: str, results: list[Any]) -> Reply[Any]:
    """The reply with further results."""

    def add(response: Response) -> Response:
        setattr(response, answered, [*getattr(response, answered), *results])
        return response

    return mapped(reply, add)


def mapped(reply: Reply[Any], change: Callable[[Any], Response]) -> Reply[Any]:
    """The reply with its response changed, now or when it is known."""
    if isinstance(reply, Pending):
        return reply.and_then(lambda value: mapped(value, change))
    if isinstance(reply, GeneratorType):
        return _in_steps(reply, change)
    assert not isinstance(reply, Encoded), "a handler of items encodes nothing"
    return None if reply is None else change(reply)


def _in_steps(steps: Any, change: Callable[[Any], Response]) -> Any:
    reply = yield from steps
    return mapped(reply, change)


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
