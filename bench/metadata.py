"""How long a node takes to start in a cluster whose metadata log has a million records.

    python bench/metadata.py [--quick] [--records 1000000] [--states few many] [--from log snapshot] [--rounds 2]

Three nodes, each broker and controller, have that log on their disks. `few`: nearly all records are repeated changes of
a few hundred topics. `many`: nearly all are topics of three partitions. With `--from snapshot` they have a snapshot of
the log instead, of nearly a million records for `many` and a thousand for `few`.

- *cold*: all three are started at once.
- *back*: a node that does not lead the quorum is killed (kill -9) and started again.
- *empty*: it is killed, its disk is emptied and formatted, and it is started: it fetches everything from the leader.

The time is from exec until it answers a Metadata request on its own listener: it has caught up then, and is unfenced.
Its CPU seconds depend less on other load of the machine. Meanwhile ten requests a second go to the leader's controller
listener, and to the node's own: the longest wait for an answer bounds the time for which their event loops were
blocked.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

from harness.blocking import BlockingConnection
from harness.clusters import Member, NodeGroup
from harness.figures import Figure, Figures
from harness.metadata_log import write_log, write_snapshot_of
from harness.systems import KALDA

from kalda.base.errors import ApiError
from kalda.metadata.formatter import METADATA_DIR
from kalda.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest

_START_S = 280.0
_EVERY_S = 0.1
_ASKED = ApiVersionsRequest(client_software_name="bench", client_software_version="1")


class Watch:
    """Sends requests to a controller's listener all the time, and keeps the longest wait for an answer."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest_s = 0.0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            try:
                with BlockingConnection("127.0.0.1", self._port, timeout_ms=60_000) as connection:
                    connection.request(_ASKED)  # a starting node opens its port first, and answers later
                    while not self._stop.wait(_EVERY_S):
                        began = time.perf_counter()
                        connection.request(_ASKED)
                        self.longest_s = max(self.longest_s, time.perf_counter() - began)
            except (ApiError, OSError):
                continue


def serves(member: Member) -> bool:
    """Whether its own listener answers; it opens when the broker is unfenced."""
    try:
        with BlockingConnection("127.0.0.1", member.port, timeout_ms=2_000) as connection:
            return any(b.node_id == member.id for b in connection.request(MetadataRequest(topics=[])).brokers)
    except (ApiError, OSError):
        return False


def wait_for(cluster: NodeGroup, members: list[Member], began: float) -> dict[int, float]:
    """Seconds from `began` until each serves."""
    took: dict[int, float] = {}
    while len(took) < len(members):
        for member in members:
            assert member.process is not None
            if member.process.poll() is not None or time.perf_counter() - began > _START_S:
                raise SystemExit(f"node {member.id} did not come up; the logs are in {cluster.directory}")
            if member.id not in took and serves(member):
                took[member.id] = time.perf_counter() - began
        time.sleep(0.05)
    return took


def furnish(member: Member, source: Path) -> None:
    """Copy a metadata log or a snapshot into the node's metadata directory."""
    directory = member.directory / "data" / METADATA_DIR
    directory.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        shutil.copyfile(file, directory / file.name)


def rejoin(cluster: NodeGroup, kind: str, figures: Figures, name: str) -> None:
    """Kill a follower, and measure its restart."""
    leader = cluster.controller()
    assert leader is not None
    member = next(m for m in cluster.members.values() if m.id != leader)
    member.end(signal.SIGKILL)
    if kind == "empty":
        text = member.properties.read_text(encoding="utf-8")
        shutil.rmtree(member.directory / "data")
        member.format(text)
    time.sleep(1)
    before = cluster.cpu_s()[leader]
    with Watch(cluster.members[leader].controller_port) as of_leader, Watch(member.controller_port) as own:
        began = time.perf_counter()
        member.start()
        took = wait_for(cluster, [member], began)[member.id]
        cpu = cluster.cpu_s()
        time.sleep(3)
    figures.add(Figure(f"{kind}: until it serves", "s", True), name, took)
    figures.add(Figure(f"{kind}: its CPU until then", "s", True), name, cpu[member.id])
    figures.add(Figure(f"{kind}: the leader's CPU meanwhile", "s", True), name, cpu[leader] - before)
    figures.add(Figure(f"{kind}: longest wait on it", "ms", True, 1e3), name, own.longest_s)
    figures.add(Figure(f"{kind}: longest wait on the leader", "ms", True, 1e3), name, of_leader.longest_s)


def measure(source: Path, rounds: int, figures: Figures, name: str) -> None:
    """All measurements of a cluster that begins with `source`."""
    cluster = NodeGroup(KALDA, {})
    for member in cluster.members.values():
        furnish(member, source)
    watches = [Watch(member.controller_port) for member in cluster.members.values()]
    for watch in watches:
        watch.__enter__()
    began = time.perf_counter()
    with cluster:
        took = wait_for(cluster, list(cluster.members.values()), began)
        for node_id, cpu_s in cluster.cpu_s().items():
            figures.add(Figure("cold: until it serves", "s", True), name, took[node_id])
            figures.add(Figure("cold: its CPU until then", "s", True), name, cpu_s)
        wait_for_snapshots(cluster, figures, name)
        for watch in watches:
            watch.__exit__()
            figures.add(Figure("cold: longest wait", "ms", True, 1e3), name, watch.longest_s)
        for _ in range(rounds):
            for kind in ("back", "empty"):
                rejoin(cluster, kind, figures, name)


def wait_for_snapshots(cluster: NodeGroup, figures: Figures, name: str) -> None:
    """Where nodes write a snapshot after their start, wait until they have."""
    time.sleep(3)
    until = time.perf_counter() + _START_S
    for member in cluster.members.values():
        while True:
            text = (member.directory / "server.log").read_text(encoding="utf-8")
            due, written = text.count(", because "), text.count(" is written")
            if due <= written or time.perf_counter() > until:
                break
            time.sleep(0.5)
        took = snapshot_s(text)
        if took is not None:
            figures.add(Figure("a snapshot taken", "s", True), name, took)


def snapshot_s(text: str) -> float | None:
    """Seconds between the two lines of the first snapshot."""
    times = re.findall(r"^\[(\S+ \S+)\].*snapshot \d{20}-\d{10}(?:, because| is written)", text, re.MULTILINE)
    if len(times) < 2:
        return None
    first, second = (time.mktime(time.strptime(t[:19], "%Y-%m-%d %H:%M:%S")) + int(t[20:23]) / 1e3 for t in times[:2])
    return second - first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000, help="records in the log")
    parser.add_argument("--states", nargs="+", default=["few", "many"], choices=["few", "many"])
    parser.add_argument("--from", dest="sources", nargs="+", default=["log", "snapshot"], choices=["log", "snapshot"])
    parser.add_argument("--rounds", type=int, default=2, help="returns of each kind")
    parser.add_argument("--quick", action="store_true", help="100,000 records, one round")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.records, arguments.rounds = 100_000, 1

    figures = Figures()
    names: list[str] = []
    for state in arguments.states:
        made = Path(tempfile.mkdtemp(prefix="bench-metadata-"))
        try:
            size = write_log(made / "log", state, arguments.records).bytes
            print(f"{state}: {arguments.records:,} records in {size / 1e6:.0f} MB", flush=True)
            sources = {"log": made / "log" / METADATA_DIR}
            if "snapshot" in arguments.sources:
                sources["snapshot"] = made / "snapshot"
                count = write_snapshot_of(sources["log"], sources["snapshot"])
                print(f"{state}: {count:,} records in the snapshot", flush=True)
            for source in arguments.sources:
                names.append(f"{state}, {source}")
                measure(sources[source], arguments.rounds, figures, names[-1])
        finally:
            shutil.rmtree(made)
    figures.show(names)
    print(f"samples are in {figures.save('metadata')}")


if __name__ == "__main__":
    main()
