"""InitProducerId with a transactional id: which epoch, or which new producer id, its producer begins with.

A request without an expected id and epoch is a new instance of the producer: it gets a new epoch, which fences all
instances before it. One with both continues after an error (KIP-360): it succeeds only while no other instance has
begun. An open transaction is aborted first, and the request is answered with CONCURRENT_TRANSACTIONS, so its client
comes again. The last epoch of a producer id is kept for such a fence; a producer that would get it gets a new id.
"""

from __future__ import annotations

from typing import NamedTuple

from kalda.base.errors import ErrorCode
from kalda.coordinator.transactions.metadata import NO_EPOCH, TransactionMetadata, is_epoch_exhausted
from kalda.coordinator.transactions.states import TransactionState


class Expected(NamedTuple):
    """The producer id and epoch that a producer had before an error."""

    producer_id: int
    epoch: int


class Bump(NamedTuple):
    """The producer begins with `epoch`; `last_epoch` is remembered as the one before."""

    epoch: int
    last_epoch: int


class Rotate(NamedTuple):
    """The producer begins with epoch 0 of a new producer id."""

    last_epoch: int


class Fence(NamedTuple):
    """The open transaction is aborted first."""


def decide_init(metadata: TransactionMetadata, expected: Expected | None) -> Bump | Rotate | Fence | ErrorCode:
    """How the producer begins. The id has no write that waits for its commit."""
    if metadata.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if expected is not None and not _is_its_producer(metadata, expected):
        return ErrorCode.PRODUCER_FENCED
    if metadata.state is TransactionState.ONGOING:
        return Fence()
    epoch, last_epoch = metadata.producer_epoch, metadata.last_epoch
    if metadata.is_epoch_exhausted and (expected is None or expected.epoch == epoch):
        return Rotate(NO_EPOCH if expected is None else epoch)
    if expected is None:
        return Bump(epoch + 1, NO_EPOCH)
    if epoch == NO_EPOCH or expected.epoch == epoch:
        return Bump(epoch + 1, epoch)
    if expected.epoch == last_epoch:
        # A repeated request whose answer was lost: a new instance would have reset `last_epoch`.
        return Bump(epoch, last_epoch)
    return ErrorCode.PRODUCER_FENCED


def _is_its_producer(metadata: TransactionMetadata, expected: Expected) -> bool:
    """Whether the expected producer id is the current one; or the one before it, from which a rotation was made that
    the client may not have learned of. An id that was just created has no producer yet."""
    return (
        metadata.producer_epoch == NO_EPOCH
        or expected.producer_id == metadata.producer_id
        or (expected.producer_id == metadata.previous_producer_id and is_epoch_exhausted(expected.epoch))
    )
