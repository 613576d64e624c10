"""Operations of the controller on many topics or resources, in parts: a part a turn, with others served in between.

Each item of such a request succeeds or fails by itself, so a request that is costly is cut into parts. Each part is an
event of the controller of its own, and the records of a part are one batch of the metadata log; those of one item are
never in two. What the controller decides about the request as a whole is decided before the first part:

- items that are named more than once are in the same part, so that the controller refuses them all;
- a request that may write more records than one operation may is refused. Here every new topic, config and partition
  counts, also of items that would fail.

Where a part fails as a whole, as where the leadership is lost, its items get that error; the request fails as a whole
where its first part does, since nothing was changed then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from kalda.base.background import Steps
from kalda.base.errors import ApiError
from kalda.base.pending import Pending
from kalda.broker.context import RequestContext
from kalda.controller.answers import check_batch_size
from kalda.controller.quorum_controller import QuorumController
from kalda.protocol.apis import ApiKey
from kalda.protocol.kinds import ElectionType
from kalda.protocol.messages.admin import AlterClientQuotasRequest, AlterClientQuotasRequestEntryData
from kalda.protocol.messages.configs import AlterConfigsRequest, IncrementalAlterConfigsRequest
from kalda.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
)
from kalda.protocol.messages.topics import (
    AlterPartitionReassignmentsRequest,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    ElectLeadersRequest,
)
from kalda.protocol.notation import Request, Response, Struct, shallow_copy

PART_WEIGHT = 400
"""What one step handles: about ten milliseconds. A partition that is created, a config that is changed or an election
weighs 1."""
_TOPIC_WEIGHT = 2
"""Of a topic besides its partitions."""


class Cut(NamedTuple):
    """Where the items of a request and of its response are: the names of nested lists, from the top."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]


_CUTS: Mapping[int, Cut] = {
    ApiKey.CREATE_TOPICS: Cut(("topics", "assignments"), ("topics",)),
    ApiKey.DELETE_TOPICS: Cut(("topics",), ("responses",)),
    ApiKey.CREATE_PARTITIONS: Cut(("topics", "assignments"), ("results",)),
    ApiKey.ALTER_CONFIGS: Cut(("resources", "configs"), ("responses",)),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Cut(("resources", "configs"), ("responses",)),
    ApiKey.CREATE_ACLS: Cut(("creations",), ("results",)),
    ApiKey.ELECT_LEADERS: Cut(("topic_partitions", "partitions"), ("replica_election_results", "partition_result")),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Cut(("topics", "partitions"), ("responses", "partitions")),
    ApiKey.ALTER_CLIENT_QUOTAS: Cut(("entries", "ops"), ("entries",)),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Cut(("upsertions",), ("results",)),
}


class Part(NamedTuple):
    """A piece of a list."""

    items: list[Any]
    size: int
    """Items in it, at all depths."""
    joins: int
    """At how many depths the first item is the rest of the last item of the part before."""


Weigh = Callable[[Any], int]
Failed = Callable[[Any, int, ApiError], Response | None]


def parts_of(request: Request, controller: QuorumController) -> list[Request]:
    """The parts of a request, in order; the request itself where it is cheap. Raises `ApiError` POLICY_VIOLATION."""
    cut = _CUTS.get(request.API_KEY)
    if cut is not None:
        check_batch_size(_count(getattr(request, cut.asked[0]) or (), cut.asked[1:]))
    match request:
        case CreateTopicsRequest():
            return _created_topics(request, controller)
        case CreatePartitionsRequest():
            return _created_partitions(request, controller)
        case DeleteTopicsRequest():
            return _deleted_topics(request, controller)
        case AlterConfigsRequest() | IncrementalAlterConfigsRequest():
            return _cut(request, ("resources",), _key_of_resource, lambda resource: 1 + len(resource.configs))
        case AlterClientQuotasRequest():
            return _cut(request, ("entries",), _key_of_entry, lambda entry: 1 + len(entry.ops))
        case AlterUserScramCredentialsRequest():
            return _cut(request, ("deletions", "upsertions"), lambda alteration: alteration.name, lambda _: 2)
        case CreateAclsRequest():
            # By position: the results have no other key. An entry that is named twice is created once, in any part.
            return _cut(request, ("creations",), id, lambda _: 1)
        case ElectLeadersRequest():
            return _elections(request, controller)
        case AlterPartitionReassignmentsRequest():
            return _cut_partitions(request)
        case _:
            return [request]


def in_parts(
    parts: list[Request],
    handle: Callable[[Request], Pending[Any]],
    failed: Failed,
    context: RequestContext,
) -> Steps[Pending[Any]]:
    """Handle one part in each step. Returns the response, which is there when all parts are answered."""
    replies = []
    for part in parts:
        reply = handle(part)
        replies.append(reply)
        if len(replies) == 1 and reply.error is not None:
            return reply
        yield
    answer: Pending[Any] = Pending()
    missing = len(replies)

    def on_reply(_: object, __: ApiError | None) -> None:
        nonlocal missing
        missing -= 1
        if missing:
            return
        first_error = replies[0].error
        if first_error is not None:
            answer.fail(first_error)
        else:
            answer.complete(_joined(parts, replies, failed, context.api_version))

    for reply in replies:
        reply.then(on_reply)
    return answer


def _joined(parts: list[Request], replies: list[Pending[Any]], failed: Failed, version: int) -> Response:
    cut = _CUTS[parts[0].API_KEY]
    whole: Response | None = None
    for part, reply in zip(parts, replies, strict=True):
        response = reply.value if reply.error is None else failed(part, version, reply.error)
        assert response is not None, "operations are answered"
        if whole is None:
            whole = response
        else:
            # A topic whose partitions are in two parts is the last of one and the first of the other.
            join(whole, response, cut, joins=len(cut.answered) - 1)
    assert whole is not None, "a request has one part at least"
    return whole


def join(whole: Response, part: Response, cut: Cut, joins: int) -> None:
    """Add the response of a part to the responses of the parts before it."""
    top, *inner = cut.answered
    items = getattr(part, top)
    setattr(part, top, [])
    _join_others(whole, part)
    _join_items(getattr(whole, top), items, tuple(inner), joins)


def _join_items(whole: list[Any], part: list[Any], inner: tuple[str, ...], joins: int) -> None:
    if joins and whole and part and _are_alike(whole[-1], part[0]):
        if inner:
            _join_items(getattr(whole[-1], inner[0]), getattr(part[0], inner[0]), inner[1:], joins - 1)
        del part[0]
    whole.extend(part)


def _count(items: Collection[Any], inner: tuple[str, ...]) -> int:
    """Items at all depths together."""
    return len(items) + sum(_count(getattr(item, inner[0]) or (), inner[1:]) for item in items if inner)


def _are_alike(one: Struct, other: Struct) -> bool:
    """Whether two items differ in their lists alone."""
    return all(
        getattr(one, name) == getattr(other, name)
        for name in type(one).declared
        if not isinstance(getattr(one, name), list)
    )


def _join_others(whole: Response, part: Response) -> None:
    """Add to a response what that of a part has in its other fields: what is missing."""
    for name in type(whole).declared:
        mine, other = getattr(whole, name), getattr(part, name)
        if isinstance(mine, list):
            mine.extend([each for each in other if each not in mine])
        elif not mine:
            setattr(whole, name, other)


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


def requests_of(request: Request, cut: Cut, size: int) -> Iterator[Request]:
    """The request in parts of about `size` items."""
    top, *inner = cut.asked
    for part in cut_items(getattr(request, top), tuple(inner), size):
        copy = shallow_copy(request)
        setattr(copy, top, part.items)
        yield copy


def _cut(request: Request, lists: tuple[str, ...], key: Callable[[Any], Hashable], weigh: Weigh) -> list[Request]:
    """Cut the items of `lists`. Those whose key occurs more than once are in the first part, whatever they weigh: they
    are refused, which is cheap."""
    items = [(name, item, key(item), weigh(item)) for name in lists for item in getattr(request, name)]
    if sum(weight for *_, weight in items) <= PART_WEIGHT:
        return [request]
    counts = Counter(each for _, _, each, _ in items)
    parts: list[dict[str, list[Any]]] = [{name: [] for name in lists}]
    part_weight = 0
    for name, item, item_key, weight in items:
        if counts[item_key] > 1:
            parts[0][name].append(item)
            continue
        if part_weight + weight > PART_WEIGHT and any(parts[-1].values()):
            parts.append({each: [] for each in lists})
            part_weight = 0
        parts[-1][name].append(item)
        part_weight += weight
    return [_with_lists(request, part) for part in parts]


def _with_lists(request: Request, lists: dict[str, list[Any]]) -> Request:
    copy = shallow_copy(request)
    for name, items in lists.items():
        setattr(copy, name, items)
    return copy


def _cut_partitions(request: Request) -> list[Request]:
    """Cut the partitions of topics."""
    cut = _CUTS[request.API_KEY]
    return list(requests_of(request, cut, PART_WEIGHT)) if getattr(request, cut.asked[0]) else [request]


def _created_topics(request: CreateTopicsRequest, controller: QuorumController) -> list[Request]:
    if controller.topics.has_too_many_partitions(request):
        return [request]  # refused as a whole

    def partitions(topic: CreatableTopic) -> int:
        return controller.topics.requested_partitions(topic)

    parts = _cut(
        request,
        ("topics",),
        lambda topic: topic.name,
        lambda topic: _TOPIC_WEIGHT + len(topic.configs) + partitions(topic),
    )
    if len(parts) > 1:
        new = {topic.name: topic for topic in request.topics if topic.name not in controller.partitions.topic_ids}
        check_batch_size(sum(1 + len(topic.configs) + partitions(topic) for topic in new.values()))
    return parts


def _created_partitions(request: CreatePartitionsRequest, controller: QuorumController) -> list[Request]:
    state = controller.partitions

    def additional(topic: CreatePartitionsTopic) -> int:
        topic_id = state.topic_ids.get(topic.name)
        return 0 if topic_id is None else max(0, topic.count - state.partition_counts.get(topic_id, 0))

    parts = _cut(request, ("topics",), lambda topic: topic.name, lambda topic: _TOPIC_WEIGHT + additional(topic))
    if len(parts) > 1:
        check_batch_size(sum({topic.name: additional(topic) for topic in request.topics}.values()))
    return parts


def _deleted_topics(request: DeleteTopicsRequest, controller: QuorumController) -> list[Request]:
    state = controller.partitions

    def key(topic: DeleteTopicState | str) -> Hashable:
        """The topic's name, however it is given."""
        if isinstance(topic, str):
            return topic
        return topic.name or state.topic_names.get(topic.topic_id) or topic.topic_id

    def weigh(topic: DeleteTopicState | str) -> int:
        topic_id = state.topic_ids.get(topic) if isinstance(topic, str) else topic.topic_id
        if isinstance(topic, DeleteTopicState) and topic.name is not None:
            topic_id = state.topic_ids.get(topic.name)
        return 1 + (0 if topic_id is None else state.partition_counts.get(topic_id, 0))

    return _cut(request, ("topics", "topic_names"), key, weigh)


def _elections(request: ElectLeadersRequest, controller: QuorumController) -> list[Request]:
    if request.topic_partitions is None and request.election_type in ElectionType.__members__.values():
        needed = controller.elections.elections_needed(ElectionType(request.election_type))
        count = sum(len(topic.partitions) for topic in needed)
        if count <= PART_WEIGHT:
            return [request]
        check_batch_size(count)
        request = shallow_copy(request)
        request.topic_partitions = needed
    return _cut_partitions(request)


def _key_of_resource(resource: Any) -> Hashable:
    return resource.resource_type, resource.resource_name


def _key_of_entry(entry: AlterClientQuotasRequestEntryData) -> Hashable:
    return frozenset({part.entity_type: part.entity_name for part in entry.entity}.items())
