"""The three nodes: controllers and brokers, with three replicas of each partition, on free ports of this machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from kalda.cli.demo.member import BILLS
from kalda.cli.demo.shop import ORDERS
from kalda.cli.demo.windows import SALES
from kalda.cli.local.layout import NodePlace, make
from kalda.cli.local.log_lines import tail
from kalda.cli.local.nodes import StartFailure, Stopped, process_of, start_missing, stop, wait_until_all_serve

NODES = 3
PARTITIONS = 6
_START_S = 60.0
_STOP_S = 20.0
_OVERRIDES = {
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}


class Nodes:
    """A cluster in this directory, which is new."""

    def __init__(self, directory: Path) -> None:
        self.layout = make(
            directory.absolute(), NODES, NODES, host="127.0.0.1", rack="demo", overrides=dict(_OVERRIDES)
        )
        self.is_killed: set[int] = set()

    @property
    def servers(self) -> str:
        return self.layout.bootstrap_servers

    def start(self) -> float:
        """Start the nodes and create the topics; returns the seconds until all nodes served. Raises `StartFailure`."""
        from kalda import Admin, NewTopic

        self.layout.save()
        began = time.monotonic()
        start_missing(self.layout, [])
        wait_until_all_serve(self.layout, _START_S, lambda _: None)
        took = time.monotonic() - began
        topics = [NewTopic(ORDERS, PARTITIONS, NODES), NewTopic(BILLS, PARTITIONS, NODES)]
        topics.append(NewTopic(SALES, 1, NODES, {"cleanup.policy": "compact"}))
        with Admin(bootstrap_servers=self.servers) as admin:
            admin.create_topics(topics).check()
        return took

    def kill(self, node_id: int) -> None:
        """As `kill -9` does: the node closes nothing and hands nothing over."""
        self.is_killed.add(node_id)
        process_of(self.layout, self._place(node_id)).send(signal.SIGKILL)

    def restart(self, node_id: int) -> None:
        process_of(self.layout, self._place(node_id)).start()
        self.is_killed.discard(node_id)

    def _place(self, node_id: int) -> NodePlace:
        return self.layout.place(node_id)

    def check(self) -> None:
        """Raises `StartFailure` where a node has ended that was not killed."""
        for place in self.layout.nodes:
            process = process_of(self.layout, place)
            if place.node_id not in self.is_killed and process.pid() is None:
                raise StartFailure(f"node {place.node_id} has ended; see {process.log}", tail(process.log, 10))

    def stop(self) -> list[str]:
        """Stop the nodes by SIGTERM. Those that have not ended cleanly, with how they have ended."""
        unclean = []

        def on_stopped(done: Stopped) -> None:
            code = process_of(self.layout, self._place(done.node_id)).exit_code()
            if done.killed or code != 0:
                how = f"did not end within {_STOP_S:.0f} s" if done.killed else f"ended with {code}"
                unclean.append(f"node {done.node_id} {how}")

        stop(self.layout, self.layout.nodes, _STOP_S, on_stopped)
        return unclean
