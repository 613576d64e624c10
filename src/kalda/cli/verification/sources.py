"""Where loops read their input: partitions of their own, or those that a group assigns to its member."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kalda.base.configs.consumer import CONSUMER
from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.verification.loops import ReadBatch
from kalda.cli.verification.observers import CommittedReader, seen
from kalda.cli.verification.recording import now_us
from kalda.client.consumer.consumer import Consumer
from kalda.client.transport.config_files import keys_of
from kalda.clientcore.consuming.commits import GroupMetadata
from kalda.records.consuming import Record

_POLL_S = 0.2
_MAX_RECORDS = 20
_SESSION_MS = 6_000
"""Shorter than most pauses of members; brokers accept no shorter one by default."""


class GroupSource:
    """Partitions of the loop's own: a `Source` over the offsets of a group without members."""

    def __init__(self, admin: CommandAdmin, group: str, partitions: Collection[TopicPartition]) -> None:
        self._admin = admin
        self._group = group
        self._partitions = partitions
        self._reader: CommittedReader | None = None
        self._committed: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}

    def poll(self) -> tuple[list[ReadBatch], None]:
        """A batch, which may be without records; before the first one, it waits as `rewind`. Raises `ApiError`."""
        if self._reader is None:
            self.rewind()
        assert self._reader is not None, "`rewind` has made it"
        batch = self._reader.poll()
        if batch is None:
            return [], None
        self.positions[batch.partition] = batch.end
        return [batch], None

    def rewind(self) -> None:
        """Waits until no transaction of the group is open. Raises `ApiError`."""
        if self._reader is not None:
            self._reader.close()
        found = self._admin.list_group_offsets(self._group, self._partitions, require_stable=True).check().succeeded
        self._committed = {each: found[each].offset if each in found else 0 for each in self._partitions}
        self.positions = dict(self._committed)
        self._reader = CommittedReader(self._admin.config, self._committed)

    def committed(self, partition: TopicPartition) -> int:
        return self._committed[partition]

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        self._committed |= ends


class MemberSource:
    """A member of a group: a `Source` over the client's own consumer. It leaves the group by `close`."""

    def __init__(self, config: Mapping[str, object], group: str, topics: Collection[str]) -> None:
        """`config` is that of a client of the cluster."""
        self._consumer = Consumer(
            {
                **keys_of(CONSUMER, config),
                "group.id": group,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _SESSION_MS // 6,
                "metadata.max.age.ms": 5_000,
            }
        )
        self._committed: dict[TopicPartition, int] = {}
        """The group's offsets of the partitions that were read since they were assigned."""
        self._positions: dict[TopicPartition, int] = {}
        self._consumer.subscribe(list(topics), on_assigned=self._forget, on_revoked=self._forget, on_lost=self._forget)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._committed.pop(partition, None)
            self._positions.pop(partition, None)

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        return self._consumer.assignment()

    def poll(self) -> tuple[list[ReadBatch], GroupMetadata]:
        begun_us = now_us()
        records = self._consumer.poll(_POLL_S, _MAX_RECORDS)
        member = self._consumer.group_metadata()
        found: dict[TopicPartition, list[Record]] = {}
        for record in records:
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        batches = []
        for partition, read in found.items():
            start = self._positions.get(partition, -1)
            if start < 0:
                start = self.committed(partition)
            end = self._positions[partition] = read[-1].offset + 1
            batches.append(ReadBatch(partition, start, end, seen(read), begun_us, now_us()))
        return batches, member

    def committed(self, partition: TopicPartition) -> int:
        known = self._committed.get(partition)
        if known is None:
            found = self._consumer.committed(partition, timeout=_SESSION_MS / 1_000)[partition]
            known = self._committed[partition] = 0 if found is None else found.offset
        return known

    def on_committed(self, ends: Mapping[TopicPartition, int]) -> None:
        self._committed |= ends

    def rewind(self) -> None:
        self._committed.clear()
        self._positions.clear()
        for partition in self._consumer.assignment():
            self._consumer.seek(partition, self.committed(partition))

    def close(self) -> None:
        self._consumer.close(1.0)
