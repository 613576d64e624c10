"""Answers of a controller's listener to tools that connect to it directly."""

from __future__ import annotations

import pytest
from harness.blocking import BlockingConnection

from kalda.base.errors import ErrorCode
from kalda.base.ids import METADATA_TOPIC_ID, METADATA_TOPIC_NAME
from kalda.metadata.features import LATEST_PRODUCTION, LATEST_TESTING
from kalda.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    FeatureUpdateKey,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    UpdateFeaturesRequest,
)
from kalda.protocol.messages.metadata import ApiVersionsRequest
from kalda.protocol.messages.partitions import FetchRequest, FetchRequestFetchPartition, FetchRequestFetchTopic
from kalda.testing import Cluster

_BROKER = 4


def controller_of(cluster: Cluster) -> BlockingConnection:
    endpoint = cluster.nodes[1].config.advertised_controller_listeners[0]
    return BlockingConnection(endpoint.host, endpoint.port)


def test_configs_are_described_by_a_controller() -> None:
    """Tools use `--bootstrap-controller` where there is no broker yet."""
    with Cluster(1) as cluster, controller_of(cluster) as controller:
        altered = controller.request(
            IncrementalAlterConfigsRequest(
                resources=[
                    IncrementalAlterConfigsRequestAlterConfigsResource(
                        resource_type=_BROKER,
                        resource_name="1",
                        configs=[IncrementalAlterConfigsRequestAlterableConfig(name="background.threads", value="3")],
                    )
                ]
            ),
            1,
        )
        assert altered.responses[0].error_code == ErrorCode.NONE
        resources = [
            DescribeConfigsResource(
                resource_type=_BROKER, resource_name=name, configuration_keys=["background.threads"]
            )
            for name in ("1", "2")
        ]
        own, other = controller.request(DescribeConfigsRequest(resources=resources), 4).results
        assert [(entry.name, entry.value) for entry in own.configs] == [("background.threads", "3")]
        assert other.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [4, 7, 11, 12, 18])
def test_a_fetch_of_any_version_is_answered(version: int) -> None:
    """Before version 12 the request has no epoch of the last record, and the answer no field for the leader."""
    partition = FetchRequestFetchPartition(current_leader_epoch=1 if version >= 9 else -1, partition_max_bytes=1 << 20)
    topic = FetchRequestFetchTopic(topic=METADATA_TOPIC_NAME, topic_id=METADATA_TOPIC_ID, partitions=[partition])
    with Cluster(1) as cluster, controller_of(cluster) as controller:
        if version >= 12:
            partition.current_leader_epoch = cluster.nodes[1].raft.machine.epoch
            partition.last_fetched_epoch = 0
        found = controller.request(FetchRequest(max_wait_ms=0, topics=[topic]), version).responses[0].partitions[0]
    if version >= 12:
        assert (found.error_code, found.current_leader.leader_id) == (ErrorCode.NONE, 1)
        assert len(found.records) > 0
    else:
        assert (found.error_code, found.records) == (ErrorCode.INVALID_REQUEST, b"")


@pytest.mark.parametrize("unstable", [False, True])
def test_levels_that_are_not_released_yet(unstable: bool) -> None:
    keys = ("unstable.feature.versions.enable", "unstable.api.versions.enable")
    with Cluster(1, config=dict.fromkeys(keys, str(unstable).lower())) as cluster:
        with controller_of(cluster) as controller:
            request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
            announced = {feature.name: feature for feature in controller.request(request, 4).supported_features}
            update = FeatureUpdateKey(feature="metadata.version", max_version_level=LATEST_TESTING.value)
            answer = controller.request(UpdateFeaturesRequest(feature_updates=[update]), 2)
        assert announced["metadata.version"].max_version == (LATEST_TESTING if unstable else LATEST_PRODUCTION).value
        assert answer.error_code == (ErrorCode.NONE if unstable else ErrorCode.INVALID_UPDATE_VERSION)


def test_ranges_of_features_on_a_controllers_listener_follow_the_key_of_unstable_apis() -> None:
    """As Apache Kafka's do; those of brokers follow that of unstable features."""
    request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
    with Cluster(1, config={"unstable.api.versions.enable": "true"}) as cluster:
        with controller_of(cluster) as controller:
            announced = {each.name: each.max_version for each in controller.request(request, 4).supported_features}
        host, port = cluster.bootstrap_servers.rsplit(":", 1)
        with BlockingConnection(host, int(port)) as broker:
            of_broker = {each.name: each.max_version for each in broker.request(request, 4).supported_features}
    highest = (announced["metadata.version"], of_broker["metadata.version"])
    assert highest == (LATEST_TESTING.value, LATEST_PRODUCTION.value)
