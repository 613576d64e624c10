"""The final logs against the transactions: nothing lost, torn, doubled or reordered, and nothing of an aborted one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from kalda.base.ids import TopicPartition
from kalda.verify.findings import Finding, Rule
from kalda.verify.history import Append, Outcome, Place, Transaction
from kalda.verify.view import HistoryIndex, describe


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
