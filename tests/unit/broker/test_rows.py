"""The tables of both listeners: which APIs have a row, and which rights a request needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from all_rows import rows_of_brokers, rows_of_controllers
from by_hand import inline_background
from error_fields import error_codes
from naming_requests import naming_request
from paper_connection import PaperConnection, read_answer

from kalda.base.errors import ErrorCode
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.controller import ControllerHandlers
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import Authorization, QuotaClass, Row, joined
from kalda.network.server.connection import Connection
from kalda.protocol.access import Caller
from kalda.protocol.apis import API, ApiKey, Listener
from kalda.protocol.messages.metadata import ApiVersionsRequest
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.transactions import InitProducerIdRequest

LISTENERS = [
    pytest.param(rows_of_brokers, Listener.BROKER, id="broker"),
    pytest.param(rows_of_controllers, Listener.CONTROLLER, id="controller"),
]
REFUSED_BY_TRANSACTIONAL_ID = {
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
}
SENT_BY_BROKERS = {(ApiKey.ADD_PARTITIONS_TO_TXN, 4), (ApiKey.ADD_PARTITIONS_TO_TXN, 5)}
REFUSED_BY_GROUP = {
    ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_DELETE, ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE, ApiKey.CONSUMER_GROUP_HEARTBEAT,
    ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.ALTER_SHARE_GROUP_OFFSETS, ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    ApiKey.STREAMS_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
}  # fmt: skip


class DenyAll:
    """An authorizer that allows nothing, and records what it was called with."""

    def __init__(self) -> None:
        self.denied: list[tuple[AclOperation, AclResourceType, str]] = []

    def allows(
        self,
        caller: Caller,
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        logs_denial: bool = True,
        references: int = 1,
    ) -> bool:
        self.denied.append((operation, resource, name))
        return False

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: AclResourceType) -> bool:
        return False


def features() -> Features:
    return Features({}, {}, 0)


def served_row(rows: Callable[[], list[Row]]) -> list[Any]:
    """Each row with each version that is served."""
    return [
        pytest.param(row, version, id=f"{API[row.key].name}-{version}")
        for row in rows()
        for version in range(API[row.key].lowest, API[row.key].highest_served(False) + 1)
    ]


@pytest.mark.parametrize(("rows", "listener"), LISTENERS)
def test_each_api_has_one_row_on_its_own_listener(rows: Callable[[], list[Row]], listener: Listener) -> None:
    found = rows()
    assert len({row.key for row in found}) == len(found)
    for row in found:
        assert API[row.key].listeners & listener, row.key.name


def test_a_second_row_of_an_api_is_refused() -> None:
    rows = rows_of_brokers()
    with pytest.raises(AssertionError, match="two rows"):
        joined(Listener.BROKER, rows, rows[:1])
    with pytest.raises(AssertionError, match="not an API"):
        joined(Listener.CONTROLLER, rows)


@pytest.mark.parametrize(("rows", "listener"), LISTENERS)
def test_what_is_announced_are_exactly_the_rows(rows: Callable[[], list[Row]], listener: Listener) -> None:
    pipeline = RequestPipeline(rows(), features, inline_background())
    connection = PaperConnection()
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = read_answer(pipeline.on_frame(connection, connection.frame(request, 4)), request, 4)  # type: ignore[arg-type]
    expected = {}
    for key in [ApiKey.API_VERSIONS, *(row.key for row in rows())]:
        api = API[key]
        lowest = api.lowest if api.advertised_from is None else api.advertised_from
        expected[int(key)] = (lowest, api.highest_served(False))
    assert {api.api_key: (api.min_version, api.max_version) for api in response.api_keys} == expected


@pytest.mark.parametrize(("rows", "listener"), LISTENERS)
def test_what_brokers_forward_is_what_controllers_take_from_envelopes(
    rows: Callable[[], list[Row]], listener: Listener
) -> None:
    for row in rows():
        assert row.forwarded == API[row.key].forwarded, row.key.name
        if (
            row.forwarded
            and listener is Listener.BROKER
            and row.key not in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS)
        ):
            assert row.authorize is Authorization.AT_CONTROLLER, row.key.name


def test_requests_between_nodes_are_exempt_from_quotas() -> None:
    """And no other requests are."""
    exempt = {row.key for row in rows_of_controllers() if row.quota is QuotaClass.EXEMPT}
    between_nodes = {
        row.key
        for row in rows_of_controllers()
        if API[row.key].listeners == Listener.CONTROLLER or row.key is ApiKey.FETCH
    }
    assert exempt == between_nodes
    assert {row.key for row in rows_of_brokers() if row.quota is QuotaClass.EXEMPT} == {
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }


# An authorizer that allows nothing


def refusal(row: Row, version: int, authorizer: DenyAll, request: Any = None) -> Any:
    """The decoded answer to a request that names things."""
    pipeline = RequestPipeline([row], features, inline_background(), authorizer=authorizer)
    connection = PaperConnection("User:mallory")
    request = naming_request(row.key, version) if request is None else request
    return read_answer(pipeline.on_frame(connection, connection.frame(request, version)), request, version)  # type: ignore[arg-type]


DEPENDS_ON_THE_REQUEST = {ApiKey.PRODUCE, ApiKey.FIND_COORDINATOR}
"""APIs that need nothing as a whole for some requests."""


def is_checked_whole(row: Row) -> bool:
    return not isinstance(row.authorize, Authorization) and row.key not in DEPENDS_ON_THE_REQUEST


def checked(rows: Callable[[], list[Row]]) -> list[Any]:
    return [each for each in served_row(rows) if is_checked_whole(each.values[0])]


@pytest.mark.parametrize(("row", "version"), checked(rows_of_brokers) + checked(rows_of_controllers))
def test_a_caller_without_rights_is_refused_as_a_whole(row: Row, version: int) -> None:
    response = refusal(row, version, DenyAll())
    if row.key is ApiKey.DESCRIBE_LOG_DIRS and version < 3:
        assert response.results == []
        return
    expected = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if row.key in REFUSED_BY_GROUP:
        expected = ErrorCode.GROUP_AUTHORIZATION_FAILED
    elif row.key in REFUSED_BY_TRANSACTIONAL_ID and (row.key, version) not in SENT_BY_BROKERS:
        expected = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert set(error_codes(response, version)) == {expected}


def test_which_rights_whole_requests_need() -> None:
    needed: dict[str, set[str]] = {}
    for row in [*rows_of_brokers(), *rows_of_controllers()]:
        if is_checked_whole(row):
            authorizer = DenyAll()
            refusal(row, API[row.key].highest_served(False), authorizer)
            operation, resource, _ = authorizer.denied[-1]
            assert len(authorizer.denied) == 1 + (row.key is ApiKey.WRITE_TXN_MARKERS), "ALTER will do for markers"
            needed.setdefault(f"{operation.name} {resource.name}", set()).add(API[row.key].name)
    assert needed == {
        "READ GROUP": {
            "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "OffsetCommit", "ShareFetch", "ShareAcknowledge",
            "ConsumerGroupHeartbeat", "ShareGroupHeartbeat", "AlterShareGroupOffsets",
            "StreamsGroupHeartbeat", "StreamsGroupTopologyDescriptionUpdate",
        },
        "DELETE GROUP": {"OffsetDelete", "DeleteShareGroupOffsets"},
        "WRITE TRANSACTIONAL_ID": {"InitProducerId", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"},
        "DESCRIBE CLUSTER": {
            "DescribeLogDirs", "DescribeUserScramCredentials", "DescribeQuorum", "ListPartitionReassignments",
            "DescribeAcls",
        },
        "ALTER CLUSTER": {
            "AlterReplicaLogDirs", "AddRaftVoter", "RemoveRaftVoter", "AlterUserScramCredentials", "UpdateFeatures",
            "ElectLeaders", "AlterPartitionReassignments", "UnregisterBroker", "DescribeCluster",
            "UnregisterController",
            "CreateAcls", "DeleteAcls",
        },
        "DESCRIBE_CONFIGS CLUSTER": {"ListConfigResources", "DescribeClientQuotas"},
        "ALTER_CONFIGS CLUSTER": {"AlterClientQuotas"},
        "CLUSTER_ACTION CLUSTER": {
            "Fetch", "FetchSnapshot", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "UpdateRaftVoter",
            "BrokerRegistration", "BrokerHeartbeat", "ControllerRegistration", "AlterPartition",
            "AllocateProducerIds", "AssignReplicasToDirs", "WriteTxnMarkers", "AddPartitionsToTxn",
            "InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState", "DeleteShareGroupState",
            "ReadShareGroupStateSummary",
        },
    }  # fmt: skip


def test_an_idempotent_producer_needs_a_topic_to_write_to_or_idempotent_write() -> None:
    [row] = [row for row in rows_of_brokers() if row.key is ApiKey.INIT_PRODUCER_ID]
    authorizer = DenyAll()
    response = refusal(row, 5, authorizer, InitProducerIdRequest(transactional_id=None))
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert authorizer.denied == [(AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, "kafka-cluster")]


def test_envelopes_are_for_brokers() -> None:
    configs = ConfigHandlers(1, Mock(), MagicMock())
    handlers = ControllerHandlers(Mock(), Mock(), Mock(), Mock(), "cluster", configs, Mock())
    pipeline = handlers.pipeline(features, inline_background(), authorizer=DenyAll())
    connection = PaperConnection("User:mallory", "CONTROLLER")
    request = naming_request(ApiKey.ENVELOPE, 0)
    paper: Connection = connection  # type: ignore[assignment]
    response = read_answer(pipeline.on_frame(paper, connection.frame(request, 0)), request, 0)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert response.response_data is None


@pytest.mark.parametrize("rows", [rows_of_brokers, rows_of_controllers])
def test_every_api_is_checked(rows: Callable[[], list[Row]]) -> None:
    """A row without a check would be refused as a whole where the node has an authorizer."""
    assert [row.key.name for row in rows() if row.authorize is Authorization.UNCHECKED] == []
    anyone = {row.key for row in rows() if row.authorize is Authorization.ANYONE}
    for_clients = {ApiKey.DESCRIBE_CLUSTER, ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    login = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    assert anyone - login == (for_clients if rows is rows_of_brokers else set())
