"""Three Kalda nodes beside three of Apache Kafka: replicated rates and latencies, and the cost of many partitions.

    python bench/cluster.py [--quick] [--rounds 5] [--only throughput|latency|scale] [--alone] [--topics 1000] [--json]
                            [--pages-as-found]

Every node is broker and controller; topics have three partitions, each with a replica on every node, and
min.insync.replicas 2. For rates and latencies both clusters are up and measured in turn. While one is measured for
rates, the processes of the other are stopped (SIGSTOP): six busy nodes on a few cores measure the machine. Each round
deletes its topic, and before each round as much memory is touched as it writes (`harness/pages.py`), which
`--pages-as-found` leaves out. For `scale` only one cluster runs: topics are created, idle CPU is measured, a broker
that leads a third of the partitions is killed and restarted, then stopped (SIGSTOP) until its session has ended, and
continued.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from harness.blocking import BlockingConnection
from harness.clusters import SIZE, NodeGroup
from harness.figures import Figure, Figures, in_turn, run_client
from harness.pages import provide_pages
from harness.systems import systems

from kalda.base.errors import ApiError
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, ElectLeadersRequest

_TOPICS_A_REQUEST = 100
_IDLE_S = 15
_SESSION_S = 9
_LIMIT_S = 180
_WARM_UP_ROUNDS = 3
_RATES_SETTINGS = {"broker.session.timeout.ms": 600_000, "log.segment.delete.delay.ms": 1_000}
"""No node is fenced while it is stopped, and the pages of a deleted topic are free soon."""


@contextmanager
def others_stopped(cluster: NodeGroup, clusters: Sequence[NodeGroup]) -> Iterator[None]:
    """Only the nodes of one cluster run. Afterwards the others do again, and have a controller."""
    others = [each for each in clusters if each is not cluster]
    for each in others:
        each.send(signal.SIGSTOP)
    try:
        yield
    finally:
        for each in others:
            each.send(signal.SIGCONT)
        for each in others:
            each.wait(lambda each=each: each.controller() is not None, "there is an active controller")  # type: ignore[misc]


class Rates:
    """Both clusters in turn."""

    def __init__(
        self, clusters: Sequence[NodeGroup], rounds: int, share: float, figures: Figures, *, provides_pages: bool
    ) -> None:
        self._provides_pages = provides_pages
        self._clusters = clusters
        self._rounds = rounds
        self._share = share
        self._figures = figures

    def _counted(self, count: int) -> int:
        """How many records one round has: whole chunks for each of the three partitions."""
        return max(30_000, int(count * self._share) // 30_000 * 30_000)

    def throughput(self) -> None:
        """Produce through librdkafka, acknowledged by all in-sync replicas, at 100 B and at 1 KB."""
        for cluster in self._clusters:  # a JVM is slow until its compiler has seen the code of both sizes under load
            for number in range(_WARM_UP_ROUNDS):
                topic = f"warm-up-rates-{number}"
                with others_stopped(cluster, self._clusters):
                    cluster.create(topic)
                    for size, count in ((100, 1_200_000), (1024, 240_000)):
                        run_client("produce_spread", cluster, topic, self._counted(count), size)
                    cluster.delete(topic)
        for size, label, count, unit, scale in (
            (100, "100 B", 1_200_000, "M records/s", 1e-6),
            (1024, "1 KB", 240_000, "MB/s", 1024e-6),
        ):
            counted = self._counted(count)

            def work(
                cluster: NodeGroup, number: int, size: int = size, label: str = label, counted: int = counted,
                unit: str = unit, scale: float = scale,
            ) -> None:  # fmt: skip
                topic = f"records-{size}-{number}"
                with others_stopped(cluster, self._clusters):
                    cluster.create(topic)
                    if self._provides_pages:
                        provide_pages(SIZE * counted * size)
                    before = cluster.cpu_s()
                    seen = run_client("produce_spread", cluster, topic, counted, size)
                    used = sum(after - before[node_id] for node_id, after in cluster.cpu_s().items())
                    cluster.delete(topic)
                figure = Figure(f"produce {label}, RF 3, acks=all", unit, scale=scale)
                self._figures.add(figure, cluster.name, seen["per_s"])
                self._figures.add(Figure(f"  cores of the client, {label}", ""), cluster.name, seen["cores"])
                cpu = Figure(f"  CPU of all nodes, {label}", "ms/MB", True, 1e3)
                self._figures.add(cpu, cluster.name, used / (counted * size / 1e6))

            in_turn(self._clusters, self._rounds, work)

    def latency(self) -> None:
        """From produce to consume, one record at a time, and the round trip of a produce alone."""
        count = max(500, int(5_000 * self._share))
        for cluster in self._clusters:  # a JVM is slow until it has seen a request some thousand times
            cluster.create("warm-up")
            run_client("end_to_end", cluster, "warm-up", 2_000, 100)

        def work(cluster: NodeGroup, number: int) -> None:
            topic = f"latency-{number}"
            cluster.create(topic)
            taken = run_client("end_to_end", cluster, topic, count, 100)
            for key, percentile in (("p50_us", "p50"), ("p99_us", "p99")):
                self._figures.add(
                    Figure(f"produce to consume, RF 3, {percentile}", "ms", True, 1e-3), cluster.name, taken[key]
                )

        in_turn(self._clusters, self._rounds, work)


class Scale:
    """One cluster with many topics."""

    def __init__(self, cluster: NodeGroup, topics: int, figures: Figures) -> None:
        self._cluster = cluster
        self._topics = topics
        self._figures = figures
        self._partitions = topics * SIZE

    def run(self) -> None:
        cluster = self._cluster
        cluster.wait(lambda: len(cluster.brokers()) == SIZE, "all brokers are registered")
        cluster.wait(lambda: cluster.controller() is not None, "there is an active controller")
        self._create()
        time.sleep(10)
        self._idle()
        self._lead_as_preferred()
        victim = min(node_id for node_id in cluster.members if node_id != cluster.controller())
        self._fail(victim, "kill -9")
        self._come_back(victim, "kill -9")
        self._lead_as_preferred()
        self._fail(victim, "SIGSTOP")
        self._come_back(victim, "SIGSTOP")

    def _note(self, title: str, unit: str, value: float) -> None:
        print(f"  {self._cluster.name}: {title}: {value:.2f} {unit}", flush=True)
        self._figures.add(Figure(title, unit, True), self._cluster.name, value)

    def _create(self) -> None:
        before, began = self._cluster.cpu_s(), time.perf_counter()
        with BlockingConnection("127.0.0.1", self._cluster.port, timeout_ms=120_000) as connection:
            for start in range(0, self._topics, _TOPICS_A_REQUEST):
                names = range(start, min(self._topics, start + _TOPICS_A_REQUEST))
                topics = [CreatableTopic(name=f"t{n}", num_partitions=SIZE, replication_factor=SIZE) for n in names]
                for made in connection.request(CreateTopicsRequest(topics=topics, timeout_ms=120_000)).topics:
                    if made.error_code:
                        raise SystemExit(f"{self._cluster.name}: {made.name}: {made.error_message or made.error_code}")
        self._until(lambda: all(self._whole(node_id) for node_id in self._cluster.members), "every topic is whole")
        self._until(
            lambda: all(self._logs_of(node_id) == self._partitions for node_id in self._cluster.members), "logs"
        )
        self._note(f"{self._topics:,} topics of {SIZE} partitions made", "s", time.perf_counter() - began)
        used = sum(after - before[node_id] for node_id, after in self._cluster.cpu_s().items())
        self._note("  CPU of all nodes", "s", used)

    def _idle(self) -> None:
        before, began = self._cluster.cpu_s(), time.perf_counter()
        time.sleep(_IDLE_S)
        took = time.perf_counter() - began
        used = [(after - before[node_id]) / took for node_id, after in self._cluster.cpu_s().items()]
        self._note(f"idle CPU of a node, {self._partitions:,} partitions", "%", 100 * sum(used) / SIZE)

    def _fail(self, victim: int, how: str) -> None:
        """Measure the time until, in every other node's metadata, other nodes lead all partitions."""
        others = [node_id for node_id in self._cluster.members if node_id != victim]
        led = self._led_by(others[0], victim)
        began = time.perf_counter()
        if how == "SIGSTOP":
            self._cluster.members[victim].send(signal.SIGSTOP)
        else:
            self._cluster.members[victim].end(signal.SIGKILL)
        self._until(lambda: all(self._led_by(node_id, victim) == 0 for node_id in others), "others lead")
        title = f"{led:,} partitions led by others, {how}"
        if how == "SIGSTOP":
            self._note(f"{title}, after its session", "s", time.perf_counter() - began - _SESSION_S)
        else:
            self._note(title, "s", time.perf_counter() - began)

    def _come_back(self, victim: int, how: str) -> None:
        """Measure the time until every replica is in sync again in every node's metadata."""
        began = time.perf_counter()
        if how == "SIGSTOP":
            self._cluster.members[victim].send(signal.SIGCONT)
        else:
            self._cluster.members[victim].start()
        self._until(lambda: all(self._whole(node_id) for node_id in self._cluster.members), "all are in sync")
        self._note(f"all replicas in sync again, {how}", "s", time.perf_counter() - began)

    def _lead_as_preferred(self) -> None:
        self._cluster.ask(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=60_000))
        self._until(lambda: self._led_by(1, 1) == self._topics, "the first replicas lead")

    # Requests to one node.

    def _partitions_of(self, node_id: int) -> list[Any]:
        try:
            with BlockingConnection("127.0.0.1", self._cluster.members[node_id].port, timeout_ms=60_000) as connection:
                topics = connection.request(MetadataRequest(topics=None)).topics
        except ApiError:
            return []
        return [partition for topic in topics if not topic.is_internal for partition in topic.partitions]

    def _whole(self, node_id: int) -> bool:
        found = self._partitions_of(node_id)
        return len(found) == self._partitions and all(p.leader_id >= 0 and len(p.isr_nodes) == SIZE for p in found)

    def _logs_of(self, node_id: int) -> int:
        """How many replicas have a log; in the metadata they are in sync from their creation on."""
        data = self._cluster.members[node_id].directory / "data"
        return sum(1 for path in data.glob("t*-*/00000000000000000000.log"))

    def _led_by(self, node_id: int, leader_id: int) -> int:
        """How many partitions a node leads in another node's metadata; -1 while that does not have all."""
        found = self._partitions_of(node_id)
        return sum(p.leader_id == leader_id for p in found) if len(found) == self._partitions else -1

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _LIMIT_S
        while not holds():
            if time.monotonic() > until:
                raise SystemExit(
                    f"{self._cluster.name}: not in time: {what}; the logs are in {self._cluster.directory}"
                )
            time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two rounds of a tenth of the work")
    parser.add_argument("--rounds", type=int, default=0, help="rounds over both clusters (5; quick: 2)")
    parser.add_argument("--only", choices=("throughput", "latency", "scale"), help="one part")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--topics", type=int, default=1_000, help="of three partitions each, for scale")
    parser.add_argument("--pages-as-found", action="store_true", help="touch no memory before a round")
    parser.add_argument("--json", action="store_true", help="keep every sample in bench/results")
    arguments = parser.parse_args()

    measured = systems("512M", alone=arguments.alone)  # half the heap of a lone node
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    figures = Figures()
    settings = {"broker.session.timeout.ms": _SESSION_S * 1000}
    if arguments.only != "scale":
        with ExitStack() as stack:
            clusters = [stack.enter_context(NodeGroup(system, _RATES_SETTINGS)) for system in measured]
            share = 0.1 if arguments.quick else 1.0
            rates = Rates(clusters, rounds, share, figures, provides_pages=not arguments.pages_as_found)
            for part in (rates.throughput, rates.latency):
                if arguments.only in (None, part.__name__):
                    part()
    if arguments.only in (None, "scale"):
        for number in range(max(1, rounds // 2)):
            for system in measured if number % 2 == 0 else reversed(measured):
                with NodeGroup(system, settings) as cluster:
                    Scale(cluster, arguments.topics, figures).run()
    figures.show([system.name for system in measured])
    if arguments.json:
        print(f"\nsamples: {figures.save('cluster')}")


if __name__ == "__main__":
    main()
