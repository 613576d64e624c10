"""What a stage of item checks keeps of its decisions, and how it counts the items of a request."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kalda.base.errors import ErrorCode
from kalda.broker.handlers.data import produce_failed
from kalda.broker.item_checks import Items
from kalda.metadata.acls import StandardAcl
from kalda.protocol.access import WRITE_TOPIC
from kalda.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.security.standard_authorizer import StandardAuthorizer

WRITE, LITERAL, ALLOW = 4, 3, 3


def context(authorizer: Any, connection: int = 1, principal: str = "User:alice", **more: Any) -> Any:
    return SimpleNamespace(
        authorizer=authorizer,
        principal=principal,
        client_host="10.0.0.1",
        request_name="Produce",
        api_version=9,
        forwarded_by=None,
        connection=SimpleNamespace(id=connection),
        **more,
    )


def produce(*topics: str, partitions: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=each) for each in range(partitions)]
    return ProduceRequest(acks=1, topic_data=[TopicProduceData(name=name, partition_data=data) for name in topics])


def errors(answer: Any) -> list[int]:
    return [each.partition_responses[0].error_code for each in answer.responses]


def test_an_allowed_topic_is_asked_for_once_a_connection_until_entries_change() -> None:
    authorizer = StandardAuthorizer()
    entry = StandardAcl(2, "t", LITERAL, "User:alice", "*", WRITE, ALLOW)
    authorizer.apply({bytes(16): entry}, 1)
    stage = Items(WRITE_TOPIC, produce_failed, "topic_data", "responses").stage(lambda context, request: None)
    refused = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
    for _ in range(2):
        assert stage(context(authorizer), produce("t")) is None
    assert errors(stage(context(authorizer), produce("u"))) == refused
    assert errors(stage(context(authorizer, 2, "User:bob"), produce("t"))) == refused
    envelope = context(authorizer, 1, "User:bob")
    envelope.forwarded_by = "User:node"
    assert errors(stage(envelope, produce("t"))) == refused
    authorizer.apply({bytes(16): None}, 2)
    assert errors(stage(context(authorizer), produce("t"))) == refused


class Counting:
    version = -1

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    def allows(
        self, caller: Any, operation: Any, resource: Any, name: str, logs_denial: bool = True, references: int = 1
    ) -> bool:
        self.seen.append((name, references))
        return True


def test_references_are_the_partitions_of_a_topic() -> None:
    """Nothing is kept of an authorizer that may decide otherwise each time."""
    counting = Counting()
    stage = Items(
        WRITE_TOPIC, produce_failed, "topic_data", "responses", references=lambda each: len(each.partition_data)
    ).stage(lambda context, request: None)
    for request in (produce("t", partitions=3), produce("t", partitions=3), produce("t", "u", "t", partitions=2)):
        stage(context(counting), request)
    assert counting.seen == [("t", 3), ("t", 3), ("t", 4), ("u", 2)]
