"""A connection to one node that the calling thread drives."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

from kalda.base.errors import ApiError, ErrorCode
from kalda.client.transport.one_node import OneNode
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.metadata import DescribeClusterRequest, MetadataRequest, MetadataRequestTopic


def about(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])


def test_a_request_has_the_version_that_is_given_or_the_highest_in_common(broker: ScriptedBroker) -> None:
    with OneNode("127.0.0.1", broker.port) as node:
        assert node.request(about("logs")).cluster_id == "scripted"
        assert node.request(about("logs"), 9).topics[0].name == "logs"
        highest = node.versions[ApiKey.METADATA][1]
    assert [version for _, version, _ in broker.received] == [highest, 9]


def test_requests_may_be_sent_before_the_responses_of_others_have_come(broker: ScriptedBroker) -> None:
    broker.topics = {f"t{number}": [1] for number in range(20)}
    with OneNode("127.0.0.1", broker.port) as node:
        sent = [node.send(about(name)) for name in broker.topics]
        assert [node.receive(each).topics[0].name for each in sent] == list(broker.topics)


def test_an_api_that_the_node_lacks_leaves_the_connection_open(broker: ScriptedBroker) -> None:
    with OneNode("127.0.0.1", broker.port) as node:
        with pytest.raises(ApiError) as caught:
            node.request(DescribeClusterRequest())
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert node.request(about()).cluster_id == "scripted"


def test_a_request_that_cannot_be_encoded_is_not_sent(broker: ScriptedBroker) -> None:
    with OneNode("127.0.0.1", broker.port) as node:
        with pytest.raises(ApiError) as caught:
            node.request(about("\udcff"))
        assert caught.value.code is ErrorCode.INVALID_REQUEST
        assert node.request(about()).cluster_id == "scripted"


def test_a_response_that_does_not_come_in_time_closes_the_connection(broker: ScriptedBroker) -> None:
    released = threading.Event()

    def wait(request: Any, version: int) -> None:
        released.wait()

    broker.answers[ApiKey.METADATA] = wait
    with OneNode("127.0.0.1", broker.port, timeout_ms=10) as node:
        with pytest.raises(ApiError) as caught:
            node.request(about())
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(ApiError, match="the connection is closed"):
            node.request(about())
    released.set()


def test_a_node_that_closes_the_connection_fails_what_was_sent(broker: ScriptedBroker) -> None:
    broker.answers[ApiKey.METADATA] = lambda request, version: None
    with OneNode("127.0.0.1", broker.port) as node, pytest.raises(ApiError) as caught:
        node.request(about())
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION


def test_a_node_that_cannot_be_connected_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    with pytest.raises(ApiError, match=f"cannot connect to 127.0.0.1:{port}"):
        OneNode("127.0.0.1", port)
    with pytest.raises(ApiError, match=r"cannot connect to ü\.\.:9092"):
        OneNode("ü..", 9092)


def test_a_node_that_does_not_list_its_versions_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(ApiError) as caught:
        OneNode("127.0.0.1", silent.getsockname()[1], connect_timeout_ms=20)
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
