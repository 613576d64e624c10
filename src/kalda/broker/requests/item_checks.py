"""Checks of the single items of a request: what the caller may not do is refused, the rest is handled.

The pipeline puts these stages before handlers only where the node has an authorizer. A request whose items are all
allowed reaches its handler unchanged. Otherwise the handler gets a copy with the items that are allowed, and the
refusals are added to its response. They are made by the row's `failed`, so they are where each API has its errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import GeneratorType
from typing import Any, NamedTuple, TypeVar

from kalda.base.errors import ApiError
from kalda.base.scheduling import Pending
from kalda.broker.requests.context import Encoded, Reply, RequestContext
from kalda.protocol.access import Need
from kalda.protocol.notation import Request, Response, shallow_copy

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
