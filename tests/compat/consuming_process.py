"""A consumer in a process of its own, which prints each record as a line: topic partition offset value.

    python consuming_process.py SERVERS GROUP TOPIC STRATEGY

With `consumer` as the strategy it is a member by `group.protocol=consumer`, and TOPIC is an expression of the brokers.
Lines are flushed before the records' offsets can be committed, so what was committed was printed.
"""

from __future__ import annotations

import sys

from kalda import Consumer
from kalda.clientcore.consumer import SubscriptionPattern


def main() -> None:
    servers, group, topic, strategy = sys.argv[1:]
    settings: dict[str, object] = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": strategy,
    }
    topics: list[str] | SubscriptionPattern = [topic]
    if strategy == "consumer":
        for classic in ("session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"):
            del settings[classic]
        settings["group.protocol"] = "consumer"
        topics = SubscriptionPattern(topic)
    with Consumer(settings) as consumer:
        consumer.subscribe(topics, on_assigned=lambda partitions: print("assigned", len(partitions), flush=True))
        while True:
            for record in consumer.poll(0.2):
                print(record.topic, record.partition, record.offset, record.value.decode())
            sys.stdout.flush()


if __name__ == "__main__":
    main()
