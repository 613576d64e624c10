"""Produce (0) and Fetch (1): the data path's two ends, over the replicas of this broker.

Nothing here reads a record: a produce passes views of the request's frame to the log, a fetch passes the log's buffers
to the response. The module verifies transactions with their coordinators, fetches the partitions that this broker
follows, and proposes ISRs of those that it leads. `replicas/publisher` opens and deletes replicas.

Not obvious:

- `Authorizer.allowed` holds what is known to be allowed, by principal, host, operation and resource. It is a new set
  after each change of entries: read the attribute each time. Whoever uses it checks the audit log's DEBUG level, too,
  and for a follower first that it is one: READ is not enough for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from logging import DEBUG
from typing import Any

from kalda.base.background import Steps
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import INTERNAL_TOPICS, TRANSACTIONS_TOPIC
from kalda.base.scheduling import Clock, Pending
from kalda.base.sensors import Measurable, SensorName, Sensors, counted
from kalda.broker.channels.node_channels import BrokerChannels
from kalda.broker.handlers.offsets import check_isolation
from kalda.broker.handlers.shared import error_on_items, fetch_failed
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.module import BrokerContext, Module
from kalda.broker.replicas.coordinators import coordinator_lookup
from kalda.broker.replicas.opening import OpeningPartitions
from kalda.broker.replicas.peers import BrokerPeers, ReplicaFetcherManager
from kalda.broker.requests.context import Encoded, Reply, RequestContext
from kalda.broker.requests.rows import (
    MAX_ELEMENTS_BETWEEN_NODES,
    Authorization,
    Handler,
    Items,
    QuotaClass,
    Row,
    own_name,
)
from kalda.broker.requests.throttling import is_follower
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.protocol.access import READ_TOPIC, WRITE_TOPIC, WRITE_TRANSACTIONAL_ID, Caller, audit
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.partitions import (
    FetchRequest,
    FetchResponse,
    FetchResponseNodeEndpoint,
    ProduceRequest,
    ProduceResponse,
    ProduceResponseNodeEndpoint,
    TopicProduceData,
)
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.quota.managers import Windows
from kalda.quota.replication_quotas import ReplicationQuota, throttled_partitions
from kalda.replication import produce
from kalda.replication.counters import BROKER_TOPIC, FETCH_SESSIONS, FETCHERS, REPLICA_MANAGER
from kalda.replication.fetch import Fetch, Fetched
from kalda.replication.fetch_session import INITIAL_EPOCH, FetchContext, FetchSessionCache
from kalda.replication.gauges import lag_sensors, partition_sensors
from kalda.replication.partition import Partition
from kalda.replication.produce import has_transactional_records
from kalda.replication.replica_manager import RACK_AWARE, RackAwareSelector, ReplicaManager
from kalda.replication.verification import ClientSupport, TransactionVerifier

_ADMIN_CLIENT_ID = "__admin_client"
"""Of Kafka's tools that write to the topics of coordinators: `AdminUtils.ADMIN_CLIENT_ID`. Every other client's records
could be ones that a coordinator cannot read."""
_FIRST_PRODUCE_WITH_ZSTD = 7
_FIRST_PRODUCE_WITH_IDS = 13
_FIRST_PRODUCE_WITH_LEADERS = 10
_FIRST_FETCH_WITH_IDS = 13
_FIRST_FETCH_FROM_FOLLOWERS = 11
_FIRST_FETCH_WITH_LEADERS = 16
_READ, _WRITE, _TOPIC = AclOperation.READ, AclOperation.WRITE, AclResourceType.TOPIC
_is_logged = audit.isEnabledFor


class DataHandlers:
    """Produce and Fetch over the broker's replicas."""

    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        sessions: FetchSessionCache,
        clock: Clock,
        verifier: TransactionVerifier,
        prefer: Callable[[Partition, int, str], int] | None = None,
        opening: OpeningPartitions | None = None,
    ) -> None:
        """`prefer(partition, offset, rack)` is the replica that a consumer in a rack should read from (KIP-392).
        Requests for partitions that are `opening` wait until they are open; with None, none is."""
        self._verifier = verifier
        self._opening = opening if opening is not None else OpeningPartitions(replicas.timers, replicas.background)
        self._opening_partitions = self._opening.partitions
        self._prefer = prefer
        self._replicas = replicas
        self._metadata = metadata
        self._sessions = sessions
        self._clock = clock
        self._add_leaders_on: dict[str, Callable[[ProduceResponse | FetchResponse], None]] = {}
        """What adds the addresses of new leaders to a response, by the name of the listener that it leaves on."""

    def rows(self) -> list[Row]:
        """Both APIs."""
        return [
            Row(
                ApiKey.PRODUCE,
                self.produce,
                produce_failed,
                Authorization.PER_ITEM,
                QuotaClass.PRODUCE,
                items=self._authorized,
            ),
            Row(
                ApiKey.FETCH,
                self.fetch,
                fetch_failed,
                Authorization.PER_ITEM,
                QuotaClass.FETCH,
                throttled=self.throttled_fetch,
                max_elements=MAX_ELEMENTS_BETWEEN_NODES,
            ),
        ]

    def _authorized(self, handler: Handler) -> Handler:
        """`handler`, behind the check of the transactional id and that of the topics."""
        by_id, by_name = (
            Items(WRITE_TOPIC, produce_failed, "topic_data", "responses", name_of, _count_of_partitions).stage(handler)
            for name_of in (self._produced_topic, own_name)
        )
        topic_name = self._metadata.topic_name

        def check_then_produce(context: Any, request: ProduceRequest) -> Reply[Any]:
            data = request.topic_data
            if len(data) == 1 and request.transactional_id is None:  # the data path: each step here is one a request
                name = data[0].name or topic_name(data[0].topic_id)
                decided = context.principal, context.client_host, _WRITE, _TOPIC, name
                if decided in context.authorizer.allowed and not _is_logged(DEBUG):
                    return handler(context, request)
            refusal = _may_produce(context, request)
            if refusal is not None:
                raise refusal
            # An empty name is a topic to which no user has rights, and not an unknown id.
            return (by_id if context.api_version >= _FIRST_PRODUCE_WITH_IDS else by_name)(context, request)

        return check_then_produce

    def _produced_topic(self, topic: TopicProduceData) -> str | None:
        """The name of a topic that a request has by its id; None for an unknown one."""
        return self._metadata.topic_name(topic.topic_id)

    def produce(self, context: RequestContext, request: ProduceRequest) -> Reply[ProduceResponse]:
        """Append and answer, in steps where there are many partitions. With acks=0 there is no answer, and a failure
        closes the connection instead."""
        if request.acks not in (-1, 0, 1):
            raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
        version = context.api_version
        transaction = None
        if request.transactional_id is not None:
            support = ClientSupport.of_produce(version)
            transaction = produce.Transaction(request.transactional_id, support, self._verifier)
        by_id = version >= _FIRST_PRODUCE_WITH_IDS
        if by_id:
            names = [self._metadata.topic_name(topic.topic_id) or "" for topic in request.topic_data]
        else:
            names = [topic.name for topic in request.topic_data]
        if self._opening_partitions:
            named = (
                (name, data.index)
                for name, topic in zip(names, request.topic_data, strict=True)
                for data in topic.partition_data
            )
            if (waiting := self._opening.wait(context, request, self.produce, named, request.timeout_ms)) is not None:
                return waiting
        begun = produce.begin(
            self._replicas,
            request,
            self._clock.wall_ms(),
            zstd=version >= _FIRST_PRODUCE_WITH_ZSTD,
            by_id=by_id,
            refuses_internal_topics=not INTERNAL_TOPICS.isdisjoint(names) and context.client_id != _ADMIN_CLIENT_ID,
            add_leader_endpoints=self._leaders(context) if version >= _FIRST_PRODUCE_WITH_LEADERS else None,
            transaction=transaction,
        )
        if produce.is_long(request):
            return _steps(context, request, begun.run_in_steps(request.topic_data, names))
        return _finished(context, request, begun.run(request.topic_data, names))

    def _leaders(self, context: RequestContext) -> Callable[[ProduceResponse | FetchResponse], None]:
        """What adds the addresses of new leaders to a response that leaves on this listener."""
        listener = context.listener_name
        known = self._add_leaders_on.get(listener)
        if known is None:
            known = self._add_leaders_on[listener] = partial(self._add_leaders, listener)
        return known

    def _add_leaders(self, listener: str, response: ProduceResponse | FetchResponse) -> None:
        leaders: set[int] = set()
        if isinstance(response, ProduceResponse):
            for topic in response.responses:
                leaders.update(result.current_leader.leader_id for result in topic.partition_responses)
            response.node_endpoints = [
                ProduceResponseNodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
                for each in self._metadata.broker_entries(listener)
                if each.node_id in leaders
            ]
            return
        for fetched in response.responses:
            leaders.update(answer.current_leader.leader_id for answer in fetched.partitions)
        response.node_endpoints = [
            FetchResponseNodeEndpoint(node_id=each.node_id, host=each.host, port=each.port, rack=each.rack)
            for each in self._metadata.broker_entries(listener)
            if each.node_id in leaders
        ]

    def fetch(self, context: RequestContext, request: FetchRequest) -> Fetched | Steps[Fetched]:
        """Read what is stored; where that is less than `min_bytes`, wait for more."""
        check_isolation(request.isolation_level)
        if self._opening_partitions:
            wait_ms = self._opening.fetch_wait_ms(request.max_wait_ms, is_follower=is_follower(request))
            known = self._metadata.topic_name
            named = (
                (topic.topic or known(topic.topic_id) or "", asked.partition)
                for topic in request.topics
                for asked in topic.partitions
            )
            if (waiting := self._opening.wait(context, request, self.fetch, named, wait_ms)) is not None:
                return waiting
        try:
            fetch_context = self._sessions.context(
                request,
                context.api_version >= _FIRST_FETCH_WITH_IDS,
                self._metadata.topic_name,
                self._clock.mono_ms(),
            )
        except ApiError as error:
            return FetchResponse(error_code=error.code)
        add_leader_endpoints = self._leaders(context) if context.api_version >= _FIRST_FETCH_WITH_LEADERS else None
        refused = None if context.authorizer is None else unreadable(context, request, fetch_context)
        if request.session_epoch == INITIAL_EPOCH and refused is None and is_follower(request):
            context.connection.send_to_follower()
        answer = Fetch(
            self._replicas,
            request,
            fetch_context,
            add_leader_endpoints,
            from_followers=context.api_version >= _FIRST_FETCH_FROM_FOLLOWERS,
            prefer=self._prefer,
            refused=refused,
        ).run()
        if isinstance(answer, Pending):
            # The answer may be large: a peer that reads nothing must not have many of them waiting.
            context.connection.answer_alone()
        return answer

    def throttled_fetch(self, request: FetchRequest, response: FetchResponse) -> FetchResponse:
        """What a consumer gets that has to pause: no records, as if the fetch had found nothing."""
        for topic in response.responses:
            name = topic.topic or self._metadata.topic_name(topic.topic_id) or ""
            for answer in topic.partitions:
                partition = self._replicas.find(name, answer.partition_index) if answer.records else None
                if partition is not None:
                    partition.topic_counters.bytes_out.value -= len(answer.records or ())
        return FetchResponse(session_id=self._sessions.retract(request, response))


def _count_of_partitions(topic: TopicProduceData) -> int:
    return len(topic.partition_data)


def _may_produce(caller: Caller, request: ProduceRequest) -> ApiError | None:
    """Transactional records need the transactional id of the request."""
    transactional_id = request.transactional_id
    if transactional_id is None or not has_transactional_records(request):
        return None
    return WRITE_TRANSACTIONAL_ID.refusal(caller, transactional_id)


def unreadable(context: RequestContext, request: FetchRequest, fetch: FetchContext) -> frozenset[str] | None:
    """The topics of a fetch that the caller may not read; None where there is none. A follower needs the same right for
    all topics. What was found for a session holds while neither its partitions nor any decision change."""
    authorizer: Any = context.authorizer
    if is_follower(request):
        if context.allows_on_cluster(AclOperation.CLUSTER_ACTION):
            return None
        return frozenset(entry.topic for entry in fetch.entries)
    entries = fetch.entries
    if len(entries) == 1:
        decided = context.principal, context.client_host, _READ, _TOPIC, entries[0].topic
        if decided in authorizer.allowed and not _is_logged(DEBUG):
            return None
    session, version = fetch.session, authorizer.version
    reader = (version, context.principal, context.client_host)
    if session is not None and session.reader == reader and version >= 0:
        return None
    by_name = context.api_version < _FIRST_FETCH_WITH_IDS  # an empty name is one, and not an unknown id
    references: dict[str, int] = {}  # a Counter takes 1 µs to make: 4 % of a fetch
    for entry in entries:
        if entry.topic or by_name:
            references[entry.topic] = references.get(entry.topic, 0) + 1
    refused = READ_TOPIC.refused(context, references)
    if session is not None:
        session.reader = reader if refused is None else None
    return refused


def _steps(
    context: RequestContext, request: ProduceRequest, appended: Steps[produce.Produce]
) -> Steps[Reply[ProduceResponse]]:
    return _finished(context, request, (yield from appended))


def _finished(context: RequestContext, request: ProduceRequest, done: produce.Produce) -> Reply[ProduceResponse]:
    """The reply when all that can be appended at once is appended."""
    if done.is_deferred:
        context.connection.answer_alone()
    if request.acks == 0:
        if done.is_deferred:
            return _unanswered(context, done)
        if done.failed:
            context.connection.close()
        return None
    return done.finish(max(0, request.timeout_ms))


def _unanswered(context: RequestContext, done: produce.Produce) -> Pending[Encoded]:
    """No answer, once the logs have been opened; a failure closes the connection."""
    nothing: Pending[Encoded] = Pending()

    def settle(_: ProduceResponse | None, error: ApiError | None) -> None:
        if done.failed or error is not None:
            context.connection.close()
        nothing.complete(Encoded([]))

    opened = done.finish(0)
    assert isinstance(opened, Pending), "a cold log is opened by a job"
    opened.then(settle)
    return nothing


_records_refused = error_on_items("responses.partition_responses", "topic_data.partition_data", base_offset=-1)


def produce_failed(request: ProduceRequest, version: int, error: ApiError) -> ProduceResponse | None:
    """The error of every partition. None with acks=0."""
    return _records_refused(request, version, error) if request.acks else None


log = logging.getLogger("kalda.broker")


class ReplicationModule(Module):
    """Rests on no other module."""

    def __init__(self, context: BrokerContext) -> None:
        config, cache, host = context.config, context.cache, context.host
        self.throttles = ReplicationThrottles(config.node_id, config, context.sensors)
        self._peers = BrokerPeers(config, cache, context.channel, context.broker_epoch, host.clock, context.timers)
        self._fetchers = ReplicaFetcherManager(
            config,
            context.cluster_id,
            cache,
            context.broker_epoch,
            host.clock,
            context.jobs,
            context.to_brokers,
            context.on_fatal,
            self.throttles.follower,
        )
        self.replicas = ReplicaManager(
            config.node_id,
            context.timers,
            context.jobs,
            context.background,
            config["fetch.max.bytes"],
            cache.topic_exists,
            self._peers,
            self._fetchers,
            context.sensors,
        )
        self.replicas.throttle = self.throttles.leader
        sessions = FetchSessionCache(
            config["max.incremental.fetch.session.cache.slots"],
            host.rng.randint,
            config["kalda.fetch.session.cache.bytes"],
        )
        self._measure(context, sessions)
        self._clock = host.clock
        self._max_transaction_ms: int = config["transaction.max.timeout.ms"]
        self.channels = BrokerChannels("verification", config, cache, context.to_brokers)
        self.verifier = TransactionVerifier(
            config.node_id,
            coordinator_lookup(config, cache, TRANSACTIONS_TOPIC),
            self.channels.send,
            host.clock.mono_ms,
            context.sensors,
            retry_backoff_ms=config["add.partitions.to.txn.retry.backoff.ms"],
            retry_max_ms=min(config["add.partitions.to.txn.retry.backoff.max.ms"], config["request.timeout.ms"]),
        )
        """Verifies transactions before their first append to a partition."""
        self._data = DataHandlers(
            self.replicas,
            cache,
            sessions,
            host.clock,
            self.verifier,
            _replica_selector(config, cache),
            context.opening,
        )

    def _measure(self, context: BrokerContext, sessions: FetchSessionCache) -> None:
        sensors, config = context.sensors, context.config
        sensors.gauge(FETCH_SESSIONS, "NumIncrementalFetchSessions", read=lambda: len(sessions))
        sensors.gauge(FETCH_SESSIONS, "NumIncrementalFetchPartitionsCached", read=lambda: sessions.partition_count)
        evictions = SensorName(FETCH_SESSIONS, "IncrementalFetchSessionEvictionsPerSec")
        sensors.add_source(lambda: [(evictions, counted(sessions.evictions))])
        sensors.gauge(REPLICA_MANAGER, "PartitionsWithLateTransactionsCount", read=self._late_transactions)
        sensors.gauge(REPLICA_MANAGER, "ReassigningPartitions", read=lambda: context.cache.reassigning(config.node_id))
        sensors.gauge(FETCHERS, "MaxLag", (("clientId", "Replica"),), lambda: self._fetchers.max_lag)
        sensors.gauge(FETCHERS, "FailedPartitionsCount", (("clientId", "Replica"),), lambda: self._fetchers.failed)
        most: int = config["kalda.metrics.logs.max"]
        sensors.add_source(lambda: partition_sensors(self.replicas, most))
        sensors.add_source(lambda: lag_sensors(self._fetchers.lags()) if len(self.replicas) <= most else ())
        conversions = SensorName(BROKER_TOPIC, "ProduceMessageConversionsPerSec")
        sensors.add_source(lambda: [(conversions, context.logs.conversions)])

    def rows(self) -> list[Row]:
        """Produce, Fetch."""
        return self._data.rows()

    def on_config(self, current: ServerConfig, image: MetadataImage) -> None:
        """Set the number of fetchers for each leader, whether transactions are verified, and the rates of throttled
        replicas. `fetch.max.bytes` cannot be altered dynamically."""
        self._fetchers.resize(current["num.replica.fetchers"])
        self.verifier.is_enabled = current["transaction.partition.verification.enable"]
        self.throttles.set_rates(current)

    def _late_transactions(self) -> int:
        """Partitions led here in which a transaction may be hanging."""
        now_ms, max_ms = self._clock.wall_ms(), self._max_transaction_ms
        return sum(
            each.is_leader and each.log.producer_states.has_late_transaction(now_ms, max_ms) for each in self.replicas
        )

    def start(self) -> None:
        """Shrink ISRs from now on, where followers do not keep pace."""
        self._peers.start_shrinking_isrs(self.replicas)

    async def close(self) -> None:
        """Propose and fetch nothing more."""
        self._peers.close()
        await self.channels.close()
        await self._fetchers.close()


def _replica_selector(config: ServerConfig, cache: MetadataCache) -> Callable[[Partition, int, str], int] | None:
    """The selector that `replica.selector.class` names; None where it names none, or one other than Kafka's rack-aware
    one, which is the only one that is supported. `select(partition, offset, rack)` returns a broker id."""
    name = config["replica.selector.class"]
    if not name:
        return None
    if name != RACK_AWARE:
        log.warning("replica.selector.class %s is not known: consumers read from leaders", name)
        return None

    def rack_of(broker_id: int) -> str | None:
        broker = cache.image.cluster.brokers.get(broker_id)
        return None if broker is None or broker.fenced else broker.rack

    return RackAwareSelector(config.node_id, rack_of).select


LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"


class ReplicationThrottles:
    """Both replication throttles of a broker (KIP-73): rates from its configs, replicas from the configs of topics. A
    publisher: the configs of topics take effect with the image that has them."""

    name = "ReplicationThrottles"

    def __init__(self, broker_id: int, config: ServerConfig, sensors: Sensors) -> None:
        self._broker_id = broker_id
        windows = Windows(lambda key: int(config[key]))
        self.leader = ReplicationQuota(windows.replication)
        self.follower = ReplicationQuota(windows.replication)
        sensors.add_source(self._measured)

    def set_rates(self, current: ServerConfig) -> None:
        """Take over the rates of the broker's configs."""
        self.leader.set_bound(float(current[LEADER_RATE]))
        self.follower.set_bound(float(current[FOLLOWER_RATE]))

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """Throttle the replicas that the configs of topics name now."""
        if delta.configs is None:
            return
        for resource, changes in delta.configs.changes.items():
            if resource.type != ConfigResourceType.TOPIC:
                continue
            for name, quota in ((LEADER_REPLICAS, self.leader), (FOLLOWER_REPLICAS, self.follower)):
                if name in changes:
                    quota.set_throttled(resource.name, throttled_partitions(changes[name] or "", self._broker_id))

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No throttle depends on the controller."""

    def _measured(self) -> Iterable[tuple[SensorName, Measurable]]:
        return (
            (SensorName("kafka.server:type=LeaderReplication", "byte-rate"), self.leader.rate),
            (SensorName("kafka.server:type=FollowerReplication", "byte-rate"), self.follower.rate),
        )
