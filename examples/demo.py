"""A demonstration: events of this host through a node, windowed by Spark and published back. Run by `make demo`.

A node is formatted and started by the `kalda` command. One process samples this host's processes, threads, cores,
memory, disks and networks as often as it can, and produces each sample as an event. A consumer group of two members
reads them; the second member joins late, so that partitions move. At the same time Spark runs `hosts.toml`: a streaming
query counts the events by second and kind, and publishes the windows as a topic, each exactly once. Then the events are
loaded into a lake of Parquet, the derived topic is read back, and a chart is drawn.

The exit code is 0 only where the group, the windows and the lake have each every event exactly once, and the node has
stopped cleanly.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

TOPIC = "host-events"
DERIVED = "host-windows"
GROUP = "watchers"
PARTITIONS = 6
SECOND_MEMBER_S = 3.0
"""The second member of the group joins this long after the first event."""
TIMEOUT_S = 300.0
"""How long to wait for one step. On a busy machine the start of Spark takes a minute. A process that ends with an error
is noticed at once."""
SHORT = {"process": "proc", "memory": "mem", "network": "net"}
KINDS = ("process", "thread", "cpu", "memory", "disk", "network")
NEEDED = {"process", "cpu", "memory", "network"}
"""The kinds of events that must occur; a container may have no disks and no threads."""
OUTPUT = Path(__file__).parents[1] / ".demo"
PROJECT = Path(__file__).with_name("hosts.toml")
CLOSING_S = 60
"""The last record is so much later than the events, by its timestamp: it moves the watermark behind their windows."""
JAVA = "openjdk-17-jre-headless"

console = Console(highlight=False)
spawn = multiprocessing.get_context("spawn")


class DemoError(Exception):
    """The demonstration failed; the message has the reason, and what to do."""


# -- the host


class Host:
    """Samples this machine: an event is what a subject (a process, a core, …) used since its last sample."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float, float]] = {}
        """Time, CPU seconds and bytes of the last sample, by subject."""

    def sample(self) -> Iterator[dict[str, Any]]:
        """One event for each subject: `cpu` in percent of a core, `bytes` read and written, `memory` in bytes."""
        import psutil

        for process in psutil.process_iter():
            yield from self._process(process)
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            yield self._event("cpu", f"core-{number}", sum(times) - times.idle - getattr(times, "iowait", 0.0), 0)
        yield self._event("memory", "ram", 0, 0, psutil.virtual_memory().used)
        for name, disk in (psutil.disk_io_counters(perdisk=True) or {}).items():
            yield self._event("disk", name, 0, disk.read_bytes + disk.write_bytes)
        for name, link in psutil.net_io_counters(pernic=True).items():
            yield self._event("network", name, 0, link.bytes_sent + link.bytes_recv)

    def _process(self, process: Any) -> Iterator[dict[str, Any]]:
        import psutil

        try:
            with process.oneshot():
                name, times, memory = process.name(), process.cpu_times(), process.memory_info().rss
                threads = process.threads()
            moved = 0
            try:
                counters = process.io_counters()
                moved = counters.read_chars + counters.write_chars
            except (psutil.AccessDenied, AttributeError):
                pass  # another user's process, or a system without these counters
        except psutil.Error:
            return  # it has ended meanwhile
        subject = f"{name}-{process.pid}"
        yield self._event("process", subject, times.user + times.system, moved, memory)
        for thread in threads:
            yield self._event("thread", f"{subject}/{thread.id}", thread.user_time + thread.system_time, 0)

    def _event(self, kind: str, subject: str, cpu_s: float, moved: float, memory: int = 0) -> dict[str, Any]:
        now = time.time()
        then, cpu_before, moved_before = self._last.get(subject, (now, cpu_s, moved))
        self._last[subject] = (now, cpu_s, moved)
        spent = now - then
        return {
            "kind": kind,
            "subject": subject,
            "cpu": round(100 * (cpu_s - cpu_before) / spent, 1) if spent else 0.0,
            "bytes": int(moved - moved_before),
            "memory": memory,
        }


# -- the other processes


def feed(servers: str, seconds: float, reports: Queue[tuple[str, Any]]) -> None:
    """Produce the host's events, keyed by subject; idempotent, compressed. Reports deliveries once a second."""
    from confluent_kafka import Producer

    config = {"bootstrap.servers": servers, "enable.idempotence": True, "compression.type": "zstd", "linger.ms": 20}
    config |= {"enable.metrics.push": False}
    producer = Producer(config)
    delivered = 0
    failures: list[str] = []

    def on_delivery(error: Any, message: Any) -> None:
        nonlocal delivered
        if error is not None:
            failures.append(str(error))
        else:
            delivered += 1

    host = Host()
    began = reported = time.monotonic()
    while (now := time.monotonic()) < began + seconds:
        for event in host.sample():
            producer.produce(TOPIC, json.dumps(event), event["subject"], on_delivery=on_delivery)
            producer.poll(0)
        if now - reported >= 1:
            reported = now
            reports.put(("produced", delivered))
        producer.poll(min(0.05, time.monotonic() - now))  # sleep half of the time, to leave the cores to the others
    left = producer.flush(30)
    took = time.monotonic() - began
    closing = int((time.time() + CLOSING_S) * 1000)
    producer.produce(TOPIC, json.dumps({"kind": "end"}), "end", timestamp=closing, on_delivery=on_delivery)
    left += producer.flush(30)
    reports.put(("feed ended", (delivered, took, failures[:3], left)))


def watch(servers: str, member: str, stop: Event, reports: Queue[tuple[str, Any]]) -> None:
    """A member of the group. Commits what it has read when its partitions are revoked, and at its end."""
    from confluent_kafka import Consumer, KafkaException

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = {
        "bootstrap.servers": servers,
        "group.id": GROUP,
        "client.id": member,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "heartbeat.interval.ms": 500,
        "session.timeout.ms": 10_000,
        "enable.metrics.push": False,
    }
    consumer = Consumer(config)
    spans: list[list[int]] = []  # partition, first offset, offset after the last

    def commit() -> None:
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as error:
            if "NO_OFFSET" not in str(error):
                raise

    def on_assign(_: Any, partitions: list[Any]) -> None:
        reports.put(("assigned", (member, sorted(one.partition for one in partitions))))

    def on_revoke(_: Any, partitions: list[Any]) -> None:
        commit()

    consumer.subscribe([TOPIC], on_assign=on_assign, on_revoke=on_revoke)
    current: dict[int, list[int]] = {}
    reported = time.monotonic()
    while not stop.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            span = current.get(partition)
            if span is None or span[2] != offset:
                span = current[partition] = [partition, offset, offset]
                spans.append(span)
            span[2] += 1
        if time.monotonic() - reported >= 0.25:
            reported = time.monotonic()
            reports.put(("read", (member, [list(one) for one in spans])))
    commit()
    consumer.close()
    reports.put(("read", (member, spans)))


def pipeline(servers: str, log: str, begin: Event, reports: Queue[tuple[str, Any]]) -> None:
    """Run the project by Spark until `begin`, then load the lake and read the windows back. The JVM's output goes to a
    file."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    try:
        from kalda.pipeline.derive import start
        from kalda.pipeline.project import read_project
        from kalda.pipeline.session import make_session

        file = OUTPUT / PROJECT.name
        file.write_text(PROJECT.read_text().replace("localhost:9092", servers))
        spark = make_session("kalda-demo", settings={"spark.sql.shuffle.partitions": "2"}, master="local[2]")
        query = start(spark, read_project(file))["windows"]
        reports.put(("spark is up", None))
        windowed = 0
        while not begin.wait(1):
            windowed = _report(query, windowed, reports)
        query.processAllAvailable()
        _report(query, windowed, reports)
        query.stop()
        reports.put(("results", {**_load(spark, servers), **_windows(spark, servers)}))
        spark.stop()
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reports.put(("failed", f"Spark: {' '.join(lines[:1] + lines[-1:])} (the whole output is in {log})"))


def _report(query: Any, reported: int, reports: Queue[tuple[str, Any]]) -> int:
    """Report the batches of the query that ended since the batch `reported`; returns the last one."""
    batches = [batch for batch in query.recentProgress if batch["batchId"] >= reported and batch["numInputRows"]]
    for batch in batches:
        print(batch.json, flush=True)
        reports.put(("windowed", (batch["numInputRows"], batch["batchDuration"])))
    return batches[-1]["batchId"] + 1 if batches else reported


def _load(spark: Any, servers: str) -> dict[str, Any]:
    """The events as a lake of Parquet; a record that is no event would be in its quarantine."""
    from kalda.pipeline.lake import Lake
    from kalda.pipeline.load import LoadSettings, load, totals

    began = time.monotonic()
    lake = Lake(OUTPUT / "lake")
    schema = "kind string, subject string, cpu double, bytes long, memory long"
    settings = LoadSettings((TOPIC,), {"kafka.bootstrap.servers": servers}, value="json", schema=schema, key="string")
    load(spark, lake, settings)
    return {"lake": totals(spark, lake), "loaded in": time.monotonic() - began}


def _windows(spark: Any, servers: str) -> dict[str, Any]:
    """The derived topic's records."""
    from pyspark.sql import functions as f

    reader = spark.read.format("kalda").option("kafka.bootstrap.servers", servers).option("subscribe", DERIVED)
    records = reader.option("kafka.isolation.level", "read_committed").load()
    schema = "second string, kind string, events long, cpu_percent double, bytes long, memory_bytes long"
    window = f.from_json(records.value.cast("string"), schema)
    rows = records.select(window.alias("window")).select("window.*").orderBy("second", "kind").collect()
    return {"rows": [row.asDict() for row in rows]}


# -- this process


def need_java() -> None:
    """Make sure that there is a Java for Spark: on Debian as root it is installed. Raises `DemoError`."""
    if shutil.which("java"):
        return
    command = f"apt-get update && apt-get install -y --no-install-recommends {JAVA}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise DemoError(
            f"Spark needs Java 17, and there is no java command. Install it, then run this again:\n"
            f"  sudo sh -c '{command}'"
        )
    console.print(f"[dim]Java is missing: {command}[/]")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    if subprocess.run(command, shell=True, env=environment, stdout=subprocess.DEVNULL).returncode:
        raise DemoError(f"Java could not be installed; install it by hand: {command}")


class Node:
    """A Kalda node, formatted and run by the `kalda` command."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.log = home / "server.log"
        held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.port, controller = (one.getsockname()[1] for one in held)
        for one in held:
            one.close()
        self.servers = f"127.0.0.1:{self.port}"
        listeners = f"PLAINTEXT://{self.servers},CONTROLLER://127.0.0.1:{controller}"
        self.file = home / "server.properties"
        self.file.write_text(
            f"""\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners={listeners}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={home / "data"}
num.partitions={PARTITIONS}
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Format, start, create the topic. Returns the seconds from exec until the node answers."""
        from kalda import Admin
        from kalda.client.admin.topics import NewTopic

        kalda = [sys.executable, "-m", "kalda.cli.main"]
        new_id = subprocess.run([*kalda, "storage", "random-uuid"], check=True, capture_output=True, text=True)
        arguments = ["-t", new_id.stdout.strip(), "-c", str(self.file), "--standalone"]
        subprocess.run([*kalda, "storage", "format", *arguments], check=True, capture_output=True)
        with open(self.log, "ab") as log:
            began = time.monotonic()
            self._process = subprocess.Popen([*kalda, "server", str(self.file)], stdout=log, stderr=log)
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began > 30:
                raise DemoError(f"the node did not start:\n{self.tail()}")
            time.sleep(0.01)
        took = time.monotonic() - began
        with Admin(bootstrap_servers=self.servers) as admin:
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1), NewTopic(DERIVED, 2, 1)]).check()
        return took

    def _answers(self) -> bool:
        from kalda.base.errors import ApiError
        from kalda.client.transport.one_node import OneNode
        from kalda.protocol.messages.metadata import MetadataRequest

        try:
            with OneNode("127.0.0.1", self.port, timeout_ms=5_000) as node:
                return bool(node.request(MetadataRequest(topics=[])).brokers)
        except ApiError:
            return False

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-10:])

    def stop(self) -> int:
        """Stop the node by SIGTERM; returns its exit code."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        process.terminate()
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


@dataclass
class Progress:
    """What the processes have reported so far."""

    produced: int = 0
    total: int | None = None
    feed_s: float = 0.0
    spans: dict[str, list[list[int]]] = field(default_factory=dict)
    partitions: dict[str, list[int]] = field(default_factory=dict)
    windowed: int = 0
    batches: list[float] = field(default_factory=list)
    """Seconds of each micro-batch that had events."""
    results: dict[str, Any] | None = None
    spark_is_up: bool = False

    @property
    def events(self) -> int:
        """Without the closing record."""
        return self.produced - (self.total is not None)

    def read_by(self, member: str) -> int:
        return sum(end - start for _, start, end in self.spans.get(member, ()))

    @property
    def read(self) -> int:
        """How many different events the group has read."""
        seen = 0
        reached: dict[int, int] = {}
        for partition, start, end in sorted(span for spans in self.spans.values() for span in spans):
            start = max(start, reached.get(partition, 0))
            seen += max(0, end - start)
            reached[partition] = max(end, reached.get(partition, 0))
        return seen

    @property
    def read_again(self) -> int:
        return sum(map(self.read_by, self.spans)) - self.read

    def update(self, kind: str, report: Any) -> None:
        match kind:
            case "produced":
                self.produced = report
            case "feed ended":
                self.total, self.feed_s, failures, left = report
                self.produced = report[0]
                if failures or left:
                    raise DemoError(f"{left} events were not delivered; {', '.join(failures)}")
            case "read":
                self.spans[report[0]] = report[1]
            case "assigned":
                self.partitions[report[0]] = report[1]
                shown = " ".join(map(str, report[1])) or "none"
                console.print(f"       [magenta]rebalance[/]  {report[0]} has partitions [bold]{shown}[/]")
            case "spark is up":
                self.spark_is_up = True
                console.print("       [magenta]Spark[/]      is up: the streaming query begins")
            case "windowed":
                self.windowed += report[0]
                self.batches.append(report[1] / 1000)
            case "results":
                self.results = report
            case "failed":
                raise DemoError(report)


class Demo:
    """The processes and their reports."""

    def __init__(self, node: Node, seconds: float) -> None:
        self.node = node
        self.seconds = seconds
        self.reports: Queue[tuple[str, Any]] = spawn.Queue()
        self.progress = Progress()
        self.stop_members = spawn.Event()
        self.begin_pipeline = spawn.Event()
        self._processes: list[SpawnProcess] = []

    def start(self, target: Any, *arguments: Any) -> None:
        process = spawn.Process(target=target, args=(*arguments, self.reports), daemon=True)
        process.start()
        self._processes.append(process)

    def wait(self, step: str, holds: Any, tick: Any = None) -> None:
        """Handle reports until `holds()`; `tick` is called about every second. Raises `DemoError`."""
        deadline, ticked = time.monotonic() + self.seconds + TIMEOUT_S, time.monotonic()
        while not holds():
            if time.monotonic() > deadline:
                raise DemoError(f"{step}: this did not happen in time; the node's last log lines:\n{self.node.tail()}")
            try:
                self.progress.update(*self.reports.get(timeout=0.1))
            except queue.Empty:
                self._check_processes()
            if tick is not None and time.monotonic() - ticked >= 1:
                ticked += 1
                tick()

    def _check_processes(self) -> None:
        for process in self._processes:
            if process.exitcode:
                raise DemoError(
                    f"a process ended with {process.exitcode}; the node's last log lines:\n{self.node.tail()}"
                )

    def live(self) -> None:
        """Run the feed and the group at the same time, until every event was read."""
        shown = 0

        def tick() -> None:
            nonlocal shown
            if self.progress.total is None:
                made, shown = self.progress.produced - shown, self.progress.produced
                members = "   ".join(
                    f"{name} {self.progress.read_by(name):>7,}" for name in sorted(self.progress.spans)
                )
                at = time.monotonic() - began
                console.print(
                    f"  {at:4.0f} s  [cyan]{made:>6,}[/] events/s  produced {shown:>7,}  read by {members}   "
                    f"windowed {self.progress.windowed:>7,}"
                )

        self.start(pipeline, self.node.servers, str(OUTPUT / "spark.log"), self.begin_pipeline)
        self.start(watch, self.node.servers, "anna", self.stop_members)
        self.wait("anna joins", lambda: self.progress.partitions.get("anna"))
        self.wait("Spark starts", lambda: self.progress.spark_is_up)
        self.start(feed, self.node.servers, self.seconds)
        began = time.monotonic()
        self.wait("events", lambda: self.progress.produced)
        late = time.monotonic() + SECOND_MEMBER_S
        self.wait("events", lambda: time.monotonic() > late, tick)
        self.start(watch, self.node.servers, "ben", self.stop_members)
        self.wait("feed", lambda: self.progress.total is not None, tick)
        self.wait("the group reads all events", lambda: self.progress.read >= self.progress.produced)
        self.wait("ben joins", lambda: self.progress.partitions.get("ben"))
        self.stop_members.set()

    def finish(self) -> None:
        """Let Spark window the last events, load the lake, and read the windows back."""
        self.begin_pipeline.set()
        self.wait("Spark windows and loads the events", lambda: self.progress.results is not None)

    def close(self) -> None:
        """Let the processes end, and terminate those that do not."""
        self.stop_members.set()
        self.begin_pipeline.set()
        for process in self._processes:
            process.join(10)
            if process.is_alive():
                process.terminate()
                process.join(5)


def show_windows(rows: list[dict[str, Any]]) -> None:
    table = Table(
        title="events and use of this host, by second (UTC)", title_justify="left", box=SIMPLE_HEAD, padding=0
    )
    table.add_column("second", min_width=8)
    for name in (*(SHORT.get(kind, kind) for kind in KINDS), "busy%", "net KiB", "disk KiB"):
        table.add_column(name, justify="right")
    by_second: dict[Any, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_second.setdefault(row["second"], {})[row["kind"]] = row
    for second, kinds in by_second.items():
        counts = [f"{kinds[kind]['events']:,}" if kind in kinds else "–" for kind in KINDS]
        busy = f"{kinds['cpu']['cpu_percent']:.0f}" if "cpu" in kinds else "–"
        moved = [f"{kinds[kind]['bytes'] / 1024:,.0f}" if kind in kinds else "–" for kind in ("network", "disk")]
        table.add_row(second[-8:], *counts, busy, *moved)
    console.print(table)


def draw(rows: list[dict[str, Any]]) -> list[Path]:
    """The windows as a chart: a PNG, and one HTML file that needs no other."""
    from kalda.pipeline.chart import ChartLine, Panel, save_chart

    seconds = sorted({row["second"] for row in rows})
    moments = [datetime.fromisoformat(second).replace(tzinfo=UTC).timestamp() for second in seconds]
    found = {(row["second"], row["kind"]): row for row in rows}

    def line(kind: str, column: str, scale: float = 1) -> ChartLine:
        values = [(found.get((second, kind)) or {}).get(column) or 0 for second in seconds]
        return ChartLine(kind, moments, [value / scale for value in values])

    kinds = [kind for kind in KINDS if any(row["kind"] == kind for row in rows)]
    panels = [
        Panel("events a second, by kind", "events", [line(kind, "events") for kind in kinds], stacked=True),
        Panel("CPU of a core in use", "percent", [line("cpu", "cpu_percent")]),
        Panel("moved a second", "KiB", [line(kind, "bytes", 1024) for kind in kinds if kind in ("network", "disk")]),
    ]
    columns = ("second", "kind", "events", "cpu_percent", "bytes", "memory_bytes")
    table = columns, [[row[name] for name in columns] for row in rows]
    paths = [OUTPUT / "chart.png", OUTPUT / "chart.html"]
    for path in paths:
        save_chart(path, f"This host, from topic {DERIVED} ({seconds[0]} to {seconds[-1][-8:]} UTC)", panels, table)
    return paths


def verdict(progress: Progress, exit_code: int) -> bool:
    results = progress.results
    assert results is not None
    rows = results["rows"]
    counted = sum(row["events"] for row in rows)
    kinds = {row["kind"] for row in rows}
    places = {(row["second"], row["kind"]) for row in rows}
    loaded = sum(row["rows"] for row in results["lake"] if row["table"] == "events")
    bad = sum(row["rows"] for row in results["lake"] if row["table"] != "events")
    gaps = sum(row["last"] - row["first"] + 1 - row["rows"] for row in results["lake"])
    checks = [
        (f"the group of two read all {progress.produced:,} records", progress.read == progress.produced),
        (f"none was read twice across the rebalance ({progress.read_again} were)", progress.read_again == 0),
        (f"topic {DERIVED} counts {counted:,} of {progress.events:,} events", counted == progress.events > 0),
        (f"each of its {len(rows)} windows is there once", len(places) == len(rows)),
        (f"of {len(kinds)} kinds: {', '.join(sorted(kinds))}", kinds >= NEEDED),
        (
            f"the lake has {loaded:,} records, {bad} in quarantine, {gaps} gaps",
            loaded == progress.produced and not gaps,
        ),
        ("the node stopped cleanly", exit_code == 0),
    ]
    for text, holds in checks:
        console.print(f"  [green]✓[/] {text}" if holds else f"  [red]✗ {text}[/]")
    return all(holds for _, holds in checks)


def show_results(progress: Progress) -> None:
    results = progress.results
    assert results is not None
    show_windows(results["rows"])
    took = sorted(progress.batches) or [0.0]
    console.print(
        f"  {len(results['rows'])} windows in topic {DERIVED}, exactly once: {len(progress.batches)} micro-batches, "
        f"half of them within {took[len(took) // 2]:.1f} s"
    )
    files = {(row["table"], row["files"], row["bytes"]) for row in results["lake"]}
    size = sum(each[2] for each in files)
    console.print(
        f"  the lake {(OUTPUT / 'lake').relative_to(OUTPUT.parent)}: {size / 1024:,.0f} KiB of Parquet in "
        f"{sum(each[1] for each in files)} file(s), loaded in {results['loaded in']:.1f} s"
    )
    for path in draw(results["rows"]):
        console.print(f"  chart: [bold]{path}[/]")


def run(home: Path, seconds: float) -> bool:
    began = time.monotonic()
    need_java()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir()
    node = Node(home)
    demo = Demo(node, seconds)
    try:
        console.rule("[bold]1  A node", align="left")
        took = node.start()
        console.print(f"  Kalda serves on {node.servers}, {took * 1000:.0f} ms after its start")
        console.print(f"  topic {TOPIC} has {PARTITIONS} partitions")
        console.rule("[bold]2  Live events: a group of two, and Spark", align="left")
        demo.live()
        progress = demo.progress
        console.print(
            f"  produced [bold]{progress.events:,}[/] events in {progress.feed_s:.1f} s, "
            f"[bold]{progress.events / progress.feed_s:,.0f}/s[/], idempotent, zstd"
        )
        console.rule("[bold]3  Windows, a lake, a chart", align="left")
        demo.finish()
        show_results(progress)
    finally:
        demo.close()
        exit_code = node.stop()
    console.rule("[bold]4  Checks", align="left")
    holds = verdict(demo.progress, exit_code)
    console.print(f"  [dim]{time.monotonic() - began:.0f} s in all[/]")
    return holds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to watch the host (default 10)")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="kalda-demo-") as home:
            return 0 if run(Path(home), options.seconds) else 1
    except DemoError as error:
        console.print(f"[red]demo: {error}[/]")
    except KeyboardInterrupt:
        console.print("\n[red]demo: interrupted[/]")
    return 1


if __name__ == "__main__":
    sys.exit(main())
