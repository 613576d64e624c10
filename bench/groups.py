"""Large consumer groups (KIP-848) beside Apache Kafka's: how soon one is stable again, and what its heartbeats cost.

    python bench/groups.py [--quick] [--members 1000] [--partitions 3000] [--rounds 3] [--seconds 20] [--alone]

Both nodes run at the same time, and take turns. The members are the same for both: this process, which sends raw
heartbeats over a few connections, at the interval that the node names, and at once where a member has something to
confirm. A group is stable when all its members are in one epoch and have all partitions between them.

    joined           from the first member's heartbeat until the group is stable
    heartbeats       the node's CPU in a second of the stable group, without that of the node before
    left, in pace    from a member's leaving until the group is stable, with members that keep to their interval
    left, at once    the same, with members that send the next heartbeat as soon as the last one is answered
    longest wait     of the small requests of another process, while one more member leaves at once
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.blocking import BlockingConnection
from harness.figures import Figure, Figures, in_turn
from harness.nodes import Node
from harness.systems import systems
from harness.watching import Pings

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    FindCoordinatorRequest,
)

_TOPIC = "grouped"
_LIMIT_S = 240.0
_LEAVING = -1
_AGAIN_S = 0.5
_BETWEEN_ASSIGNMENTS_S = 1.5
"""A group has no new assignment sooner than a second after the last one, by default."""
_PASSING = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)
_groups = itertools.count(1)


class Member:
    """What one member knows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.owned: list[ConsumerGroupHeartbeatRequestTopicPartitions] = []
        self.confirms = True
        """Whether the next heartbeat names what the member owns."""
        self.leaves = False

    @property
    def count(self) -> int:
        return sum(len(topic.partitions) for topic in self.owned)


class Group:
    """All members of a group, driven by a thread for each connection."""

    def __init__(self, port: int, members: int, partitions: int, connections: int) -> None:
        self._name = f"group-{next(_groups)}"
        self._port = port
        self._partitions = partitions
        self.is_in_pace = True
        self.interval_s = 5.0
        self._members = members
        self._epochs: Counter[int] = Counter({0: members})
        self._assigned = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._ended = False
        self._failure: Exception | None = None
        self._all = [Member(f"{self._name}-{number}") for number in range(members)]
        self._threads = [
            threading.Thread(target=self._guarded, args=(port, self._all[number::connections]), daemon=True)
            for number in range(connections)
        ]

    def __enter__(self) -> Group:
        asked = FindCoordinatorRequest(key_type=0, coordinator_keys=[self._name])
        with BlockingConnection("127.0.0.1", self._port) as connection:  # which makes the topic of coordinators
            while connection.request(asked, 4).coordinators[0].error_code:
                time.sleep(_AGAIN_S)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        for thread in self._threads:
            thread.join()

    def wait_stable(self, epoch: int) -> None:
        """Until all members are in one epoch after this one, and have everything."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._failure or self._is_stable(epoch), _LIMIT_S):
                raise SystemExit(f"not stable: {self._assigned} partitions, members by epoch {dict(self._epochs)}")
        if self._failure is not None:
            raise self._failure

    def _is_stable(self, epoch: int) -> bool:
        left = [each for each, count in self._epochs.items() if count]
        return len(left) == 1 and left[0] > epoch and self._assigned == self._partitions

    @property
    def epoch(self) -> int:
        return max(each for each, count in self._epochs.items() if count)

    def leave_one(self) -> None:
        """The last member's next heartbeat, which comes at once, is its last one."""
        self._all.pop().leaves = True

    def _guarded(self, port: int, members: list[Member]) -> None:
        try:
            with BlockingConnection("127.0.0.1", port) as connection:
                self._drive(connection, members)
        except Exception as failure:
            with self._changed:
                self._failure = failure
                self._changed.notify_all()

    def _drive(self, connection: BlockingConnection, members: list[Member]) -> None:
        """Send each member's heartbeats when they are due."""
        began = time.perf_counter()
        due = [(began + self.interval_s * number / len(members), number) for number in range(len(members))]
        while due and not self._ended:
            leaving = next((each for each in due if members[each[1]].leaves), None)
            if leaving is not None:
                due.remove(leaving)
                heapq.heapify(due)
                self._beat(connection, members[leaving[1]])
                continue
            at, number = due[0]
            wait_s = at - time.perf_counter()
            if self.is_in_pace and wait_s > 0:
                time.sleep(min(wait_s, 0.01))
                continue
            answered = self._beat(connection, members[number])
            pause_s = 0.0 if members[number].confirms and answered else self.interval_s if answered else _AGAIN_S
            heapq.heapreplace(due, (time.perf_counter() + pause_s, number))

    def _beat(self, connection: BlockingConnection, member: Member) -> bool:
        """One heartbeat; whether it was accepted."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._name, member_id=member.name, member_epoch=_LEAVING if member.leaves else member.epoch
        )
        if member.epoch == 0:
            request.subscribed_topic_names, request.rebalance_timeout_ms = [_TOPIC], 60_000
        if member.confirms and not member.leaves:
            request.topic_partitions = member.owned
        response = connection.request(request, 1)
        if response.error_code in _PASSING and member.epoch == 0:
            return False
        if response.error_code:
            raise RuntimeError(f"{member.name}: {ErrorCode(response.error_code).name}: {response.error_message}")
        with self._changed:
            self._take(member, response)
            self._changed.notify_all()
        return True

    def _take(self, member: Member, response: Any) -> None:
        self._epochs[member.epoch] -= 1
        before, member.confirms = member.count, False
        if member.leaves:
            self._assigned -= before
            return
        member.epoch = response.member_epoch
        self._epochs[member.epoch] += 1
        self.interval_s = response.heartbeat_interval_ms / 1000
        if response.assignment is not None:
            member.owned = [
                ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=each.topic_id, partitions=list(each.partitions))
                for each in response.assignment.topic_partitions
            ]
            member.confirms = True
            self._assigned += member.count - before


@contextlib.contextmanager
def watched(port: int) -> Iterator[list[float]]:
    """The longest wait of another process, in ms, in the list when the context has ended."""
    found: list[float] = []
    process = subprocess.Popen(
        [sys.executable, __file__, "--ping", str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield found
    found.append(float(process.communicate("\n")[0]))


def ping(port: int) -> None:
    """What `watched` runs."""
    pings = Pings(port)
    pings.start()
    print(flush=True)
    sys.stdin.readline()
    pings.stopped = True
    pings.join()
    print(1000 * pings.longest_s)


def measure(node: Node, given: argparse.Namespace, figures: Figures) -> None:
    """One group, from its first member on."""

    def add(title: str, unit: str, value: float) -> None:
        figures.add(Figure(title, unit, less_is_better=True), node.name, value)
        print(f"{node.name}: {title}: {value:.3f} {unit}", file=sys.stderr)

    time.sleep(given.seconds / 2)  # the work that follows the creation of topics ends
    before, began = node.cpu_s(), time.perf_counter()
    time.sleep(given.seconds / 2)
    idle = (node.cpu_s() - before) / (time.perf_counter() - began)
    began = time.perf_counter()
    with Group(node.port, given.members, given.partitions, given.connections) as group:

        def leave() -> float:
            time.sleep(_BETWEEN_ASSIGNMENTS_S)
            epoch, began = group.epoch, time.perf_counter()
            group.leave_one()
            group.wait_stable(epoch)
            return time.perf_counter() - began

        group.wait_stable(0)
        add("joined", "s", time.perf_counter() - began)
        time.sleep(group.interval_s)
        before, began = node.cpu_s(), time.perf_counter()
        time.sleep(given.seconds)
        used = (node.cpu_s() - before) / (time.perf_counter() - began)
        add("heartbeats, CPU a second", "ms", 1000 * (used - idle))
        for title, in_pace in (("left, in pace", True), ("left, at once", False)):
            group.is_in_pace = in_pace
            for _ in range(given.leaves):
                add(title, "s", leave())
        with watched(node.port) as longest:  # it keeps the node busy
            leave()
    add("longest wait of another", "ms", longest[0])


def main() -> None:
    """Measure, and print the medians and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--partitions", type=int, default=3_000)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--leaves", type=int, default=3, help="members that leave in each round, of either kind")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which the stable group's cost is measured")
    parser.add_argument("--quick", action="store_true", help="one round with a tenth of the members and partitions")
    parser.add_argument("--alone", action="store_true", help="without Apache Kafka")
    parser.add_argument("--ping", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.ping:
        ping(given.ping)
        return
    if given.quick:
        given.members, given.partitions, given.rounds, given.seconds = 100, 300, 1, 5.0
    figures = Figures()
    with contextlib.ExitStack() as stack:
        nodes = [Node(system) for system in systems("1g", alone=given.alone)]
        for node in nodes:
            stack.callback(node.close)
            node.start()
            node.create_topics([_TOPIC], given.partitions)
        in_turn(nodes, given.rounds, lambda node, _: measure(node, given, figures))
    figures.show([node.name for node in nodes])


if __name__ == "__main__":
    main()
