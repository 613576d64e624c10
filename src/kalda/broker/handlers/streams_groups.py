"""Streams groups (KIP-1071): StreamsGroupHeartbeat (88), StreamsGroupDescribe (89) and
StreamsGroupTopologyDescriptionUpdate (93), at the coordinator of the group.

They are served and announced while the feature `streams.version` is finalized at level 1 and
`group.coordinator.rebalance.protocols` has `streams`. Descriptions of topologies are stored by a plugin only, as in
Apache Kafka; there is none here, so none is asked for, and an update is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from kalda.base.background import Steps
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.handlers.shared import described, error_on_items, error_on_top
from kalda.broker.requests.context import Reply, RequestContext
from kalda.broker.requests.rows import Authorization, Items, Row, itself, on_group
from kalda.coordinator.answers import answer_after
from kalda.coordinator.groups.group_coordinator import GroupCoordinator, streams_refused
from kalda.coordinator.groups.streams.protocol import StreamsAnswer, named_topics
from kalda.coordinator.groups.streams.topology import InternalTopic
from kalda.protocol.access import CLUSTER_RESOURCE_NAME, CREATE_TOPIC, DESCRIBE_GROUP, DESCRIBE_TOPIC, READ_GROUP
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
    StreamsGroupDescribeResponseDescribedGroup,
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    StreamsGroupStatus,
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
)
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

# Internal topics of streams groups (KIP-1071): repartition and changelog topics that a topology needs.
#
# A heartbeat that finds some missing has them created by the controller, on behalf of the member: in an envelope with
# its principal, which the controller authorizes and charges. Each name is requested once at a time. Why one could not
# be created is kept for a while, for the statuses of the group's members; until then it is not tried again.

log = logging.getLogger("kalda.streams_topics")

_MAX_FAILURES: Final = 1_000
_MAX_UNDER_WAY: Final = 10_000

CreateFor = Callable[[RequestContext, CreateTopicsRequest], "Pending[CreateTopicsResponse]"]
"""Sends the request to the active controller, with the principal of the context."""


class _Failure(NamedTuple):
    text: str
    until_ms: int


class StreamsTopics:
    """Creates them, and keeps why some could not be created."""

    def __init__(self, create: CreateFor, timeout_ms: int, now_ms: Callable[[], int]) -> None:
        self._create = create
        self._timeout_ms = timeout_ms
        self._now_ms = now_ms
        self._under_way: set[str] = set()
        self._failures: dict[str, _Failure] = {}

    def create(self, context: RequestContext, topics: Mapping[str, InternalTopic], keep_ms: int) -> dict[str, str]:
        """Start the creation of those that are not being created and have not failed lately. Failures are kept for
        `keep_ms`; the result is those known now, by name."""
        now_ms = self._now_ms()
        known = {
            name: failure.text
            for name in topics
            if (failure := self._failures.get(name)) is not None and failure.until_ms > now_ms
        }
        names = [name for name in topics if name not in self._under_way and name not in known]
        names = names[: _MAX_UNDER_WAY - len(self._under_way)]
        if names:
            self._under_way.update(names)
            request = CreateTopicsRequest(
                topics=[_creatable(topics[name]) for name in names], timeout_ms=self._timeout_ms
            )
            self._create(context, request).then(lambda *answer: self._created(names, keep_ms, *answer))
        return known

    def _created(
        self, names: list[str], keep_ms: int, response: CreateTopicsResponse | None, error: ApiError | None
    ) -> None:
        self._under_way.difference_update(names)
        until_ms = self._now_ms() + keep_ms
        if response is None:
            assert error is not None
            log.warning("internal topics %s could not be created: %s", ", ".join(names[:3]), error)
            for name in names:
                self._keep(name, _Failure(error.message or error.code.name, until_ms))
            return
        for result in response.topics:
            if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                text = result.error_message or ErrorCode(result.error_code).name
                log.warning("the internal topic %s could not be created: %s", result.name, text)
                self._keep(result.name, _Failure(text, until_ms))

    def _keep(self, name: str, failure: _Failure) -> None:
        self._failures.pop(name, None)
        self._failures[name] = failure
        while len(self._failures) > _MAX_FAILURES:
            del self._failures[next(iter(self._failures))]


def _creatable(topic: InternalTopic) -> CreatableTopic:
    return CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in topic.configs.items()],
    )


Q = TypeVar("Q")
R = TypeVar("R")

Timed = Callable[[Callable[[RequestContext, Q, int], R]], Callable[[RequestContext, Q], R]]
_SHOWN: Final = 3
"""Failures of topics that a status names."""


class StreamsGroupHandlers:
    """All three APIs, on the coordinator of groups."""

    def __init__(
        self, coordinator: GroupCoordinator, topics: StreamsTopics | None, is_enabled: Callable[[], bool]
    ) -> None:
        """`topics` creates internal topics; none is created without it. `is_enabled()`: whether the APIs are served."""
        self._coordinator = coordinator
        self._topics = topics
        self._is_enabled = is_enabled

    def rows(self, timed: Timed) -> list[Row]:  # type: ignore[type-arg]
        """One row an API. `timed` makes a handler of a method that takes the time."""
        items = Items(DESCRIBE_GROUP, streams_group_describe_failed, "group_ids", "groups", itself)
        return [
            Row(ApiKey.STREAMS_GROUP_HEARTBEAT, partial(self._heartbeat, timed), error_on_top, on_group(READ_GROUP)),
            Row(
                ApiKey.STREAMS_GROUP_DESCRIBE,
                timed(self._describe),
                streams_group_describe_failed,
                Authorization.PER_ITEM,
                items=items.stage,
                has_large_answer=True,
            ),
            Row(
                ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
                timed(self._update_description),
                error_on_top,
                on_group(READ_GROUP),
            ),
        ]

    def _check_enabled(self) -> None:
        if not self._is_enabled():
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION)

    def _heartbeat(
        self,
        timed: Timed,  # type: ignore[type-arg]
        context: RequestContext,
        request: StreamsGroupHeartbeatRequest,
    ) -> Steps[Reply[StreamsGroupHeartbeatResponse]]:
        """A member must be allowed to describe all topics that its topology names."""
        self._check_enabled()
        if request.topology is not None:
            names = yield from named_topics(request.topology)
            if names and DESCRIBE_TOPIC.refused(context, names) is not None:
                raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        prepared = yield from self._coordinator.prepare_streams_heartbeat(request)

        def beat(_: RequestContext, __: Any, now_ms: int) -> StreamsAnswer | Pending[StreamsAnswer]:
            return self._coordinator.streams_group_heartbeat(context, request, prepared, now_ms)

        answer = timed(beat)(context, request)
        if not isinstance(answer, Pending):
            return self._answered(context, request, answer)

        def finish(error: ApiError | None) -> StreamsGroupHeartbeatResponse:
            if error is not None:
                return streams_refused(error).response
            assert answer.value is not None
            return self._answered(context, request, answer.value)

        return answer_after(answer, finish)

    def _answered(
        self, context: RequestContext, request: StreamsGroupHeartbeatRequest, answer: StreamsAnswer
    ) -> StreamsGroupHeartbeatResponse:
        """The response, with what has become of internal topics that are missing."""
        response, missing = answer.response, answer.missing_topics
        if missing:
            note = self._note_of_missing(context, request.group_id, missing)
            for status in response.status or ():
                if status.status_code == StreamsGroupStatus.MISSING_INTERNAL_TOPICS:
                    status.status_detail += note
        return response

    def _note_of_missing(self, context: RequestContext, group_id: str, missing: Mapping[str, InternalTopic]) -> str:
        """Have them created, where the member may; why they are not."""
        if not context.allows(AclOperation.CREATE, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, False):
            refused = CREATE_TOPIC.refused(context, dict.fromkeys(missing, 1))
            if refused is not None:
                return f"; Unauthorized to CREATE on topics {', '.join(sorted(refused))}."
        if self._topics is None:
            return ""
        failures = self._topics.create(context, missing, 2 * self._coordinator.streams_heartbeat_interval_ms(group_id))
        if not failures:
            return ""
        shown = ", ".join(f"{name} ({text})" for name, text in list(failures.items())[:_SHOWN])
        more = f" and {len(failures) - _SHOWN} more" if len(failures) > _SHOWN else ""
        return f"; Creation failed: {shown}{more}."

    def _describe(
        self, context: RequestContext, request: StreamsGroupDescribeRequest, now_ms: int
    ) -> Steps[StreamsGroupDescribeResponse]:
        self._check_enabled()
        groups = self._coordinator.describe_streams_groups(request, now_ms)
        return StreamsGroupDescribeResponse(groups=(yield from described(context, request, groups, _visible)))

    def _update_description(
        self, context: RequestContext, request: StreamsGroupTopologyDescriptionUpdateRequest, now_ms: int
    ) -> StreamsGroupTopologyDescriptionUpdateResponse:
        self._check_enabled()
        raise ApiError(
            ErrorCode.UNSUPPORTED_VERSION, "The broker has no streams group topology description plugin configured."
        )


def _visible(
    context: RequestContext, group: StreamsGroupDescribeResponseDescribedGroup
) -> StreamsGroupDescribeResponseDescribedGroup:
    """The group; an error in its place where the caller may not describe all of its topics."""
    if context.authorizer is None or group.topology is None:
        return group
    names: dict[str, int] = {}
    for each in group.topology.subtopologies or ():
        names.update(dict.fromkeys((*each.source_topics, *each.repartition_sink_topics), 1))
        names.update((topic.name, 1) for topic in (*each.repartition_source_topics, *each.state_changelog_topics))
    if DESCRIBE_TOPIC.refused(context, names) is None:
        return group
    return StreamsGroupDescribeResponseDescribedGroup(
        group_id=group.group_id,
        error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        error_message="The described group uses topics that the client is not authorized to describe.",
    )


streams_group_describe_failed = error_on_items("groups", "group_ids")
