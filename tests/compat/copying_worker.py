"""A process that copies a topic, exactly once: it consumes, produces, and commits its offsets in one transaction.

Arguments: the brokers' addresses, source, sink, group and transactional id. It runs until it is killed. It ends by
itself where its producer is fenced or fails for good, and where a call does not return: librdkafka 2.x may wait for
ever in `send_offsets_to_transaction` when brokers die at that moment, with no request under way. Whoever started the
process starts it again.
"""

from __future__ import annotations

import faulthandler
import sys
from typing import Any

import confluent_kafka

WAIT_S = 20
HANGS_AFTER_S = 60
MAX_RECORDS = 50
TRANSACTION_TIMEOUT_S = 10


def rewind(consumer: confluent_kafka.Consumer) -> None:
    """Consume again from the committed offsets, after an abort."""
    for partition in consumer.committed(consumer.assignment(), WAIT_S):
        offset = partition.offset if partition.offset >= 0 else confluent_kafka.OFFSET_BEGINNING
        consumer.seek(confluent_kafka.TopicPartition(partition.topic, partition.partition, offset))


def abort(producer: confluent_kafka.Producer) -> None:
    """Abort the transaction, however long that takes. Raises where the producer fails for good."""
    while True:
        try:
            producer.abort_transaction(WAIT_S)
        except confluent_kafka.KafkaException as failure:
            if not failure.args[0].retriable():
                raise
        else:
            return


def copy(consumer: confluent_kafka.Consumer, producer: confluent_kafka.Producer, sink: str, batch: list[Any]) -> None:
    """Copy some records in one transaction. Raises where it was aborted, after the abort."""
    producer.begin_transaction()
    try:
        for message in batch:
            producer.produce(sink, message.value(), message.key(), message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), WAIT_S
        )
        while True:
            try:
                producer.commit_transaction(WAIT_S)
            except confluent_kafka.KafkaException as failure:
                if failure.args[0].retriable():
                    continue
                raise
            return
    except confluent_kafka.KafkaException as failure:
        if failure.args[0].fatal():
            raise
        abort(producer)
        raise


def main(bootstrap: str, source: str, sink: str, group: str, transactional_id: str) -> None:
    """Copy until killed."""
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 1_000 * TRANSACTION_TIMEOUT_S,
            "message.timeout.ms": 1_000 * TRANSACTION_TIMEOUT_S,
            "linger.ms": 1,
            "log_level": 0,
        }
    )
    producer.init_transactions(WAIT_S * 3)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([source])
    while True:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        batch = [message for message in consumer.consume(MAX_RECORDS, 0.2) if message.error() is None]
        if not batch:
            continue
        try:
            copy(consumer, producer, sink, batch)
        except confluent_kafka.KafkaException as failure:
            if failure.args[0].fatal():
                raise
            rewind(consumer)


if __name__ == "__main__":
    main(*sys.argv[1:])
