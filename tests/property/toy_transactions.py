"""A toy cluster whose transactions are right, in one list a partition, and the history of its clients.

Markers of one transaction are written partition by partition, in steps of other clients. A transaction blocks the last
stable offset of each partition that it wrote to until its marker there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from kalda.base.ids import TopicPartition
from kalda.verify.history import (
    FIRST_LINE,
    Append,
    Consumed,
    Fault,
    FinalLog,
    FinalOffset,
    History,
    OffsetSample,
    Outcome,
    Read,
    Seen,
    Settings,
    Transaction,
    write_operation,
)

INPUTS = [TopicPartition("in", index) for index in range(3)]
OUTPUTS = [TopicPartition("out", index) for index in range(3)]
GROUP = "loops"
MARKER = None


@dataclass
class Open:
    """A transaction that has not ended on all of its partitions."""

    name: str
    commits: bool | None = None
    """The decision; None before it."""
    unmarked: set[TopicPartition] = field(default_factory=set)


@dataclass
class ToyLog:
    entries: list[tuple[str, str] | None] = field(default_factory=list)
    """(transaction, value); None for a marker."""
    open_at: dict[str, int] = field(default_factory=dict)
    """The first offset of each transaction without a marker."""
    aborted: set[str] = field(default_factory=set)

    @property
    def stable(self) -> int:
        return min(self.open_at.values(), default=len(self.entries))

    def append(self, transaction: str, value: str) -> int:
        self.open_at.setdefault(transaction, len(self.entries))
        self.entries.append((transaction, value))
        return len(self.entries) - 1

    def mark(self, transaction: str, commits: bool) -> None:
        del self.open_at[transaction]
        self.entries.append(MARKER)
        if not commits:
            self.aborted.add(transaction)

    def visible(self, start: int, end: int) -> tuple[Seen, ...]:
        return tuple(
            Seen(offset, entry[1])
            for offset, entry in enumerate(self.entries[start:end], start)
            if entry is not MARKER and entry[0] not in self.aborted
        )

    def records(self) -> tuple[Seen, ...]:
        return tuple(Seen(offset, entry[1]) for offset, entry in enumerate(self.entries) if entry is not MARKER)


class ToyCluster:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.logs = {partition: ToyLog() for partition in (*INPUTS, *OUTPUTS)}
        self.open: dict[str, Open] = {}
        self.group = dict.fromkeys(INPUTS, 0)
        self.pending: dict[str, dict[TopicPartition, int]] = {}
        """Group offsets of each transaction, which its decision to commit makes the group's."""
        self.history = History(Settings(1_000, 500))

    def tick(self) -> int:
        self.now_us += self.random.randint(1, 50)
        return self.now_us

    def append(self, name: str, partition: TopicPartition, value: str) -> int:
        self.open.setdefault(name, Open(name)).unmarked.add(partition)
        return self.logs[partition].append(name, value)

    def decide(self, name: str, commits: bool) -> None:
        transaction = self.open.setdefault(name, Open(name))
        transaction.commits = commits
        for partition, offset in self.pending.pop(name, {}).items():
            if commits:
                self.group[partition] = offset
        if not transaction.unmarked:
            del self.open[name]

    def mark_some(self) -> None:
        """Write one marker of one decided transaction."""
        decided = [each for each in self.open.values() if each.commits is not None]
        if decided:
            transaction = self.random.choice(decided)
            partition = self.random.choice(sorted(transaction.unmarked))
            assert transaction.commits is not None
            self.logs[partition].mark(transaction.name, transaction.commits)
            transaction.unmarked.discard(partition)
            if not transaction.unmarked:
                del self.open[transaction.name]

    def read(self, reader: str, partition: TopicPartition, start: int, limit: int, transaction: str = "") -> Read:
        begun_us, log = self.tick(), self.logs[partition]
        end = max(start, min(log.stable, start + limit))
        read = Read(reader, partition, start, end, begun_us, self.tick(), log.visible(start, end), transaction)
        self.history.add(read)
        return read


@dataclass
class Client:
    """A producer, or with `is_loop` a consume-transform-produce loop of its own input partition."""

    cluster: ToyCluster
    name: str
    loop_input: TopicPartition | None = None
    incarnation: int = 0
    number: int = 0
    running: Transaction | None = None

    def step(self) -> None:
        cluster, random = self.cluster, self.cluster.random
        if self.running is None:
            self._begin()
        elif self.running.commit_sent_us is not None or self.running.ended_us is not None:
            self._await_end()
        elif len(self.running.appends) < 4 and self.loop_input is None and random.random() < 0.7:
            self._send(random.choice(INPUTS), f"{self.running.name}#{len(self.running.appends)}")
        elif random.random() < 0.1:
            cluster.decide(self.running.name, False)  # by the timeout: this incarnation ends without an answer
            self._record(outcome=Outcome.UNKNOWN)
            self._next(new_incarnation=True)
        else:
            self._end(random.random() < 0.7)

    def _begin(self) -> None:
        cluster = self.cluster
        if any(each.name.startswith(f"{self.name}/") for each in cluster.open.values()):
            return  # the coordinator answers CONCURRENT_TRANSACTIONS until all markers are written
        self.running = Transaction(
            self.name, self.incarnation, self.number, Outcome.UNKNOWN, cluster.tick(), None, None, ()
        )
        if self.loop_input is not None:
            start = cluster.group[self.loop_input]
            read = cluster.read(self.name, self.loop_input, start, cluster.random.randint(1, 6), self.running.name)
            for record in read.records:
                output = OUTPUTS[self.loop_input.partition]
                self._send(output, f"{self.running.name}<{record.value}", record.value)
            self.running = replace(self.running, consumed=(Consumed(GROUP, self.loop_input, start, read.end),))
            cluster.pending[self.running.name] = {self.loop_input: read.end}
        self._record()

    def _send(self, partition: TopicPartition, value: str, source: str | None = None) -> None:
        assert self.running is not None
        offset = self.cluster.append(self.running.name, partition, value)
        acked = offset if self.cluster.random.random() < 0.9 else None
        self.running = replace(self.running, appends=(*self.running.appends, Append(partition, value, acked, source)))

    def _end(self, commits: bool) -> None:
        assert self.running is not None
        now_us = self.cluster.tick()
        if commits:
            self._record(commit_sent_us=now_us)
        else:
            self._record(ended_us=now_us)
        self.cluster.tick()
        self.cluster.decide(self.running.name, commits)

    def _await_end(self) -> None:
        running = self.running
        assert running is not None
        if running.name in self.cluster.open:
            return
        if running.commit_sent_us is None:
            self._record(outcome=Outcome.ABORTED, ended_us=self.cluster.tick())
        elif self.cluster.random.random() < 0.9:
            self._record(outcome=Outcome.COMMITTED, ended_us=self.cluster.tick())
        self._next(new_incarnation=self.cluster.random.random() < 0.1)

    def _record(self, **changes: object) -> None:
        assert self.running is not None
        self.running = replace(self.running, **changes)  # type: ignore[arg-type]
        self.cluster.history.add(self.running)

    def _next(self, new_incarnation: bool) -> None:
        self.running = None
        self.number += 1
        self.incarnation += new_incarnation


def toy_history(seed: int, steps: int = 400) -> History:
    """What clients of a right cluster see."""
    cluster = ToyCluster(seed)
    random = cluster.random
    clients = [Client(cluster, f"p{index}") for index in range(3)]
    clients += [Client(cluster, f"loop{index}", INPUTS[index]) for index in range(len(INPUTS))]
    positions = {(f"r{index}", partition): 0 for index in range(2) for partition in cluster.logs}
    for _ in range(steps):
        random.choice(clients).step()
        for _ in range(2):
            cluster.mark_some()
        reader, partition = random.choice(list(positions))
        positions[reader, partition] = cluster.read(reader, partition, positions[reader, partition], 8).end
        sampled = random.choice(list(cluster.logs))
        log = cluster.logs[sampled]
        cluster.history.add(OffsetSample(sampled, log.stable, len(log.entries), cluster.tick()))
    cluster.history.add(Fault("kill -9", cluster.now_us - 100, cluster.tick()))
    for client in clients:
        if client.running is not None and client.running.name in cluster.open:
            if cluster.open[client.running.name].commits is None:
                cluster.decide(client.running.name, False)
        elif client.running is not None:
            cluster.pending.pop(client.running.name, None)
    while cluster.open:
        cluster.mark_some()
    for partition, log in cluster.logs.items():
        end = len(log.entries)
        cluster.history.add(OffsetSample(partition, log.stable, end, cluster.tick()))
        cluster.history.add(FinalLog(partition, 0, end, log.stable, log.records(), log.visible(0, end)))
    for partition, offset in cluster.group.items():
        cluster.history.add(FinalOffset(GROUP, partition, offset))
    return cluster.history


def lines_of(history: History) -> list[str]:
    """The file of a history."""
    operations = (
        history.settings, *history.transactions.values(), *history.reads, *history.samples, *history.faults,
        *history.logs.values(), *history.offsets,
    )  # fmt: skip
    return [FIRST_LINE, *map(write_operation, operations)]
