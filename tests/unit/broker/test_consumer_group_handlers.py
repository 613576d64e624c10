"""ConsumerGroupHeartbeat and ConsumerGroupDescribe of a broker: who may, and while the feature is off."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "scenario"))

from groups_world import Context, World

from kalda.base.background import run_to_end
from kalda.base.errors import ErrorCode
from kalda.broker.handlers.consumer_groups import ConsumerGroupHandlers
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest


class Only:
    """Allows what concerns these names."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def allows(self, caller: Any, operation: Any, resource: Any, name: str, *_: Any) -> bool:
        return name in self.names


class Broker:
    def __init__(self) -> None:
        self.world = World()
        self.enabled = True

        def timed(handle: Any) -> Any:
            return lambda context, request: handle(context, request, self.world.now)

        handlers = ConsumerGroupHandlers(self.world.coordinator, lambda: self.enabled)
        self.rows = {row.key: row for row in handlers.rows(timed)}

    def beat(self, *topics: str, authorizer: Any = None) -> str:
        """A member joins; the name of the error."""
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            rebalance_timeout_ms=1_000,
            subscribed_topic_names=list(topics),
            topic_partitions=[],
        )
        context: Any = Context(1, authorizer=authorizer)
        response: Any = self.rows[ApiKey.CONSUMER_GROUP_HEARTBEAT].handler(context, request)
        return ErrorCode(response.error_code).name

    def describe(self, *groups: str, authorizer: Any = None) -> Any:
        context: Any = Context(1, authorizer=authorizer)
        steps: Any = self.rows[ApiKey.CONSUMER_GROUP_DESCRIBE].handler(
            context, ConsumerGroupDescribeRequest(group_ids=list(groups))
        )
        return run_to_end(steps).groups


def test_a_member_must_be_allowed_to_describe_every_topic_that_it_names() -> None:
    broker = Broker()
    assert broker.beat("orders", "payments", authorizer=Only("orders")) == "TOPIC_AUTHORIZATION_FAILED"
    assert broker.describe("g")[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert broker.beat("orders", authorizer=Only("orders")) == "NONE"


def test_a_group_is_not_described_to_who_may_not_describe_its_topics() -> None:
    broker = Broker()
    broker.beat("orders", "payments")
    (group,) = broker.describe("g", authorizer=Only("orders"))
    assert (group.error_code, group.members) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, [])
    (group,) = broker.describe("g", authorizer=Only("orders", "payments"))
    assert (group.error_code, [member.member_id for member in group.members]) == (0, ["m"])


def test_a_group_that_is_named_twice_is_described_once() -> None:
    broker = Broker()
    broker.beat("orders")
    assert [group.error_code for group in broker.describe("g", "g")] == [0, ErrorCode.INVALID_REQUEST]


def test_nothing_is_served_while_the_feature_is_off() -> None:
    broker = Broker()
    broker.enabled = False
    assert broker.beat("orders") == "UNSUPPORTED_VERSION"
    assert [group.error_code for group in broker.describe("g")] == [ErrorCode.UNSUPPORTED_VERSION]
    assert broker.world.log.appends == 0
