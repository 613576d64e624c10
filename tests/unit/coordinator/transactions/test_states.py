"""Which state may follow which: every pair of states, as in Apache Kafka."""

from __future__ import annotations

from itertools import product

import pytest

from kalda.coordinator.transactions.metadata import (
    MAX_EPOCH,
    NO_PARTITIONS,
    NO_PRODUCER_ID,
    STATE_BY_LABEL,
    VALID_PREVIOUS,
    TransactionMetadata,
    TransactionState,
    is_epoch_exhausted,
)

S = TransactionState
FOLLOWS = {
    "Empty": "Empty CompleteCommit CompleteAbort",
    "Ongoing": "Empty Ongoing CompleteCommit CompleteAbort",
    "PrepareCommit": "Ongoing",
    "PrepareAbort": "Ongoing PrepareEpochFence Empty CompleteCommit CompleteAbort",
    "CompleteCommit": "PrepareCommit",
    "CompleteAbort": "PrepareAbort",
    "Dead": "Empty CompleteCommit CompleteAbort",
    "PrepareEpochFence": "Ongoing",
}


def moved(metadata: TransactionMetadata, state: TransactionState) -> TransactionMetadata:
    """To that state, by the transition that leads there."""
    match state:
        case S.EMPTY:
            return metadata.initialized(metadata.producer_epoch + 1, -1, 60_000, 2)
        case S.ONGOING:
            return metadata.with_partitions({"orders": frozenset((0,))}, 2, 2)
        case S.PREPARE_COMMIT | S.PREPARE_ABORT:
            return metadata.prepared(
                committed=state is S.PREPARE_COMMIT, client_version=2, next_producer_id=NO_PRODUCER_ID, now_ms=2
            )
        case S.COMPLETE_COMMIT | S.COMPLETE_ABORT:
            return metadata.completed(2)
        case S.PREPARE_EPOCH_FENCE:
            return metadata.fenced()
        case S.DEAD:
            raise ValueError("an id that expires is deleted: it gets no state")


@pytest.mark.parametrize(
    ("before", "after"), [(before, after) for before, after in product(S, S) if after is not S.DEAD]
)
def test_every_transition(before: TransactionState, after: TransactionState) -> None:
    metadata = TransactionMetadata(1000, 4, 60_000, before, start_ms=1)
    if before.label in FOLLOWS[after.label].split() and not _is_of_another_outcome(before, after):
        assert moved(metadata, after).state is after
    elif not _is_of_another_outcome(before, after):
        with pytest.raises(AssertionError, match="does not follow"):
            moved(metadata, after)


def _is_of_another_outcome(before: TransactionState, after: TransactionState) -> bool:
    """`completed` chooses the complete state of the prepared one."""
    return {before, after} in ({S.PREPARE_COMMIT, S.COMPLETE_ABORT}, {S.PREPARE_ABORT, S.COMPLETE_COMMIT})


def test_the_table() -> None:
    assert {state.label: {each.label for each in before} for state, before in VALID_PREVIOUS.items()} == {
        state: set(before.split()) for state, before in FOLLOWS.items()
    }
    assert {state.label for state in S if state.may_expire} == {"Empty", "CompleteCommit", "CompleteAbort"}
    assert {label: int(state) for label, state in STATE_BY_LABEL.items()} == {
        "Empty": 0, "Ongoing": 1, "PrepareCommit": 2, "PrepareAbort": 3, "CompleteCommit": 4, "CompleteAbort": 5,
        "Dead": 6, "PrepareEpochFence": 7,
    }  # fmt: skip


def test_epochs_and_producer_ids_through_a_transaction() -> None:
    begun = TransactionMetadata(1000, -1, 60_000).initialized(0, -1, 30_000, 5)
    assert (begun.timeout_ms, begun.last_update_ms, begun.start_ms) == (30_000, 5, -1)
    opened = begun.with_partitions({"a": frozenset((0, 2)), "b": frozenset((1,))}, 2, 6)
    assert opened.partitions == {"a": frozenset((0, 2)), "b": frozenset((1,))}
    more = opened.with_partitions({"a": frozenset((7,))}, 2, 8)
    assert (more.start_ms, more.last_update_ms) == (6, 8), "the transaction began with its first partition"
    assert more.holds_all(opened.partitions)
    assert not opened.holds_all(more.partitions)
    prepared = more.prepared(committed=True, client_version=2, next_producer_id=NO_PRODUCER_ID, now_ms=9)
    assert (prepared.producer_epoch, prepared.last_epoch, prepared.start_ms) == (1, 0, 6)
    complete = prepared.completed(10)
    assert (complete.producer_id, complete.producer_epoch, complete.partitions) == (1000, 1, NO_PARTITIONS)


def test_a_rotation_at_the_end_of_a_transaction() -> None:
    metadata = TransactionMetadata(1000, MAX_EPOCH - 1, 60_000, S.ONGOING, start_ms=1)
    assert is_epoch_exhausted(metadata.producer_epoch)
    prepared = metadata.prepared(committed=False, client_version=2, next_producer_id=2000, now_ms=2)
    assert (prepared.producer_id, prepared.producer_epoch, prepared.next_producer_id) == (1000, MAX_EPOCH, 2000)
    complete = prepared.completed(3)
    assert (complete.producer_id, complete.producer_epoch) == (2000, 0)
    assert (complete.previous_producer_id, complete.next_producer_id) == (1000, NO_PRODUCER_ID)


def test_a_fence_bumps_the_epoch_in_every_version() -> None:
    opened = TransactionMetadata(1000, 4, 60_000, S.ONGOING, last_epoch=3, start_ms=1)
    for version, last_epoch in ((0, -1), (1, -1), (2, 4)):
        aborted = opened.fenced().prepared(
            committed=False, client_version=version, next_producer_id=NO_PRODUCER_ID, now_ms=2
        )
        assert (aborted.producer_epoch, aborted.last_epoch, aborted.start_ms) == (5, last_epoch, 1)
    plain = opened.prepared(committed=False, client_version=1, next_producer_id=NO_PRODUCER_ID, now_ms=2)
    assert (plain.producer_epoch, plain.last_epoch) == (4, 3)


def test_no_epoch_is_left_after_the_highest() -> None:
    opened = TransactionMetadata(1000, MAX_EPOCH, 60_000, S.ONGOING, start_ms=1)
    with pytest.raises(AssertionError, match="cannot be bumped"):
        opened.prepared(committed=True, client_version=2, next_producer_id=NO_PRODUCER_ID, now_ms=2)
    for before, version in ((opened, 2), (opened.fenced(), 0), (opened.fenced(), 2)):
        aborted = before.prepared(committed=False, client_version=version, next_producer_id=NO_PRODUCER_ID, now_ms=2)
        assert aborted.producer_epoch == MAX_EPOCH
