"""DescribeConfigs in steps: the same answer, in bounded work."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from by_hand import one_step_a_turn
from paper_connection import PaperConnection, read_answer

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.broker.handlers import configs
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.network.server.connection import Connection
from kalda.protocol.messages import metadata_records as records
from kalda.protocol.messages.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@localhost:9093",
    "log.dirs": "/tmp/kalda",
}
BROKER, TOPIC = ConfigResourceType.BROKER, ConfigResourceType.TOPIC


def image() -> MetadataImage:
    """Twenty topics, one with a config of its own."""
    delta = MetadataDelta(MetadataImage())
    for number in range(20):
        delta.replay(records.TopicRecord(name=f"t{number}", topic_id=Uuid(number.to_bytes(16, "big"))))
    delta.replay(records.ConfigRecord(resource_type=TOPIC, resource_name="t3", name="cleanup.policy", value="compact"))
    return delta.apply(MetadataImage().provenance)


class Bench:
    """A pipeline with DescribeConfigs alone, and turns of the loop that the test takes."""

    def __init__(self) -> None:
        self.turns: list[Callable[[], None]] = []
        self.metadata = SimpleNamespace(image=image())
        handlers = ConfigHandlers(1, ServerConfig(PROPERTIES), self.metadata)
        self.pipeline = RequestPipeline(
            [handlers.describe_row()], lambda: Features({}, {}, 0), one_step_a_turn(self.turns.append)
        )
        self.count = 0
        """How many turns the last request took."""

    def ask(self, request: DescribeConfigsRequest, version: int) -> tuple[Any, bytes]:
        connection = PaperConnection()
        network: Connection = connection  # type: ignore[assignment]
        answer: Any = self.pipeline.on_frame(network, connection.frame(request, version))
        self.count = 0
        while self.turns:
            self.turns.pop(0)()
            self.count += 1
        buffers = answer if isinstance(answer, list) else answer.value
        return read_answer(answer, request, version), b"".join(buffers)


def of(kind: int, name: str, *keys: str) -> DescribeConfigsResource:
    return DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)


def everything() -> DescribeConfigsRequest:
    """Topics, brokers, errors, some of them twice, and with other keys."""
    resources = [of(TOPIC, f"t{number}") for number in range(22)]
    resources += [of(BROKER, "1"), of(BROKER, "2"), of(BROKER, ""), of(99, "x"), of(BROKER, "1")]
    resources += [of(TOPIC, "t3", "cleanup.policy"), of(TOPIC, "t3"), of(TOPIC, "t3", "cleanup.policy", "segment.ms")]
    resources += [of(ConfigResourceType.GROUP, "g"), of(ConfigResourceType.CLIENT_METRICS, "m")]
    return DescribeConfigsRequest(resources=resources, include_synonyms=True)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_the_answer_in_steps_is_the_answer(version: int) -> None:
    bench = Bench()
    request = everything()
    request.include_documentation = version >= 3
    stepped, in_steps = bench.ask(request, version)
    assert bench.count > 2
    with patch.object(configs, "_STEP_COST", 10**9):
        whole, at_once = bench.ask(request, version)
    assert in_steps == at_once
    assert stepped == whole
    assert len(stepped.results) == len(request.resources)


def test_what_is_described() -> None:
    answer, _ = Bench().ask(everything(), 4)
    results = answer.results
    assert [result.error_code for result in results[:20]] == [0] * 20
    assert [result.error_code for result in results[20:22]] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert results[22].error_code == 0
    assert results[23].error_code == ErrorCode.INVALID_REQUEST
    assert results[25].error_message == "Unsupported resource type: 99"
    assert results[26] == results[22]
    assert [(each.name, each.value) for each in results[27].configs] == [("cleanup.policy", "compact")]
    assert results[28] == results[3]
    assert {each.name for each in results[29].configs} == {"cleanup.policy", "segment.ms"}


def test_an_internal_config_is_described_where_the_topic_sets_it() -> None:
    bench = Bench()
    delta = MetadataDelta(bench.metadata.image)
    delta.replay(
        records.ConfigRecord(resource_type=TOPIC, resource_name="t3", name="internal.segment.bytes", value="2000000")
    )
    bench.metadata.image = delta.apply(MetadataImage().provenance)
    answer, _ = bench.ask(DescribeConfigsRequest(resources=[of(TOPIC, "t3"), of(TOPIC, "t4")]), 4)
    set_, plain = ({each.name: each.value for each in result.configs} for result in answer.results)
    assert set_.keys() - plain.keys() == {"internal.segment.bytes"}
    assert set_["internal.segment.bytes"] == "2000000"


def test_one_broker_takes_no_turn() -> None:
    bench = Bench()
    bench.ask(DescribeConfigsRequest(resources=[of(BROKER, "1")], include_documentation=True), 4)
    assert bench.count == 0


def test_steps_are_bounded() -> None:
    """However the resources are named: many entries, few entries, errors, or the same again."""
    for resources in (
        [of(TOPIC, f"t{number % 20}", f"key-{number}") for number in range(800)],
        [of(99, str(number)) for number in range(800)],
        [of(TOPIC, "t1")] * 8_000,
    ):
        bench = Bench()
        bench.ask(DescribeConfigsRequest(resources=resources), 4)
        assert bench.count >= 20


def test_all_results_are_of_one_image() -> None:
    bench = Bench()
    request = DescribeConfigsRequest(resources=[of(TOPIC, f"t{number}") for number in range(20)])
    connection = PaperConnection()
    network: Connection = connection  # type: ignore[assignment]
    answer: Any = bench.pipeline.on_frame(network, connection.frame(request, 4))
    assert bench.turns
    bench.metadata.image = MetadataImage()
    while bench.turns:
        bench.turns.pop(0)()
    assert {result.error_code for result in read_answer(answer, request, 4).results} == {0}


def test_an_answer_that_is_too_large_is_refused() -> None:
    bench = Bench()
    request = DescribeConfigsRequest(resources=[of(BROKER, "1")] * 100)
    with patch.object(configs, "MAX_ANSWER_BYTES", 1_000_000):
        answer, _ = bench.ask(request, 4)
    assert {result.error_code for result in answer.results} == {ErrorCode.INVALID_REQUEST}
    assert "fewer resources" in answer.results[0].error_message
