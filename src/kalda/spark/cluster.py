"""What the planner of a query requests of a cluster: partitions, ends of logs, offsets at times.

One client is kept in a process of Spark's planner, and in a worker, since a streaming query plans each of its batches.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kalda.base.configs.admin import ADMIN
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import ZERO_UUID, TopicPartition
from kalda.client.admin.admin_client import Admin
from kalda.client.admin.offsets import list_offsets
from kalda.clientcore.administration import Outcomes, Plan, Target, TargetKind, per_item
from kalda.clientcore.connections.errors import refused
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.protocol.messages.transactions import EndTxnRequest

if TYPE_CHECKING:
    from kalda.clientcore.connections.metadata import Topic
    from kalda.spark.options import TopicSubscription

_MAX_END_BEFORE_V2 = 4
"""The last EndTxn version of producers whose transaction.version is below 2 (KIP-890)."""
_clients: dict[tuple[tuple[str, str], ...], SparkAdmin] = {}
"""By configuration; of this process only."""
_owner_pid = os.getpid()
"""The process that made the clients: a forked child must not use them."""


class SparkAdmin(Admin):
    """The administrative client of planners and sinks."""

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__(config)
        self._leaders: dict[TopicPartition, int] = {}
        """The node id of each partition's leader, when partitions were last requested; -1 where there was none."""
        self.topic_ids: Mapping[str, str] = {}
        """The ids of the topics then; none of brokers before Kafka 2.8."""

    def partitions(self, subscription: TopicSubscription, *, missing_is_error: bool) -> list[TopicPartition]:
        """The existing partitions of the subscription, sorted.

        With `missing_is_error`, raises `ApiError` for an unknown topic, `ValueError` for an unknown partition."""
        if subscription.pattern is not None:
            matches = re.compile(subscription.pattern).fullmatch
            return self._partitions_of(topic for topic in self.list_topics().values() if matches(topic.name))
        names = sorted(subscription.topics or {one.topic for one in subscription.assigned})
        found = self.describe_topics(names)
        for name, error in found.errors.items():
            is_missing = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_missing and missing_is_error:
                # Imported here: a planner makes no consumer, and each batch job starts one.
                from kalda.client.consumer.consumer_calls import unknown_topic

                raise unknown_topic(name)
            if not is_missing:
                raise error
        existing = self._partitions_of(found.succeeded.values())
        if not subscription.assigned:
            return existing
        kept = set(existing)
        for partition in subscription.assigned:
            if missing_is_error and partition not in kept:
                count = sum(one.topic == partition.topic for one in existing)
                raise ValueError(
                    f"option assign: topic {partition.topic} has no partition {partition.partition}; it has "
                    f"{count}, numbered from 0"
                )
        return sorted(kept.intersection(subscription.assigned))

    def _partitions_of(self, topics: Iterable[Topic]) -> list[TopicPartition]:
        """The topics' partitions, sorted; their leaders and the topics' ids are kept."""
        found = list(topics)
        self.topic_ids = {topic.name: str(topic.topic_id) for topic in found if topic.topic_id != ZERO_UUID}
        self._leaders = {
            TopicPartition(topic.name, one.partition): one.leader for topic in found for one in topic.partitions
        }
        return sorted(self._leaders)

    def offsets_at(
        self, times: Mapping[TopicPartition, int], *, read_committed: bool, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]:
        """The offset at each time or `OffsetSpec`; -1 where every record is older. Without `missing_is_error`,
        partitions that do not exist are left out. Raises `ApiError`."""
        if not times:
            return {}
        plan = list_offsets(
            times, read_committed=read_committed, timeout_ms=self._operations.request_ms(None), leaders=self._leaders
        )
        found = self._call("listing offsets", plan, None)
        for error in found.errors.values():
            if missing_is_error or error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise error
        return {partition: each.offset for partition, each in found.succeeded.items()}

    def earliest(
        self, partitions: Iterable[TopicPartition], *, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]:
        """The first offset of each log."""
        times: dict[TopicPartition, int] = dict.fromkeys(partitions, int(OffsetSpec.EARLIEST))
        return self.offsets_at(times, read_committed=False, missing_is_error=missing_is_error)

    def latest(
        self, partitions: Iterable[TopicPartition], *, read_committed: bool, missing_is_error: bool = True
    ) -> dict[TopicPartition, int]:
        """The offset after the last record that may be read."""
        times: dict[TopicPartition, int] = dict.fromkeys(partitions, int(OffsetSpec.LATEST))
        return self.offsets_at(times, read_committed=read_committed, missing_is_error=missing_is_error)

    def end_transactions(self, ends: Mapping[str, EndTxnRequest], *, is_v2: Mapping[str, bool]) -> Outcomes[str, None]:
        """End transactions that producers left open, by transactional id. `is_v2`: whether the producer's
        transaction.version was 2. A request whose response was lost is sent again, which coordinators answer alike."""
        old = {name: end for name, end in ends.items() if not is_v2[name]}
        outcomes: Outcomes[str, None] = Outcomes()
        for group, max_version in ((old, _MAX_END_BEFORE_V2), ({k: v for k, v in ends.items() if k not in old}, None)):
            if group:
                outcomes.update(self._call("ending transactions", _end_transactions(group, max_version), None))
        return outcomes


def admin_of(kafka: Mapping[str, str]) -> SparkAdmin:
    """The process's client of this configuration, whose keys are those of a consumer or a producer."""
    global _owner_pid
    if _owner_pid != os.getpid():
        _clients.clear()
        _owner_pid = os.getpid()
    config = {name: value for name, value in kafka.items() if name in ADMIN}
    key = tuple(sorted(config.items()))
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = SparkAdmin(config)
    return client


def _end_transactions(ends: Mapping[str, EndTxnRequest], max_version: int | None) -> Plan[Outcomes[str, None]]:
    """EndTxn of each transactional id, by its coordinator. Only one is in a request, so each is a target of its own."""

    def build(names: list[str]) -> EndTxnRequest:
        (name,) = names
        return ends[name]

    def read(answer: Any, names: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        (name,) = names
        yield name, refused(answer.error_code, f"the end of transaction {name}") if answer.error_code else None

    return per_item(ends, lambda name: Target(TargetKind.TRANSACTION, name), build, read, max_version=max_version)
