"""A member of a group that copies a topic with Kalda's clients, until it is killed.

    python copying_member.py SERVERS GROUP SOURCE SINK [TRANSACTIONAL_ID]

With a transactional id, each batch of records and its offsets are one transaction. Without one, the offsets are
committed when the copies are acknowledged. It ends by itself where its producer was fenced.
"""

from __future__ import annotations

import contextlib
import sys

from kalda import Consumer, Producer
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.consumer_errors import CommitFailed
from kalda.clientcore.producing.producer_errors import FatalTransactionError

MAX_RECORDS = 50


def rewind(consumer: Consumer) -> None:
    """Read again what was not committed."""
    for partition, committed in consumer.committed().items():
        with contextlib.suppress(ValueError):  # it was revoked meanwhile
            if committed is None:
                consumer.seek_to_beginning(partition)
            else:
                consumer.seek(partition, committed.offset)


def copy(consumer: Consumer, producer: Producer, sink: str, is_transactional: bool) -> None:
    """Copy what one poll returns."""
    records = consumer.poll(0.2, MAX_RECORDS)
    if not records:
        return
    offsets = {TopicPartition(each.topic, each.partition): each.offset + 1 for each in records}
    if is_transactional:
        with producer.transaction():
            for each in records:
                producer.send(sink, each.value, partition=each.partition)
            producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
        return
    for future in [producer.send(sink, each.value, partition=each.partition) for each in records]:
        future.result()
    with contextlib.suppress(CommitFailed):  # others read these records again
        consumer.commit({**offsets})


def main() -> int:
    servers, group, source, sink, *transactional = sys.argv[1:]
    reading: dict[str, object] = {
        "bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "isolation.level": "read_committed",
        "session.timeout.ms": 3_000, "heartbeat.interval.ms": 500,
    }  # fmt: skip
    writing: dict[str, object] = {"bootstrap.servers": servers, "linger.ms": 0}
    if transactional:
        writing |= {"transactional.id": transactional[0], "transaction.timeout.ms": 10_000}
    with Producer(writing) as producer, Consumer(reading) as consumer:
        consumer.subscribe([source])
        while True:
            try:
                copy(consumer, producer, sink, bool(transactional))
            except FatalTransactionError as error:
                print(error, file=sys.stderr, flush=True)
                return 3
            except ApiError as error:
                print(error, file=sys.stderr, flush=True)
                rewind(consumer)


if __name__ == "__main__":
    sys.exit(main())
