"""A client of one cluster: connections, metadata, leaders, coordinators, and retries until a deadline.

Blocking, for one thread. Each API has its error code in a different field of its response, so the caller passes
`check`, which raises for a response with an error (see `errors.refused`). A retriable error is retried with fresh
metadata until the deadline. A request that changes something may be applied twice when a response was lost, as with
every Kafka client.

With `of_controllers` (KIP-919), the client connects to controllers instead of brokers and sends its requests to the
active one. This works while no broker is running.

Connections are kept by node and by *lane*: a long poll on one lane does not delay a heartbeat on another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.errors import Unreachable, refused
from kalda.client.metadata import (
    UNKNOWN_TOPIC,
    Address,
    Broker,
    Leader,
    Metadata,
    Topic,
    newest,
    parse_bootstrap,
    read_metadata,
)
from kalda.client.retry import Deadline, Retry
from kalda.network.blocking import BlockingConnection
from kalda.network.calls import PeerVersions
from kalda.protocol.apis import ApiKey, api_of
from kalda.protocol.messages.metadata import EndpointType
from kalda.protocol.notation import Request

R = TypeVar("R")
Check = Callable[[Any], None]

if TYPE_CHECKING:
    from kalda.network.client_security import ClientSecurity

_GROUP = 0
"""`CoordinatorType.GROUP`. The messages of groups are imported when they are used."""
_BOOTSTRAP = -1
"""The node id under which the connection to a bootstrap address is kept, as the address's node id is unknown."""

_FIRST_CONTACT_MS = 1_500
"""How long to retry before the first connection, by default: a node may be starting, but a wrong address has to fail
soon."""

_NEW_TOPIC_MS = 1_500
"""How long to retry an unknown topic: it may have been created a moment ago, and a broker may not have it yet."""

_MAX_FIND_COORDINATOR = 3
"""The last version with a single key in its request and response."""


class ClusterClient:
    """A context manager that closes its connections. `timeout_ms` bounds each call with all its attempts."""

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        client_id: str = "kalda",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 5_000,
        first_contact_ms: int = _FIRST_CONTACT_MS,
        auto_create_topics: bool = False,
        of_controllers: bool = False,
        security: ClientSecurity | None = None,
    ) -> None:
        """Makes no connection. `of_controllers`: the addresses are those of controllers. Until a connection was made,
        an attempt to connect is repeated for `first_contact_ms`. `security`: None for plain text. Raises
        `ValueError` for a malformed address."""
        self.bootstrap = parse_bootstrap(bootstrap)
        self.client_id = client_id
        self.timeout_ms = timeout_ms
        self.endpoint_type = EndpointType.CONTROLLERS if of_controllers else EndpointType.BROKERS
        self.brokers: dict[int, Broker] = {}
        """The live brokers of the last response by node id; with `of_controllers`, the controllers."""
        self.cluster_id: str | None = None
        self._active_controller = -1
        """Node id; -1 while unknown. Only used with `of_controllers`."""
        self._auto_create_topics = auto_create_topics
        self._connect_timeout_ms = connect_timeout_ms
        self.first_contact_ms = first_contact_ms
        self._security = security
        self._connections: dict[tuple[int, str], BlockingConnection] = {}
        """By node id and lane."""
        self._topics: dict[str, Topic] = {}
        """Topics whose metadata is used without a new request; removed when a request to a leader failed."""
        self._last_received: dict[str, Topic] = {}
        """The last metadata of each topic, kept after a failure: a stale response must not replace later epochs."""
        self._coordinators: dict[tuple[int, str], int] = {}
        """Node id of the coordinator by key type and key."""
        self._was_connected = False
        """A connection was made at least once, so the bootstrap addresses are right."""

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -- requests

    def any_broker(
        self,
        request: Request,
        *,
        check: Check | None = None,
        max_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """The response of any reachable broker; with `of_controllers`, of the active controller. Raises `ApiError`."""
        return self.retrying(
            lambda left: self._request(self._default_node(left), request, check, max_version, left), timeout_ms
        )

    def broker(
        self,
        node_id: int,
        request: Request,
        *,
        check: Check | None = None,
        max_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """The response of this broker. Raises `ApiError`; BROKER_NOT_AVAILABLE where the cluster does not have it in
        service."""
        failures = 0

        def attempt(left: Deadline) -> Any:
            nonlocal failures
            if failures:
                self._refresh((), left)  # else a broker that was fenced would be tried until the deadline
            failures += 1
            return self._request(node_id, request, check, max_version, left)

        return self.retrying(attempt, timeout_ms)

    def ask_coordinator(
        self,
        key: str,
        request: Request,
        *,
        check: Check | None = None,
        max_version: int | None = None,
        timeout_ms: int | None = None,
        lane: str = "",
        key_type: int = _GROUP,
    ) -> Any:
        """The response of the coordinator of a group, or with another `CoordinatorType` of another key. It is looked up
        again when it has moved. Raises `ApiError`."""

        def attempt(left: Deadline) -> Any:
            node_id = self._coordinator(key_type, key, left)
            try:
                return self._request(node_id, request, check, max_version, left, lane)
            except ApiError as error:
                if error.code in _COORDINATOR_INVALID:
                    self._coordinators.pop((key_type, key), None)
                raise

        return self.retrying(attempt, timeout_ms)

    def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        build: Callable[[list[tuple[TopicPartition, Leader]]], Request],
        read: Callable[[Any], Iterator[tuple[TopicPartition, int, R]]],
        *,
        what: str = "partition",
        max_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, R]:
        """One answer for each partition, from its leader.

        `build` makes the request to one leader; `read` yields (partition, error code, answer) from its response. After
        a retriable error the request is repeated for the partitions without an answer. Raises `ApiError`.
        """
        requested = list(dict.fromkeys(partitions))
        answers: dict[TopicPartition, R] = {}

        def attempt(left: Deadline) -> None:
            by_node: dict[int, list[tuple[TopicPartition, Leader]]] = {}
            missing = [partition for partition in requested if partition not in answers]
            for partition, leader in self._leaders(missing, left).items():
                by_node.setdefault(leader.node_id, []).append((partition, leader))
            failure: ApiError | None = None
            for node_id, group in by_node.items():
                try:
                    response = self._request(node_id, build(group), None, max_version, left)
                except ApiError as error:
                    self._forget_leaders(error, [partition for partition, _ in group])
                    failure = error
                    continue
                for partition, code, answer in read(response):
                    if code:
                        failure = refused(code, f"{what} {partition}")
                        self._forget_leaders(failure, [partition])
                        if not failure.code.retriable:
                            raise failure
                    else:
                        answers[partition] = answer
            if failure is not None:
                raise failure

        self.retrying(attempt, timeout_ms)
        return {partition: answers[partition] for partition in requested}

    def retrying(self, attempt: Callable[[Deadline], R], timeout_ms: int | None = None) -> R:
        """Call `attempt(deadline)` until it returns, raises an error that is not retriable, or the deadline passes.

        Raises `ApiError`.
        """
        retry = Retry(Deadline(self.timeout_ms if timeout_ms is None else timeout_ms))
        while True:
            try:
                return attempt(retry.deadline)
            except ApiError as error:
                if error.code.invalid_metadata:
                    self._topics.clear()
                self._active_controller = -1
                if isinstance(error, UnknownTopic):
                    retry.pause(error, within_ms=_NEW_TOPIC_MS)
                elif isinstance(error, Unreachable) and not self._was_connected:
                    retry.pause(error, within_ms=self.first_contact_ms)
                else:
                    retry.pause(error)

    # -- metadata

    def metadata(self, topics: Collection[str] | None = None, *, timeout_ms: int | None = None) -> Metadata:
        """The metadata of these topics or, with None, of all, from any broker. An unknown topic has an error code."""
        return self.retrying(lambda left: self._refresh(topics, left), timeout_ms)

    def topic(self, name: str, *, timeout_ms: int | None = None) -> Topic:
        """A topic with its partitions, from a new request. Raises `ApiError` where the topic does not exist."""

        def attempt(left: Deadline) -> Topic:
            self._topics.pop(name, None)
            return self._topic(name, left)

        return self.retrying(attempt, timeout_ms)

    def partitions(self, name: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises `ApiError` where the topic does not exist."""
        topic = self.retrying(lambda left: self._topic(name, left))
        return [TopicPartition(name, partition.partition) for partition in topic.partitions]

    def leader(self, topic: str, partition: int, *, timeout_ms: int | None = None) -> Leader:
        """The partition's leader, perhaps from the cache; waits until there is one. Raises `ApiError`."""
        target = TopicPartition(topic, partition)
        return self.retrying(lambda left: self._leaders([target], left), timeout_ms)[target]

    def leaders(
        self, partitions: Collection[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Leader]:
        """`leader` of each."""
        return self.retrying(lambda left: self._leaders(partitions, left), timeout_ms)

    def leaders_now(
        self, partitions: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Leader], dict[TopicPartition, ApiError]]:
        """The leaders of those that have one, and the errors of the others, without waiting for a leader.

        Waits for metadata, and a moment for a topic that may be new. Raises `ApiError`.
        """
        return self.retrying(lambda left: self._find_leaders(partitions, left))

    def forget(self, topics: Iterable[str]) -> None:
        """Drop the cached metadata of these topics: the next use requests it again."""
        for name in topics:
            self._topics.pop(name, None)

    def coordinator(self, key: str, *, key_type: int = _GROUP, timeout_ms: int | None = None) -> int:
        """The node that coordinates the group, or with another `CoordinatorType` another key. Raises `ApiError`."""
        return self.retrying(lambda left: self._coordinator(key_type, key, left), timeout_ms)

    # -- connections, for callers that keep requests in flight

    def connection(self, node_id: int, lane: str = "", *, timeout_ms: int | None = None) -> BlockingConnection:
        """The connection to a node, opened if there is none, in one attempt. Raises `ApiError`."""
        return self._connect(node_id, lane, Deadline(self.timeout_ms if timeout_ms is None else timeout_ms))

    def drop(self, node_id: int, lane: str = "") -> None:
        """Close a connection that has failed, or whose responses will not be read."""
        connection = self._connections.pop((node_id, lane), None)
        if connection is not None:
            connection.close()

    def versions(self, node_id: int | None = None) -> PeerVersions:
        """The API versions that this broker supports, or with None any broker. Raises `ApiError`."""

        def attempt(left: Deadline) -> PeerVersions:
            connection = self._any_connection(left)[1] if node_id is None else self._connect(node_id, "", left)
            assert connection.versions is not None
            return connection.versions

        return self.retrying(attempt)

    # -- single attempts

    def _request(
        self,
        node_id: int | None,
        request: Request,
        check: Check | None,
        max_version: int | None,
        left: Deadline,
        lane: str = "",
    ) -> Any:
        if node_id is None:
            node_id, connection = self._any_connection(left)
        else:
            connection = self._connect(node_id, lane, left)
        try:
            version = version_within(connection, request.API_KEY, max_version)
            response = connection.request(request, version, timeout_ms=max(1, left.remaining_ms))
        except ApiError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                self.drop(node_id, lane)
            raise
        if check is not None:
            check(response)
        return response

    def _default_node(self, left: Deadline) -> int | None:
        """Where requests of `any_broker` go: None for any broker, or the active controller's id."""
        if self.endpoint_type is EndpointType.BROKERS:
            return None
        if self._active_controller < 0:
            self._active_controller = self._refresh_controllers(left).controller_id
        if self._active_controller < 0:
            raise ApiError(
                ErrorCode.LEADER_NOT_AVAILABLE, "there is no active controller; start a majority of the controllers"
            )
        return self._active_controller

    def _refresh_controllers(self, left: Deadline) -> Metadata:
        from kalda.protocol.messages.metadata import DescribeClusterRequest

        answer = self._request(None, DescribeClusterRequest(endpoint_type=EndpointType.CONTROLLERS), None, None, left)
        if answer.error_code:
            raise refused(answer.error_code, "the controllers", answer.error_message)
        brokers = {each.broker_id: Broker(each.broker_id, each.host, each.port, None) for each in answer.brokers}
        self.cluster_id = answer.cluster_id
        self.brokers = brokers or self.brokers
        return Metadata(answer.cluster_id, answer.controller_id, brokers, {})

    def _refresh(self, topics: Collection[str] | None, left: Deadline) -> Metadata:
        from kalda.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic

        if self.endpoint_type is EndpointType.CONTROLLERS:
            return self._refresh_controllers(left)
        request = MetadataRequest(
            topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=self._auto_create_topics,
        )
        metadata = read_metadata(self._request(None, request, None, None, left))
        self.cluster_id = metadata.cluster_id
        if metadata.brokers:
            self.brokers = dict(metadata.brokers)
        found = {name: newest(topic, self._last_received.get(name)) for name, topic in metadata.topics.items()}
        existing = {name: topic for name, topic in found.items() if not topic.error_code}
        self._topics.update(existing)
        self._last_received.update(existing)
        return metadata._replace(topics=found)

    def _topic(self, name: str, left: Deadline) -> Topic:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._refresh([name], left).topics.get(name, UNKNOWN_TOPIC)
            _expect_topic(name, topic)
        return topic

    def _leaders(self, partitions: Collection[TopicPartition], left: Deadline) -> dict[TopicPartition, Leader]:
        leaders, failures = self._find_leaders(partitions, left)
        for error in failures.values():
            raise error
        return leaders

    def _find_leaders(
        self, partitions: Collection[TopicPartition], left: Deadline
    ) -> tuple[dict[TopicPartition, Leader], dict[TopicPartition, ApiError]]:
        missing = list(dict.fromkeys(p.topic for p in partitions if p.topic not in self._topics))
        if missing:
            found = self._refresh(missing, left).topics
            for name in missing:
                _expect_topic(name, found.get(name, UNKNOWN_TOPIC))
        leaders, failures = {}, {}
        topics = {name: self._topics[name] for name in {target.topic for target in partitions}}
        for target in partitions:
            topic = topics[target.topic]
            partition = next((p for p in topic.partitions if p.partition == target.partition), None)
            if partition is None:
                self._topics.pop(target.topic, None)
                raise UnknownTopic(
                    f"topic {target.topic} has no partition {target.partition}; it has {len(topic.partitions)}, "
                    f"numbered from 0"
                )
            if partition.leader < 0 or partition.leader not in self.brokers:
                self._topics.pop(target.topic, None)
                code = partition.error_code or ErrorCode.LEADER_NOT_AVAILABLE
                failures[target] = refused(code, f"partition {target}")
            else:
                leaders[target] = Leader(partition.leader, partition.leader_epoch, topic.topic_id)
        return leaders, failures

    def _forget_leaders(self, error: ApiError, partitions: Iterable[TopicPartition]) -> None:
        """Drop the metadata of these partitions' topics where `error` may mean that a leader has moved."""
        if error.code.invalid_metadata or error.code is ErrorCode.REQUEST_TIMED_OUT:
            self.forget(partition.topic for partition in partitions)

    def _coordinator(self, key_type: int, key: str, left: Deadline) -> int:
        from kalda.protocol.messages.groups import FindCoordinatorRequest

        node_id = self._coordinators.get((key_type, key))
        if node_id is not None and node_id in self.brokers:
            return node_id
        request = FindCoordinatorRequest(key=key, key_type=key_type)
        answer = self._request(None, request, None, _MAX_FIND_COORDINATOR, left)
        if answer.error_code:
            raise refused(
                answer.error_code,
                f"group {key!r}" if key_type == _GROUP else f"coordinator of {key!r}",
                answer.error_message,
            )
        self.brokers[answer.node_id] = Broker(answer.node_id, answer.host, answer.port, None)
        self._coordinators[key_type, key] = answer.node_id
        return int(answer.node_id)

    # -- connecting

    def _connect(self, node_id: int, lane: str, left: Deadline) -> BlockingConnection:
        connection = self._connections.get((node_id, lane))
        if connection is None:
            if node_id not in self.brokers:
                self._refresh((), left)
            broker = self.brokers.get(node_id)
            if broker is None:
                alive = ", ".join(map(str, sorted(self.brokers)))
                raise ApiError(
                    ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not alive; those alive are {alive}"
                )
            connection = self._connections[node_id, lane] = self._open(broker.address, left)
        return connection

    def _any_connection(self, left: Deadline) -> tuple[int, BlockingConnection]:
        """An open connection of the default lane, else a new one to a known broker, else to a bootstrap server."""
        for (node_id, lane), connection in self._connections.items():
            if not lane:
                return node_id, connection
        reasons: list[str] = []
        candidates: list[tuple[int, Address]] = [(broker.node_id, broker.address) for broker in self.brokers.values()]
        candidates += [(_BOOTSTRAP, address) for address in random.sample(self.bootstrap, len(self.bootstrap))]
        for node_id, address in candidates:
            try:
                connection = self._connections[node_id, ""] = self._open(address, left)
            except ApiError as error:
                if error.code in _UNMENDED:
                    raise
                if error.message not in reasons:
                    reasons.append(error.message)
            else:
                return node_id, connection
        servers = ",".join(map(str, self.bootstrap))
        raise Unreachable(
            f"cannot connect to the cluster at {servers}: {'; '.join(reasons)}. Check the address, and whether the "
            f"cluster is running"
        )

    def _open(self, address: Address, left: Deadline) -> BlockingConnection:
        connection = BlockingConnection(
            address.host,
            address.port,
            client_id=self.client_id,
            timeout_ms=max(1, min(left.remaining_ms, self._connect_timeout_ms)),
            connect_timeout_ms=max(1, min(left.remaining_ms, self._connect_timeout_ms)),
            security=self._security,
        )
        if self.endpoint_type is EndpointType.BROKERS and ApiKey.METADATA not in (connection.versions or ()):
            connection.close()
            raise ApiError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE, f"{address} answers no client; it may be a controller's listener"
            )
        self._was_connected = True
        return connection


_UNMENDED = frozenset(
    (
        ErrorCode.MISMATCHED_ENDPOINT_TYPE,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ErrorCode.ILLEGAL_SASL_STATE,
    )
)
"""Errors of a new connection that no other address and no retry mends."""

_COORDINATOR_INVALID = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
    )
)
"""Errors after which the coordinator is looked up again."""


class UnknownTopic(ApiError):
    """Retried for `_NEW_TOPIC_MS` only: the topic may be new, but the name may also be wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


def _expect_topic(name: str, topic: Topic) -> None:
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise UnknownTopic(f"topic {name} does not exist; check the name, or create it first")
    if topic.error_code:
        raise refused(topic.error_code, f"topic {name}")


def version_within(connection: BlockingConnection, api_key: int, max_version: int | None) -> int | None:
    """The highest version that both sides support and that is not above `max_version`.

    None where the connection shall choose: `max_version` is None, or the peer's versions are unknown.
    """
    if max_version is None or connection.versions is None:
        return None
    highest = connection.versions.get(api_key, (0, -1))[1]
    return min(highest, max_version, api_of(api_key).highest) if highest >= 0 else None
