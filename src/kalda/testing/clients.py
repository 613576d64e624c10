"""What tests do with the records and groups of a cluster, over ordinary clients: `Cluster.produce`, `consume_all` and
`wait_for_group`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from kalda.base.errors import CallTimeout, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.admin_client import Admin
from kalda.client.admin.group_values import Group
from kalda.client.consumer.consumer import Consumer
from kalda.client.producer.producer import Producer
from kalda.clientcore.producing.producer_batch import RecordMetadata
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.records.consuming import Record

Text: TypeAlias = bytes | str | None
_POLL_S: Final = 0.02
_STABLE: Final = "Stable"
_EMPTY: Final = "Empty"
_NOT_YET: Final = frozenset(
    (
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
    )
)


def produce(
    config: Mapping[str, object],
    topic: str,
    records: Iterable[Text | tuple[Text, Text]],
    partition: int | None,
) -> list[RecordMetadata]:
    """Sends values, or pairs of a key and a value, and waits until all are acknowledged."""
    with Producer(config) as producer:
        futures = []
        for each in records:
            key, value = each if isinstance(each, tuple) else (None, each)
            futures.append(producer.send(topic, _bytes(value), key=_bytes(key), partition=partition))
        producer.flush()
        return [future.result() for future in futures]


def _bytes(text: Text) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def consume_all(
    config: Mapping[str, object], topic: str, timeout_s: float, written: Mapping[TopicPartition, int]
) -> list[Record]:
    """All committed records that the topic has now, by partition and offset: those before the offsets `written`, and
    what a broker has beyond. A leader that was separated answers with its own end until it has the metadata of the next
    one."""
    deadline_s = time.monotonic() + timeout_s
    with Admin(config) as admin:
        topics = admin.describe_topics([topic])
        partitions = [TopicPartition(topic, each.partition) for each in topics.value(topic).partitions]
    with Consumer({**config, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        left = {each: max(end, written.get(each, 0)) for each, end in consumer.end_offsets(*partitions).items()}
        found: list[Record] = []
        while left := {each: end for each, end in left.items() if consumer.position(each) < end}:
            if time.monotonic() >= deadline_s:
                raise CallTimeout(f"not within {timeout_s:.0f} s: all of {topic} is read; left are {_named(left)}")
            found += consumer.poll(timeout=0.1)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def _named(offsets: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{partition} up to {end}" for partition, end in offsets.items())


def wait_for_group(
    config: Mapping[str, object], group_id: str, members: int, max_lag: int | None, timeout_s: float
) -> Group:
    """Waits until the group is stable with that many members, and its lag is at most `max_lag`."""
    deadline_s = time.monotonic() + timeout_s
    with Admin(config) as admin:
        while True:
            seen = "there is no such group"
            found = admin.describe_groups([group_id])
            error = found.errors.get(group_id)
            if error is None:
                group = found.value(group_id)
                is_there = group.state == (_STABLE if members else _EMPTY) and len(group.members) == members
                lag = _lag(admin, group_id) if is_there and max_lag is not None else 0
                if is_there and lag is not None and lag <= (max_lag or 0):
                    return group
                seen = f"it is {group.state} with {len(group.members)} members"
                if is_there:
                    seen += " and has committed nothing" if lag is None else f" and a lag of {lag}"
            elif error.code not in _NOT_YET:
                raise error
            if time.monotonic() >= deadline_s:
                lagging = "" if max_lag is None else f" and a lag of at most {max_lag}"
                raise CallTimeout(
                    f"not within {timeout_s:.0f} s: group {group_id} has {members} members{lagging}; {seen}"
                )
            time.sleep(_POLL_S)


def _lag(admin: Admin, group_id: str) -> int | None:
    """The records behind the committed offsets; None where nothing is committed."""
    committed = admin.list_group_offsets(group_id).check()
    if not committed:
        return None
    ends = admin.list_offsets(dict.fromkeys(committed, OffsetSpec.LATEST)).check()
    return sum(ends.value(each).offset - committed.value(each).offset for each in committed)
