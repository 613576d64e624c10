"""Requests of many items that a coordinator writes or reads: handled some hundred items a step.

A coordinator decides about a request in one go, and writes one batch for it, which has to fit into
`max.message.bytes`. So a request of many items is passed to it in chunks, each a request of its own, and the results
are one response. A chunk that fails has the error of the request in its place; the others are not harmed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kalda.base.background import Steps
from kalda.base.errors import ApiError, InvalidRequest, as_api_error
from kalda.base.scheduling import Pending
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.item_checks import Failed, Handler
from kalda.coordinator.answers import answer_after_all
from kalda.protocol.notation import Request, Response, shallow_copy

CHUNK_ITEMS = 200


class Chunks(NamedTuple):
    """Where the items of a request and their results are: the names of nested lists, from the top."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    failed: Failed
    """As `Row.failed`."""

    def handler(self, handler: Handler) -> Handler:
        """`handler`, which gets a request of many items in chunks."""

        def handle(context: RequestContext, request: Any) -> Reply[Any]:
            if _has_at_most(CHUNK_ITEMS, getattr(request, self.asked[0]) or (), self.asked[1:]) is None:
                return self._in_chunks(handler, context, request)
            return handler(context, request)

        return handle

    def _in_chunks(self, handler: Handler, context: RequestContext, request: Request) -> Steps[Any]:
        chunks: list[Request] = []
        replies: list[Any] = []  # responses, or pending ones
        for some, _ in _cut(getattr(request, self.asked[0]), self.asked[1:]):
            if chunks:
                yield
            chunk = shallow_copy(request)
            setattr(chunk, self.asked[0], some)
            chunks.append(chunk)
            try:
                replies.append(handler(context, chunk))
            except InvalidRequest:
                raise
            except Exception as error:
                replies.append(self._refusal(chunk, context, as_api_error(error)))

        def join() -> Steps[Response]:
            return self._joined(context, chunks, replies)

        return answer_after_all([each for each in replies if isinstance(each, Pending)], join)

    def _joined(self, context: RequestContext, chunks: list[Request], replies: list[Any]) -> Steps[Response]:
        whole: Response | None = None
        for chunk, reply in zip(chunks, replies, strict=True):
            response: Any = reply
            if isinstance(reply, Pending):
                response = reply.value if reply.error is None else self._refusal(chunk, context, reply.error)
            if whole is None:
                whole = response
                continue
            yield
            _join(whole, response, self.answered)
        assert whole is not None, "there are items"
        return whole

    def _refusal(self, chunk: Request, context: RequestContext, error: ApiError) -> Response:
        refusal = self.failed(chunk, context.api_version, error)
        assert refusal is not None, "these requests are answered"
        return refusal


def _has_at_most(left: int, items: Iterable[Any], nested: tuple[str, ...]) -> int | None:
    """How many items there may be besides; None where there are too many."""
    for item in items:
        left -= 1
        if left >= 0 and nested:
            inner = _has_at_most(left, getattr(item, nested[0]) or (), nested[1:])
            left = -1 if inner is None else inner
        if left < 0:
            return None
    return left


def _cut(items: Sequence[Any], nested: tuple[str, ...]) -> Iterator[tuple[list[Any], int]]:
    """Chunks of items, and how many a chunk has at all depths. One whose nested list is long is in several chunks, with
    a piece of that list in each."""
    if not nested:
        for start in range(0, len(items), CHUNK_ITEMS):
            some = list(items[start : start + CHUNK_ITEMS])
            yield some, len(some)
        return
    chunk: list[Any] = []
    size = 0
    for item in items:
        inner = getattr(item, nested[0])
        for piece, piece_size in _cut(inner, nested[1:]) if inner else ((inner, 0),):
            copy = shallow_copy(item)
            setattr(copy, nested[0], piece)
            chunk.append(copy)
            size += 1 + piece_size
            if size >= CHUNK_ITEMS:
                yield chunk, size
                chunk, size = [], 0
    if chunk:
        yield chunk, size


def _join(whole: Any, part: Any, answered: tuple[str, ...]) -> None:
    """Add the results of a chunk. Its first item may be a further piece of the last one."""
    name, nested = answered[0], answered[1:]
    for field in type(whole).declared:  # an error of a whole chunk
        if field != name and not isinstance(getattr(whole, field), list) and not getattr(whole, field):
            setattr(whole, field, getattr(part, field))
    mine, others = getattr(whole, name), getattr(part, name)
    if nested and mine and others and _are_pieces(mine[-1], others[0]):
        _join(mine[-1], others[0], nested)
        others = others[1:]
    mine.extend(others)


def _are_pieces(one: Any, other: Any) -> bool:
    """Whether two items differ in their lists alone."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in type(one).declared
        if not isinstance(getattr(one, name), list)
    )
