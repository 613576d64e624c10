"""A client of one cluster for the requests of commands, over the core of the admin clients.

`Admin` has typed calls for many items at once. The functions of `client/admin` make one request and read one response,
and this class sends it: to any broker, to one broker, to a coordinator, or to the leaders of partitions. Each API has
its error code in a different field of its response, so the caller passes `check`, which raises for a response with an
error (see `errors.refused`). A retriable error is retried with fresh metadata until the deadline. A request that
changes something may be applied twice when a response was lost, as with every Kafka client.

With `of_controllers` (KIP-919), it connects to controllers instead of brokers, and its requests go to the active one.

Until the first broker has answered, requests wait for `first_contact_ms` only: a node may be starting, but a wrong
address has to fail soon.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

from kalda.base.configs.admin import ADMIN, admin_config
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin_driven import AdminDriven
from kalda.client.channels import monotonic_ms, security_of
from kalda.client.core.administration import ANY, PAUSE, Ask, Kind, Plan, Target
from kalda.client.core.cluster_values import (
    UNKNOWN_TOPIC,
    Leader,
    Metadata,
    Topic,
    newest,
    parse_bootstrap,
    read_metadata,
)
from kalda.client.core.consumer_errors import Operation
from kalda.client.core.errors import UnknownTopic, Unreachable, refused
from kalda.client.io_thread import IoThread
from kalda.protocol.calls import PeerVersions, api_versions_request, peer_versions
from kalda.protocol.messages.metadata import EndpointType, MetadataRequest, MetadataRequestTopic
from kalda.protocol.notation import Request

R = TypeVar("R")
T = TypeVar("T")
Check = Callable[[Any], None]
_GROUP = 0
"""`CoordinatorType.GROUP`. The messages of groups are imported when they are used."""
_FIRST_CONTACT_MS = 1_500
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
        config: Mapping[str, object] | None = None,
        client_id: str = "kalda",
        timeout_ms: int = 30_000,
        connect_timeout_ms: int = 5_000,
        first_contact_ms: int = _FIRST_CONTACT_MS,
        of_controllers: bool = False,
    ) -> None:
        """Makes no connection. `config` has keys of clients (`security.protocol`); those that an admin client does not
        have are ignored. Raises `ValueError` for a malformed address, and `InvalidConfig`."""
        self.bootstrap = parse_bootstrap(bootstrap)
        self.timeout_ms = timeout_ms
        self.first_contact_ms = first_contact_ms
        self.endpoint_type = EndpointType.CONTROLLERS if of_controllers else EndpointType.BROKERS
        key = "bootstrap.controllers" if of_controllers else "bootstrap.servers"
        self.config: dict[str, object] = {"client.id": client_id, **(config or {})}
        """Keys of any client, for producers and consumers of the same cluster."""
        self.config[key] = ",".join(map(str, self.bootstrap))
        own = {
            "socket.connection.setup.timeout.ms": connect_timeout_ms,
            "socket.connection.setup.timeout.max.ms": connect_timeout_ms,
        }
        settings = {name: value for name, value in self.config.items() if name in ADMIN}
        self._settings = admin_config({**own, **settings}, {})
        self._driven: AdminDriven | None = None
        """Made by the first call, with the thread that runs it."""
        self._io: IoThread | None = None
        self._last_received: dict[str, Topic] = {}
        """The last metadata of each topic: a stale response must not replace later epochs."""

    def __enter__(self) -> ClusterClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        driven, io = self._driven, self._io
        self._driven = self._io = None
        if driven is not None and io is not None:
            driven.is_ending = True
            io.wake()
            io.join()

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
        return self._request(ANY, request, check, max_version, timeout_ms)

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
        return self._request(Target(Kind.BROKER, node_id), request, check, max_version, timeout_ms)

    def ask_coordinator(
        self,
        key: str,
        request: Request,
        *,
        check: Check | None = None,
        max_version: int | None = None,
        timeout_ms: int | None = None,
        key_type: int = _GROUP,
    ) -> Any:
        """The response of the coordinator of a group, or with another `CoordinatorType` of another key. It is looked up
        again when it has moved. Raises `ApiError`."""
        kind = Kind.GROUP if key_type == _GROUP else Kind.TRANSACTION
        return self._request(Target(kind, key), request, check, max_version, timeout_ms)

    def ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        build: Callable[[list[tuple[TopicPartition, Leader]]], Request],
        read: Callable[[Any], Iterator[tuple[TopicPartition, int, R]]],
        *,
        what: str = "partition",
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, R]:
        """One answer for each partition, from its leader.

        `build` makes the request to one leader; `read` yields (partition, error code, answer) from its response. After
        a retriable error the request is repeated for the partitions without an answer. Raises `ApiError`.
        """
        requested = list(dict.fromkeys(partitions))
        if not requested:
            return {}
        answers: dict[TopicPartition, R] = {}
        self.run("asking leaders", self._leaders_plan(requested, build, read, what, answers), timeout_ms)
        return {partition: answers[partition] for partition in requested}

    def run(self, what: str, plan: Plan[T], timeout_ms: int | None = None) -> T:
        """The result of a plan of the admin clients. Raises `ApiError`."""
        driven, io = self._start()
        timeout_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        operation = Operation(what, monotonic_ms() + timeout_ms)
        done = threading.Event()
        operation.on_done = lambda _operation: done.set()
        driven.submit(plan, operation)
        io.wake()
        first_contact_ms = min(timeout_ms, self.first_contact_ms)
        if not driven.core.connections.was_connected and not done.wait(first_contact_ms / 1000):
            connections = driven.core.connections
            if not connections.was_connected and connections.last_failure:
                raise self._unreachable(connections.last_failure)
        done.wait()
        if operation.error is not None:
            if not driven.core.connections.was_connected and driven.core.refused is None:
                raise self._unreachable(driven.core.connections.last_failure or str(operation.error))
            raise operation.error
        result: T = operation.result
        return result

    def _start(self) -> tuple[AdminDriven, IoThread]:
        if self._driven is None or self._io is None:
            settings = self._settings
            self._driven = AdminDriven(settings, random.random, monotonic_ms())
            self._io = IoThread(
                "kalda-cluster-client",
                self._driven,
                security_of(dict(settings.values)),
                settings.send_buffer_bytes,
                settings.receive_buffer_bytes,
            )
            self._io.start()
        return self._driven, self._io

    def _unreachable(self, reason: str) -> Unreachable:
        servers = ",".join(map(str, self.bootstrap))
        return Unreachable(
            f"cannot connect to the cluster at {servers}: {reason}. Check the address, and whether the cluster is "
            "running"
        )

    def _request(
        self, target: Target, request: Request, check: Check | None, max_version: int | None, timeout_ms: int | None
    ) -> Any:
        def error_in(response: Any) -> ApiError | None:
            try:
                if check is not None:
                    check(response)
            except ApiError as error:
                return error
            return None

        return self.run("the request", _repeated(Ask(target, request, max_version), error_in), timeout_ms)

    # -- metadata

    def metadata(self, topics: Collection[str] | None = None, *, timeout_ms: int | None = None) -> Metadata:
        """The metadata of these topics or, with None, of all, from any broker. An unknown topic has an error code."""
        if self.endpoint_type is EndpointType.CONTROLLERS:
            from kalda.client.core.controllers import controllers_of, controllers_request

            return controllers_of(self.any_broker(controllers_request()))
        return self._take(self.any_broker(_metadata_request(topics), timeout_ms=timeout_ms))

    def topic(self, name: str, *, timeout_ms: int | None = None) -> Topic:
        """A topic with its partitions, from a new request. Raises `ApiError` where the topic does not exist."""
        topic: Topic = self.run("the topic's metadata", self._topic_plan(name), timeout_ms)
        return topic

    def partitions(self, name: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises `ApiError` where the topic does not exist."""
        return [TopicPartition(name, partition.partition) for partition in self.topic(name).partitions]

    def leader(self, topic: str, partition: int, *, timeout_ms: int | None = None) -> Leader:
        """The partition's leader; waits until there is one. Raises `ApiError`."""
        target = TopicPartition(topic, partition)
        return self.leaders([target], timeout_ms=timeout_ms)[target]

    def leaders(
        self, partitions: Collection[TopicPartition], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Leader]:
        """`leader` of each."""
        return self.run("the leaders of partitions", self._wait_for_leaders(partitions), timeout_ms)

    def coordinator(self, key: str, *, key_type: int = _GROUP, timeout_ms: int | None = None) -> int:
        """The node that coordinates the group, or with another `CoordinatorType` another key. Raises `ApiError`."""
        from kalda.protocol.messages.groups import FindCoordinatorRequest

        what = f"group {key!r}" if key_type == _GROUP else f"coordinator of {key!r}"

        def check(answer: Any) -> None:
            if answer.error_code:
                raise refused(answer.error_code, what, answer.error_message)

        request = FindCoordinatorRequest(key=key, key_type=key_type)
        answer = self.any_broker(request, check=check, max_version=_MAX_FIND_COORDINATOR, timeout_ms=timeout_ms)
        return int(answer.node_id)

    def versions(self, node_id: int | None = None) -> PeerVersions:
        """The API versions that this broker supports, or with None any broker. Raises `ApiError`."""
        from kalda import __version__

        target = ANY if node_id is None else Target(Kind.BROKER, node_id)
        return peer_versions(self._request(target, api_versions_request(__version__), None, None, None))

    # -- plans

    def _take(self, answer: Any) -> Metadata:
        metadata = read_metadata(answer)
        topics = {name: newest(topic, self._last_received.get(name)) for name, topic in metadata.topics.items()}
        self._last_received.update({name: topic for name, topic in topics.items() if not topic.error_code})
        return metadata._replace(topics=topics)

    def _topic_plan(self, name: str) -> Plan[Topic]:
        found = yield from self._topics_plan([name])
        return found.topics[name]

    def _topics_plan(self, names: Collection[str]) -> Plan[Metadata]:
        """The metadata of topics that all exist."""
        found: Mapping[str, Topic] = {}

        def error_in(answer: Any) -> ApiError | None:
            nonlocal found
            found = self._take(answer).topics
            return next(filter(None, (_missing(name, found.get(name, UNKNOWN_TOPIC)) for name in names)), None)

        answer = yield from _repeated(Ask(ANY, _metadata_request(names)), error_in)
        return read_metadata(answer)._replace(topics=found)

    def _find_leaders(
        self, partitions: Collection[TopicPartition]
    ) -> Plan[tuple[dict[TopicPartition, Leader], ApiError | None]]:
        """The leaders of those that have one, and the error of one that has none."""
        found = yield from self._topics_plan(list(dict.fromkeys(each.topic for each in partitions)))
        leaders: dict[TopicPartition, Leader] = {}
        failure: ApiError | None = None
        for each in partitions:
            topic = found.topics[each.topic]
            partition = next((p for p in topic.partitions if p.partition == each.partition), None)
            if partition is None:
                raise ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"topic {each.topic} has no partition {each.partition}; it has {len(topic.partitions)}, numbered "
                    "from 0",
                )
            if partition.leader < 0 or partition.leader not in found.brokers:
                failure = refused(partition.error_code or ErrorCode.LEADER_NOT_AVAILABLE, f"partition {each}")
            else:
                leaders[each] = Leader(partition.leader, partition.leader_epoch, topic.topic_id)
        return leaders, failure

    def _wait_for_leaders(self, partitions: Collection[TopicPartition]) -> Plan[dict[TopicPartition, Leader]]:
        while True:
            leaders, failure = yield from self._find_leaders(partitions)
            if failure is None:
                return leaders
            if not failure.code.retriable or (yield PAUSE):
                raise failure

    def _leaders_plan(
        self,
        requested: list[TopicPartition],
        build: Callable[[list[tuple[TopicPartition, Leader]]], Request],
        read: Callable[[Any], Iterator[tuple[TopicPartition, int, R]]],
        what: str,
        answers: dict[TopicPartition, R],
    ) -> Plan[None]:
        """Fills `answers`."""
        while True:
            leaders, failure = yield from self._find_leaders([each for each in requested if each not in answers])
            groups: dict[int, list[tuple[TopicPartition, Leader]]] = {}
            for partition, leader in leaders.items():
                groups.setdefault(leader.node_id, []).append((partition, leader))
            replies = []
            if groups:
                replies = yield [Ask(Target(Kind.BROKER, node_id), build(group)) for node_id, group in groups.items()]
            for reply in replies:
                if isinstance(reply, ApiError):
                    failure = reply
                    continue
                for partition, code, answer in read(reply):
                    if not code:
                        answers[partition] = answer
                        continue
                    failure = refused(code, f"{what} {partition}")
                    if not failure.code.retriable:
                        raise failure
            if failure is None:
                return
            is_gone = failure.code is ErrorCode.BROKER_NOT_AVAILABLE  # a leader that has just left the metadata
            if not (failure.code.retriable or is_gone) or (yield PAUSE):
                raise failure


def _repeated(ask: Ask, error_in: Callable[[Any], ApiError | None]) -> Plan[Any]:
    """The first response without an error. Raises `ApiError`."""
    began_ms = monotonic_ms()
    while True:
        (reply,) = yield [ask]
        error = reply if isinstance(reply, ApiError) else error_in(reply)
        if error is None:
            return reply
        if isinstance(error, UnknownTopic) and monotonic_ms() - began_ms >= _NEW_TOPIC_MS:
            raise error
        if not error.code.retriable or (yield PAUSE):
            raise error


def _metadata_request(topics: Collection[str] | None) -> MetadataRequest:
    return MetadataRequest(
        topics=None if topics is None else [MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
    )


def _missing(name: str, topic: Topic) -> ApiError | None:
    if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return UnknownTopic(f"topic {name} does not exist; check the name, or create it first")
    return refused(topic.error_code, f"topic {name}") if topic.error_code else None
