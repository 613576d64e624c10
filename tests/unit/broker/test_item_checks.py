"""Which decisions the checks of single items make anew, and how they count the items of a request."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.handlers.data import DataHandlers, produce_failed, unreadable
from kalda.broker.requests.rows import Items
from kalda.metadata.acls import StandardAcl
from kalda.protocol.access import WRITE_TOPIC, Caller
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import FetchRequest, PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.security.standard_authorizer import StandardAuthorizer

READ, WRITE, LITERAL, DENY, ALLOW = 3, 4, 3, 2, 3


def context(authorizer: Any, principal: str = "User:alice") -> Any:
    return SimpleNamespace(
        authorizer=authorizer, principal=principal, client_host="10.0.0.1", request_name="Produce", api_version=9
    )


def produce(*topics: str, partitions: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(index=each) for each in range(partitions)]
    return ProduceRequest(acks=1, topic_data=[TopicProduceData(name=name, partition_data=data) for name in topics])


def errors(answer: Any) -> list[int]:
    return [each.partition_responses[0].error_code for each in answer.responses]


TOPIC_REFUSED = [ErrorCode.TOPIC_AUTHORIZATION_FAILED]
TOPIC_ID = bytes(15) + b"\x07"


class Counted(StandardAuthorizer):
    """Lets alice write to t, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.apply({bytes(16): StandardAcl(2, "t", LITERAL, "User:alice", "*", WRITE, ALLOW)}, 1)

    def allows(self, *arguments: Any) -> bool:
        self.calls += 1
        return super().allows(*arguments)


def produce_stage() -> Any:
    names = {TOPIC_ID: "t"}
    metadata = SimpleNamespace(topic_name=names.get)
    handlers = DataHandlers(Mock(), cast(Any, metadata), Mock(), Mock(), Mock())
    row = next(each for each in handlers.rows() if each.key is ApiKey.PRODUCE)
    assert row.items is not None
    return row.items(lambda context, request: None)


def test_an_allowed_topic_is_decided_once_until_entries_change() -> None:
    """Whatever connection, and whether the request has its name or its id."""
    authorizer, stage = Counted(), produce_stage()
    by_id = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="", topic_id=TOPIC_ID)])
    for request in (produce("t"), produce("t"), by_id):
        assert stage(context(authorizer), request) is None
    assert authorizer.calls == 1
    assert errors(stage(context(authorizer), produce("u"))) == TOPIC_REFUSED
    assert errors(stage(context(authorizer, "User:bob"), produce("t"))) == TOPIC_REFUSED
    authorizer.apply({bytes(15) + b"1": StandardAcl(2, "t", LITERAL, "User:alice", "10.0.0.1", WRITE, DENY)}, 2)
    assert errors(stage(context(authorizer), produce("t"))) == TOPIC_REFUSED
    assert errors(stage(context(authorizer), produce("u", "t"))) == TOPIC_REFUSED * 2


def test_a_transactional_id_is_checked_where_the_topic_is_known_to_be_allowed() -> None:
    authorizer, stage = Counted(), produce_stage()
    assert stage(context(authorizer), produce("t")) is None
    request = produce("t")
    request.transactional_id = "mine"
    transactional = bytearray(61)
    transactional[22] = 0x10
    request.topic_data[0].partition_data[0].records = transactional
    with pytest.raises(ApiError) as raised:
        stage(context(authorizer), request)
    assert raised.value.code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_each_allowed_request_is_logged_while_the_log_has_them(caplog: pytest.LogCaptureFixture) -> None:
    authorizer, stage = Counted(), produce_stage()
    for level, lines in ((logging.INFO, 0), (logging.DEBUG, 2), (logging.INFO, 0)):
        with caplog.at_level(level, "kafka.authorizer.logger"):
            for _ in range(2):
                stage(context(authorizer), produce("t", partitions=3))
        assert sum("Topic:LITERAL:t" in line and "resourceRefCount = 3" in line for line in caplog.messages) == lines
        caplog.clear()


def test_a_follower_needs_more_than_to_read_the_topic() -> None:
    """Also where another fetch of the same principal has read it."""
    authorizer = Counted()
    authorizer.apply({bytes(15) + b"2": StandardAcl(2, "t", LITERAL, "User:alice", "*", READ, ALLOW)}, 2)
    fetched = SimpleNamespace(entries=[SimpleNamespace(topic="t")], session=None)
    for request, refused in ((FetchRequest(), None), (FetchRequest(replica_id=2), {"t"}), (FetchRequest(), None)):
        asking = Caller(principal="User:alice", client_host="10.0.0.1", authorizer=authorizer)
        assert unreadable(cast(Any, asking), request, cast(Any, fetched)) == refused


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
