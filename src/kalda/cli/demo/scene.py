"""The processes of a run. Their reports arrive on threads; `turn` takes them over into the recording on the caller's
thread, so that everything else has one thread."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from kalda.cli.demo.children import Child, Report
from kalda.cli.demo.nodes import Nodes
from kalda.cli.demo.recording import Mark, Recording, Sample
from kalda.cli.demo.watching import Watching
from kalda.clientcore.connections.cluster_values import Topic

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
        story was not told to its end, nobody waits for what they would still do: they are killed, but the nodes."""
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
