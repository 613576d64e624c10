"""DescribeCluster that is sent to the wrong kind of listener: codes and texts of Apache Kafka 4.3.1."""

from __future__ import annotations

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.handlers.shared import check_endpoint_type
from kalda.protocol.messages.metadata import EndpointType

B, C = EndpointType.BROKERS, EndpointType.CONTROLLERS
_WRONG = "The request was sent to an endpoint of type {}, but we wanted an endpoint of type {}"


@pytest.mark.parametrize(
    ("wanted", "served", "version", "code", "message"),
    [
        (1, C, 0, ErrorCode.INVALID_REQUEST, _WRONG.format("CONTROLLER", "BROKER")),
        (1, C, 1, ErrorCode.MISMATCHED_ENDPOINT_TYPE, _WRONG.format("CONTROLLER", "BROKER")),
        (2, B, 2, ErrorCode.MISMATCHED_ENDPOINT_TYPE, _WRONG.format("BROKER", "CONTROLLER")),
        (3, B, 1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 3"),
        (0, C, 1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, "Unsupported endpoint type 0"),
    ],
)
def test_a_wrong_endpoint_is_refused(
    wanted: int, served: EndpointType, version: int, code: ErrorCode, message: str
) -> None:
    with pytest.raises(ApiError) as refused:
        check_endpoint_type(wanted, served, version)
    assert (refused.value.code, refused.value.message) == (code, message)


@pytest.mark.parametrize("kind", [B, C])
def test_the_right_endpoint_is_served(kind: EndpointType) -> None:
    check_endpoint_type(kind, kind, 0)
