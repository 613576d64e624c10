"""Requests that name very many things: decoded, handled and encoded in steps, so that no other client waits for them.

A request with more than `small_elements` structs, strings and numbers is large. It is decoded in steps, cut into parts
of `PART_ITEMS` items, and each part is passed to the API's handler as a request of its own, one a step. Then the
responses of the parts are joined into one, which is encoded in steps. Items of a request are independent in all APIs
that are cut (`CUTS`): each has its own result. Only what a handler does about an item that is named twice depends on
the parts: it sees those that are in the same part.

What the controller decides is not cut here but on the controller (`operation_parts.py`): some of it is decided about
the request as a whole. More than `MAX_OPERATIONS` items are refused, as Kafka refuses a batch of more than 10,000
records.

One large request of a listener is decoded and handled at a time, so that the memory of the decoded requests is bounded.
Objects are dropped in steps too: a list of a million structs takes a tenth of a second to free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, TypeVar

from kalda.base.errors import ApiError, ErrorCode, InvalidRequest, as_api_error
from kalda.base.pending import Pending
from kalda.base.steps import NextTurn, StepRunner, Steps
from kalda.broker.context import Encoded, RequestContext
from kalda.broker.rows import Row
from kalda.network.connection import AtTurn, Buffer
from kalda.protocol.apis import ApiKey, request_class
from kalda.protocol.codec import step_decoder
from kalda.protocol.framing import encode_response_in_steps
from kalda.protocol.messages.fetch import FetchRequest
from kalda.protocol.notation import Request, Response, Struct, shallow_copy
from kalda.replication.fetch_session import FINAL_EPOCH, INITIAL_EPOCH

T = TypeVar("T")
SMALL_ELEMENTS = 4_000
"""Structs, strings and numbers in the lists of a request that is answered at once: some 20 ms where each is a partition
with an answer of its own."""
SMALL_OPERATION_ELEMENTS = 500
"""The same for operations of the controller: the response may be a hundred times as large, as that of CreateTopics."""
_SMALL_ELEMENTS_OF: Mapping[int, int] = {
    ApiKey.PRODUCE: 2_000,
    ApiKey.LIST_OFFSETS: 1_000,
    ApiKey.DELETE_RECORDS: 200,
    ApiKey.DELETE_GROUPS: 500,
}
"""The same for other APIs whose items take long: an append may open the files of a log, an offset may be searched in
them, a deletion writes."""
MAX_REQUEST_ELEMENTS = 250_000
"""No client names as many things in one request. A request with more closes its connection."""
MAX_OPERATIONS = 10_000
"""Items of one operation of the controller: `MAX_RECORDS_PER_USER_OP` of Apache Kafka."""
PART_ITEMS = 1_000
"""Items that are handled in one step: about ten milliseconds."""
PRODUCE_PART_ITEMS = 300
LIST_OFFSETS_PART_ITEMS = 300
"""The offset of the largest timestamp is searched in each log."""
DELETE_RECORDS_PART_ITEMS = 80
"""Each writes a small file, the epochs of a log that starts later."""
DELETE_GROUPS_PART_ITEMS = 500
MAX_FETCHED_AT_ONCE = 10_000
"""Partitions of a consumer's fetch that is handled whole. A fetch in parts waits for `min_bytes` in each part, so that
records of one part may wait for those of another, at most for `max_wait_ms`."""
_STRUCTS_FREED = 2_000
"""Structs that are dropped in one step."""


class Cut(NamedTuple):
    """Where the items of a request and of its response are: the names of nested lists, from the top."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    is_one_operation: bool = False
    """An operation of the controller, which is not cut here."""
    part_items: int = PART_ITEMS
    """Items of one part."""


def _partitions(part_items: int = PART_ITEMS) -> tuple[Cut, ...]:
    return (Cut(("topics", "partitions"), ("topics", "partitions"), part_items=part_items),)


def _operation(*asked: str, answered: tuple[str, ...]) -> tuple[Cut, ...]:
    return (Cut(asked, answered, is_one_operation=True),)


CUTS: Mapping[int, tuple[Cut, ...]] = {
    ApiKey.PRODUCE: (
        Cut(("topic_data", "partition_data"), ("responses", "partition_responses"), part_items=PRODUCE_PART_ITEMS),
    ),
    ApiKey.LIST_OFFSETS: _partitions(part_items=LIST_OFFSETS_PART_ITEMS),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _partitions(),
    ApiKey.DELETE_RECORDS: _partitions(part_items=DELETE_RECORDS_PART_ITEMS),
    ApiKey.DESCRIBE_PRODUCERS: (Cut(("topics", "partition_indexes"), ("topics", "partitions")),),
    ApiKey.WRITE_TXN_MARKERS: (Cut(("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions")),),
    ApiKey.OFFSET_COMMIT: _partitions(),
    ApiKey.TXN_OFFSET_COMMIT: _partitions(),
    ApiKey.OFFSET_DELETE: _partitions(),
    ApiKey.OFFSET_FETCH: (
        Cut(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions")),
        Cut(("topics", "partition_indexes"), ("topics", "partitions")),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (Cut(("dirs", "topics", "partitions"), ("results", "partitions")),),
    ApiKey.DESCRIBE_GROUPS: (Cut(("groups",), ("groups",)),),
    ApiKey.DELETE_GROUPS: (Cut(("groups_names",), ("results",), part_items=DELETE_GROUPS_PART_ITEMS),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (Cut(("transactions",), ("results_by_transaction",)),),
    ApiKey.DESCRIBE_TRANSACTIONS: (Cut(("transactional_ids",), ("transaction_states",)),),
    ApiKey.FIND_COORDINATOR: (Cut(("coordinator_keys",), ("coordinators",)),),
    ApiKey.CREATE_TOPICS: _operation("topics", "assignments", answered=("topics",)),
    ApiKey.DELETE_TOPICS: (
        *_operation("topics", answered=("responses",)),
        *_operation("topic_names", answered=("responses",)),
    ),
    ApiKey.CREATE_PARTITIONS: _operation("topics", "assignments", answered=("results",)),
    ApiKey.ALTER_CONFIGS: _operation("resources", "configs", answered=("responses",)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _operation("resources", "configs", answered=("responses",)),
    ApiKey.CREATE_ACLS: _operation("creations", answered=("results",)),
    ApiKey.DELETE_ACLS: _operation("filters", answered=("filter_results",)),
    ApiKey.ELECT_LEADERS: _operation(
        "topic_partitions", "partitions", answered=("replica_election_results", "partition_result")
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _operation("topics", "partitions", answered=("responses", "partitions")),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _operation("topics", "partition_indexes", answered=("topics", "partitions")),
    ApiKey.ALTER_CLIENT_QUOTAS: _operation("entries", "ops", answered=("entries",)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _operation("upsertions", answered=("results",)),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _operation("users", answered=("results",)),
}
"""The cuts of each API; the first whose list is not empty applies."""


def small_elements(key: int) -> int:
    """How many elements a request of that API has at most that is not large."""
    cuts = CUTS.get(key, ())
    usual = SMALL_OPERATION_ELEMENTS if cuts and cuts[0].is_one_operation else SMALL_ELEMENTS
    return _SMALL_ELEMENTS_OF.get(key, usual)


_ANSWERED_IN_STEPS = frozenset((ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_CONFIGS))
"""APIs whose handlers take their own steps, and keep nothing of the request or of the response."""


class Part(NamedTuple):
    """A piece of a list of items."""

    items: list[Any]
    size: int
    """Items in it, at all depths."""
    joins: int
    """At how many depths the first item is the rest of the last item of the part before."""


_FETCH = Cut(("topics", "partitions"), ("responses", "partitions"))


def cut_of(request: Request) -> Cut | None:
    """The cut that applies to a request; None where it is handled whole."""
    if isinstance(request, FetchRequest):
        return _FETCH if _may_cut_fetch(request) else None
    for cut in CUTS.get(request.API_KEY, ()):
        if getattr(request, cut.asked[0]):
            return cut
    return None


def _may_cut_fetch(request: FetchRequest) -> bool:
    """A consumer's fetch of very many partitions, which has no session yet. It gets none: all of the session's
    partitions would be read at once by each small request for what has changed."""
    is_consumer = request.replica_id < 0 and request.replica_state.replica_id < 0
    return (
        is_consumer
        and request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)
        and has_more_items(request.topics, ("partitions",), MAX_FETCHED_AT_ONCE)
    )


def _end_session(request: FetchRequest) -> None:
    """Make the parts of a fetch full fetches without a session, which share the bytes of the response."""
    items = len(request.topics) + sum(len(topic.partitions) for topic in request.topics)
    request.session_epoch = FINAL_EPOCH
    request.max_bytes = max(1, request.max_bytes // (1 + items // PART_ITEMS))


def cut_items(items: list[Any], inner: tuple[str, ...], size: int) -> Iterator[Part]:
    """Parts of about `size` items. An item whose inner list is larger is in several parts, each with a piece of it."""
    if not inner:
        for start in range(0, len(items), size):
            yield Part(items[start : start + size], min(size, len(items) - start), 0)
        return
    name, deeper = inner[0], inner[1:]
    part: list[Any] = []
    size_so_far = joins = 0
    for item in items:
        nested = getattr(item, name)
        is_first = True
        for piece in cut_items(nested, deeper, size) if nested else (Part(nested, 0, 0),):
            if part and (size_so_far + piece.size >= size or not is_first):
                yield Part(part, size_so_far, joins)
                part, size_so_far, joins = [], 0, 0
            if not part and not is_first:
                joins = 1 + piece.joins
            copy = item
            if piece.items is not nested:
                copy = shallow_copy(item)
                setattr(copy, name, piece.items)
            part.append(copy)
            size_so_far += 1 + piece.size
            is_first = False
    if part:
        yield Part(part, size_so_far, joins)


def requests_of(request: Request, cut: Cut, size: int) -> Iterator[tuple[Request, int]]:
    """The request in parts of about `size` items, and the `joins` of each. Its other lists are in the first part."""
    top, *inner = cut.asked
    others = [name for name in type(request).declared if name != top and isinstance(getattr(request, name), list)]
    for number, part in enumerate(cut_items(getattr(request, top), tuple(inner), size)):
        copy = shallow_copy(request)
        setattr(copy, top, part.items)
        if number:
            for name in others:
                setattr(copy, name, [])
        yield copy, part.joins


def join(whole: Response, part: Response, cut: Cut, joins: int) -> None:
    """Add the response of a part to the responses of the parts before it."""
    top, *inner = cut.answered
    for name in type(whole).declared:
        mine, other = getattr(whole, name), getattr(part, name)
        if name == top:
            _join_items(mine, other, tuple(inner), joins)
        elif isinstance(mine, list):
            mine.extend([each for each in other if each not in mine])
        elif not mine:
            setattr(whole, name, other)


def _join_items(whole: list[Any], part: list[Any], inner: tuple[str, ...], joins: int) -> None:
    if joins and whole and part and _are_alike(whole[-1], part[0]):
        if inner:
            _join_items(getattr(whole[-1], inner[0]), getattr(part[0], inner[0]), inner[1:], joins - 1)
        del part[0]
    whole.extend(part)


def _are_alike(one: Struct, other: Struct) -> bool:
    """Whether two items differ in their lists alone."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in type(one).declared
        if not isinstance(getattr(one, name), list)
    )


def has_more_items(items: list[Any], inner: tuple[str, ...], limit: int) -> bool:
    """Whether there are more than `limit` items, at all depths together."""
    return _count_up_to(items, inner, limit) > limit


def _count_up_to(items: list[Any], inner: tuple[str, ...], limit: int) -> int:
    """How many items there are at all depths; where that is more than `limit`, any number beyond it."""
    count = len(items)
    if inner:
        for item in items:
            if count > limit:
                break
            count += _count_up_to(getattr(item, inner[0]) or [], inner[1:], limit - count)
    return count


def free(items: list[Any], inner: tuple[str, ...]) -> Steps[None]:
    """Drop the items of a list, in steps."""
    left = _STRUCTS_FREED
    pending = [(items, inner)]
    while pending:
        top, names = pending[-1]
        if not top:
            pending.pop()
        elif names:
            pending.append((getattr(top.pop(), names[0]) or [], names[1:]))
            left -= 1
        else:
            left -= len(top[-left:])
            del top[-_STRUCTS_FREED:]
        if left <= 0:
            left = _STRUCTS_FREED
            yield


class Stages(Protocol):
    """The stages of the request pipeline that a large request needs besides the call of the handler."""

    def failed(self, row: Row, context: RequestContext, request: Request, error: ApiError) -> Response | None:
        """The response of a part that failed."""
        ...

    def charge(self, context: RequestContext, request: Request, response: Response | Encoded | None) -> None:
        """Charge the answer to the quotas of the client."""
        ...

    def timed(self, context: RequestContext, steps: Steps[T]) -> Steps[T]:
        """Measure for how long the steps hold the event loop, where the client is charged for that."""
        ...


class _Reply:
    """A part of a request, and what its handler replied."""

    __slots__ = ("joins", "reply", "request")

    def __init__(self, request: Request, joins: int, reply: Any) -> None:
        self.request = request
        self.joins = joins
        self.reply = reply


class LargeRequests:
    """Answers the large requests of one listener."""

    def __init__(self, next_turn: NextTurn) -> None:
        self._handling = StepRunner(next_turn, takes_turns=False)
        self._encoding = StepRunner(next_turn)

    def answer(
        self, row: Row, handler: Callable[[RequestContext, Any], Any], context: RequestContext, stages: Stages
    ) -> Pending[list[Buffer]]:
        """Answer a request that is not decoded yet."""
        answer: Pending[list[Buffer]] = Pending()
        current: list[Pending[Any]] = []
        """What is abandoned where the answer is."""

        def abandon() -> None:
            for each in current:
                each.abandon()

        def on_handled(handled: tuple[Cut | None, list[_Reply]] | None, error: ApiError | None) -> None:
            current.clear()
            if handled is None:
                assert error is not None
                answer.fail(error)
                return
            cut, replies = handled
            waiting = [each.reply for each in replies if isinstance(each.reply, Pending)]
            current.extend(waiting)
            missing = len(waiting)

            def on_reply(_: object, __: ApiError | None) -> None:
                nonlocal missing
                missing -= 1
                if not missing:
                    encode(cut, replies)

            if not waiting:
                encode(cut, replies)
            for each in waiting:
                each.then(on_reply)

        def encode(cut: Cut | None, replies: list[_Reply]) -> None:
            encoded = self._encoding.run(stages.timed(context, _encoded(row, context, cut, replies, stages)))
            current[:] = [encoded]
            encoded.then(answer.settle)

        handled = self._handling.run(stages.timed(context, _handled(row, handler, context, stages)))
        current.append(handled)
        answer.on_abandoned = abandon
        handled.then(on_handled)
        return answer


def _handled(
    row: Row, handler: Callable[[RequestContext, Any], Any], context: RequestContext, stages: Stages
) -> Steps[tuple[Cut | None, list[_Reply]]]:
    """Decode the request, and call the handler with each part. Raises `InvalidRequest`."""
    yield
    decode = step_decoder(request_class(row.key), context.api_version)
    request, _ = yield from decode(context.frame, context.header.body_at, MAX_REQUEST_ELEMENTS, 1)
    yield
    cut = cut_of(request)
    parts: Iterator[tuple[Request, int]] = iter([(request, 0)])
    refusal = None
    if cut is not None and cut.is_one_operation:
        if has_more_items(getattr(request, cut.asked[0]), cut.asked[1:], MAX_OPERATIONS):
            refusal = ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
            parts = requests_of(request, cut, cut.part_items)
    elif cut is not None:
        if isinstance(request, FetchRequest):
            _end_session(request)
        parts = requests_of(request, cut, cut.part_items)
    replies: list[_Reply] = []
    del request
    for part, joins in parts:  # made one in each step, too
        try:
            if refusal is not None:
                raise refusal
            reply = handler(context, part)
            if isinstance(reply, GeneratorType):
                reply = yield from reply
        except InvalidRequest:
            raise
        except Exception as error:
            reply = stages.failed(row, context, part, as_api_error(error))
        replies.append(_Reply(part, joins, reply))
        yield
    return cut, replies


def _encoded(
    row: Row, context: RequestContext, cut: Cut | None, replies: list[_Reply], stages: Stages
) -> Steps[list[Buffer]]:
    """Join the responses of the parts, charge the client, and encode. No buffers where the request has no answer."""
    whole: Response | Encoded | None = None
    first = replies[0].request
    for each in replies:
        reply = each.reply
        if isinstance(reply, Pending):
            reply = reply.value if reply.error is None else stages.failed(row, context, each.request, reply.error)
        each.reply = None
        if whole is None or isinstance(whole, Encoded):
            whole = reply
        elif isinstance(reply, Response) and cut is not None:
            join(whole, reply, cut, each.joins)
            yield
    stages.charge(context, first, whole)
    if whole is None:
        return []
    if isinstance(whole, Encoded):
        if row.key in _ANSWERED_IN_STEPS:
            yield from _free_lists(first)
        return whole.buffers.make() if isinstance(whole.buffers, AtTurn) else whole.buffers
    buffers = yield from encode_response_in_steps(context.header.correlation_id, whole, context.api_version)
    while replies:
        replies.pop()
        yield
    if cut is not None:
        yield from free(getattr(whole, cut.answered[0]), cut.answered[1:])
    elif row.key in _ANSWERED_IN_STEPS:
        yield from _free_lists(whole)
        yield from _free_lists(first)
    return buffers


def _free_lists(message: Request | Response) -> Steps[None]:
    for name in type(message).declared:
        value = getattr(message, name)
        if isinstance(value, list):
            yield from free(value, ())
