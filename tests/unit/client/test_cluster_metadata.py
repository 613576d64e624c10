"""A client's metadata of very many topics: a round of requests names all of them."""

from __future__ import annotations

from typing import cast

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.clientcore.connections.errors import Backoff
from kalda.clientcore.connections.metadata import Address, ClusterMetadata
from kalda.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from kalda.protocol.naming import MAX_ELEMENTS_SENT

COUNT = 2 * MAX_ELEMENTS_SENT + 7
NAMES = [f"t{number:06}" for number in range(COUNT)]


def wanting_all() -> ClusterMetadata:
    made = ClusterMetadata([Address("a", 1)], Backoff(100, 1_000, lambda: 0.5))
    for name in NAMES:
        made.want(name, 0)
    return made


def names_of(request: object) -> list[str | None]:
    return [topic.name for topic in cast(MetadataRequest, request).topics or ()]


def answer(names: list[str | None], missing: str = "") -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="a", port=1)],
        topics=[
            MetadataResponseTopic(
                name=name,
                topic_id=Uuid(str(name).encode().ljust(16)),
                error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if name == missing else 0,
            )
            for name in names
        ],
    )


def round_of(metadata: ClusterMetadata, now_ms: int, missing: str = "") -> list[str | None]:
    """The topics that were named until no request is due at once."""
    named: list[str | None] = []
    while metadata.next_request_at_ms(now_ms) == now_ms:
        some = names_of(metadata.next_request(now_ms))
        assert len(some) <= MAX_ELEMENTS_SENT
        named += some
        metadata.on_response(answer(some, missing), now_ms)
    return named


def test_a_round_names_each_topic_once_and_takes_all_over() -> None:
    metadata = wanting_all()
    assert round_of(metadata, 0) == NAMES
    assert list(metadata.topics) == NAMES
    assert metadata.next_request_at_ms(0) == 300_000


def test_a_topic_that_is_missing_is_asked_for_after_a_backoff_that_grows() -> None:
    metadata = wanting_all()
    pauses, now_ms = [], 0
    for _ in range(3):
        assert round_of(metadata, now_ms, missing=NAMES[3]) == NAMES
        due_ms = metadata.next_request_at_ms(now_ms)
        assert due_ms is not None
        pauses.append(due_ms - now_ms)
        now_ms = due_ms
    assert 0 < pauses[0] < pauses[1] < pauses[2]
    round_of(metadata, now_ms)
    assert metadata.next_request_at_ms(now_ms) == now_ms + 300_000


def test_a_request_that_fails_within_a_round_begins_it_anew_after_the_backoff() -> None:
    metadata = wanting_all()
    first = names_of(metadata.next_request(0))
    metadata.on_response(answer(first), 0)
    metadata.next_request(0)
    metadata.on_failure(0)
    due_ms = metadata.next_request_at_ms(0)
    assert due_ms is not None
    assert due_ms > 0
    assert round_of(metadata, due_ms) == NAMES


def test_a_topic_that_is_wanted_within_a_round_is_named_by_the_next_one() -> None:
    metadata = wanting_all()
    first = names_of(metadata.next_request(0))
    metadata.on_response(answer(first), 0)
    metadata.want("a-new-one", 0)
    metadata.forget(NAMES[-1])
    assert first + round_of(metadata, 0) == [*NAMES[:-1], "a-new-one"]
    assert "a-new-one" in metadata.topics


def test_a_request_for_a_new_topic_names_no_other_and_does_not_postpone_the_next_one_for_all() -> None:
    metadata = wanting_all()
    round_of(metadata, 0)
    metadata.want("a-new-one", 1_000)
    assert round_of(metadata, 1_000) == ["a-new-one"]
    assert metadata.topics.keys() == {*NAMES, "a-new-one"}
    for name in NAMES:
        metadata.want(name, 299_000)
    assert metadata.next_request_at_ms(1_000) == 300_000
    assert round_of(metadata, 300_000) == sorted(["a-new-one", *NAMES])


def test_a_new_topic_that_is_not_there_yet_is_asked_for_after_the_backoff() -> None:
    metadata = wanting_all()
    round_of(metadata, 0)
    metadata.want("a-new-one", 1_000)
    assert round_of(metadata, 1_000, missing="a-new-one") == ["a-new-one"]
    due_ms = metadata.next_request_at_ms(1_000)
    assert due_ms is not None
    assert due_ms > 1_000
