"""The metadata of a client of controllers (KIP-919): which controllers there are, and which one is active.

The bootstrap addresses are those of controllers, which answer no Metadata request. DescribeCluster takes its place.
There are no topics, and requests that any broker would answer are sent to the active controller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kalda.base.errors import ErrorCode
from kalda.clientcore.connections.cluster_values import Broker, Metadata
from kalda.clientcore.connections.errors import refused
from kalda.clientcore.connections.metadata import ClusterMetadata
from kalda.protocol.messages.metadata import DescribeClusterRequest, EndpointType
from kalda.protocol.notation import Request


class ControllerMetadata(ClusterMetadata):
    """`brokers` has the controllers."""

    is_of_controllers = True

    def cluster_request(self, topics: Sequence[str]) -> Request:
        del topics
        return controllers_request()

    def on_response(self, response: Any, now_ms: int) -> None:
        """Take over the controllers that the response names."""
        self._in_flight = False
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE or not response.brokers or response.controller_id < 0:
            self._update_requested = True
            if code is not ErrorCode.NONE and not code.retriable:
                self.refusal = refused(code, "the controllers", response.error_message)
            return
        self.refusal = None
        read = controllers_of(response)
        self._take_over(read, now_ms)
        self.controller_id = read.controller_id
        self._attempts = 0
        self.version += 1


def controllers_request() -> DescribeClusterRequest:
    """The request for the controllers."""
    return DescribeClusterRequest(endpoint_type=EndpointType.CONTROLLERS)


def controllers_of(response: Any) -> Metadata:
    """The controllers, as brokers of metadata without topics."""
    nodes = {each.broker_id: Broker(each.broker_id, each.host, each.port, None) for each in response.brokers}
    return Metadata(response.cluster_id, response.controller_id, nodes, {})
