"""The processes of a run. Their reports arrive on threads; `turn` takes them over into the recording on the caller's
thread, so that everything else has one thread."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from kalda.base.errors import ApiError
from kalda.cli.demo.children import Child, Report
from kalda.cli.demo.member import GROUP
from kalda.cli.demo.nodes import PARTITIONS, Nodes
from kalda.cli.demo.recording import Mark, Recording, Sample
from kalda.cli.demo.shop import ORDERS
from kalda.cli.demo.windows import SALES
from kalda.clientcore.connections.metadata import Topic

_EVERY_S = 0.5
_TIMEOUT_S = 3.0


class Watching:
    """Threads that ask the cluster as any client would, until they are stopped; an answer that is late, as while a
    leader is missing, is left out. Calls back on these threads: with a sample, with the topic's description, with a row
    of the windows."""

    def __init__(
        self,
        servers: str,
        on_sample: Callable[[Sample], None],
        on_topic: Callable[[Topic], None],
        on_window: Callable[[str, dict[str, int]], None] | None,
    ) -> None:
        """A sample's time is `time.time()`. Without `on_window` the table of windows is not read."""
        self._servers = servers
        self._on_sample = on_sample
        self._on_topic = on_topic
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask, name="lag and leaders", daemon=True)]
        if on_window is not None:
            self._threads.append(threading.Thread(target=self._read, args=(on_window,), name="windows", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(2 * _TIMEOUT_S)

    def _ask(self) -> None:
        from kalda import Admin, OffsetSpec

        partitions = [(ORDERS, number) for number in range(PARTITIONS)]
        with Admin(bootstrap_servers=self._servers, client_id="watching") as admin:
            while not self._stopped.wait(_EVERY_S):
                try:
                    topic = admin.describe_topics([ORDERS], timeout=_TIMEOUT_S).succeeded[ORDERS]
                    self._on_topic(topic)
                    committed = admin.list_group_offsets(GROUP, partitions, timeout=_TIMEOUT_S).succeeded
                    now = time.time()
                    ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), timeout=_TIMEOUT_S)
                    ends.check()
                except (ApiError, KeyError):
                    continue
                read = sum(each.offset for each in committed.values() if each.offset > 0)
                self._on_sample(Sample(now, read, sum(each.offset for each in ends.succeeded.values())))

    def _read(self, on_window: Callable[[str, dict[str, int]], None]) -> None:
        from kalda import Consumer

        with Consumer(
            bootstrap_servers=self._servers, client_id="watching", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([(SALES, 0)])
            consumer.seek_to_beginning((SALES, 0))
            while not self._stopped.is_set():
                for record in consumer.poll(0.3):
                    row = json.loads(record.value or b"{}")
                    on_window(row["slot"], {"orders": row["orders"], "cents": row["cents"]})


_TURN_S = 0.1
_LAST_LINES = 5


class DemoError(Exception):
    """The demonstration cannot go on; the message has the reason."""


class Scene:
    """The nodes, the shop, the members and Spark, with what they have reported."""

    def __init__(self, directory: Path, rate: float) -> None:
        """`directory` exists and is empty; `rate` is in orders a second."""
        self.directory = directory
        self.rate = rate
        self.recording = Recording()
        self.nodes = Nodes(directory / "nodes")
        self.members: dict[str, Child] = {}
        self.shop: Child | None = None
        self.spark: Child | None = None
        self.is_spark_up = False
        self.closing: Report | None = None
        """The shop's last report."""
        self.lake: Report | None = None
        self.recording.zero = time.time()
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        self._watching: Watching | None = None
        self._all: dict[Child, str] = {}
        self._read_before: dict[str, int] = {}
        """Orders that earlier processes of a member have billed."""

    # -- time and events

    @property
    def now(self) -> float:
        """Seconds since the story began."""
        return time.time() - self.recording.zero

    def begin(self) -> None:
        """The story begins now; the nodes run."""
        self.recording.zero = time.time()
        for place in self.nodes.layout.nodes:
            self.recording.on_start(f"node {place.node_id}", 0.0)

    def mark(self, kind: Literal["orders", "member", "node", "spark"], text: str) -> Mark:
        mark = Mark(self.now, kind, text)
        self.recording.marks.append(mark)
        return mark

    def turn(self) -> None:
        """Take over what was reported, for about a tenth of a second. Raises `DemoError` where a process has ended that
        was to run, and `StartFailure` for a node."""
        deadline = time.monotonic() + _TURN_S
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._events.get(timeout=left)()
            except queue.Empty:
                break
        self.nodes.check()

    # -- processes

    def watch(self, with_windows: bool) -> None:
        def on_sample(sample: Sample) -> None:
            self._events.put(lambda: self._sampled(sample))

        def on_topic(topic: Topic) -> None:
            self._events.put(lambda: self._described(topic))

        def on_window(key: str, row: dict[str, int]) -> None:
            self._events.put(lambda: self.recording.windows.__setitem__(key, row))

        self._watching = Watching(self.nodes.servers, on_sample, on_topic, on_window if with_windows else None)

    def open_shop(self) -> None:
        self.shop = self._start("shop", "shop", [self.nodes.servers, str(self.rate)], self._shop_reported)

    def start_member(self, name: str) -> None:
        counts = self.recording.read.setdefault(name, [])
        self._read_before[name] = counts[-1][1] if counts else 0
        self.recording.on_start(name, self.now)
        arguments = [self.nodes.servers, name]
        self.members[name] = self._start(name, "member", arguments, lambda report: self._member_reported(name, report))

    def kill_member(self, name: str) -> None:
        self.members[name].kill()
        self.recording.on_kill(name, self.now)
        self.recording.partitions.pop(name, None)

    def kill_node(self, node_id: int) -> None:
        self.nodes.kill(node_id)
        self.recording.on_kill(f"node {node_id}", self.now)

    def restart_node(self, node_id: int) -> None:
        self.nodes.restart(node_id)
        self.recording.on_start(f"node {node_id}", self.now)

    def start_spark(self) -> None:
        arguments = [self.nodes.servers, str(self.directory.absolute())]
        self.spark = self._start("spark", "windows", arguments, self._spark_reported)

    def _start(self, name: str, module: str, arguments: list[str], handle: Callable[[Report], None]) -> Child:
        def on_report(child: Child, report: Report | None) -> None:
            if report is None:
                self._events.put(lambda: self._ended(child))
            else:
                self._events.put(lambda: handle(report))

        child = Child(module, arguments, self.directory / f"{name}.log", on_report)
        self._all[child] = name
        return child

    def close(self, *, is_told: bool) -> list[str]:
        """End all processes, the nodes last. Those that have not ended cleanly, with how they have ended. Where the
        story was not told to its end, nothing that they would still do is waited for: they are killed, but the
        nodes."""
        if self._watching is not None:
            self._watching.stop()
        for child in self._all:
            if is_told:
                child.ask_to_end()
            else:
                child.kill()
        ends = [(name, child.end()) for child, name in self._all.items()]
        return [f"{name} {how}" for name, how in ends if how is not None] + self.nodes.stop()

    # -- reports

    def _ended(self, child: Child) -> None:
        if child.was_killed or (child.was_asked_to_end and child.exit_code == 0):
            return
        lines = child.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        raise DemoError(
            "\n".join([f"the process {self._all[child]} has ended; its last lines, of {child.log}:", *lines])
        )

    def _shop_reported(self, report: Report) -> None:
        self.recording.made.append((report["at"] - self.recording.zero, report["made"]))
        if "cents" in report:
            self.closing = report

    def _member_reported(self, name: str, report: Report) -> None:
        if self.members[name].was_killed:
            return
        self.recording.partitions[name] = report["partitions"]
        if "read" in report:
            count = self._read_before[name] + report["read"]
            self.recording.read[name].append((report["at"] - self.recording.zero, count))

    def _spark_reported(self, report: Report) -> None:
        self.is_spark_up = True
        self.lake = report.get("lake", self.lake)

    def _sampled(self, sample: Sample) -> None:
        self.recording.samples.append(Sample(sample.at - self.recording.zero, sample.read, sample.made))

    def _described(self, topic: Topic) -> None:
        in_sync: dict[int, int] = {}
        for each in topic.partitions:
            self.recording.leaders[each.partition] = each.leader
            for node in each.isr:
                in_sync[node] = in_sync.get(node, 0) + 1
        self.recording.in_sync = in_sync


def amount(cents: int) -> str:
    """Cents as an amount of money."""
    return f"{cents / 100:,.2f} EUR"


def listed(values: Any) -> str:
    """Numbers of partitions as they are shown."""
    return " ".join(map(str, sorted(values))) or "none"
