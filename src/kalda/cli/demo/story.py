"""The steps of the story. Each does something, waits for what follows from it, and leaves time to look at that: so the
story is the same on a slow machine, and only longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kalda.cli.demo.member import SESSION_TIMEOUT_MS
from kalda.cli.demo.nodes import NODES, PARTITIONS
from kalda.cli.demo.proof import Found, proof
from kalda.cli.demo.scene import DemoError, Scene, listed

if TYPE_CHECKING:
    from kalda.cli.demo.screen import Screen

TIMEOUT_S = 300.0
"""For what a step waits for: on a busy machine Spark takes minutes to start. A process that ends is noticed at once."""
FIRST, SECOND = "ada", "ben"


class Story:
    """Told once, over a scene whose nodes do not run yet."""

    def __init__(self, scene: Scene, screen: Screen, look_s: float, began: float) -> None:
        """`look_s`: how long each result is shown, in seconds. `began`: when Spark was started, as `time.monotonic()`
        has it."""
        self._scene = scene
        self._screen = screen
        self._look_s = look_s
        self._number = 0
        self._steps = 10 if scene.spark is not None else 9
        self._began = began
        self._is_spark_marked = False
        self._node = 0
        """The node that is killed."""

    def tell(self) -> list[Found]:
        """What is in each place at the end. Raises `DemoError`, `StartFailure`, `TimeoutError`."""
        self._nodes_start()
        self._orders_flow()
        self._work_is_shared()
        self._member_is_killed()
        self._member_is_back()
        self._node_is_killed()
        self._node_is_back()
        if self._scene.spark is not None:
            self._spark_counts()
        self._shop_closes()
        return self._all_is_compared()

    # -- steps

    def _nodes_start(self) -> None:
        scene = self._scene
        self._step(
            "Three nodes start",
            f"Controllers and brokers, on free ports of this machine. Each of {PARTITIONS} partitions is on all three.",
        )
        took = scene.nodes.start()
        scene.begin()
        self._mark("node", f"three nodes serve, {took:.1f} s after their start")

    def _orders_flow(self) -> None:
        scene = self._scene
        self._step(
            "Orders are made",
            f"A shop makes {scene.rate:,.0f} orders a second. {FIRST} reads them and writes a bill for each; what was "
            f"read and what was written are one transaction.",
        )
        scene.watch(scene.spark is not None)
        scene.open_shop()
        scene.start_member(FIRST)
        self._until("the first order", lambda: bool(scene.recording.made and scene.recording.made[-1][1]))
        self._mark("orders", f"the first order was written to all {NODES} nodes")
        self._until(f"{FIRST} reads", lambda: self._read_by(FIRST) > 0)
        self._look()

    def _work_is_shared(self) -> None:
        self._step(
            f"{SECOND} joins {FIRST}",
            f"They are one consumer group: each of the {PARTITIONS} partitions is read by one of them.",
        )
        self._scene.start_member(SECOND)
        self._until("the group is balanced", self._is_shared)
        self._mark("member", f"{SECOND} joined: {self._who_has_what()}")
        self._until(f"{SECOND} reads", lambda: self._read_by(SECOND) > 0)
        self._look()

    def _member_is_killed(self) -> None:
        scene = self._scene
        self._step(
            f"{FIRST} is killed with kill -9",
            f"After {SESSION_TIMEOUT_MS // 1000} s without a heartbeat {SECOND} gets its partitions. A transaction "
            f"that {FIRST} had begun is aborted, so no bill is lost or written twice.",
        )
        began = scene.now
        self._mark("member", f"{FIRST} was killed: partitions {listed(scene.recording.partitions[FIRST])} wait")
        scene.kill_member(FIRST)
        self._until("the other member takes over", lambda: len(scene.recording.partitions[SECOND]) == PARTITIONS)
        self._mark(
            "member", f"{SECOND} took over all {PARTITIONS} partitions, {scene.now - began:.1f} s after the kill"
        )
        self._until("the backlog is read", self._is_caught_up)
        self._look()

    def _member_is_back(self) -> None:
        self._step(f"{FIRST} is started again", "It joins the group, and gets back a half of the partitions.")
        self._scene.start_member(FIRST)
        self._until("the group is balanced", self._is_shared)
        self._mark("member", f"{FIRST} is back: {self._who_has_what()}")
        self._look()

    def _node_is_killed(self) -> None:
        scene = self._scene
        recording = scene.recording
        led = {node: [p for p, leader in recording.leaders.items() if leader == node] for node in range(1, NODES + 1)}
        node = self._node = max(led, key=lambda each: len(led[each]))
        self._step(
            f"Node {node} is killed with kill -9",
            f"It leads the partitions {listed(led[node])}. What it has, other nodes have too, since an order counts as "
            f"made only then. These lead now; shop and group go on.",
        )
        began = scene.now
        made_before = recording.made[-1][1]
        scene.kill_node(node)
        self._mark("node", f"node {node} was killed, the leader of partitions {listed(led[node])}")
        self._until(
            "the other nodes lead",
            lambda: node not in recording.in_sync and not {node, -1} & set(recording.leaders.values()),
        )
        self._mark(
            "node", f"nodes {listed({*led} - {node})} lead all partitions, {scene.now - began:.1f} s after the kill"
        )
        self._until("orders are made", lambda: recording.made[-1][1] > made_before + scene.rate)
        self._until("the backlog is read", self._is_caught_up)
        self._look()

    def _node_is_back(self) -> None:
        scene, node = self._scene, self._node
        self._step(
            f"Node {node} is started again",
            "It finds its log as the kill left it, and fetches what it missed from the leaders.",
        )
        began = scene.now
        scene.restart_node(node)
        self._until("the node has caught up", lambda: scene.recording.in_sync.get(node) == PARTITIONS)
        self._mark("node", f"node {node} has all records again, {scene.now - began:.1f} s after its start")
        self._look()

    def _spark_counts(self) -> None:
        scene = self._scene
        self._step(
            "Spark counts",
            "A streaming query keeps a table of the sales of each 5 s, exactly once, in a topic of its own.",
        )
        began = time.monotonic()
        self._until(
            "the first windows",
            lambda: bool(scene.recording.windows),
            lambda: (
                f"waiting for Spark: {'its query begins' if scene.is_spark_up else 'Java starts'}, "
                f"{time.monotonic() - began:.0f} s so far"
            ),
        )
        orders, rows = scene.recording.windowed, len(scene.recording.windows)
        self._mark("spark", f"Spark's table has {orders:,} orders in {rows} rows")
        self._look()

    def _shop_closes(self) -> None:
        scene = self._scene
        readers = "by the group and by Spark" if scene.spark is not None else "by the group"
        self._step("The shop closes", f"What was made is read to the end, {readers}.")
        assert scene.shop is not None
        scene.shop.ask_to_end()
        self._until("the last order is acknowledged", lambda: scene.closing is not None)
        assert scene.closing is not None
        made = scene.closing["made"]
        self._mark("orders", f"the shop closed: {made:,} orders were made")
        self._until("the group reads the last order", lambda: scene.recording.samples[-1].read >= made)
        if scene.spark is not None:
            self._until(
                "Spark counts the last order",
                lambda: scene.recording.windowed >= made,
                lambda: f"Spark has counted {scene.recording.windowed:,} of {made:,} orders",
            )

    def _all_is_compared(self) -> list[Found]:
        scene = self._scene
        loading = ", and Spark loads the orders into a lake" if scene.spark is not None else ""
        self._step("The proof", f"The topics are read again from begin to end{loading}: all places must have the same.")
        assert scene.closing is not None
        self._turn("the topics are read")
        windows = None
        if scene.spark is not None:
            scene.spark.ask_to_end()
            began = time.monotonic()
            self._until(
                "Spark loads the lake",
                lambda: scene.lake is not None,
                lambda: f"Spark loads the lake, {time.monotonic() - began:.0f} s so far",
            )
            windows = scene.recording.windows
        return proof(scene.nodes.servers, scene.closing, windows, scene.lake)

    # -- what steps wait for

    def _read_by(self, name: str) -> int:
        counts = self._scene.recording.read[name]
        return counts[-1][1] if counts else 0

    def _is_shared(self) -> bool:
        held = self._scene.recording.partitions
        both = [held.get(FIRST, []), held.get(SECOND, [])]
        return all(both) and sorted(both[0] + both[1]) == list(range(PARTITIONS))

    def _who_has_what(self) -> str:
        held = self._scene.recording.partitions
        return ", ".join(f"{name} has {listed(held[name])}" for name in (FIRST, SECOND))

    def _is_caught_up(self) -> bool:
        """Whether the lag is what two seconds make, in a sample that is not older than two seconds."""
        samples = self._scene.recording.samples
        return bool(samples) and samples[-1].at > self._scene.now - 2 and samples[-1].lag < 2 * self._scene.rate

    # -- showing

    def _step(self, title: str, text: str) -> None:
        self._number += 1
        self._screen.step(self._number, self._steps, title, text)

    def _mark(self, kind: str, text: str) -> None:
        self._screen.mark(self._scene.mark(kind, text))  # type: ignore[arg-type]

    def _look(self) -> None:
        deadline = time.monotonic() + self._look_s
        while time.monotonic() < deadline:
            self._turn()

    def _until(self, what: str, holds: Callable[[], bool], idle: Callable[[], str] | None = None) -> None:
        """Wait for a condition; `idle` says what is waited for where that may take long."""
        deadline = time.monotonic() + TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline:
                raise DemoError(
                    f"after {TIMEOUT_S:.0f} s this has not happened: {what}. The logs are in {self._scene.directory}"
                )
            self._turn(idle() if idle is not None else "")

    def _turn(self, idle: str = "") -> None:
        self._scene.turn()
        if self._scene.is_spark_up and not self._is_spark_marked:
            self._is_spark_marked = True
            self._mark(
                "spark", f"Spark is up, {time.monotonic() - self._began:.0f} s after its start: its query begins"
            )
        self._screen.refresh(self._scene.now, idle)
