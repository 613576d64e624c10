"""The APIs of streams groups at a broker: who may, internal topics, and while the feature is off."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scenario"))

from groups_world import World
from streams_members import topology

from kalda.base.background import run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.handlers.streams_groups import StreamsGroupHandlers, StreamsTopics
from kalda.protocol.access import Caller
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import AclOperation
from kalda.protocol.messages.streams import (
    StreamsGroupDescribeRequest,
    StreamsGroupHeartbeatRequest,
    StreamsGroupTopologyDescriptionUpdateRequest,
)
from kalda.protocol.messages.topics import CreatableTopicResult, CreateTopicsResponse


class Only:
    """Allows these operations on what has these names."""

    version = -1
    allowed: Any = ()

    def __init__(self, *names: str, operations: tuple[AclOperation, ...] = tuple(AclOperation)) -> None:
        self.names = names
        self.operations = operations

    def allows(self, caller: Any, operation: Any, resource: Any, name: str, *_: Any) -> bool:
        return name in self.names and operation in self.operations


class Broker:
    def __init__(self) -> None:
        self.world = World(consumers={"group.streams.initial.rebalance.delay.ms": 0})
        self.enabled = True
        self.created: list[Any] = []
        self.code = ErrorCode.NONE

        def timed(handle: Any) -> Any:
            return lambda context, request: handle(context, request, self.world.now)

        topics = StreamsTopics(self.create, 30_000, lambda: self.world.now)
        handlers = StreamsGroupHandlers(self.world.coordinator, topics, lambda: self.enabled)
        self.rows = {row.key: row for row in handlers.rows(timed)}

    def create(self, context: Any, request: Any) -> Pending[Any]:
        answer: Pending[Any] = Pending()
        self.created += [(context.principal, topic.name) for topic in request.topics]
        results = [CreatableTopicResult(name=topic.name, error_code=self.code) for topic in request.topics]
        answer.complete(CreateTopicsResponse(topics=results))
        return answer

    def beat(self, *sources: str, authorizer: Any = None, **more: Any) -> Any:
        """A member joins; the response, or the name of the error."""
        request = StreamsGroupHeartbeatRequest(
            group_id="app",
            member_id="m",
            rebalance_timeout_ms=1_000,
            process_id="p",
            active_tasks=[],
            standby_tasks=[],
            warmup_tasks=[],
            topology=topology(*sources, **more),
        )
        return self.ask(ApiKey.STREAMS_GROUP_HEARTBEAT, request, authorizer)

    def ask(self, key: ApiKey, request: Any, authorizer: Any = None) -> Any:
        caller = Caller(1, principal="User:ann", client_host="127.0.0.1", authorizer=authorizer)
        try:
            answer: Any = self.rows[key].handler(caller, request)
            return run_to_end(answer) if hasattr(answer, "send") else answer
        except ApiError as error:
            return error.code.name

    def describe(self, authorizer: Any = None) -> Any:
        request = StreamsGroupDescribeRequest(group_ids=["app"], include_topology_description=True)
        answer = self.ask(ApiKey.STREAMS_GROUP_DESCRIBE, request, authorizer)
        return answer if isinstance(answer, str) else answer.groups[0]


def test_a_member_must_be_allowed_to_describe_every_topic_of_its_topology() -> None:
    broker = Broker()
    changelogs = ("log",)
    assert broker.beat("orders", changelogs=changelogs, authorizer=Only("orders")) == "TOPIC_AUTHORIZATION_FAILED"
    assert broker.beat("orders", authorizer=Only("orders")).error_code == 0
    assert broker.describe(authorizer=Only("payments")).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = broker.describe(authorizer=Only("orders"))
    assert (found.error_code, found.topology_description_status, len(found.members)) == (0, 1, 1)


def test_topics_of_kafka_and_names_that_no_topic_has_are_refused() -> None:
    broker = Broker()
    assert broker.beat("__consumer_offsets") == "STREAMS_INVALID_TOPOLOGY"
    assert broker.beat("a b") == "STREAMS_INVALID_TOPOLOGY"
    assert broker.world.log.appends == 0


def test_internal_topics_are_created_for_the_member() -> None:
    broker = Broker()
    (status,) = broker.beat("orders", changelogs=("log",)).status
    assert status.status_detail == "Internal topics are missing: log"
    assert broker.created == [("User:ann", "log")]


def test_internal_topics_are_not_created_for_a_member_that_may_not() -> None:
    broker = Broker()
    authorizer = Only("orders", "log", operations=(AclOperation.DESCRIBE,))
    (status,) = broker.beat("orders", changelogs=("log",), authorizer=authorizer).status
    assert status.status_detail == "Internal topics are missing: log; Unauthorized to CREATE on topics log."
    assert broker.created == []
    broker.beat("orders", changelogs=("log",), authorizer=Only("orders", "log"))
    assert broker.created == [("User:ann", "log")]


def test_members_are_told_why_internal_topics_are_not_created() -> None:
    broker = Broker()
    broker.code = ErrorCode.INVALID_REPLICATION_FACTOR
    broker.beat("orders", changelogs=("log",))
    (status,) = broker.beat("orders", changelogs=("log",)).status
    assert status.status_detail.endswith("; Creation failed: log (INVALID_REPLICATION_FACTOR).")


def test_descriptions_of_topologies_are_not_stored() -> None:
    broker = Broker()
    request = StreamsGroupTopologyDescriptionUpdateRequest(group_id="app", member_id="m")
    assert broker.ask(ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, request) == "UNSUPPORTED_VERSION"


def test_nothing_is_served_while_the_feature_is_off() -> None:
    broker = Broker()
    broker.enabled = False
    assert broker.beat("orders") == "UNSUPPORTED_VERSION"
    assert broker.describe() == "UNSUPPORTED_VERSION"
    assert broker.world.log.appends == 0
