"""Each API reports that a whole request failed, in every version, in the fields that its clients read.

`tests/golden/broker` has what Apache Kafka answers: the error responses of its own request classes.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from all_rows import rows_of_brokers, rows_of_controllers
from error_fields import error_codes, structs_with_errors
from naming_requests import naming_request

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.channels.forwarding import envelope_failed
from kalda.broker.requests.api_versions import api_versions_failed
from kalda.broker.requests.rows import Authorization, Row
from kalda.protocol.apis import API, ApiKey, response_class
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.partitions import ProduceRequest
from kalda.protocol.notation import Response

MESSAGE = "not by this policy"
ERROR = ApiError(ErrorCode.POLICY_VIOLATION, MESSAGE)
GOLDEN = Path(__file__).parents[2] / "golden" / "broker" / "error_responses.txt.gz"


def all_rows() -> list[Row]:
    """The rows of both listeners, of each API and failure once, with those that the pipelines add."""

    def unused(context: Any, request: Any) -> None:
        return None

    added = [
        Row(ApiKey.API_VERSIONS, unused, api_versions_failed, Authorization.ANYONE),
        Row(ApiKey.ENVELOPE, unused, envelope_failed, Authorization.ANYONE),
    ]
    rows = [*rows_of_brokers(), *rows_of_controllers(), *added]
    return list({(row.key, row.failed): row for row in rows}.values())


CASES = [
    pytest.param(row, version, id=f"{API[row.key].name}-{version}")
    for row in all_rows()
    for version in range(API[row.key].lowest, API[row.key].highest + 1)
]


def kafkas() -> dict[tuple[int, int], bytes]:
    with gzip.open(GOLDEN, "rt", encoding="ascii") as lines:
        parts = [line.rstrip("\n").split(" ") for line in lines]
    return {(int(key), int(version)): bytes.fromhex(body) for key, version, body in parts}


KAFKAS = kafkas()


def failure(row: Row, version: int, error: ApiError = ERROR) -> Response:
    """The failure of a request that names things, as its client decodes it."""
    response = row.failed(naming_request(row.key, version), version, error)
    assert response is not None
    assert type(response) is response_class(row.key)
    return decode(type(response), encode(response, version), version)


def comparable(response: Any, version: int) -> Any:
    """Without what may differ from Kafka: Kafka leaves some messages out and gives others in general words, it shuffles
    the partitions of a Produce and of WriteTxnMarkers, and it leaves out the names of users whose credentials are
    described."""
    for struct, has_message in structs_with_errors(response, version):
        if has_message:
            struct.error_message = None
    if response.API_KEY == ApiKey.PRODUCE:
        for topic in response.responses:
            topic.partition_responses.sort(key=lambda each: each.index)
        response.responses.sort(key=lambda each: each.partition_responses[0].index)
    if response.API_KEY == ApiKey.WRITE_TXN_MARKERS:
        response.markers.sort(key=lambda each: each.producer_id)
        for marker in response.markers:
            for topic in marker.topics:
                topic.partitions.sort(key=lambda each: each.partition_index)
            marker.topics.sort(key=lambda each: each.name)
    if response.API_KEY == ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS:
        for result in response.results:
            result.user = ""
    return response


@pytest.mark.parametrize(("row", "version"), CASES)
def test_a_whole_request_fails_as_in_kafka(row: Row, version: int) -> None:
    expected = decode(response_class(row.key), KAFKAS[row.key, version], version)
    assert comparable(failure(row, version), version) == comparable(expected, version)


@pytest.mark.parametrize(("row", "version"), CASES)
def test_a_failure_is_never_an_empty_success(row: Row, version: int) -> None:
    response = failure(row, version)
    if row.key is ApiKey.DESCRIBE_LOG_DIRS and version < 3:
        # There is no field for it: clients take a response without directories for a failure.
        assert response == response_class(row.key)()
        return
    codes = error_codes(response, version)
    assert codes
    assert set(codes) == {ErrorCode.POLICY_VIOLATION}


@pytest.mark.parametrize(("row", "version"), CASES)
def test_the_message_is_wherever_the_version_has_a_field_for_it(row: Row, version: int) -> None:
    found = [struct.error_message for struct, has in structs_with_errors(failure(row, version), version) if has]
    assert set(found) <= {MESSAGE}


@pytest.mark.parametrize(("row", "version"), CASES)
def test_faults_of_the_server_are_not_described_to_clients(row: Row, version: int) -> None:
    response = failure(row, version, ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "/var/lib/kalda: secret"))
    assert "secret" not in repr(response)


def test_a_producer_that_expects_no_response_gets_none() -> None:
    [produce] = [row for row in all_rows() if row.key is ApiKey.PRODUCE]
    for version in range(3, 14):
        assert produce.failed(ProduceRequest(acks=0), version, ERROR) is None


def test_a_topic_without_a_name_has_an_empty_one() -> None:
    """In a response that older versions of clients read as well."""
    [metadata] = [row for row in all_rows() if row.key is ApiKey.METADATA]
    response = metadata.failed(MetadataRequest(topics=[MetadataRequestTopic(name=None)]), 12, ERROR)
    assert isinstance(response, Response)
    assert decode(type(response), encode(response, 12), 12).topics[0].name == ""  # type: ignore[attr-defined]
