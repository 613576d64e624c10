"""Partitions of topics and their first and last offsets, from a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kalda.base.configs.admin import ADMIN
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.client.admin.admin_client import Admin
from kalda.client.admin.configs import ConfigResource
from kalda.pipeline.session import PipelineError
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.spark.options import OptionError, connected

_NAMED: Final = 5
"""How many topics or partitions an error names."""


@dataclass(frozen=True, slots=True)
class Ends:
    """First offset of a partition, and the one after its last record that consumers get."""

    start: int
    end: int


class TopicQuestions:
    """Questions about topics of one cluster; a context manager that closes the connections."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """`options` of the source: those that begin with `kafka.`, and those of its connection, are the client's.
        Raises `PipelineError`."""
        try:
            options = connected(options, ADMIN)
        except OptionError as error:
            raise PipelineError(str(error)) from error
        config = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
        names = ("bootstrap.servers", "client.id", "request.timeout.ms", "default.api.timeout.ms")
        self._read_committed = config.get("isolation.level") == "read_committed"
        self._servers = config.get("bootstrap.servers", "")
        try:
            self._admin = Admin(
                {
                    name: value
                    for name, value in config.items()
                    if name in names or name.startswith(("security.", "sasl.", "ssl."))
                }
            )
        except ApiError as error:
            raise PipelineError(error.message) from error

    def __enter__(self) -> TopicQuestions:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """All partitions of the topics. Raises `PipelineError` where there is no such topic."""
        outcomes = self._admin.describe_topics(topics)
        self._refuse(outcomes.errors)
        return [
            TopicPartition(name, one.partition)
            for name, topic in outcomes.succeeded.items()
            for one in topic.partitions
        ]

    def ends(self, topics: Collection[str]) -> dict[TopicPartition, Ends]:
        """The first offset and the end of each partition, as readers of the isolation level of the options get it."""
        partitions = self.partitions(topics)
        first, last = (self.offsets_at(partitions, spec) for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
        return {partition: Ends(first[partition], last[partition]) for partition in partitions}

    def offsets_at(self, partitions: Collection[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """In each partition the first record at or after a time, -1 where all are older; or one of `OffsetSpec`."""
        outcomes = self._admin.list_offsets(
            dict.fromkeys(partitions, int(timestamp_ms)), read_committed=self._read_committed
        )
        self._refuse(outcomes.errors)
        return {partition: found.offset for partition, found in outcomes.succeeded.items()}

    def config(self, topic: str, name: str) -> str | None:
        """One config of a topic; None where this user may not see it."""
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        entry = self._admin.describe_configs([resource]).succeeded.get(resource, {}).get(name)
        return None if entry is None else entry.value

    def topic_id(self, topic: str) -> str:
        """The topic's id: another one where a topic was deleted and made again."""
        return self._admin.describe_topics([topic]).value(topic).topic_id.hex()

    def _refuse(self, errors: Mapping[Any, ApiError]) -> None:
        texts = [
            text if str(item) in (text := error.message or error.code.name) else f"{item}: {text}"
            for item, error in errors.items()
        ]
        if texts:
            more = f", and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
            raise PipelineError(f"brokers at {self._servers}: {'; '.join(texts[:_NAMED])}{more}")
