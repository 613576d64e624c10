"""The rules that every history of transactions has to follow, what violates one of them, and the verdict over a
history: what each transaction left, what consumers read, what loops made of it, stable offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import chain, pairwise
from typing import NamedTuple

from kalda.base.ids import TopicPartition
from kalda.verify.history import (
    Append,
    Consumed,
    FinalLog,
    History,
    HistoryIndex,
    OffsetSample,
    Outcome,
    Place,
    Read,
    Seen,
    Transaction,
    describe,
)


class Rule(Enum):
    """The value is the rule's name in output; `meaning` is a sentence about it."""

    LOST = "lost-record"
    TORN = "torn-transaction"
    ABORTED_VISIBLE = "aborted-record-visible"
    DUPLICATE = "duplicate-record"
    UNKNOWN_RECORD = "unknown-record"
    MISPLACED = "misplaced-record"
    ORDER = "order"
    G1A = "G1a-aborted-read"
    G1B = "G1b-intermediate-read"
    SKIPPED = "skipped-record"
    UNSTABLE_READ = "unstable-read"
    G1C = "G1c-circular-information-flow"
    LOST_UPDATE = "lost-update"
    INPUT_LOST = "input-without-output"
    INPUT_TWICE = "input-processed-twice"
    OUTPUT_ORDER = "output-order"
    GROUP_OFFSET = "group-offset"
    LSO_BACKWARDS = "last-stable-offset-moved-back"
    LSO_STUCK = "last-stable-offset-stuck"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Rule.LOST: "every record of a committed transaction is visible",
    Rule.TORN: "all records of a transaction are visible, or none",
    Rule.ABORTED_VISIBLE: "no record of an aborted transaction is visible",
    Rule.DUPLICATE: "a record is visible once",
    Rule.UNKNOWN_RECORD: "every visible record was sent by a client",
    Rule.MISPLACED: "a record is in the partition that it was sent to, at the offset that was acknowledged",
    Rule.ORDER: "a producer's records are in the order of sending, and a fenced producer's precede its successor's",
    Rule.G1A: "no read_committed consumer reads a record of an aborted transaction",
    Rule.G1B: "no read_committed consumer reads a part of a transaction, or one that has not ended",
    Rule.SKIPPED: "a read_committed consumer gets every committed record between two of its positions",
    Rule.UNSTABLE_READ: "a record that was read keeps its offset and its value",
    Rule.G1C: "no two transactions have read each other's records, directly or through others",
    Rule.LOST_UPDATE: "no two committed transactions have advanced a group from the same offset",
    Rule.INPUT_LOST: "every input record below a group's committed offset has an output record",
    Rule.INPUT_TWICE: "no input record has two output records",
    Rule.OUTPUT_ORDER: "outputs of one input partition are in the order of their inputs",
    Rule.GROUP_OFFSET: "a group's committed offset is the one that its last committed transaction committed",
    Rule.LSO_BACKWARDS: "the last stable offset never moves back, and is not above the high watermark",
    Rule.LSO_STUCK: "the last stable offset reaches the high watermark within the transaction timeout after the faults",
}


class Finding(NamedTuple):
    """One violation. `record` is a record's value, `transaction` a transaction's name, `place` where in the log; each
    is None where the violation does not concern one."""

    rule: Rule
    text: str
    transaction: str | None = None
    record: str | None = None
    place: Place | None = None

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.text}"


MAX_FINDINGS_A_RULE = 100
"""How many findings of a rule are kept; the others are counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`findings` has at most `MAX_FINDINGS_A_RULE` of each rule, `violations` the number of all of each rule."""

    findings: tuple[Finding, ...]
    violations: dict[Rule, int]
    outcomes: dict[Outcome, int]
    records_sent: int
    records_visible: int
    records_read: int
    reads: int
    faults: int

    @property
    def is_sound(self) -> bool:
        """Whether no rule was violated."""
        return not self.violations


def judge(history: History) -> Verdict:
    """The verdict over a history. A history without final logs is judged by its reads and samples only."""
    view = HistoryIndex(history)
    counts: Counter[Rule] = Counter()
    kept: list[Finding] = []
    for finding in chain(
        final_findings(view),
        read_findings(view),
        information_flow_findings(view),
        exactly_once_findings(view),
        stable_offset_findings(view),
    ):
        counts[finding.rule] += 1
        if counts[finding.rule] <= MAX_FINDINGS_A_RULE:
            kept.append(finding)
    transactions = history.transactions.values()
    outcomes = Counter(transaction.outcome for transaction in transactions)
    return Verdict(
        tuple(kept),
        dict(counts),
        {outcome: outcomes[outcome] for outcome in Outcome},
        sum(len(transaction.appends) for transaction in transactions),
        sum(len(log.visible) for log in history.logs.values()),
        sum(len(read.records) for read in history.reads),
        len(history.reads),
        len(history.faults),
    )


# The final logs against the transactions: nothing lost, torn, doubled or reordered, and nothing of an aborted one.


def final_findings(view: HistoryIndex) -> Iterator[Finding]:
    for transaction in view.history.transactions.values():
        yield from _visibility(view, transaction)
    yield from _visible_records(view)
    yield from _order(view)


def _visibility(view: HistoryIndex, transaction: Transaction) -> Iterator[Finding]:
    """Atomic visibility of one transaction. A transaction without a request to commit was aborted, whatever its client
    has seen: the coordinator aborts it after its timeout."""
    judged = [append for append in transaction.appends if append.partition in view.history.logs]
    shown = [append for append in judged if append.value in view.visible]
    hidden = [append for append in judged if append.value not in view.visible]
    may_commit = transaction.outcome is not Outcome.ABORTED and (
        transaction.commit_sent_us is not None or transaction.outcome is Outcome.COMMITTED
    )
    if not may_commit:
        for append in shown:
            yield _finding(view, Rule.ABORTED_VISIBLE, transaction, append, "is visible to read_committed consumers")
    elif shown and hidden:
        for append in hidden:
            text = f"is not visible, but {len(shown)} of its {len(judged)} records are, as {_example(view, shown[0])}"
            yield _finding(view, Rule.TORN, transaction, append, text)
    elif hidden and transaction.outcome is Outcome.COMMITTED:
        for append in hidden:
            yield _finding(view, Rule.LOST, transaction, append, "is not visible, as none of its records is")


def _finding(view: HistoryIndex, rule: Rule, transaction: Transaction, append: Append, what: str) -> Finding:
    place = view.place_of(append)
    if append.value in view.stored:
        where = f"at {place}"
    elif place is not None:
        where = f"acknowledged at {place}, not in the log"
    else:
        where = f"sent to {append.partition}, not in the log"
    text = f"record {append.value!r} of {describe(transaction)}, {where}, {what}"
    return Finding(rule, text, transaction.name, append.value, place)


def _example(view: HistoryIndex, append: Append) -> str:
    return f"{append.value!r} at {view.place_of(append)}"


def _visible_records(view: HistoryIndex) -> Iterator[Finding]:
    """Each visible record: sent by a client, visible once, where it was sent and acknowledged."""
    for value, places in view.visible.items():
        writer = view.writers.get(value)
        if writer is None:
            yield Finding(
                Rule.UNKNOWN_RECORD, f"record {value!r} at {places[0]} was sent by no client", None, value, places[0]
            )
            continue
        transaction, append = writer
        if len(places) > 1:
            listed = " and ".join(map(str, places))
            text = f"record {value!r} of {describe(transaction)} is visible {len(places)} times: at {listed}"
            yield Finding(Rule.DUPLICATE, text, transaction.name, value, places[1])
        expected = append.partition if append.offset is None else Place(append.partition, append.offset)
        found = places[0].partition if append.offset is None else places[0]
        if found != expected and len(places) == 1:
            text = f"record {value!r} of {describe(transaction)} is at {places[0]}, but was acknowledged at {expected}"
            if append.offset is None:
                text = f"record {value!r} of {describe(transaction)} is at {places[0]}, but was sent to {expected}"
            yield Finding(Rule.MISPLACED, text, transaction.name, value, places[0])


def _order(view: HistoryIndex) -> Iterator[Finding]:
    """By transactional id and partition, offsets ascend with (incarnation, transaction, index)."""
    sent: dict[tuple[str, TopicPartition], list[tuple[tuple[int, int, int], int, Append, Transaction]]] = {}
    for transaction in view.history.transactions.values():
        for index, append in enumerate(transaction.appends):
            places = view.visible.get(append.value, ())
            if len(places) == 1 and places[0].partition == append.partition:
                rank = (transaction.incarnation, transaction.number, index)
                key = transaction.transactional_id, append.partition
                sent.setdefault(key, []).append((rank, places[0].offset, append, transaction))
    for (_, partition), entries in sent.items():
        entries.sort(key=lambda entry: entry[0])
        for (_, before, earlier, first), (_, after, append, transaction) in pairwise(entries):
            if after < before:
                place = Place(partition, after)
                text = (
                    f"record {append.value!r} of {describe(transaction)} is at {place}, before {earlier.value!r} of "
                    f"{describe(first)} at {Place(partition, before)}, which was sent earlier"
                )
                yield Finding(Rule.ORDER, text, transaction.name, append.value, place)


# What read_committed consumers read, against the final logs.
#
# A consumer whose position moved from `start` to `end` has to have got exactly the records that are visible there in
# the end: what is committed below the last stable offset never changes afterwards.


def read_findings(view: HistoryIndex) -> Iterator[Finding]:
    visible = {partition: dict(log.visible) for partition, log in view.history.logs.items()}
    offsets = {partition: [record.offset for record in log.visible] for partition, log in view.history.logs.items()}
    seen_by: dict[str, set[str]] = {}
    for read in view.history.reads:
        seen_by.setdefault(read.reader, set()).update(record.value for record in read.records)
    for read in view.history.reads:
        log = view.history.logs.get(read.partition)
        if log is None:
            continue
        yield from _sequence(read)
        for record in read.records:
            yield from _record(view, read, record, log, visible[read.partition])
        yield from _skipped(view, read, log, visible[read.partition], offsets[read.partition], seen_by[read.reader])


def _sequence(read: Read) -> Iterator[Finding]:
    """Offsets ascend within the positions of the read."""
    previous = read.start - 1
    for offset, value in read.records:
        if not previous < offset < read.end:
            place = Place(read.partition, offset)
            text = (
                f"{read.reader} got record {value!r} at {place} after offset {previous}, while its position moved from "
                f"{read.start} to {read.end}"
            )
            yield Finding(Rule.UNSTABLE_READ, text, None, value, place)
        previous = max(previous, offset)


def _record(view: HistoryIndex, read: Read, record: Seen, log: FinalLog, visible: dict[int, str]) -> Iterator[Finding]:
    place = Place(read.partition, record.offset)
    transaction = view.writers[record.value][0] if record.value in view.writers else None
    name = transaction.name if transaction is not None else None
    whose = f" of {describe(transaction)}" if transaction is not None else ""
    if visible.get(record.offset) == record.value:
        if (
            transaction is not None
            and transaction.commit_sent_us is not None
            and read.ended_us < transaction.commit_sent_us
        ):
            early_us = transaction.commit_sent_us - read.ended_us
            text = (
                f"{read.reader} read record {record.value!r}{whose} at {place} {early_us} µs before its commit was "
                f"requested"
            )
            yield Finding(Rule.G1B, text, name, record.value, place)
        return
    if record.offset < log.start:
        return
    if transaction is None or transaction.outcome is not Outcome.COMMITTED:
        text = f"{read.reader} read record {record.value!r}{whose} at {place}, which is not committed in the end"
        yield Finding(Rule.G1A, text, name, record.value, place)
        return
    now = visible.get(record.offset)
    text = f"{read.reader} read record {record.value!r}{whose} at {place}, where the log has " + (
        f"{now!r} in the end" if now is not None else "no visible record in the end"
    )
    yield Finding(Rule.UNSTABLE_READ, text, name, record.value, place)


def _skipped(
    view: HistoryIndex, read: Read, log: FinalLog, visible: dict[int, str], offsets: list[int], seen: set[str]
) -> Iterator[Finding]:
    """`seen`: all values that this reader has got. Where it got other records of the transaction, it has read a part of
    it."""
    got = {record.offset for record in read.records}
    for at in range(bisect_left(offsets, max(read.start, log.start)), bisect_left(offsets, read.end)):
        offset = offsets[at]
        if offset in got:
            continue
        value, place = visible[offset], Place(read.partition, offset)
        writer = view.writers.get(value)
        name, whose, others = None, "", 0
        if writer is not None:
            name, whose = writer[0].name, f" of {describe(writer[0])}"
            others = sum(append.value in seen for append in writer[0].appends)
        part = f", but got {others} other records of this transaction" if others else ""
        text = (
            f"{read.reader} moved its position from {read.start} to {read.end} and did not get record {value!r}{whose} "
            f"at {place}{part}"
        )
        yield Finding(Rule.G1B if others else Rule.SKIPPED, text, name, value, place)


# The last stable offset: it never moves back, is never above the high watermark, and reaches it after the faults.
#
# An open transaction ends by its client or by its timeout. So after the last fault was healed and the last transaction
# ended or was given up, the last stable offset reaches the high watermark within the transaction timeout, and the time
# that the coordinator takes to find what has timed out (`Settings.slack_ms`). In the final logs it has reached it.


def stable_offset_findings(view: HistoryIndex) -> Iterator[Finding]:
    by_partition: dict[TopicPartition, list[OffsetSample]] = {}
    for sample in view.history.samples:
        by_partition.setdefault(sample.partition, []).append(sample)
    quiet_us = _quiet_us(view)
    reported: set[TopicPartition] = set()
    for partition, samples in by_partition.items():
        samples.sort(key=lambda sample: sample.at_us)
        yield from _monotonic(partition, samples)
        stuck = _stuck(view, partition, samples, quiet_us)
        if stuck is not None:
            reported.add(partition)
            yield stuck
    for partition, log in view.history.logs.items():
        if log.last_stable_offset < log.end and partition not in reported:
            yield _stuck_at(view, partition, log.last_stable_offset, log.end, "after everything has ended")


def _quiet_us(view: HistoryIndex) -> int:
    """When the last fault had been healed and the last transaction had ended, been given up or been begun."""
    moments = [fault.ended_us for fault in view.history.faults]
    for transaction in view.history.transactions.values():
        moments += [transaction.begun_us, transaction.commit_sent_us or 0, transaction.ended_us or 0]
    return max(moments, default=0)


def _monotonic(partition: TopicPartition, samples: list[OffsetSample]) -> Iterator[Finding]:
    highest = -1
    for sample in samples:
        place = Place(partition, sample.last_stable_offset)
        if sample.last_stable_offset < highest:
            text = f"the last stable offset of {partition} was {highest}, and then {sample.last_stable_offset}"
            yield Finding(Rule.LSO_BACKWARDS, text, None, None, place)
        if sample.last_stable_offset > sample.high_watermark:
            text = (
                f"the last stable offset of {partition} was {sample.last_stable_offset}, above its high watermark "
                f"{sample.high_watermark}"
            )
            yield Finding(Rule.LSO_BACKWARDS, text, None, None, place)
        highest = max(highest, sample.last_stable_offset)


def _stuck(view: HistoryIndex, partition: TopicPartition, samples: list[OffsetSample], quiet_us: int) -> Finding | None:
    """It may become unstable again: a record that arrives late begins a transaction which may never be ended."""
    settings = view.history.settings
    longest_us = (settings.transaction_timeout_ms + settings.slack_ms) * 1_000
    since_us = quiet_us
    for sample in samples:
        waited_us = sample.at_us - since_us
        if waited_us < 0:
            continue
        if sample.last_stable_offset >= sample.high_watermark:
            since_us = sample.at_us
        elif waited_us > longest_us:
            since = "the last fault and the last request" if since_us == quiet_us else "it had reached it last"
            when = f"{waited_us / 1e6:.1f} s after {since}"
            return _stuck_at(view, partition, sample.last_stable_offset, sample.high_watermark, when)
    return None


def _stuck_at(view: HistoryIndex, partition: TopicPartition, stable: int, end: int, when: str) -> Finding:
    """Names the transaction whose record is first at or above the last stable offset, where it is in the log."""
    log = view.history.logs.get(partition)
    first = next((record for record in log.records if record.offset >= stable), None) if log is not None else None
    writer = view.writers.get(first.value) if first is not None else None
    place = Place(partition, stable)
    whose = f"; the first record there is {first.value!r}" if first is not None else ""
    whose += f" of transaction {writer[0].name}" if writer is not None else ""
    text = f"the last stable offset of {partition} is {stable}, below its high watermark {end}, {when}{whose}"
    name = writer[0].name if writer is not None else None
    return Finding(Rule.LSO_STUCK, text, name, first.value if first is not None else None, place)


# Inputs to outputs: each input record of a consume-transform-produce loop has one output, and a group's committed
# offset advances with the transactions that took effect.
#
# A committed offset is a register, and a transaction of the loop reads it (`start`) and writes it (`end`). Its versions
# are ordered by their values, as offsets only advance. Two transactions that took effect and read the same version have
# lost an update; intervals of them that overlap have processed records twice.

Input = tuple[str, TopicPartition]
"""A group and a partition that it reads."""


def exactly_once_findings(view: HistoryIndex) -> Iterator[Finding]:
    consumed: dict[Input, list[tuple[Consumed, Transaction]]] = {}
    for transaction in view.effective.values():
        for each in transaction.consumed:
            consumed.setdefault((each.group, each.partition), []).append((each, transaction))
    committed = {(each.group, each.partition): each.offset for each in view.history.offsets}
    for source in dict.fromkeys((*consumed, *committed)):
        intervals = sorted(consumed.get(source, ()), key=lambda entry: (entry[0].start, entry[0].end))
        yield from _overlaps(intervals)
        yield from _final_offset(source, intervals, committed.get(source))
    yield from _outputs(view, committed)


def _overlaps(intervals: list[tuple[Consumed, Transaction]]) -> Iterator[Finding]:
    """Intervals that overlap, and gaps between them. `furthest` is the interval with the highest end so far."""
    furthest: tuple[Consumed, Transaction] | None = None
    for interval in intervals:
        current, transaction = interval
        if current.end <= current.start:
            continue
        if furthest is not None:
            before, other = furthest
            place = Place(current.partition, current.start)
            if current.start == before.start or current.start < before.end:
                how = "from the same offset" if current.start == before.start else "over the same offsets"
                text = (
                    f"group {current.group!r} was advanced {how} by two transactions: {describe(other)} from "
                    f"{before.start} to {before.end}, and {describe(transaction)} from {current.start} to "
                    f"{current.end}, in {current.partition}"
                )
                yield Finding(Rule.LOST_UPDATE, text, transaction.name, None, place)
            elif current.start > before.end:
                text = (
                    f"{describe(transaction)} read group {current.group!r} at {place}, but the transactions before it "
                    f"had committed only up to {before.end}, the last of them {other.name}"
                )
                yield Finding(Rule.GROUP_OFFSET, text, transaction.name, None, place)
        if furthest is None or current.end > furthest[0].end:
            furthest = interval


def _final_offset(
    source: Input, intervals: list[tuple[Consumed, Transaction]], committed: int | None
) -> Iterator[Finding]:
    if committed is None or not intervals:
        return
    last, transaction = max(intervals, key=lambda entry: entry[0].end)
    if last.end != committed:
        group, partition = source
        text = (
            f"group {group!r} has committed offset {committed} of {partition} in the end, but {describe(transaction)} "
            f"committed {last.end}"
        )
        yield Finding(Rule.GROUP_OFFSET, text, transaction.name, None, Place(partition, committed))


def _outputs(view: HistoryIndex, committed: dict[Input, int]) -> Iterator[Finding]:
    """Visible outputs by the group and the input record that they were made from."""
    outputs: dict[tuple[str, str], list[tuple[Place, Append, Transaction]]] = {}
    for value, places in view.visible.items():
        writer = view.writers.get(value)
        if writer is not None and writer[1].source is not None:
            transaction, append = writer
            group = transaction.consumed[0].group if transaction.consumed else ""
            outputs.setdefault((group, append.source or ""), []).append((places[0], append, transaction))
    latest: dict[tuple[TopicPartition, TopicPartition], tuple[int, str]] = {}
    for (group, partition), end in sorted(committed.items()):
        log = view.history.logs.get(partition)
        if log is None:
            continue
        for offset, value in log.visible:
            if offset >= end:
                break
            place, found = Place(partition, offset), outputs.get((group, value), [])
            if not found:
                text = f"group {group!r} has committed an offset beyond input {value!r} at {place}, which has no output"
                yield Finding(Rule.INPUT_LOST, text, None, value, place)
                continue
            if len(found) > 1:
                listed = " and ".join(f"{a.value!r} at {p} by {describe(t)}" for p, a, t in found)
                text = f"input {value!r} at {place} has {len(found)} outputs: {listed}"
                yield Finding(Rule.INPUT_TWICE, text, found[1][2].name, value, found[1][0])
            output, append, transaction = found[0]
            before = latest.get((partition, output.partition), (-1, ""))
            if output.offset < before[0]:
                text = (
                    f"output {append.value!r} of {describe(transaction)} is at {output}, before that of the earlier "
                    f"input {before[1]!r} at offset {before[0]}"
                )
                yield Finding(Rule.OUTPUT_ORDER, text, transaction.name, append.value, output)
            latest[partition, output.partition] = max(before, (output.offset, value))


# Cycles of transactions that have read each other's records (G1c), as Elle finds them in list-append histories.
#
# A partition is a list, and its offsets are the order of versions. A read_committed read of the record at offset o is a
# read of the list up to o: a leader answers only below the last stable offset, so every transaction with a record at or
# below o had ended before. Therefore a transaction that reads o depends on each of those writers, and each of those had
# been decided before it. Such dependencies cannot form a cycle.
#
# Transactions that only wrote to the same partitions are not ordered: Kafka lets the records of open transactions
# interleave, in another order in each partition (G0 is allowed).
#
# The graph has a node for each transaction that has taken effect, and one for each offset of a partition where a
# transaction wrote. Offset nodes form a chain, so the graph grows linearly with the history.

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
