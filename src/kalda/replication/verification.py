"""Verification of transactions before their first append to a partition (KIP-890, part 1 and 2).

Which transactions are open is in the state of their coordinators, not in that of a partition. Without verification, a
batch that arrives after the marker of its transaction would begin a transaction that no producer ends, and the last
stable offset would stop for good. So the first batch of a transaction in a partition waits until the coordinator has
confirmed that the partition is in the transaction. Clients of transaction version 2 do not add partitions themselves:
for them the coordinator adds the partition, and then confirms it.

Transactions are sent to the broker that coordinates them, those of one broker together. A request holds a transactional
id once, and an id is in one request at a time: while its answer is waited for, a later verification of the same id is
queued. Where a queued one exists already:

- of a lower producer epoch: it is fenced, and fails with INVALID_PRODUCER_EPOCH; a lower epoch that comes fails so too
- of the same epoch and kind: both are verified by one entry, which names the partitions of both
- of the same epoch, and of another kind: it fails with NETWORK_EXCEPTION, after which its client retries

The guard that makes the confirmation valid for one append only is the log's (`ProducerStates.verify`). A driver.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.base.scheduling import Pending
from kalda.base.sensors import Sensors
from kalda.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kalda.protocol.naming import MAX_ELEMENTS_SENT, elements_of

log = logging.getLogger("kalda.requests")

_MAX_IN_FLIGHT = 5
"""Requests to one broker; what comes meanwhile is queued, and leaves in one request."""
_MAX_TRANSACTIONS = 1_000
"""In one request."""
_METRICS = "kafka.server:type=AddPartitionsToTxnManager"

Errors = Mapping[TopicPartition, ErrorCode]
"""Of the partitions that were not confirmed."""


class ClientSupport(IntEnum):
    """What a producer understands, by the version of its request."""

    LEGACY = 0
    """Not the error TRANSACTION_ABORTABLE."""
    ABORTABLE = 1
    IMPLICIT_ADD = 2
    """Transaction version 2: its coordinator adds the partitions of its appends, and raises its epoch with each
    transaction."""

    @classmethod
    def of_produce(cls, version: int) -> ClientSupport:
        """By the version of a Produce."""
        return cls.IMPLICIT_ADD if version > 11 else cls.ABORTABLE if version > 10 else cls.LEGACY

    @classmethod
    def of_offset_commit(cls, version: int) -> ClientSupport:
        """By the version of a TxnOffsetCommit."""
        return cls.IMPLICIT_ADD if version > 4 else cls.ABORTABLE if version > 3 else cls.LEGACY

    @property
    def adds(self) -> bool:
        """Whether a verification adds the partitions to the transaction."""
        return self is ClientSupport.IMPLICIT_ADD


class _Caller:
    """One verification that waits."""

    __slots__ = ("partitions", "pending", "support")

    def __init__(self, partitions: Sequence[TopicPartition], support: ClientSupport) -> None:
        self.partitions = partitions
        self.support = support
        self.pending: Pending[Errors] = Pending()

    def fail(self, code: ErrorCode) -> None:
        """None of its partitions was confirmed."""
        self.pending.complete(dict.fromkeys(self.partitions, code))


class _Entry:
    """One transaction that is queued or in flight."""

    __slots__ = ("callers", "epoch", "producer_id", "transactional_id", "verify_only")

    def __init__(self, transactional_id: str, producer_id: int, epoch: int, verify_only: bool) -> None:
        self.transactional_id = transactional_id
        self.producer_id = producer_id
        self.epoch = epoch
        self.verify_only = verify_only
        self.callers: list[_Caller] = []

    def message(self) -> AddPartitionsToTxnTransaction:
        """As it is sent."""
        topics: dict[str, dict[int, None]] = {}
        for caller in self.callers:
            for topic, index in caller.partitions:
                topics.setdefault(topic, {})[index] = None
        return AddPartitionsToTxnTransaction(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            verify_only=self.verify_only,
            topics=[AddPartitionsToTxnTopic(name=name, partitions=list(found)) for name, found in topics.items()],
        )

    def fail(self, code: ErrorCode) -> None:
        """No partition was confirmed."""
        for caller in self.callers:
            caller.fail(code)


class _Coordinator:
    """What is sent to one broker."""

    __slots__ = ("busy", "in_flight", "queued")

    def __init__(self) -> None:
        self.queued: dict[str, _Entry] = {}
        """By transactional id, oldest first."""
        self.busy: set[str] = set()
        """Transactional ids in flight."""
        self.in_flight = 0
        """Requests."""


class TransactionVerifier:
    """Verifies transactions with their coordinators."""

    def __init__(
        self,
        broker_id: int,
        coordinator_of: Callable[[str], int | None],
        send: Callable[[int, AddPartitionsToTxnRequest], Pending[Any]],
        mono_ms: Callable[[], int],
        sensors: Sensors | None = None,
        *,
        retry_backoff_ms: int = 20,
        retry_max_ms: int = 100,
    ) -> None:
        """`coordinator_of(transactional id)`: the broker that coordinates it; None while there is none. `send` as
        `BrokerChannels.send`. The last two: how a transaction that its coordinator is still completing is tried again,
        for clients that send the first batch of the next one at once."""
        self.is_enabled = True
        """`transaction.partition.verification.enable`. Clients whose partitions are added are verified without it
        too."""
        self.local: (
            Callable[[AddPartitionsToTxnRequest], AddPartitionsToTxnResponse | Pending[AddPartitionsToTxnResponse]]
            | None
        ) = None
        """Handles requests whose coordinator is this broker. None: they are sent, as all others."""
        self.mono_ms = mono_ms
        self.retry_backoff_ms = retry_backoff_ms
        self.retry_max_ms = retry_max_ms
        self._broker_id = broker_id
        self._coordinator_of = coordinator_of
        self._send = send
        self._coordinators: dict[int, _Coordinator] = {}
        """By broker id; those with something queued or in flight."""
        sensors = Sensors() if sensors is None else sensors
        self._failures = sensors.counter(_METRICS, "VerificationFailureRate")
        self._times = sensors.average(_METRICS, "VerificationTimeMs")

    def applies_to(self, support: ClientSupport) -> bool:
        """Whether transactions of such clients are verified."""
        return self.is_enabled or support.adds

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Sequence[TopicPartition],
        support: ClientSupport,
    ) -> Pending[Errors]:
        """Completes with the errors of the partitions that were not confirmed."""
        caller = _Caller(partitions, support)
        caller.pending.then(partial(self._count, self.mono_ms()))
        broker_id = self._coordinator_of(transactional_id)
        if broker_id is None:
            caller.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return caller.pending
        coordinator = self._coordinators.get(broker_id)
        if coordinator is None:
            coordinator = self._coordinators[broker_id] = _Coordinator()
        queued = coordinator.queued.get(transactional_id)
        replaced = None
        if queued is not None:
            if epoch < queued.epoch:
                caller.fail(ErrorCode.INVALID_PRODUCER_EPOCH)
                return caller.pending
            if (producer_id, epoch, not support.adds) == (queued.producer_id, queued.epoch, queued.verify_only):
                queued.callers.append(caller)
                return caller.pending
            replaced = coordinator.queued.pop(transactional_id)
        entry = coordinator.queued[transactional_id] = _Entry(transactional_id, producer_id, epoch, not support.adds)
        entry.callers.append(caller)
        if replaced is not None:
            is_fenced = replaced.epoch < epoch
            replaced.fail(ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else ErrorCode.NETWORK_EXCEPTION)
        self._send_queued(broker_id, coordinator)
        return caller.pending

    def _count(self, began_ms: int, errors: Errors | None, _: ApiError | None) -> None:
        now_ms = self.mono_ms()
        self._times.record(now_ms - began_ms, now_ms)
        if errors:
            self._failures.value += len(errors)

    def _send_queued(self, broker_id: int, coordinator: _Coordinator) -> None:
        while coordinator.queued and coordinator.in_flight < _MAX_IN_FLIGHT:
            ready = [each for key, each in coordinator.queued.items() if key not in coordinator.busy]
            entries: dict[str, _Entry] = {}
            messages: list[AddPartitionsToTxnTransaction] = []
            size = 0
            for each in ready[:_MAX_TRANSACTIONS]:
                message = each.message()
                size += 1 + elements_of(message)
                if entries and size > MAX_ELEMENTS_SENT:
                    break
                entries[each.transactional_id] = each
                messages.append(message)
            if not entries:
                break
            for key in entries:
                del coordinator.queued[key]
            coordinator.busy.update(entries)
            coordinator.in_flight += 1
            self._request(broker_id, coordinator, AddPartitionsToTxnRequest(transactions=messages), entries)
        is_idle = not coordinator.queued and not coordinator.in_flight
        if is_idle and self._coordinators.get(broker_id) is coordinator:
            del self._coordinators[broker_id]

    def _request(
        self,
        broker_id: int,
        coordinator: _Coordinator,
        request: AddPartitionsToTxnRequest,
        entries: dict[str, _Entry],
    ) -> None:
        def answered(response: AddPartitionsToTxnResponse | None, error: ApiError | None) -> None:
            coordinator.in_flight -= 1
            coordinator.busy.difference_update(entries)
            if response is None:
                self._on_failure(broker_id, entries.values(), error)
            else:
                _on_response(entries, response)
            self._send_queued(broker_id, coordinator)

        reply: AddPartitionsToTxnResponse | Pending[AddPartitionsToTxnResponse]
        if broker_id == self._broker_id and self.local is not None:
            try:
                reply = self.local(request)
            except ApiError as error:
                answered(None, error)
                return
        else:
            reply = self._send(broker_id, request)
        if isinstance(reply, Pending):
            reply.then(answered)
        else:
            answered(reply, None)

    def _on_failure(self, broker_id: int, entries: Iterable[_Entry], error: ApiError | None) -> None:
        """The request as a whole had no answer."""
        code = ErrorCode.UNKNOWN_SERVER_ERROR if error is None else error.code
        if code is ErrorCode.UNSUPPORTED_VERSION:
            log.warning("broker %d cannot verify transactions: their batches are appended unverified", broker_id)
            for entry in entries:
                for caller in entry.callers:
                    caller.pending.complete({})
            return
        log.info("broker %d did not verify transactions: %s", broker_id, error)
        for entry in entries:
            entry.fail(
                ErrorCode.COORDINATOR_NOT_AVAILABLE
                if code is ErrorCode.BROKER_NOT_AVAILABLE
                else ErrorCode.NETWORK_EXCEPTION
            )


def _on_response(entries: dict[str, _Entry], response: AddPartitionsToTxnResponse) -> None:
    if response.error_code:
        # Clients must not get CLUSTER_AUTHORIZATION_FAILED: it is this broker that may not verify.
        code = _known(response.error_code)
        if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            code = ErrorCode.INVALID_TXN_STATE
        for entry in entries.values():
            entry.fail(code)
        return
    results = {each.transactional_id: each for each in response.results_by_transaction}
    for key, entry in entries.items():
        result = results.get(key)
        codes = {
            TopicPartition(topic.name, each.partition_index): _known(each.partition_error_code)
            for topic in (() if result is None else result.topic_results)
            for each in topic.results_by_partition
        }
        for caller in entry.callers:
            errors = {}
            for partition in caller.partitions:
                code = codes.get(partition, ErrorCode.NETWORK_EXCEPTION)
                if code is not ErrorCode.NONE:
                    errors[partition] = _understood(code, caller.support)
            caller.pending.complete(errors)


def _known(code: int) -> ErrorCode:
    """A coordinator of a later release may have errors that this release has not."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _understood(code: ErrorCode, support: ClientSupport) -> ErrorCode:
    """The error that the client handles as the coordinator means it."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and support is ClientSupport.LEGACY:
        return ErrorCode.INVALID_TXN_STATE
    return code


_RETRIED = frozenset(
    (
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)


def produce_error(code: ErrorCode, support: ClientSupport) -> ApiError:
    """The error of a Produce whose transaction was not verified. Clients may not retry a Produce after an error of a
    coordinator; after NOT_ENOUGH_REPLICAS they do, and without new metadata."""
    if code is ErrorCode.INVALID_TXN_STATE:
        return ApiError(code, "Partition was not added to the transaction")
    if code in _RETRIED or (code is ErrorCode.CONCURRENT_TRANSACTIONS and not support.adds):
        return ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Unable to verify the partition has been added to the transaction. Underlying error: {code.name}",
        )
    return ApiError(code)
