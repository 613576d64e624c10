"""Share groups beside Apache Kafka's: records consumed a second by one and by ten members, and commits' round trips.

    python bench/share.py [--quick] [--records 1000000] [--size 100] [--rounds 3] [--alone]

Both nodes run at the same time, and take turns. The clients are the same for both: Kafka's own share consumer
(`ShareConsumerPerformance`, ten members are ten threads of it, and its time counts from before it joins), and
`kalda.ShareConsumer`, a process for each member. All of them read a topic of three partitions from its beginning, in a
group of its own, and acknowledge implicitly. A round trip is a `commit_sync` of one record, by `kalda.ShareConsumer` in
explicit mode. Ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time

from harness.client import produce_spread
from harness.nodes import Node
from harness.systems import java_command, systems

from kalda import Admin, Alteration, ConfigOperation, ConfigResource, ConfigResourceType

_TOPIC = "shared"
_PARTITIONS = 3
_MEMBERS = (1, 10)
_COMMITS = 1_000
_LIMIT_S = 300
_groups = itertools.count(1)
Figures = dict[str, float]


def new_group(port: int) -> str:
    """A group that begins with the first record."""
    name = f"share-{next(_groups)}"
    begin = Alteration("share.auto.offset.reset", ConfigOperation.SET, "earliest")
    with Admin(bootstrap_servers=f"127.0.0.1:{port}") as admin:
        admin.alter_configs({ConfigResource(ConfigResourceType.GROUP, name): [begin]}).check()
    return name


def by_kafka(port: int, count: int, members: int) -> Figures:
    """Records a second of Kafka's share consumer."""
    arguments = {
        "--bootstrap-server": f"127.0.0.1:{port}",
        "--topic": _TOPIC,
        "--group": new_group(port),
        "--num-records": str(count),
        "--threads": str(members),
        "--timeout": "60000",
    }
    command = [*java_command("org.apache.kafka.tools.ShareConsumerPerformance", "512M"), "--hide-header"]
    command += list(itertools.chain.from_iterable(arguments.items()))
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    found = [columns for line in done.stdout.splitlines() if len(columns := line.split(", ")) == 7 and line[:2] == "20"]
    if done.returncode or not found:
        raise SystemExit(
            f"ShareConsumerPerformance has failed at port {port}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return {"records_s": float(found[-1][4])}


def by_kalda(port: int, count: int, members: int) -> Figures:
    """Records a second of `kalda.ShareConsumer`, a process each: from the first one's first record to the last one."""
    group = new_group(port)
    each = [sys.executable, __file__, "--consume", str(port), group]
    processes = [subprocess.Popen(each, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(members)]
    began, got = 0.0, 0

    def said(process: subprocess.Popen[bytes]) -> int:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    try:
        for process in processes:
            said(process)  # all are there before one begins
        while got < count:
            got += sum(map(said, processes))
            if got and not began:
                began, before = time.perf_counter(), got
            time.sleep(0.02)
        return {"records_s": (got - before) / (time.perf_counter() - began)}
    finally:
        for process in processes:
            process.kill()
            process.wait()


def consume(port: int, group: str) -> None:
    """A member, which joins with the second line: for each line that comes, the number of records that it has got since
    the last one is printed."""
    import threading

    from kalda import ShareConsumer

    seen, printed = [0], 0
    consumer = ShareConsumer(bootstrap_servers=f"127.0.0.1:{port}", group_id=group, max_poll_records=2_000)

    def poll() -> None:
        consumer.subscribe(_TOPIC)
        while True:
            seen[0] += len(consumer.poll(1))

    for number, _ in enumerate(sys.stdin):
        if number == 1:
            threading.Thread(target=poll, daemon=True).start()
        now = seen[0]
        print(now - printed, flush=True)
        printed = now


def round_trips(port: int, count: int, _members: int) -> Figures:
    """p50 and p99 of the commit of one record, in ms."""
    from kalda import ShareConsumer

    taken: list[float] = []
    keys = {"share.acknowledgement.mode": "explicit", "share.acquire.mode": "record_limit", "max.poll.records": 50}
    with ShareConsumer(keys, bootstrap_servers=f"127.0.0.1:{port}", group_id=new_group(port)) as consumer:
        consumer.subscribe(_TOPIC)
        while len(taken) < count:
            for record in consumer.poll(5):
                consumer.acknowledge(record)
                began = time.perf_counter()
                failed = [error for error in consumer.commit_sync().values() if error is not None]
                taken.append(1e3 * (time.perf_counter() - began))
                if failed:
                    raise SystemExit(f"a commit has failed: {failed[0]}")
    taken = sorted(taken[:count])
    return {"p50_ms": taken[count // 2], "p99_ms": taken[count * 99 // 100]}


def main() -> None:
    """Measure, and print the medians and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commits", type=int, default=_COMMITS)
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the work")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--json", action="store_true", help="print every sample")
    parser.add_argument("--consume", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.consume:
        consume(int(given.consume[0]), given.consume[1])
        return
    if given.quick:
        given.rounds, given.records, given.commits = 1, given.records // 10, given.commits // 10
    seen: dict[str, dict[str, list[float]]] = {}
    with contextlib.ExitStack() as stack:
        nodes = [Node(system) for system in systems("1g", alone=given.alone)]
        for node in nodes:
            stack.callback(node.close)
            node.start()
            node.create_topics([_TOPIC], _PARTITIONS)
            produce_spread(node.port, _TOPIC, given.records, given.size)
        has_java = len(nodes) > 1
        for _ in range(given.rounds):
            for node in nodes:
                for members in _MEMBERS:
                    for name, work in (("kafka's client", by_kafka), ("kalda's client", by_kalda)):
                        if work is by_kafka and not has_java:
                            continue
                        figures = work(node.port, given.records * 9 // 10, members)
                        _add(seen, f"{name}, {members} member{'s' * (members > 1)}", node.name, figures)
                _add(seen, "commit of a record", node.name, round_trips(node.port, given.commits, 1))
    _print(seen, [node.name for node in nodes])
    if given.json:
        print(json.dumps(seen))


def _add(seen: dict[str, dict[str, list[float]]], what: str, system: str, figures: Figures) -> None:
    for unit, value in figures.items():
        seen.setdefault(f"{what}, {unit}", {}).setdefault(system, []).append(value)
        print(f"{system}: {what}, {unit}: {value:.2f}", file=sys.stderr)


def _print(seen: dict[str, dict[str, list[float]]], names: list[str]) -> None:
    print(f"{'':42} {names[0]:>14} {names[1] if len(names) > 1 else '':>14} {'ratio':>8}")
    for what, by_system in seen.items():
        mine, *peer = (by_system[name] for name in names)
        line = f"{what:42} {statistics.median(mine):14.2f}"
        if peer:
            ratios = [a / b for a, b in zip(mine, peer[0], strict=True)]
            ratio = statistics.median(ratios)
            line += f" {statistics.median(peer[0]):14.2f} {1 / ratio if what.endswith('_ms') else ratio:8.2f}"
        print(line)


if __name__ == "__main__":
    main()
