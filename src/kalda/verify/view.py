"""The place and the visibility of each record in the final logs, and which transactions took effect.

A transaction has *taken effect* where any of its records, or without records its group offsets, are visible, or where
the cluster has answered that it is committed. Only such a transaction's reads and inputs count.
"""

from __future__ import annotations

from kalda.verify.history import Append, History, Outcome, Place, Transaction


class HistoryIndex:
    """Indexes over a history; made once, not changed afterwards."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.visible: dict[str, list[Place]] = {}
        """Each visible value, and where a read_committed consumer gets it: one place unless it is a duplicate."""
        self.stored: dict[str, list[Place]] = {}
        """Each value in the logs, visible or not."""
        for partition, log in history.logs.items():
            for record in log.visible:
                self.visible.setdefault(record.value, []).append(Place(partition, record.offset))
            for record in log.records:
                self.stored.setdefault(record.value, []).append(Place(partition, record.offset))
        self.writers: dict[str, tuple[Transaction, Append]] = {
            append.value: (transaction, append)
            for transaction in history.transactions.values()
            for append in transaction.appends
        }
        self.effective: dict[str, Transaction] = {
            name: transaction for name, transaction in history.transactions.items() if self._took_effect(transaction)
        }
        """By name: the transactions that took effect."""

    def place_of(self, append: Append) -> Place | None:
        """Where the record is: visible, or at least in the log, or where it was acknowledged."""
        for places in (self.visible.get(append.value), self.stored.get(append.value)):
            if places:
                return places[0]
        return None if append.offset is None else Place(append.partition, append.offset)

    def _took_effect(self, transaction: Transaction) -> bool:
        if transaction.outcome is Outcome.COMMITTED:
            return True
        if any(append.value in self.visible for append in transaction.appends):
            return True
        if transaction.outcome is Outcome.ABORTED or transaction.appends or transaction.commit_sent_us is None:
            return False
        ends = {(each.group, each.partition): each.offset for each in self.history.offsets}
        return any(ends.get((c.group, c.partition), -1) >= c.end > c.start for c in transaction.consumed)


def describe(transaction: Transaction) -> str:
    """A transaction with its outcome, for a person."""
    if transaction.outcome is Outcome.UNKNOWN:
        how = "its commit was not answered" if transaction.commit_sent_us is not None else "no commit was requested"
    else:
        how = transaction.outcome.value
    return f"transaction {transaction.name} ({how})"
