"""A consumer in a process of its own, which prints each record as a line: topic partition offset value.

    python consuming_process.py SERVERS GROUP TOPIC STRATEGY

Lines are flushed before the records' offsets can be committed, so what was committed was printed.
"""

from __future__ import annotations

import sys

from kalda import Consumer


def main() -> None:
    servers, group, topic, strategy = sys.argv[1:]
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": strategy,
    }
    with Consumer(settings) as consumer:
        consumer.subscribe([topic], on_assigned=lambda partitions: print("assigned", len(partitions), flush=True))
        while True:
            for record in consumer.poll(0.2):
                print(record.topic, record.partition, record.offset, record.value.decode())
            sys.stdout.flush()


if __name__ == "__main__":
    main()
