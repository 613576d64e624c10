"""What a request may have in its lists: up to the bound it is handled, beyond it its connection is closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from all_rows import rows_of_brokers, rows_of_controllers
from by_hand import one_step_a_turn
from paper_connection import PaperConnection

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.channels.forwarding import Unwrapping
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import MAX_ELEMENTS, MAX_ELEMENTS_BETWEEN_NODES, Authorization, Row
from kalda.network.server.connection import Connection
from kalda.protocol.apis import ApiKey
from kalda.protocol.decoder import TooManyElements
from kalda.protocol.messages.admin import FeatureUpdateKey, UpdateFeaturesRequest
from kalda.protocol.messages.brokers import EnvelopeRequest, EnvelopeResponse
from kalda.protocol.messages.groups import LeaveGroupRequest, MemberIdentity
from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from kalda.protocol.messages.security import AlterUserScramCredentialsRequest, ScramCredentialDeletion
from kalda.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from kalda.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kalda.protocol.notation import Request

ROWS = {row.key: row for row in (*rows_of_controllers(), *rows_of_brokers())}


def features(count: int) -> Request:
    return UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey(feature=f"f-{n}") for n in range(count)])


def leaving(count: int) -> Request:
    return LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=f"m-{n}") for n in range(count)])


def deleted_credentials(count: int) -> Request:
    return AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name=f"u-{n}", mechanism=1) for n in range(count)]
    )


def topics(count: int) -> Request:
    return MetadataRequest(topics=[MetadataRequestTopic(name=f"t-{n}") for n in range(count)])


def added_partitions(count: int) -> Request:
    """Numbers are elements too."""
    topic = AddPartitionsToTxnTopic(name="t", partitions=list(range(count - 2)))
    return AddPartitionsToTxnRequest(transactions=[AddPartitionsToTxnTransaction(transactional_id="t", topics=[topic])])


def produced(count: int) -> Request:
    """Topics and their partitions are counted together."""
    return ProduceRequest(
        acks=1,
        topic_data=[
            TopicProduceData(name="t", partition_data=[PartitionProduceData(index=n) for n in range(size)])
            for size in (count // 2 - 1, count - count // 2 - 1)
        ],
    )


def fetched(count: int) -> Request:
    asked = [FetchRequestFetchPartition(partition=n) for n in range(count - 1)]
    return FetchRequest(topics=[FetchRequestFetchTopic(topic="t", partitions=asked)])


class Bench:
    """The row of one API, with a handler that gives each item an error."""

    def __init__(self, key: ApiKey) -> None:
        self.handled = 0
        self.row: Row = ROWS[key]._replace(handler=self._handle, authorize=Authorization.ANYONE, items=None)
        turns: list[Callable[[], None]] = []
        self.pipeline = RequestPipeline([self.row], lambda: Features({}, {}, 0), one_step_a_turn(turns.append))

    def _handle(self, context: RequestContext, request: Any) -> Any:
        self.handled += 1
        return self.row.failed(request, context.api_version, ApiError(ErrorCode.INVALID_REQUEST))

    def send(self, request: Request, version: int) -> Any:
        paper = PaperConnection()
        network: Connection = paper  # type: ignore[assignment]
        return self.pipeline.on_frame(network, paper.frame(request, version))


@pytest.mark.parametrize(
    ("make", "version", "bound"),
    [
        (features, 2, MAX_ELEMENTS),
        (leaving, 5, MAX_ELEMENTS),
        (deleted_credentials, 0, MAX_ELEMENTS),
        (topics, 12, MAX_ELEMENTS),
        (added_partitions, 5, MAX_ELEMENTS),
        (produced, 12, MAX_ELEMENTS),
        (fetched, 12, MAX_ELEMENTS_BETWEEN_NODES),
    ],
)
def test_a_request_has_no_more_elements_than_its_row_says(
    make: Callable[[int], Request], version: int, bound: int
) -> None:
    bench = Bench(ApiKey(make(2).API_KEY))
    assert bench.row.max_elements == bound
    bench.send(make(bound), version)
    assert bench.handled == 1
    with pytest.raises(TooManyElements):
        bench.send(make(bound + 1), version)
    assert bench.handled == 1


def test_the_refusal_names_the_api_the_client_the_count_and_the_bound() -> None:
    with pytest.raises(TooManyElements) as refused:
        Bench(ApiKey.METADATA).send(topics(30_000), 12)
    message = refused.value.message
    assert message.startswith(
        "Metadata v12 of client 'client' has more than the 20000 elements that a request may have"
    )
    assert "topics has too many elements: 30000" in message


def test_a_forwarded_request_beyond_the_bound_is_answered() -> None:
    """Its connection is that of a broker, which forwards the requests of many clients."""
    bench = Bench(ApiKey.DELETE_TOPICS)

    def unwrap(count: int) -> EnvelopeResponse | Pending[EnvelopeResponse]:
        paper = PaperConnection()
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=f"t-{n}") for n in range(count)])
        envelope = EnvelopeRequest(
            request_data=bytes(paper.frame(request, 6)), request_principal=None, client_host_address=bytes(4)
        )
        context = Mock(connection=paper, authorizer=None, principal="User:broker")
        return Unwrapping([bench.row], bench.pipeline.answer).unwrap(context, envelope)

    answer = unwrap(MAX_ELEMENTS)
    assert isinstance(answer, EnvelopeResponse)
    assert answer.error_code == ErrorCode.NONE
    answer = unwrap(MAX_ELEMENTS + 1)
    assert isinstance(answer, EnvelopeResponse)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert bench.handled == 1
