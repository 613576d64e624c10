"""Cycles of transactions that have read each other's records (G1c), as Elle finds them in list-append histories.

A partition is a list, and its offsets are the order of versions. A read_committed read of the record at offset o is a
read of the list up to o: a leader answers only below the last stable offset, so every transaction with a record at or
below o had ended before. Therefore a transaction that reads o depends on each of those writers, and each of those had
been decided before it. Such dependencies cannot form a cycle.

Transactions that only wrote to the same partitions are not ordered: Kafka lets the records of open transactions
interleave, in another order in each partition (G0 is allowed).

The graph has a node for each transaction that has taken effect, and one for each offset of a partition where a
transaction wrote. Offset nodes form a chain, so the graph grows linearly with the history.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

from kalda.base.ids import TopicPartition
from kalda.verify.findings import Finding, Rule
from kalda.verify.history import Append, Place, Read, Transaction
from kalda.verify.view import HistoryIndex

_MAX_CYCLES = 100
"""Cycles that are reported; more of them would not help a reader."""


class _Graph:
    """`after[n]`: the nodes that depend on node n. The first nodes are the transactions, in the order of `names`."""

    def __init__(self, view: HistoryIndex) -> None:
        self.names = list(view.effective)
        self.numbers = {name: number for number, name in enumerate(self.names)}
        self.after: list[list[int]] = [[] for _ in self.names]
        self.places: dict[int, tuple[Append, Place]] = {}
        """The record of each offset node."""
        self.reads: dict[tuple[int, int], Read] = {}
        """The read that made the edge from an offset node to a transaction."""
        chains = self._add_chains(view)
        for read in view.history.reads:
            reader = self.numbers.get(read.transaction)
            if reader is None or not read.records or read.partition not in chains:
                continue
            offsets, first_node = chains[read.partition]
            below = bisect_right(offsets, read.records[-1].offset)
            if below:
                node = first_node + below - 1
                self.after[node].append(reader)
                self.reads.setdefault((node, reader), read)

    def _add_chains(self, view: HistoryIndex) -> dict[TopicPartition, tuple[list[int], int]]:
        """By partition: the offsets where transactions wrote, and the node of the first."""
        written: dict[TopicPartition, dict[int, tuple[int, Append]]] = {}
        for name, transaction in view.effective.items():
            for append in transaction.appends:
                place = view.place_of(append)
                if place is not None:
                    written.setdefault(place.partition, {})[place.offset] = self.numbers[name], append
        chains = {}
        for partition, by_offset in written.items():
            offsets, first_node = sorted(by_offset), len(self.after)
            chains[partition] = offsets, first_node
            for index, offset in enumerate(offsets):
                writer, append = by_offset[offset]
                node = len(self.after)
                self.after.append([node + 1] if index + 1 < len(offsets) else [])
                self.after[writer].append(node)
                self.places[node] = append, Place(partition, offset)
        return chains

    def components(self) -> Iterator[list[int]]:
        """Strongly connected components with more than one node (Tarjan, without recursion)."""
        index = [-1] * len(self.after)
        low = [0] * len(self.after)
        on_stack = [False] * len(self.after)
        stack: list[int] = []
        counter = 0
        for root in range(len(self.names)):
            if index[root] >= 0:
                continue
            work = [(root, 0)]
            while work:
                node, edge = work.pop()
                if edge == 0:
                    index[node] = low[node] = counter
                    counter += 1
                    stack.append(node)
                    on_stack[node] = True
                for position in range(edge, len(self.after[node])):
                    successor = self.after[node][position]
                    if index[successor] < 0:
                        work += [(node, position + 1), (successor, 0)]
                        break
                    if on_stack[successor]:
                        low[node] = min(low[node], index[successor])
                else:
                    if work:
                        parent = work[-1][0]
                        low[parent] = min(low[parent], low[node])
                    if low[node] == index[node]:
                        component: list[int] = []
                        while not component or component[-1] != node:
                            component.append(stack.pop())
                            on_stack[component[-1]] = False
                        if len(component) > 1:
                            yield component

    def cycle(self, component: list[int]) -> list[int]:
        """A shortest cycle through one transaction of the component: nodes, the first one again at the end."""
        members = set(component)
        start = min(component)
        came_from: dict[int, int] = {}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            for successor in self.after[node]:
                if successor == start:
                    path = [start, node]
                    while path[-1] != start:
                        path.append(came_from[path[-1]])
                    return path[::-1] if node != start else [start, start]
                if successor in members and successor not in came_from:
                    came_from[successor] = node
                    waiting.append(successor)
        raise AssertionError("a component's node is on a cycle")


def information_flow_findings(view: HistoryIndex) -> Iterator[Finding]:
    """One finding for each strongly connected component."""
    graph = _Graph(view)
    for count, component in enumerate(graph.components()):
        if count == _MAX_CYCLES:
            return
        yield _describe(view, graph, graph.cycle(component))


def _describe(view: HistoryIndex, graph: _Graph, cycle: list[int]) -> Finding:
    """Each step: the writer's record, and the read by the next transaction at or beyond it."""
    steps: list[str] = []
    writer: Transaction | None = None
    written: tuple[Append, Place] | None = None
    first: tuple[Append, Place] | None = None
    for previous, node in pairwise(cycle):
        if node >= len(graph.names):
            if previous < len(graph.names):
                writer, written = view.effective[graph.names[previous]], graph.places[node]
                first = first or written
            continue
        assert writer is not None
        assert written is not None
        read = graph.reads[previous, node]
        append, place = written
        steps.append(
            f"{graph.names[node]} read {read.partition} up to {read.records[-1].offset}, where {writer.name} had "
            f"written {append.value!r} at {place}"
        )
    assert first is not None
    text = "each of these transactions had ended before the next one read: " + "; ".join(steps)
    return Finding(Rule.G1C, text, graph.names[cycle[0]], first[0].value, first[1])
