"""The offsets of the log that a replayed state depends on, and the snapshots that must exist because of them.

Four offsets, of which a log with no metadata transactions uses three:

- `next_write_offset`: the lowest offset that the next append may have; None while this node is not the leader;
- `last_committed_offset`: everything up to it is replicated, and is never taken back;
- `last_stable_offset`: the last committed one, or the one before the begin of an open transaction (KIP-868). Reads see
  the state at this offset, and answers wait for it, so half a transaction is never seen;
- `transaction_start_offset` is itself a timeline value, since the begin and end records of a transaction are appended,
  committed and reverted as any others. The stable offset is computed from its *committed* value: an end that is only
  appended does not close the transaction.

Invariants: while active there is a snapshot at the last committed offset (what renouncing reverts to) and one at the
last stable offset (what reads see); `last_stable <= last_committed`.

An offset is any rising number, as long as it means the same to append and commit: the controller uses the offset of
the last record, a coordinator the end of the log. Metadata transactions, which only the controller writes, need the
former.
"""

from __future__ import annotations

from kalda.statemachine.timeline import SnapshotRegistry, TimelineValue

NO_TRANSACTION = -1


class OffsetControl:
    """The offsets, and the snapshots that follow from them."""

    __slots__ = (
        "_transaction_start",
        "last_committed_offset",
        "last_stable_offset",
        "next_write_offset",
        "registry",
    )

    def __init__(self, registry: SnapshotRegistry) -> None:
        self.registry = registry
        self._transaction_start: TimelineValue[int] = TimelineValue(registry, NO_TRANSACTION)
        self.last_committed_offset = -1
        self.last_stable_offset = -1
        self.next_write_offset: int | None = None
        """None while this node is not the leader."""
        registry.create_snapshot(-1)

    @property
    def active(self) -> bool:
        """Whether this node leads."""
        return self.next_write_offset is not None

    @property
    def transaction_start_offset(self) -> int:
        """The offset of the open transaction's begin record, `NO_TRANSACTION` where none is open. On a leader this is
        that of the latest append, committed or not."""
        return self._transaction_start.value

    @property
    def stable_epoch(self) -> int:
        """The epoch that reads see: that of the newest stable snapshot."""
        epoch = self.registry.floor(self.last_stable_offset)
        assert epoch is not None, "there is always a stable snapshot"
        return epoch

    def activate(self, next_write_offset: int) -> None:
        """This node leads, and appends from `next_write_offset` on. Everything committed has been replayed."""
        assert not self.active, "this node leads already"
        assert next_write_offset >= 0
        if self.registry.newest != self.last_committed_offset:
            self.registry.create_snapshot(self.last_committed_offset)
        self.next_write_offset = next_write_offset

    def deactivate(self) -> None:
        """Leadership is lost: revert what was appended but not committed."""
        assert self.active, "this node does not lead"
        self.next_write_offset = None
        committed = self.registry.floor(self.last_committed_offset)
        assert committed is not None, "there is always a committed snapshot"
        self.registry.revert_to(committed)

    def on_append(self, first_offset: int, count: int, commit_offset: int) -> None:
        """A batch of `count` records was appended and replayed. It is committed when `commit_offset` is."""
        assert self.next_write_offset is not None, "only a leader appends"
        assert first_offset >= self.next_write_offset, "the log of a leader is never truncated"
        self.next_write_offset = first_offset + count
        self.registry.create_snapshot(commit_offset)

    def on_commit(self, offset: int) -> None:
        """Everything up to `offset` is committed, and has been replayed: by a leader when it appended it, by any other
        node just before this call."""
        if offset <= self.last_committed_offset:
            if self.registry.newest is None:
                self.registry.create_snapshot(self.last_committed_offset)
            return
        self.last_committed_offset = offset
        if not self.active:
            self.registry.create_snapshot(offset)
        self._advance_stable()

    def _advance_stable(self) -> None:
        committed = self.registry.floor(self.last_committed_offset)
        assert committed is not None, "there is always a committed snapshot"
        start = self._transaction_start.get(committed)
        stable = self.last_committed_offset if start == NO_TRANSACTION else min(start - 1, self.last_committed_offset)
        if stable > self.last_stable_offset:
            self.last_stable_offset = stable
        self.registry.delete_up_to(self.stable_epoch)

    def begin_replay(self) -> None:
        """Committed records are about to be replayed, with no read before `on_commit`. So no snapshot is needed until
        then, except in an open transaction, which may be aborted."""
        assert not self.active, "a leader may have to revert what it wrote"
        if self._transaction_start.value == NO_TRANSACTION:
            self.registry.drop_all()

    def begin_load_snapshot(self) -> None:
        """A snapshot of the log is about to be replayed: empty every collection."""
        assert not self.active, "a leader does not load snapshots"
        self.registry.reset()
        self.last_committed_offset = self.last_stable_offset = -1

    def end_load_snapshot(self, offset: int) -> None:
        """The snapshot has been replayed; `offset` is the last one that it contains."""
        self.last_committed_offset = self.last_stable_offset = offset
        self.registry.create_snapshot(offset)

    def begin_transaction(self, offset: int) -> None:
        """Replay of a BeginTransactionRecord at `offset`: an abort restores the state before it."""
        assert self._transaction_start.value == NO_TRANSACTION, (
            f"a transaction begins at {offset} inside the one that began at {self._transaction_start.value}"
        )
        if self.registry.newest != offset - 1:
            self.registry.create_snapshot(offset - 1)
        self._transaction_start.value = offset

    def end_transaction(self, offset: int) -> None:
        """Replay of an EndTransactionRecord at `offset`."""
        assert self._transaction_start.value != NO_TRANSACTION, f"no transaction is open at {offset}"
        self._transaction_start.value = NO_TRANSACTION

    def abort_transaction(self, offset: int) -> None:
        """Replay of an AbortTransactionRecord at `offset`: the state before the begin is written over the present
        one, so that the abort itself can be reverted while it is not committed."""
        start = self._transaction_start.value
        assert start != NO_TRANSACTION, f"no transaction is open at {offset}"
        self.registry.restore(start - 1)
        self._transaction_start.value = NO_TRANSACTION
