"""How long nothing is acknowledged when a node of three dies, hangs, or is restarted.

    python bench/failover.py [--rounds 3] [--quick] [--only Kalda] [--session 3000 9000] [--cases kill hang]

Replication factor 3, min.insync.replicas 2, and one idempotent librdkafka producer with acks=all and its defaults,
which writes a record every 5 ms to each of three partitions, each led by another node. The figure is the longest time
without an acknowledgement in any one partition (with `all`, in all three). At the end all records are read back: the
benchmark fails where an acknowledged record is lost, doubled or out of order.

- `kill`: kill -9 of a node that leads a partition and is not the active controller. `kill, led`: its own partition's
  wait; `kill, followed`: the longest wait of those of which it was a follower.
- `controller`: kill -9 of the active controller, which leads a partition too.
- `hang`: SIGSTOP of a node that leads, for its session and 4 s more; then SIGCONT. Its kernel keeps the producer's
  connection open, so that the producer finds the new leader when its requests time out, or when it refreshes its
  metadata: `hang, led` depends on
  `--client request.timeout.ms=2000 socket.timeout.ms=2000 topic.metadata.refresh.interval.ms=500`.
- `rolling`: SIGTERM and restart of all, one after another.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from harness.clusters import SIZE, NodeGroup
from harness.figures import HERE
from harness.systems import KALDA, System, apache_kafka

TOPIC = "steady"
INTERVAL_MS = 5
CASES = ("kill", "controller", "hang", "rolling")
Samples = dict[tuple[str, str], list[float]]


class Writer:
    """The producer's process (`harness.steady`)."""

    def __init__(self, cluster: NodeGroup, settings: list[str]) -> None:
        arguments = [cluster.bootstrap, TOPIC, str(SIZE), str(INTERVAL_MS), *settings]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "harness.steady", *arguments],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, order: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()

    def ask(self, order: str) -> dict[str, Any]:
        """Send `report` or `end`, and return the producer's answer."""
        assert self.process.stdout is not None
        self.tell(order)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the producer has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wait_flowing(self) -> None:
        """Wait until every partition is acknowledged without long pauses."""
        while True:
            self.tell("mark")
            time.sleep(1.5)
            report = self.ask("report")
            if report["window_s"] > 1 and max(report["partitions_s"]) < 0.3:
                return

    def end(self) -> None:
        """End the producer; fail where an acknowledged record is missing."""
        found = self.ask("end")
        self.process.wait(60)
        if found["unsent"] or found["failed"] or found["lost"] or found["doubled"] or found["disordered"]:
            raise SystemExit(f"differs from what was acknowledged: {found}")
        print(f"  {found['acked']:,} acknowledged records, none lost, doubled or out of order", flush=True)


@contextmanager
def writing(cluster: NodeGroup, settings: list[str]) -> Iterator[Writer]:
    """A context with a running producer."""
    writer = Writer(cluster, settings)
    try:
        writer.wait_flowing()
        yield writer
        writer.end()
    finally:
        writer.process.kill()


class Bench:
    """The cases for one cluster; its samples are added to those of the others."""

    def __init__(self, samples: Samples, name: str, cluster: NodeGroup, session_ms: int) -> None:
        self._samples = samples
        self._name = name
        self._cluster = cluster
        self._session_ms = session_ms

    def _note(self, case: str, seconds: float) -> None:
        self._samples[case, self._name].append(seconds)
        print(f"  {case}: {seconds:.2f} s", flush=True)

    def run(self, cases: list[str], rounds: int, client: list[str]) -> None:
        self._cluster.create(TOPIC)
        with writing(self._cluster, client) as writer:
            for _ in range(rounds):
                for case in cases:
                    writer.wait_flowing()
                    writer.tell("mark")
                    getattr(self, case)(writer)
                    self._cluster.wait_whole(TOPIC)

    def _victim(self, active: bool) -> int:
        """A node that leads a partition: the active controller, or another one."""
        controller = self._cluster.controller()
        leaders = {partition.leader_id for partition in self._cluster.partitions(TOPIC).values()}
        return min(leader for leader in leaders if (leader == controller) is active)

    def _leads(self, node_id: int) -> int:
        """The partition that the node leads."""
        return next(at for at, p in self._cluster.partitions(TOPIC).items() if p.leader_id == node_id)

    def _kill(self, writer: Writer, active: bool, case: str) -> None:
        victim = self._victim(active)
        led = self._leads(victim)
        self._cluster.members[victim].end(signal.SIGKILL)
        time.sleep(self._session_ms / 1000 + 4)
        report = writer.ask("report")
        waits = report["partitions_s"]
        self._note(f"{case}, led", waits[led])
        self._note(f"{case}, followed", max(wait for at, wait in enumerate(waits) if at != led))
        self._note(f"{case}, all", report["any_s"])
        self._cluster.members[victim].start()

    def kill(self, writer: Writer) -> None:
        self._kill(writer, False, "kill")

    def controller(self, writer: Writer) -> None:
        self._kill(writer, True, "controller")

    def hang(self, writer: Writer) -> None:
        victim = self._victim(False)
        led = self._leads(victim)
        self._cluster.members[victim].send(signal.SIGSTOP)
        time.sleep(self._session_ms / 1000 + 4)
        self._cluster.members[victim].send(signal.SIGCONT)
        time.sleep(3)
        report = writer.ask("report")
        waits = report["partitions_s"]
        self._note("hang, led", waits[led])
        self._note("hang, followed", max(wait for at, wait in enumerate(waits) if at != led))
        self._note("hang, all", report["any_s"])

    def rolling(self, writer: Writer) -> None:
        for member in self._cluster.members.values():
            member.end(signal.SIGTERM)
            member.start()
            self._cluster.wait_whole(TOPIC)
        report = writer.ask("report")
        self._note("rolling, worst", max(report["partitions_s"]))
        self._note("rolling, all", report["any_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each case is run with each cluster")
    parser.add_argument("--quick", action="store_true", help="one round, of Kalda with its default session")
    parser.add_argument("--only", choices=("Kalda", "Kafka"), help="only this system")
    parser.add_argument("--session", type=int, nargs="+", default=[3_000, 9_000], help="of Kalda, in ms")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further properties of all nodes")
    parser.add_argument("--client", nargs="+", default=[], metavar="KEY=VALUE", help="settings of the producer")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.only, arguments.session = 1, "Kalda", [9_000]

    cases: list[tuple[System, int]] = []
    if arguments.only != "Kafka":
        cases += [(KALDA, session) for session in arguments.session]
    if arguments.only != "Kalda" and (kafka := apache_kafka("512M")) is not None:
        cases.append((kafka, 3_000))
    samples: Samples = defaultdict(list)
    for system, session_ms in cases:
        name = f"{system.name}, {session_ms / 1000:g} s"
        print(name, flush=True)
        settings: dict[str, object] = dict(each.split("=", 1) for each in arguments.set)
        settings["broker.session.timeout.ms"] = session_ms
        if session_ms < 6_000:
            settings["broker.heartbeat.interval.ms"] = 1_000
        with NodeGroup(system, settings) as cluster:
            Bench(samples, name, cluster, session_ms).run(arguments.cases, arguments.rounds, arguments.client)
    show(samples)


def show(samples: Samples) -> None:
    """Medians and extremes."""
    names = list(dict.fromkeys(name for _, name in samples))
    print(f"\n{'longest time without acknowledgements, s':<42}" + "".join(f"{name:>28}" for name in names))
    for case in dict.fromkeys(case for case, _ in samples):
        cells = ""
        for name in names:
            found = samples.get((case, name), [])
            cell = f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else "–"
            cells += f"{cell:>28}"
        print(f"{case:<42}{cells}")


if __name__ == "__main__":
    main()
