"""Safeguards of clients, switched off one by one; see `ablations`. Each leaves the client as it would be without it,
and the brokers as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kalda.base.errors import ApiError
from kalda.sim.switch import Switch

if TYPE_CHECKING:
    from kalda.base.configs.producer import ProducerConfig
    from kalda.client.core.idempotence import Idempotence
    from kalda.client.core.producer_batch import ProducerBatch
    from kalda.client.core.transaction_manager import TransactionManager

_MANY_IN_FLIGHT = 30


def number_each_attempt(switch: Switch) -> None:
    """A batch gets a new sequence number whenever it is drained, not only the first time."""
    from kalda.client.core.idempotence import Idempotence

    checked = Idempotence.number

    def number(self: Idempotence, batch: ProducerBatch) -> None:
        sequence = self._sequences.get(batch.topic_partition)
        if batch.has_sequence and sequence is not None:
            self._remove(sequence, batch)
            batch.base_sequence = -1
        checked(self, batch)

    switch.set(Idempotence, "number", number)


def send_without_bound(switch: Switch) -> None:
    """More batches of a partition are in flight than the five that brokers recognize when they arrive again."""
    from kalda.client.core.producing import ProducerCore

    checked = ProducerCore.__init__

    def init(self: ProducerCore, config: ProducerConfig, **others: Any) -> None:
        checked(self, replace(config, max_in_flight=_MANY_IN_FLIGHT), **others)

    switch.set(ProducerCore, "__init__", init)


def begin_anew_in_the_same_epoch(switch: Switch) -> None:
    """Behind a gap, numbers begin at 0 again, and the epoch is not incremented."""
    from kalda.client.core.idempotence import Idempotence

    checked = Idempotence.run

    def run(self: Idempotence) -> None:
        epoch = self.epoch
        checked(self)
        if self.epoch != epoch and self.has_producer_id:
            self.epoch = epoch
            for sequence in self._sequences.values():
                sequence.epoch = epoch
                for batch in sequence.in_flight:
                    batch.set_producer(self.producer_id, epoch, batch.base_sequence, self.is_transactional)

    switch.set(Idempotence, "run", run)


def go_on_when_fenced(switch: Switch) -> None:
    """A producer that was fenced gets a new epoch, as if it were the latest of its transactional id."""
    from kalda.client.core.transaction_errors import FENCED, AbortableTransactionError
    from kalda.client.core.transaction_manager import TransactionManager
    from kalda.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

    checked = TransactionManager._fail

    def fail(self: TransactionManager, error: ApiError) -> None:
        if error.code in FENCED:
            self.producer_id, self.producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
            self._is_started, self._bump_required = False, True
            error = AbortableTransactionError(error.code, error.message)
        checked(self, error)

    switch.set(TransactionManager, "_fail", fail)


def follow_any_log(switch: Switch) -> None:
    """A consumer goes on at its position behind a change of the leader."""
    from kalda.client.core.positions import Positions

    switch.set(Positions, "_compare_epochs", lambda self: None)
