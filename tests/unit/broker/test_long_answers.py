"""Answers that are long whatever the request names are made in steps."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock, Mock

from kalda.base.background import run_to_end
from kalda.base.errors import ErrorCode
from kalda.broker.handlers.describe import DescribeHandlers
from kalda.broker.handlers.groups import GroupHandlers
from kalda.broker.handlers.markers import MarkerHandlers
from kalda.broker.handlers.tokens import TokenHandlers
from kalda.metadata.delegation_tokens import DelegationToken
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.admin import ComponentData, DescribeClientQuotasRequest
from kalda.protocol.messages.groups import ListedGroup, ListGroupsRequest
from kalda.protocol.messages.security import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeUserScramCredentialsRequest,
)
from kalda.protocol.messages.transactions import DescribeProducersRequest, DescribeProducersRequestTopicRequest


def test_a_long_list_of_groups_is_made_in_steps() -> None:
    names = [f"group-{number}" for number in range(9_000)]
    coordinator = Mock()
    coordinator.list_groups.return_value = (ListedGroup(group_id=name) for name in names)
    [row] = [each for each in GroupHandlers(coordinator, Mock(), Mock()).rows() if each.key is ApiKey.LIST_GROUPS]
    steps: Any = row.handler(Mock(), ListGroupsRequest())
    for _ in range(4):
        assert next(steps) is None
    assert [group.group_id for group in run_to_end(steps).groups] == names


def test_tokens_are_described_in_steps() -> None:
    tokens = [DelegationToken(str(n), f"User:{n}", "User:r", ("User:a", "User:b"), 0, 1, 1) for n in range(1_200)]
    handlers = TokenHandlers(Mock(), "secret", lambda: tokens)
    context = Mock(api_version=3, header=Mock(correlation_id=1))
    owners = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in ("7", "no", "b")]
    for wanted, count in (([], 0), (owners[:2], 1), (owners, 1_200)):
        request = DescribeDelegationTokenRequest(owners=wanted)
        assert len(list(handlers._describe(context, request))) >= 2, "turns"
        assert len(run_to_end(handlers._describe(context, request)).tokens) == count


def test_quotas_and_users_are_described_in_steps() -> None:
    names = [f"user-{number}" for number in range(2_500)]
    entities = {(("user", name),): {"consumer_byte_rate": 1.0} for name in names}
    scram = Mock(mechanisms_of=lambda name: [1], get=lambda mechanism, name: Mock(iterations=4_096))
    scram.users.return_value = names
    handlers = DescribeHandlers(Mock(image=Mock(client_quotas=Mock(entities=entities), scram=scram)))
    component = ComponentData(entity_type="user", match_type=2, match=None)
    for steps in (
        handlers.describe_client_quotas(Mock(), DescribeClientQuotasRequest(components=[component])),
        handlers.describe_user_scram_credentials(Mock(), DescribeUserScramCredentialsRequest(users=None)),
    ):
        assert next(steps) is None
        assert next(steps) is None
        described: Any = run_to_end(steps)
        assert len(described.entries if hasattr(described, "entries") else described.results) == len(names)


def test_a_partition_that_is_named_again_is_not_described_again() -> None:
    replicas = MagicMock()  # of logs without producers
    topic = DescribeProducersRequestTopicRequest(name="t", partition_indexes=[0, 0, 1])
    steps = MarkerHandlers(replicas, Mock()).describe_producers(Mock(), DescribeProducersRequest(topics=[topic]))
    partitions = run_to_end(steps).topics[0].partitions
    assert [each.error_code for each in partitions] == [0, ErrorCode.INVALID_REQUEST, 0]
