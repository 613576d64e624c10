"""The states of a transaction, and which state may follow which.

    Empty ──▶ Ongoing ──▶ PrepareCommit ──▶ CompleteCommit
                 │  └─────▶ PrepareAbort ───▶ CompleteAbort
                 └▶ PrepareEpochFence ─▲

From both Complete states the next transaction begins (Ongoing), or the producer is initialized anew (Empty). A client
of transactions version 2 may abort what has no partition yet, from Empty and both Complete states. An id that expires
becomes Dead. PrepareEpochFence lasts for one decision, in which the epoch is bumped and the abort begins; neither it
nor Dead is ever in a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType


class TransactionState(IntEnum):
    """The number is that of the records of `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name in DescribeTransactions and ListTransactions."""
        return _LABELS[self]

    @property
    def is_prepared(self) -> bool:
        """The outcome is decided, and markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def may_expire(self) -> bool:
        """No transaction is open, so the id is deleted when it has not been used for long."""
        return self is TransactionState.EMPTY or self.is_complete


_LABELS = {state: "".join(word.capitalize() for word in state.name.split("_")) for state in TransactionState}
STATE_BY_LABEL: Mapping[str, TransactionState] = MappingProxyType({label: state for state, label in _LABELS.items()})

_S = TransactionState
VALID_PREVIOUS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        _S.EMPTY: frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.ONGOING: frozenset((_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.PREPARE_COMMIT: frozenset((_S.ONGOING,)),
        _S.PREPARE_ABORT: frozenset(
            (_S.ONGOING, _S.PREPARE_EPOCH_FENCE, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)
        ),
        _S.COMPLETE_COMMIT: frozenset((_S.PREPARE_COMMIT,)),
        _S.COMPLETE_ABORT: frozenset((_S.PREPARE_ABORT,)),
        _S.DEAD: frozenset((_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT)),
        _S.PREPARE_EPOCH_FENCE: frozenset((_S.ONGOING,)),
    }
)
"""For each state those that it may follow, as in Apache Kafka."""
