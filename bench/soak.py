"""The memory of a node under hours of topics made and deleted, groups joined and left, connections opened and closed.

    python bench/soak.py [--minutes 60] [--standing 0] [--quick]

One turn makes a topic of four partitions, produces to it, lets a member join a group, read the topic and leave, opens
and closes fifty connections, and deletes the topic. The groups have fifty names in turn; their offsets stay, as a
broker keeps them for seven days. `--standing` leaves as many topics in place, spread over the run, so that the memory
of a topic is known. Resident memory is printed each minute; at the end, how fast the second half
of the run has grown.
"""

from __future__ import annotations

import argparse
import itertools
import socket
import time

from harness.blocking import BlockingConnection
from harness.nodes import Node
from harness.systems import KALDA

from kalda import Consumer
from kalda.protocol.messages.partitions import PartitionProduceData, ProduceRequest, TopicProduceData
from kalda.protocol.messages.topics import DeleteTopicsRequest, DeleteTopicState
from kalda.records.builder import build_batch

_PARTITIONS = 4
_BATCHES = 10
_GROUPS = 50
_CONNECTIONS = 50
_SETTINGS = "offsets.topic.num.partitions=4\nlog.segment.delete.delay.ms=1000\n"


class Soak:
    """One node, and what it goes through."""

    def __init__(self, node: Node, standing: int, seconds: float) -> None:
        self._node = node
        self._standing = standing
        self._seconds = seconds
        self._left = 0
        self.turns = 0
        self.seen: list[tuple[float, float]] = []
        """(seconds, resident MB), once a minute."""

    def run(self) -> None:
        began = time.monotonic()
        for minute in itertools.count(1):
            while (passed := time.monotonic() - began) < min(60.0 * minute, self._seconds):
                self._turn(keep=self._left < self._standing * passed / self._seconds)
            self.seen.append((passed, self._node.rss_mb()))
            print(
                f"{passed / 60:6.1f} min  {self.turns:6} turns  {self._left:5} topics  {self.seen[-1][1]:7.1f} MB",
                flush=True,
            )
            if passed >= self._seconds:
                return

    def growth(self) -> float:
        """MB an hour in the second half, by the line through the samples."""
        half = self.seen[len(self.seen) // 2 :]
        mean_s = sum(at for at, _ in half) / len(half)
        mean_mb = sum(size for _, size in half) / len(half)
        spread = sum((at - mean_s) ** 2 for at, _ in half)
        return 3600 * sum((at - mean_s) * (size - mean_mb) for at, size in half) / spread if spread else 0.0

    def _turn(self, *, keep: bool) -> None:
        self.turns += 1
        name = f"topic-{self.turns}"
        self._node.create_topics([name], _PARTITIONS)
        with BlockingConnection("127.0.0.1", self._node.port, timeout_ms=60_000) as connection:
            for number in range(_BATCHES):
                batch = build_batch([(int(time.time() * 1000), b"key", bytes(100), ()) for _ in range(10)])
                data = [PartitionProduceData(index=number % _PARTITIONS, records=batch)]
                topics = [TopicProduceData(name=name, partition_data=data)]
                request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics)
                while connection.request(request, 12).responses[0].partition_responses[0].error_code:
                    time.sleep(0.05)  # a new partition has no leader yet
            self._join(name)
            for peer in [socket.create_connection(("127.0.0.1", self._node.port)) for _ in range(_CONNECTIONS)]:
                peer.close()
            if keep:
                self._left += 1
            else:
                deleted = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=30_000)
                connection.request(deleted, 6)

    def _join(self, topic: str) -> None:
        wanted = 10 * _BATCHES
        with Consumer(
            bootstrap_servers=f"127.0.0.1:{self._node.port}",
            group_id=f"group-{self.turns % _GROUPS}",
            auto_offset_reset="earliest",
            allow_auto_create_topics=False,
        ) as consumer:
            consumer.subscribe([topic])
            while wanted > 0:
                wanted -= len(consumer.poll(timeout=30))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--standing", type=int, default=0, help="topics that are left in place")
    parser.add_argument("--quick", action="store_true", help="two minutes")
    arguments = parser.parse_args()
    node = Node(KALDA, _SETTINGS)
    try:
        node.start()
        soak = Soak(node, arguments.standing, 60 * (2.0 if arguments.quick else arguments.minutes))
        soak.run()
        print(f"growth in the second half: {soak.growth():.1f} MB an hour")
    finally:
        node.close()


if __name__ == "__main__":
    main()
