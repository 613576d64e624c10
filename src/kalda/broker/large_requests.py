"""Requests that name very many things: decoded, handled and encoded in parts, one a step, so that no other client
waits for them, and so that memory follows their bytes.

A request with more than `small_elements` structs, strings and numbers is large. It is checked in steps, which keep
nothing of its items; then it is decoded in parts of some hundred items. Each part is passed to the API's handler as a
request of its own, one a step, and its response is encoded before the next part is decoded. Items of a request are
independent in all APIs that are cut (`CUTS`): each has its own result. Only what a handler does about an item that is
named twice depends on the parts: it sees those that are in the same part.

Invariants: the frame and the bytes of the answer are whole in memory; structs are those of one part, and of the
responses that parts have made since the last step. A part that waits, as a Produce for its replicas, keeps what its
handler keeps; it is decoded once more if it fails. Encoded responses are joined in the order of the parts, whatever the
order in which they are there. A malformed request has no effect, as nothing is handled before all of it was checked.

What the controller decides is not cut here but on the controller (`operation_parts.py`): some of it is decided about
the request as a whole. More than `MAX_OPERATIONS` items are refused, as Kafka refuses a batch of more than 10,000
records. Requests of other APIs are decoded whole, and their responses are encoded in steps.

One large request of a listener is decoded and handled at a time, so that the memory of the decoded requests is bounded.
Objects are dropped in steps too: a list of a million structs takes a tenth of a second to free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from types import GeneratorType
from typing import Any, NamedTuple, Protocol, TypeVar

from kalda.base.background import Background, Steps
from kalda.base.errors import ApiError, ErrorCode, InvalidRequest, as_api_error
from kalda.base.pending import Pending
from kalda.broker.context import Encoded, RequestContext
from kalda.broker.rows import Row
from kalda.network.connection import Buffer
from kalda.protocol.apis import API, ApiKey, request_class, response_class
from kalda.protocol.codec import step_decoder
from kalda.protocol.framing import decode_response_header, encode_response_in_steps, response_header
from kalda.protocol.messages.fetch import FetchRequest, FetchResponse
from kalda.protocol.notation import Request, Response, shallow_copy
from kalda.protocol.part_decoder import Outline, PartDecoder, part_decoder
from kalda.protocol.part_encoder import EncodedItems, EncodedPart, PartEncoder, join_others, part_encoder
from kalda.protocol.schema import is_flexible, wire_struct
from kalda.replication.fetch_session import FINAL_EPOCH, INITIAL_EPOCH

T = TypeVar("T")
Handler = Callable[[RequestContext, Any], Any]
SMALL_ELEMENTS = 4_000
"""Structs, strings and numbers in the lists of a request that is answered at once: some 20 ms where each is a partition
with an answer of its own."""
SMALL_OPERATION_ELEMENTS = 500
"""The same for operations of the controller: the response may be a hundred times as large, as that of CreateTopics."""
_SMALL_ELEMENTS_OF: Mapping[int, int] = {
    ApiKey.PRODUCE: 2_000,
    ApiKey.LIST_OFFSETS: 1_000,
    ApiKey.DELETE_RECORDS: 40,
    ApiKey.DELETE_GROUPS: 500,
}
"""The same for other APIs whose items take long: an append may open the files of a log, an offset may be searched in
them, a deletion writes."""
MAX_REQUEST_ELEMENTS = 250_000
"""No client names as many things in one request. A request with more closes its connection."""
MAX_ELEMENTS_AT_ONCE = 20_000
"""The same for the whole request of an API that is not cut but may name many things, as the assignments of a group of
6,000 members. Decoded they take some six megabytes. Other APIs that are not cut name few things, as features or voters:
their requests are never large."""
MAX_OTHER_ELEMENTS = 50_000
"""The same for those lists of other requests that are not cut, as 10,000 configs of topics that are to be created."""
_OTHER_ELEMENTS_OF: Mapping[int, int] = {ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 10_000}
"""The same for APIs whose other lists have results of their own: deleted credentials."""
NUMBERS_PER_ELEMENT = 4
"""Numbers that take as much memory as another element."""
_COUNTED_ONE_BY_ONE = frozenset((ApiKey.ADD_PARTITIONS_TO_TXN,))
"""APIs of which each number has a result."""
_AT_ONCE_OF: Mapping[int, int] = {
    ApiKey.JOIN_GROUP: MAX_ELEMENTS_AT_ONCE,
    ApiKey.LEAVE_GROUP: MAX_ELEMENTS_AT_ONCE,
    ApiKey.SYNC_GROUP: MAX_ELEMENTS_AT_ONCE,
    ApiKey.ADD_PARTITIONS_TO_TXN: MAX_OTHER_ELEMENTS,
    ApiKey.LIST_TRANSACTIONS: MAX_ELEMENTS_AT_ONCE,
    ApiKey.DESCRIBE_LOG_DIRS: MAX_ELEMENTS_AT_ONCE,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: MAX_ELEMENTS_AT_ONCE,
}
"""What a request has at most that may name many things and is not cut in its version."""
_DECODED_WHOLE = frozenset((ApiKey.FETCH, ApiKey.ALTER_PARTITION))
"""APIs of which a whole request has up to `MAX_REQUEST_ELEMENTS`: a large cluster has as many topics and partitions."""
MAX_OPERATIONS = 10_000
"""Items of one operation of the controller: `MAX_RECORDS_PER_USER_OP` of Apache Kafka."""
PART_ITEMS = 1_000
"""Items that are handled in one step: about ten milliseconds."""
PRODUCE_PART_ITEMS = 300
LIST_OFFSETS_PART_ITEMS = 300
"""The offset of the largest timestamp is searched in each log."""
DELETE_RECORDS_PART_ITEMS = 20
"""Each makes a small file, the epochs of a log that starts later: up to 3 ms where many files were made lately."""
DELETE_GROUPS_PART_ITEMS = 500
MARKERS_PART_ITEMS = 150
"""Each is an append. All of a part are appended in one turn, so that the turns of many parts are not the same one."""
MAX_FETCHED_AT_ONCE = 10_000
"""Partitions of a consumer's fetch that is handled whole. Of a fetch in parts only the last part waits, and only where
the others have found nothing: so their records may wait for those of the last part, at most for `max_wait_ms`."""
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
    unanswered_depths: int = 0
    """How many of the outermost lists of the request the response has none for."""


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
    ApiKey.WRITE_TXN_MARKERS: (
        Cut(
            ("markers", "topics", "partition_indexes"),
            ("markers", "topics", "partitions"),
            part_items=MARKERS_PART_ITEMS,
        ),
    ),
    ApiKey.OFFSET_COMMIT: _partitions(),
    ApiKey.TXN_OFFSET_COMMIT: _partitions(),
    ApiKey.OFFSET_DELETE: _partitions(),
    ApiKey.OFFSET_FETCH: (
        Cut(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions")),
        Cut(("topics", "partition_indexes"), ("topics", "partitions")),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (
        Cut(("dirs", "topics", "partitions"), ("results", "partitions"), unanswered_depths=1),
    ),
    ApiKey.METADATA: (Cut(("topics",), ("topics", "partitions")),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (Cut(("topics",), ("topics",)),),
    ApiKey.DESCRIBE_CONFIGS: (Cut(("resources",), ("results",)),),
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


_FETCH = Cut(("topics", "partitions"), ("responses", "partitions"))


def cut_of(key: int, version: int) -> Cut | None:
    """The cut of requests of an API in one version; None where they are handled whole."""
    cls = request_class(key)
    layout = wire_struct(cls, version, is_flexible(cls, version))
    fields = {field.name for field in layout.fields}
    cuts = (_FETCH,) if key == ApiKey.FETCH else CUTS.get(key, ())
    return next((cut for cut in cuts if cut.asked[0] in fields), None)


def _numbers_per_element(key: int) -> int:
    return 1 if key in _COUNTED_ONE_BY_ONE else NUMBERS_PER_ELEMENT


def _is_of_very_many(outline: Outline) -> bool:
    """Whether a fetch is a consumer's of very many partitions. It gets no session: all of the session's partitions
    would be read at once by each small request for what has changed."""
    request: FetchRequest = outline.message
    is_consumer = request.replica_id < 0 and request.replica_state.replica_id < 0
    return is_consumer and outline.items > MAX_FETCHED_AT_ONCE


def _end_session(outline: Outline) -> None:
    """Make the parts of a fetch full fetches without a session, which share the bytes of the response."""
    request: FetchRequest = outline.message
    request.session_epoch = FINAL_EPOCH
    request.max_bytes = max(1, request.max_bytes // (1 + outline.items // PART_ITEMS))


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

    def charge(
        self,
        context: RequestContext,
        request: Request,
        reply: Response | Encoded | None,
        response: Response | None,
    ) -> None:
        """Charge the answer to the quotas of the client. `response` gets the pause, before it is encoded."""
        ...

    def timed(self, context: RequestContext, steps: Steps[T]) -> Steps[T]:
        """Measure for how long the steps hold the event loop, where the client is charged for that."""
        ...


class _Parts:
    """The parts of a request, decoded one after the other."""

    def __init__(self, decoder: PartDecoder, frame: memoryview, cut: Cut, outline: Outline) -> None:
        self._start = (decoder, frame, cut, outline)
        self._cut = cut
        self._outline = outline
        self._parts = decoder.parts(frame, outline, cut.part_items)
        self.number = 0
        """Of the next part."""

    def from_start(self) -> _Parts:
        """The same parts, from the first one on."""
        return _Parts(*self._start)

    def next(self) -> Steps[tuple[Request, int] | None]:
        """The next part, a request of its own, and the `joins` of its response; None behind the last part. The other
        lists of the request are in the first part."""
        for part in self._parts:
            if part is None:
                yield
                continue
            request: Request = shallow_copy(self._outline.message)
            if self.number:
                for name in _lists_of(request):
                    setattr(request, name, [])
            setattr(request, self._cut.asked[0], part.items)
            self.number += 1
            return request, max(0, part.joins - self._cut.unanswered_depths)
        return None


class _Reply:
    """What the handler replied to a part."""

    __slots__ = ("is_encoded", "items", "joins", "number", "reply", "response")

    def __init__(self, number: int, joins: int, reply: Any) -> None:
        self.number = number
        """Of the part, from 0."""
        self.joins = joins
        """At how many depths the first item of the response is the rest of the last one of the part before."""
        self.reply = reply
        """None when it is encoded."""
        self.is_encoded = False
        self.response: Response | None = None
        """When it is encoded: what the response has beside its items; None where there is no response."""
        self.items = EncodedItems()
        """When it is encoded: the items of the response."""


class LargeRequests:
    """Answers the large requests of one listener."""

    def __init__(self, background: Background) -> None:
        self._background = background

    def answer(self, row: Row, handler: Handler, context: RequestContext, stages: Stages) -> Pending[list[Buffer]]:
        """Answer a request that is not decoded yet."""
        request = _LargeRequest(row, handler, context, stages, self._background)
        request.run(request.handle())
        return request.answer


class _LargeRequest:
    """One large request, until it is answered."""

    def __init__(
        self, row: Row, handler: Handler, context: RequestContext, stages: Stages, background: Background
    ) -> None:
        self._row = row
        self._handler = handler
        self._context = context
        self._stages = stages
        self._background = background
        self.answer: Pending[list[Buffer]] = Pending()
        self.answer.on_abandoned = self._abandon
        self._running: Pending[Any] | None = None
        """The steps that are under way; None while all that is left waits."""
        self._refusal: ApiError | None = None
        """The error of all parts of a request that is refused."""
        self._request: Request | None = None
        """The decoded request; of one in parts, what it has beside its items."""
        self._parts: _Parts | None = None
        """None where the request is handled whole."""
        self._parts_again: _Parts | None = None
        """Parts that have failed after a wait are decoded from these."""
        self._encoder: PartEncoder | None = None
        """Of responses of parts."""
        self._unjoined: deque[_Reply] = deque()
        """Replies in the order of their parts, from the first on that is not encoded."""
        self._settled: deque[_Reply] = deque()
        """Those of them that wait for nothing and are not encoded, in the order in which they were settled."""
        self._response: Response | None = None
        """The responses of parts, joined, without their items."""
        self._items = EncodedItems()
        """The items of these responses."""
        self._has_found = False
        """Whether a part of a fetch has found something that its client should have at once."""

    def run(self, steps: Steps[list[Buffer] | None]) -> None:
        """Do these steps. They return the answer, or None where there is none yet."""
        self._running = self._background.run(self._stages.timed(self._context, steps), owner=self._context)
        self._running.then(self._on_end_of_steps)

    def _on_end_of_steps(self, buffers: list[Buffer] | None, error: ApiError | None) -> None:
        self._running = None
        if error is not None:
            self._abandon()
            self.answer.fail(error)
        elif buffers is not None:
            self.answer.complete(buffers)
        elif self._settled or not self._unjoined:
            self.run(self._encode())

    def _on_settled(self, reply: _Reply) -> None:
        self._settled.append(reply)
        if self._running is None:
            self.run(self._encode())

    def _abandon(self) -> None:
        if self._running is not None:
            self._running.abandon()
        for each in self._unjoined:
            if isinstance(each.reply, Pending):
                each.reply.abandon()

    # -- handling

    def handle(self) -> Steps[None]:
        """Check the request, pass it to the handler in parts or whole, and encode the responses that are there."""
        yield
        yield from self._check()
        parts = self._parts
        if parts is not None and self._row.of_parts is not None and self._refusal is None:
            parts = yield from self._pass_parts(self._row.of_parts, parts)
            if parts is None:
                return
        if parts is None:
            if self._request is None:
                yield from self._decode()
            assert self._request is not None, "the request has been decoded"
            yield from self._pass(self._request, 0, 0)
            return
        number = 0
        following = yield from parts.next()
        while following is not None:
            (request, joins), following = following, (yield from parts.next())
            if following is None and not number and self._row.in_parts is None:
                self._request, self._parts = request, None  # there is nothing to join
            elif isinstance(request, FetchRequest) and (following or self._has_found or self._unjoined):
                request.max_wait_ms = 0
            yield from self._pass(request, number, joins)
            del request
            yield
            if self._parts is not None:
                yield from self._encode_settled()
            number += 1

    def _check(self) -> Steps[None]:
        """Find out whether the request is handled in parts, and check all of it if it is. Raises `InvalidRequest`."""
        key, version = self._row.key, self._context.api_version
        cut = cut_of(key, version)
        if cut is None:
            return
        decoder = part_decoder(request_class(key), version, cut.asked)
        outline = yield from decoder.outline(
            self._context.frame,
            self._context.header.body_at,
            MAX_REQUEST_ELEMENTS,
            MAX_REQUEST_ELEMENTS if key in _DECODED_WHOLE else _OTHER_ELEMENTS_OF.get(key, MAX_OTHER_ELEMENTS),
            _numbers_per_element(key),
        )
        yield
        if cut is _FETCH:
            if not _is_of_very_many(outline):
                return
            if outline.message.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
                self._request = outline.message
                self._refusal = ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
                return
            _end_session(outline)
        elif cut.is_one_operation:
            if outline.items <= MAX_OPERATIONS:
                return
            self._refusal = ApiError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")
        elif not outline.items:
            return
        self._request = outline.message
        self._parts = _Parts(decoder, self._context.frame, cut, outline)
        self._encoder = part_encoder(response_class(key), version, cut.answered)

    def _decode(self) -> Steps[None]:
        """Decode the whole request."""
        key, version, at = self._row.key, self._context.api_version, self._context.header.body_at
        if cut_of(key, version) is not None or key in _DECODED_WHOLE:  # it has been checked
            max_elements = MAX_REQUEST_ELEMENTS
        else:
            max_elements = _AT_ONCE_OF.get(key, small_elements(key))
        decode = step_decoder(request_class(key), version)
        self._request, _ = yield from decode(self._context.frame, at, max_elements, _numbers_per_element(key))
        yield

    def _pass_parts(self, of_parts: Callable[..., Steps[Encoded]], parts: _Parts) -> Steps[_Parts | None]:
        """Pass all parts to a handler that makes one answer of them. Where it refuses the request, the parts are
        returned: each is answered with the error."""
        assert self._request is not None, "it is set with the parts"

        def next_part() -> Steps[Request | None]:
            part = yield from parts.next()
            return None if part is None else part[0]

        try:
            reply = yield from of_parts(self._context, self._request, next_part)
        except InvalidRequest:
            raise
        except Exception as error:
            self._refusal = as_api_error(error).with_traceback(None)  # which keeps what the handler has made
            return parts.from_start()
        self._parts = None
        kept = _Reply(0, 0, reply)
        self._unjoined.append(kept)
        self._settled.append(kept)
        return None

    def _pass(self, request: Request, number: int, joins: int) -> Steps[None]:
        """Pass the request, or a part of it, to the handler, and keep the reply."""
        try:
            if self._refusal is None:
                reply = self._handler(self._context, request)
            else:  # not raised: an error that is raised again and again keeps the parts in its traceback
                reply = self._stages.failed(self._row, self._context, request, self._refusal)
            if isinstance(reply, GeneratorType):
                reply = yield from reply
        except InvalidRequest:
            raise
        except Exception as error:
            reply = self._stages.failed(self._row, self._context, request, as_api_error(error))
        kept = _Reply(number, joins, reply)
        self._unjoined.append(kept)
        if isinstance(reply, Pending):
            reply.then(lambda _, __: self._on_settled(kept))
        else:
            self._settled.append(kept)

    # -- encoding

    def _encode(self) -> Steps[list[Buffer] | None]:
        """Encode the responses that are there. Returns the answer, where that is all of them."""
        if self._parts is None:
            return (yield from self._encode_whole())
        assert self._encoder is not None, "it is set with the parts"
        assert self._request is not None, "it is set with the parts"
        yield from self._encode_settled()
        if self._unjoined:
            return None
        response = self._response
        self._stages.charge(self._context, self._request, Encoded(list(self._items.buffers())), response)
        if response is None:
            return []
        head = response_header(type(response), self._context.api_version)(self._context.header.correlation_id)
        return (yield from self._encoder.whole(head, response, self._items))

    def _encode_settled(self) -> Steps[None]:
        """Encode the responses of parts, and join them as far as there is none missing."""
        assert self._encoder is not None, "parts are encoded"
        while self._settled:
            settled = self._settled.popleft()
            response = yield from self._response_to(settled)
            settled.reply = None
            if isinstance(response, EncodedPart):
                settled.response, settled.items = response
            elif response is not None:
                self._has_found = self._has_found or (isinstance(response, FetchResponse) and _has_found(response))
                settled.items = yield from self._encoder.items(response, settled.joins)
                settled.response = response
                yield from free(self._encoder.take_items(response), self._encoder.nested)
            settled.is_encoded = True
            while self._unjoined and self._unjoined[0].is_encoded:
                self._join(self._unjoined.popleft())
            yield

    def _response_to(self, settled: _Reply) -> Steps[Response | EncodedPart | None]:
        """The response to a part; None where the client expects none."""
        reply = settled.reply
        if isinstance(reply, Pending):
            if reply.error is not None:
                request = yield from self._part_again(settled.number)
                return self._stages.failed(self._row, self._context, request, reply.error)
            reply = reply.value
            if isinstance(reply, GeneratorType):
                reply = yield from reply
        if not isinstance(reply, Encoded):
            known: Response | EncodedPart | None = reply
            return known
        if not reply.buffers:
            return None
        frame, version, cls = b"".join(reply.buffers), self._context.api_version, response_class(self._row.key)
        _, at = decode_response_header(API[self._row.key], version, memoryview(frame))
        decoded: tuple[Response, int] = yield from step_decoder(cls, version)(frame, at)
        return decoded[0]

    def _part_again(self, number: int) -> Steps[Request]:
        """The part of that number, decoded once more."""
        assert self._parts is not None, "there are parts"
        if self._parts_again is None or self._parts_again.number > number:
            self._parts_again = self._parts.from_start()
        while True:
            part = yield from self._parts_again.next()
            assert part is not None, "the part has been decoded before"
            if self._parts_again.number > number:
                return part[0]
            yield

    def _join(self, part: _Reply) -> None:
        """Add the response to a part to those of the parts before it."""
        response, joined = part.response, self._response
        if response is None:
            return
        if joined is None:
            self._response = response
        else:
            join_others(joined, response)
        self._items.join(part.items, part.joins)

    def _encode_whole(self) -> Steps[list[Buffer]]:
        """Charge and encode the response to a request that was handled whole."""
        request = self._request
        assert request is not None, "the request has been decoded"
        (settled,) = self._settled
        self._settled.clear()
        self._unjoined.clear()
        reply = settled.reply
        if isinstance(reply, Pending):
            failed = self._stages.failed
            reply = reply.value if reply.error is None else failed(self._row, self._context, request, reply.error)
            if isinstance(reply, GeneratorType):
                reply = yield from reply
        settled.reply = None
        self._stages.charge(self._context, request, reply, reply if isinstance(reply, Response) else None)
        if reply is None:
            return []
        if isinstance(reply, Encoded):
            buffers = reply.buffers
        else:
            correlation_id, version = self._context.header.correlation_id, self._context.api_version
            buffers = yield from encode_response_in_steps(correlation_id, reply, version)
        if isinstance(reply, Response) and self._encoder is not None:
            yield from free(self._encoder.take_items(reply), self._encoder.nested)
        return buffers


def _has_found(response: FetchResponse) -> bool:
    """Whether a fetch has records or errors, which its client should have at once."""
    return bool(response.error_code) or any(
        each.error_code or each.records for topic in response.responses for each in topic.partitions
    )


def _lists_of(message: Request) -> list[str]:
    return [name for name in type(message).declared if isinstance(getattr(message, name), list)]
