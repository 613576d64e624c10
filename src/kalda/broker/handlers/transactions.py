"""The transaction coordinator: transactional producers and the outcome of their transactions, in `__transaction_state`.

InitProducerId (22), for idempotent producers too; AddPartitionsToTxn (24), AddOffsetsToTxn (25), EndTxn (26),
DescribeTransactions (65), ListTransactions (66): checked item by item, and passed to the coordinator with the time.
Each transactional id belongs to one partition of the topic, and the leader of that partition coordinates it: the
publisher calls the table of coordinators when this broker starts or stops to lead one.

AddPartitionsToTxn has two callers. Up to version 3 it is a client's, for one transaction, and the client must be
allowed to write to each topic. From version 4 on it is a broker's, for several transactions, each of which is extended
or only verified. All partitions of a transaction are added, or none: where one is refused, the others are answered
with OPERATION_NOT_ATTEMPTED.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from kalda.base.background import ITEMS_A_STEP, Steps, run_to_end
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import INTERNAL_TOPICS, OFFSETS_TOPIC
from kalda.base.patterns import MAX_PROGRAM, BadPattern, Pattern, re2_pattern
from kalda.base.scheduling import Clock, Pending
from kalda.broker.channels.node_channels import BrokerChannels
from kalda.broker.channels.transaction_channels import ProducerIds, TransactionMarkers
from kalda.broker.handlers.shared import error_on_items, error_on_top
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.module import BrokerContext, Module
from kalda.broker.replicas.coordinators import Coordinators, add_load_times
from kalda.broker.requests.context import Encoded, RequestContext
from kalda.broker.requests.rows import Authorization, Row
from kalda.coordinator.answers import answer_after_all
from kalda.coordinator.internal_topics import GROUPS, TRANSACTIONS, coordinator_partition
from kalda.coordinator.transactions.markers import NO_LEADER
from kalda.coordinator.transactions.metadata import (
    STATE_BY_LABEL,
    VERSION_2,
    Partitions,
    TransactionConfig,
    TransactionMetadata,
)
from kalda.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from kalda.metadata.features import TRANSACTION_VERSION
from kalda.protocol.access import (
    CLUSTER_RESOURCE_NAME,
    DESCRIBE_TOPIC,
    DESCRIBE_TRANSACTIONAL_ID,
    READ_GROUP,
    TWO_PHASE_COMMIT,
    WRITE_TOPIC,
    WRITE_TRANSACTIONAL_ID,
    Caller,
)
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)
from kalda.replication.markers import MarkerWriter

Q = TypeVar("Q")
R = TypeVar("R")
_FIRST_ADD_OF_BROKERS = 4
_FIRST_ADD_THAT_FENCES = 2
_MAX_MATCH_WORK = MAX_PROGRAM * 250
"""Instructions of a pattern times characters of a transactional id: at most some 70 ms. An id that is too long for a
pattern is listed: others' lists do not fail for it, and who looks for what it holds up finds it."""
_STEP_WORK = 1_000_000
"""In the same unit: of one step of a list."""
_ID_WORK = 1_000
"""Of an id without the match of a pattern."""
Codes = Callable[[str, int], ErrorCode]
"""The error code of each partition of a transaction."""
Added = AddPartitionsToTxnResponse | Pending[AddPartitionsToTxnResponse]
Outcomes = list[tuple[AddPartitionsToTxnTransaction, ErrorCode | Codes | Pending[ErrorCode]]]
"""Of each transaction the error of all its partitions, or those of each."""


class TransactionHandlers:
    """Requests of producers about their transactions, and of administrators about all."""

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        clock: Clock,
        has_partition: Callable[[str, int], bool],
        group_partitions: Callable[[], int],
        on_handled: Callable[[], None],
    ) -> None:
        """`has_partition(topic, partition)` looks a partition up; `group_partitions` is the number of partitions that
        `__consumer_offsets` has, or will have. `on_handled` is called after each request: the coordinator's next
        deadline may be nearer than its timer."""
        self._coordinator = coordinator
        self._clock = clock
        self._has_partition = has_partition
        self._group_partitions = group_partitions
        self._on_handled = on_handled

    def rows(self) -> list[Row]:
        """One row an API. Topics are checked in the handlers, and ids where a request names several."""
        coordinator, timed, per_item = self._coordinator, self._timed, Authorization.PER_ITEM
        return [
            Row(ApiKey.INIT_PRODUCER_ID, timed(coordinator.init_producer_id), init_producer_id_failed, _may_init),
            Row(ApiKey.ADD_PARTITIONS_TO_TXN, timed(self._add_partitions), add_partitions_to_txn_failed, _may_add),
            Row(ApiKey.ADD_OFFSETS_TO_TXN, timed(self._add_offsets), error_on_top, _may_add_offsets),
            Row(ApiKey.END_TXN, timed(coordinator.end_txn), error_on_top, _may_end),
            Row(
                ApiKey.DESCRIBE_TRANSACTIONS,
                timed(self._describe),
                describe_transactions_failed,
                per_item,
                has_large_answer=True,
            ),
            Row(ApiKey.LIST_TRANSACTIONS, self._list, error_on_top, per_item, has_large_answer=True),
        ]

    def _timed(self, handle: Callable[[RequestContext, Q, int], R]) -> Callable[[RequestContext, Q], R]:
        clock, on_handled = self._clock, self._on_handled

        def handler(context: RequestContext, request: Q) -> R:
            reply = handle(context, request, clock.mono_ms())
            on_handled()
            return reply

        return handler

    # -- AddPartitionsToTxn --------------------------------------------------------------------------------------

    def add_partitions_of_broker(self, request: AddPartitionsToTxnRequest) -> Added:
        """A request of this very broker, in the shape of version 5: for partitions that it leads."""
        self._coordinator.runtime.advance(self._clock.mono_ms())
        response = self._added(None, _FIRST_ADD_OF_BROKERS + 1, request.transactions)
        self._on_handled()
        return response

    def _add_partitions(
        self, context: RequestContext, request: AddPartitionsToTxnRequest, now_ms: int
    ) -> Added | Steps[AddPartitionsToTxnResponse | Pending[Steps[AddPartitionsToTxnResponse]]]:
        self._coordinator.runtime.advance(now_ms)
        version, transactions = context.api_version, request.transactions
        if version < _FIRST_ADD_OF_BROKERS:
            transactions = [
                AddPartitionsToTxnTransaction(
                    transactional_id=request.v3_and_below_transactional_id,
                    producer_id=request.v3_and_below_producer_id,
                    producer_epoch=request.v3_and_below_producer_epoch,
                    topics=request.v3_and_below_topics,
                )
            ]
        named = sum(len(topic.partitions) for each in transactions for topic in each.topics)
        if len(transactions) + named > ITEMS_A_STEP:
            return self._added_in_steps(context, transactions)
        return self._added(context, version, transactions)

    def _added(self, caller: Caller | None, version: int, transactions: list[AddPartitionsToTxnTransaction]) -> Added:
        """The response, when the codes of all transactions are known."""
        results = run_to_end(self._outcomes(caller, version, transactions))
        return answer_after_all(_pending(results), lambda: run_to_end(_add_response(version, results)))

    def _added_in_steps(
        self, context: RequestContext, transactions: list[AddPartitionsToTxnTransaction]
    ) -> Steps[AddPartitionsToTxnResponse | Pending[Steps[AddPartitionsToTxnResponse]]]:
        """As `_added`, of many partitions."""
        version = context.api_version
        results = yield from self._outcomes(context, version, transactions)
        self._on_handled()
        answer = answer_after_all(_pending(results), lambda: _add_response(version, results))
        return answer if isinstance(answer, Pending) else (yield from answer)

    def _outcomes(
        self, caller: Caller | None, version: int, transactions: list[AddPartitionsToTxnTransaction]
    ) -> Steps[Outcomes]:
        """Add or verify the partitions of each transaction."""
        results: Outcomes = []
        for count, transaction in enumerate(transactions):
            if count and count % ITEMS_A_STEP == 0:
                yield
            wanted: dict[str, set[int]] = {}
            refused: dict[tuple[str, int], ErrorCode] = {}
            yield from self._check(caller, version, transaction.topics, wanted, refused)
            outcome: ErrorCode | Codes | Pending[ErrorCode]
            if refused:
                outcome = _codes_of(refused)
            elif transaction.verify_only:
                outcome = self._verified(transaction)
            else:
                partitions = {topic: frozenset(numbers) for topic, numbers in wanted.items() if numbers}
                outcome = self._coordinator.add_partitions(
                    transaction.transactional_id,
                    transaction.producer_id,
                    transaction.producer_epoch,
                    partitions,
                    VERSION_2 if version > _FIRST_ADD_OF_BROKERS else 0,
                )
            results.append((transaction, outcome))
        return results

    def _check(
        self,
        caller: Caller | None,
        version: int,
        topics: list[AddPartitionsToTxnTopic],
        wanted: dict[str, set[int]],
        refused: dict[tuple[str, int], ErrorCode],
    ) -> Steps[None]:
        """Fill in the partitions of a request, and the errors of those that may not be added."""
        checked = 0
        for topic in topics:
            is_allowed = (
                version >= _FIRST_ADD_OF_BROKERS
                or caller is None
                or (topic.name not in INTERNAL_TOPICS and WRITE_TOPIC.holds(caller, topic.name, len(topic.partitions)))
            )
            numbers = wanted.setdefault(topic.name, set())
            for number in topic.partitions:
                numbers.add(number)
                if not is_allowed:
                    refused[topic.name, number] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif not self._has_partition(topic.name, number):
                    refused[topic.name, number] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                checked += 1
                if checked % ITEMS_A_STEP == 0:
                    yield

    def _verified(self, transaction: AddPartitionsToTxnTransaction) -> ErrorCode | Codes:
        """Whether each partition is in the transaction, which is not changed."""
        found = self._coordinator.verify_partitions(
            transaction.transactional_id, transaction.producer_id, transaction.producer_epoch
        )
        return found if isinstance(found, ErrorCode) else _codes_in(found)

    # -- the other APIs ------------------------------------------------------------------------------------------

    def _add_offsets(
        self, context: RequestContext, request: AddOffsetsToTxnRequest, now_ms: int
    ) -> AddOffsetsToTxnResponse | Pending[AddOffsetsToTxnResponse]:
        """The partition of `__consumer_offsets` that holds the group's offsets becomes part of the transaction."""
        self._coordinator.runtime.advance(now_ms)
        index = coordinator_partition(request.group_id, self._group_partitions())
        partitions: Partitions = {OFFSETS_TOPIC: frozenset((index,))}
        outcome = self._coordinator.add_partitions(
            request.transactional_id, request.producer_id, request.producer_epoch, partitions, 0
        )

        def finish() -> AddOffsetsToTxnResponse:
            code = _settled(outcome, context.api_version)
            assert isinstance(code, ErrorCode)
            return AddOffsetsToTxnResponse(error_code=int(code))

        return answer_after_all([outcome] if isinstance(outcome, Pending) else [], finish)

    def _describe(
        self, context: RequestContext, request: DescribeTransactionsRequest, now_ms: int
    ) -> Steps[DescribeTransactionsResponse]:
        self._coordinator.runtime.advance(now_ms)
        return self._describing(context, request)

    def _describing(
        self, context: RequestContext, request: DescribeTransactionsRequest
    ) -> Steps[DescribeTransactionsResponse]:
        """An id that is named again is refused: each may have very many partitions."""
        described: set[str] = set()
        partitions = 0
        response = DescribeTransactionsResponse()
        for transactional_id in request.transactional_ids:
            if transactional_id in described:
                state = DescribeTransactionsResponseTransactionState(
                    transactional_id=transactional_id, error_code=int(ErrorCode.INVALID_REQUEST)
                )
            else:
                described.add(transactional_id)
                state = self._described(context, transactional_id)
                partitions += 1 + sum(len(topic.partitions) for topic in state.topics)
                if partitions >= ITEMS_A_STEP:
                    partitions = 0
                    yield
            response.transaction_states.append(state)
        return response

    def _described(
        self, context: RequestContext, transactional_id: str
    ) -> DescribeTransactionsResponseTransactionState:
        if not DESCRIBE_TRANSACTIONAL_ID.holds(context, transactional_id):
            return DescribeTransactionsResponseTransactionState(
                transactional_id=transactional_id, error_code=int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
            )
        described = self._coordinator.describe(transactional_id)
        described.topics = [topic for topic in described.topics if DESCRIBE_TOPIC.holds(context, topic.topic)]
        return described

    def _list(
        self, context: RequestContext, request: ListTransactionsRequest
    ) -> ListTransactionsResponse | Steps[ListTransactionsResponse | Encoded]:
        """ListTransactions, in steps: a coordinator may have 100,000 ids."""
        self._coordinator.runtime.advance(self._clock.mono_ms())
        response = ListTransactionsResponse()
        response.unknown_state_filters = [each for each in request.state_filters if each not in STATE_BY_LABEL]
        try:
            text = request.transactional_id_pattern
            pattern = re2_pattern(text) if text else None
            every = self._coordinator.transactions()
        except BadPattern:
            return ListTransactionsResponse(error_code=int(ErrorCode.INVALID_REGULAR_EXPRESSION))
        except ApiError as error:
            return ListTransactionsResponse(error_code=int(error.code))
        return self._listed(context, request, response, pattern, every)

    def _listed(
        self,
        context: RequestContext,
        request: ListTransactionsRequest,
        response: ListTransactionsResponse,
        pattern: Pattern | None,
        every: Iterable[tuple[str, TransactionMetadata]],
    ) -> Steps[ListTransactionsResponse]:
        states = {STATE_BY_LABEL.get(each) for each in request.state_filters}
        producer_ids = set(request.producer_id_filters)
        duration_ms, now_ms = request.duration_filter, self._coordinator.runtime.wall_ms()
        work = 0
        for transactional_id, metadata in every:
            match_work = 0 if pattern is None else pattern.size * len(transactional_id)
            is_matched = pattern is not None and match_work <= _MAX_MATCH_WORK
            work += _ID_WORK + match_work * is_matched
            if work >= _STEP_WORK:
                work = 0
                yield
            if (
                (states and metadata.state not in states)
                or (producer_ids and metadata.producer_id not in producer_ids)
                or (duration_ms >= 0 and now_ms - metadata.start_ms <= duration_ms)
                or not DESCRIBE_TRANSACTIONAL_ID.holds(context, transactional_id)
                or (is_matched and pattern is not None and not pattern.matches(transactional_id))
            ):
                continue
            response.transaction_states.append(
                ListTransactionsResponseTransactionState(
                    transactional_id=transactional_id,
                    producer_id=metadata.producer_id,
                    transaction_state=metadata.state.label,
                )
            )
        return response


def _codes_of(refused: dict[tuple[str, int], ErrorCode]) -> Codes:
    """The errors of refused partitions; the others are not attempted."""
    return lambda topic, number: refused.get((topic, number), ErrorCode.OPERATION_NOT_ATTEMPTED)


def _codes_in(metadata: TransactionMetadata) -> Codes:
    """Records of partitions that are not in the transaction are refused, and their producer aborts."""
    return lambda topic, number: ErrorCode.NONE if metadata.holds(topic, number) else ErrorCode.TRANSACTION_ABORTABLE


def _settled(outcome: ErrorCode | Codes | Pending[ErrorCode], version: int) -> ErrorCode | Codes:
    """What is known of a transaction in the end. Older clients do not have PRODUCER_FENCED."""
    if isinstance(outcome, Pending):
        outcome = outcome.value if outcome.value is not None else ErrorCode.UNKNOWN_SERVER_ERROR
    if outcome is ErrorCode.PRODUCER_FENCED and version < _FIRST_ADD_THAT_FENCES:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return outcome


def _pending(results: Outcomes) -> list[Pending[ErrorCode]]:
    return [found for _, found in results if isinstance(found, Pending)]


def _add_response(version: int, results: Outcomes) -> Steps[AddPartitionsToTxnResponse]:
    """The response, when nothing is pending any more."""
    response = AddPartitionsToTxnResponse()
    for count, (transaction, outcome) in enumerate(results):
        if count and count % ITEMS_A_STEP == 0:
            yield
        codes, topics = _settled(outcome, version), []
        for topic in transaction.topics:
            partitions: list[AddPartitionsToTxnPartitionResult] = []
            topics.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=partitions))
            for begin in range(0, len(topic.partitions), ITEMS_A_STEP):
                if begin:
                    yield
                partitions += [
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number,
                        partition_error_code=int(codes if isinstance(codes, ErrorCode) else codes(topic.name, number)),
                    )
                    for number in topic.partitions[begin : begin + ITEMS_A_STEP]
                ]
        if version < _FIRST_ADD_OF_BROKERS:
            response.results_by_topic_v3_and_below = topics
        else:
            response.results_by_transaction.append(
                AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=topics)
            )
    return response


# Who may send each API.


def _may_init(caller: Caller, request: InitProducerIdRequest) -> ApiError | None:
    """A transactional producer must be allowed to write under its id, and to prepare where it uses two-phase commit; an
    idempotent one to write to any topic (KIP-679)."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        if caller.allows(
            AclOperation.IDEMPOTENT_WRITE, AclResourceType.CLUSTER, CLUSTER_RESOURCE_NAME, False
        ) or caller.allows_on_any(AclOperation.WRITE, AclResourceType.TOPIC):
            return None
        return ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{caller.principal} may not write to any topic.")
    refusal = WRITE_TRANSACTIONAL_ID.refusal(caller, transactional_id)
    if refusal is None and request.enable2_pc:
        return TWO_PHASE_COMMIT.refusal(caller, transactional_id)
    return refusal


def _may_add(caller: Caller, request: AddPartitionsToTxnRequest) -> ApiError | None:
    """A broker adds partitions for clients that it has authorized; a client needs its transactional id."""
    if caller.api_version >= _FIRST_ADD_OF_BROKERS:
        return caller.refusal_on_cluster(AclOperation.CLUSTER_ACTION)
    return WRITE_TRANSACTIONAL_ID.refusal(caller, request.v3_and_below_transactional_id)


def _may_add_offsets(caller: Caller, request: AddOffsetsToTxnRequest) -> ApiError | None:
    refusal = WRITE_TRANSACTIONAL_ID.refusal(caller, request.transactional_id)
    return refusal if refusal is not None else READ_GROUP.refusal(caller, request.group_id)


def _may_end(caller: Caller, request: EndTxnRequest) -> ApiError | None:
    return WRITE_TRANSACTIONAL_ID.refusal(caller, request.transactional_id)


# How each API reports that the whole request failed.


def init_producer_id_failed(request: InitProducerIdRequest, version: int, error: ApiError) -> InitProducerIdResponse:
    """The error on top."""
    return InitProducerIdResponse(error_code=error.code, producer_epoch=-1)


def add_partitions_to_txn_failed(
    request: AddPartitionsToTxnRequest, version: int, error: ApiError
) -> AddPartitionsToTxnResponse:
    """The error on top from version 4 on, of every partition before."""
    if version >= _FIRST_ADD_OF_BROKERS:
        return AddPartitionsToTxnResponse(error_code=error.code)
    transaction = AddPartitionsToTxnTransaction(topics=request.v3_and_below_topics)
    return run_to_end(_add_response(version, [(transaction, error.code)]))


describe_transactions_failed = error_on_items("transaction_states", "transactional_ids")


_METRICS = "kafka.coordinator.transaction:type=TransactionMarkerChannelManager"


class TransactionsModule(Module):
    """Rests on the table of coordinators, to which it adds its own; on what writes markers into the partitions of this
    broker."""

    def __init__(
        self,
        context: BrokerContext,
        coordinators: Coordinators,
        writer: MarkerWriter,
    ) -> None:
        cache, clock = context.cache, context.host.clock
        self.channels = BrokerChannels("markers", context.config, cache, context.to_brokers)
        self._markers = TransactionMarkers(
            context.config.node_id,
            lambda topic, partition: leader_of(cache, topic, partition),
            self.channels.send,
            writer.write,
            clock,
            context.timers,
        )
        coordinator = TransactionCoordinator(
            TransactionConfig.from_properties(context.config.values),
            coordinators.log(TRANSACTIONS),
            self._markers,
            ProducerIds(context.config.node_id, context.broker_epoch, context.channel.send),
            lambda: cache.image.features.level(TRANSACTION_VERSION),
            lambda: coordinators.partition_count(TRANSACTIONS),
            clock.wall_ms,
        )
        context.sensors.gauge(_METRICS, "UnknownDestinationQueueSize", read=lambda: self._markers.retries)
        context.sensors.gauge(_METRICS, "LogAppendRetryQueueSize", read=lambda: coordinator.unwritten)
        add_load_times(context.sensors, "kafka.server:type=transaction-coordinator-metrics", coordinator.runtime)
        shell = coordinators.add(TRANSACTIONS, coordinator.runtime)
        coordinator.rearm = shell.arm
        self.handlers = TransactionHandlers(
            coordinator,
            clock,
            lambda topic, partition: leader_of(cache, topic, partition) is not None,
            lambda: coordinators.partition_count(GROUPS) or context.config[GROUPS.partitions_key],
            shell.arm,
        )

    def rows(self) -> list[Row]:
        """The APIs of the coordinator."""
        return self.handlers.rows()

    async def close(self) -> None:
        """Send no more markers."""
        self._markers.close()
        await self.channels.close()


def leader_of(cache: MetadataCache, topic: str, partition: int) -> int | None:
    """The broker that leads a partition, `NO_LEADER` while none does, None where the partition does not exist."""
    found = cache.topic(topic)
    registration = None if found is None else found.partitions.get(partition)
    if registration is None:
        return None
    return registration.leader if registration.has_leader else NO_LEADER
