"""EndTxn: whether a transaction may end, and how a repeated request is recognized.

Version 1 clients end an open transaction with their current epoch. A repeated request finds the transaction complete;
the same outcome succeeds again, the other one is INVALID_TXN_STATE.

In version 2 the end bumps the epoch, so a repeated request has the epoch before the current one. The current epoch
belongs to the next transaction, which may be aborted before it has a partition: its client cannot know whether a
partition was added. "Retry" and "current" are the epoch of the request; "bump" succeeds and writes an abort:

    state           abort, retry    abort, current   commit, retry   commit, current
    Empty           fenced          bump             fenced          invalid state
    CompleteAbort   success         bump             invalid state   invalid state
    CompleteCommit  invalid state   bump             success         invalid state

That is a retry only where version 2 has ended the latest transaction. Where version 1 has, the epoch was bumped by
InitProducerId: the request is one of a producer that was replaced, and must not get the epoch of its successor.

While the markers of the transaction are being written, every request is answered with CONCURRENT_TRANSACTIONS, as by
Apache Kafka: the answer to EndTxn has given the client its next epoch, or its next producer id, with which it may abort
the next transaction before its first partition is added.
"""

from __future__ import annotations

from kalda.base.errors import ErrorCode
from kalda.coordinator.transactions.metadata import MAX_EPOCH, VERSION_2, TransactionMetadata, TransactionState

_S = TransactionState


def refuse_end(
    metadata: TransactionMetadata, producer_id: int, epoch: int, client_version: int, *, committed: bool
) -> ErrorCode | None:
    """Why the transaction does not end now: an error, or NONE where it has ended already as the request demands. None
    where it ends now. The id has no write that waits for its commit."""
    if client_version >= VERSION_2:
        return _refuse_version_2(metadata, producer_id, epoch, committed=committed)
    if metadata.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata.producer_epoch != epoch:
        return ErrorCode.PRODUCER_FENCED
    if metadata.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if metadata.state is _S.ONGOING:
        return None
    if metadata.state is _complete(committed=committed):
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


def _refuse_version_2(
    metadata: TransactionMetadata, producer_id: int, epoch: int, *, committed: bool
) -> ErrorCode | None:
    state = metadata.state
    if state.is_prepared:
        # Before the producer is checked: its client may have the id that is current when the markers are written.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    is_current = epoch == metadata.producer_epoch
    retries_rotation = (
        metadata.previous_producer_id == producer_id != metadata.producer_id
        and epoch == MAX_EPOCH - 1
        and metadata.producer_epoch == 0
    )
    follows = producer_id == metadata.producer_id and epoch + 1 == metadata.producer_epoch
    is_retry = metadata.bumps_epochs and (retries_rotation or follows)
    if producer_id != metadata.producer_id and not retries_rotation:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if not is_current and not (state.is_complete and is_retry):
        return ErrorCode.PRODUCER_FENCED
    if state is _S.ONGOING:
        # A commit needs an epoch for its bump. Apache Kafka fails with this error too.
        return ErrorCode.UNKNOWN_SERVER_ERROR if committed and epoch == MAX_EPOCH else None
    if is_retry:
        return ErrorCode.NONE if state is _complete(committed=committed) else ErrorCode.INVALID_TXN_STATE
    return ErrorCode.INVALID_TXN_STATE if committed else None


def _complete(*, committed: bool) -> TransactionState:
    return _S.COMPLETE_COMMIT if committed else _S.COMPLETE_ABORT
