"""Safeguards of transactions, switched off one by one: without each of them some seed must violate a rule.

As in `ablations`, a switch patches named attributes and restores them; the product has no code for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ablations import Switch, go_on_when_fenced

from kalda.base.errors import ErrorCode
from kalda.sim.transaction_storm import TransactionPlan, TransactionVerdict, simulate_transactions


@dataclass(frozen=True, slots=True)
class TransactionAblation:
    """A safeguard, the function that switches it off, and the plan in which one of `seeds` seeds must then fail."""

    name: str
    off: Callable[[Switch], None]
    plan: TransactionPlan
    seeds: int = 30
    first: int = 0
    """The seed to begin with: one that has failed, so that few others are run before it."""

    def find(self) -> TransactionVerdict | None:
        """The first run that violates a rule without the safeguard; None where none does."""
        switch = Switch()
        try:
            self.off(switch)
            for seed in (*range(self.first, self.seeds), *range(self.first)):
                verdict = simulate_transactions(replace(self.plan, seed=seed))
                if not verdict.passed:
                    return verdict
        finally:
            switch.restore()
        return None


def _read_beyond_the_last_stable_offset(switch: Switch) -> None:
    from kalda.replication.partition import Partition

    switch.set(Partition, "readable_end", lambda self, read_committed: self.log.high_watermark)


def _append_unverified(switch: Switch) -> None:
    from kalda.replication.verification import TransactionVerifier
    from kalda.storage.log.producer_state import ProducerStates

    switch.set(TransactionVerifier, "applies_to", lambda self, support: False)
    switch.set(ProducerStates, "check_transactional", lambda *_: None)


def _append_for_any_epoch(switch: Switch) -> None:
    """The coordinator accepts any epoch too: its answer to the request to add a partition comes before the append."""
    from kalda.coordinator.transactions.transaction_coordinator import TransactionCoordinator
    from kalda.storage.log.producer_state import ProducerStates

    checked: Callable[..., Any] = TransactionCoordinator.add_partitions

    def add_partitions(
        self: TransactionCoordinator, transactional_id: str, producer_id: int, epoch: int, *rest: Any, **options: Any
    ) -> Any:
        metadata = self._shard_of(transactional_id).transactions.get(transactional_id)
        current = epoch if metadata is None else metadata.producer_epoch
        return checked(self, transactional_id, producer_id, current, *rest, **options)

    switch.set(ProducerStates, "_check_epoch", lambda *_: None)
    switch.set(ProducerStates, "_check_sequence", lambda *_: None)
    switch.set(TransactionCoordinator, "add_partitions", add_partitions)


def _take_any_marker(switch: Switch) -> None:
    from kalda.storage.log.producer_state import ProducerStates

    switch.set(ProducerStates, "check_marker", lambda *_: None)


def _read_unstable_offsets(switch: Switch) -> None:
    from kalda.coordinator.groups.offsets import Offsets

    checked: Callable[..., Any] = Offsets.fetch

    def fetch(self: Offsets, *arguments: Any, require_stable: bool) -> Any:
        return checked(self, *arguments, require_stable=False)

    switch.set(Offsets, "fetch", fetch)


def _end_for_any_epoch(switch: Switch) -> None:
    """A repeated EndTxn of version 2 ends the transaction that is open now."""
    from kalda.coordinator.transactions import transaction_coordinator
    from kalda.coordinator.transactions.metadata import TransactionMetadata, TransactionState
    from kalda.coordinator.transactions.transaction_coordinator import refuse_end

    def refuse(
        metadata: TransactionMetadata, producer_id: int, epoch: int, client_version: int, *, committed: bool
    ) -> ErrorCode | None:
        if metadata.state is TransactionState.ONGOING and metadata.producer_id == producer_id:
            return None
        return refuse_end(metadata, producer_id, epoch, client_version, committed=committed)

    switch.set(transaction_coordinator, "refuse_end", refuse)


def _commit_offsets_of_any_member(switch: Switch) -> None:
    """A member that was removed, or is of an earlier generation, commits within its transaction all the same."""
    from kalda.coordinator.groups.offset_requests import OffsetRequests

    switch.set(OffsetRequests, "_check_commit_in_transaction", staticmethod(lambda *_: None))


_CALM = TransactionPlan(0, kinds=(), duration_s=8.0)
"""Only clients fail."""
_LATE_MARKERS = replace(_CALM, late_markers=True)
_MEMBERS = replace(_CALM, members=True)


TRANSACTION_ABLATIONS = {
    each.name: each
    for each in (
        TransactionAblation("the last stable offset bounds fetches", _read_beyond_the_last_stable_offset, _CALM),
        TransactionAblation("verification before append", _append_unverified, _CALM),
        TransactionAblation("fencing of clients", go_on_when_fenced, _CALM),
        TransactionAblation("epochs of appends", _append_for_any_epoch, _CALM, first=4),
        TransactionAblation("fencing of markers", _take_any_marker, _LATE_MARKERS),
        TransactionAblation("stable offsets", _read_unstable_offsets, _CALM),
        TransactionAblation("stable offsets of a group's members", _read_unstable_offsets, _MEMBERS),
        TransactionAblation("fencing of removed members", _commit_offsets_of_any_member, _MEMBERS),
        TransactionAblation("idempotent ends of transactions", _end_for_any_epoch, _CALM),
    )
}
"""By the name of the safeguard."""
