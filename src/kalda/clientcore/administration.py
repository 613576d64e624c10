"""Administrative calls as plans: generators that yield requests and receive responses, without sockets and clocks.

    plan = per_item(items, target_of, build, read)     requests by target, an answer or an error for each item
    AdminCore.start(plan, operation)                   run it: `operation` gets what the generator returns

A plan yields a list of `Ask`s and gets, in the same order, the response or the error of each. `AdminCore` finds the
node of each target: any broker, one broker, the leader of a partition, the coordinator of a group or of a transactional
id. A plan that yields `PAUSE` goes on after a backoff, until the operation's deadline; then it gets `True`, and gives
up. One that yields `ELAPSED_MS` gets the time since it was started.

With `first_contact_ms`, an operation of a client that never had a connection fails with `Unreachable` after that time:
a node may be starting, but a wrong address has to fail soon.

Not obvious:

- Until one connection was made, calls of commands wait for `first_contact_ms` only; plans, with all that they check,
  run on the I/O thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.clientcore.client_core import ClientCore
from kalda.clientcore.connections.client_metrics import ClientMetrics, metric_config
from kalda.clientcore.connections.errors import Random, UnknownTopic, Unreachable, refused
from kalda.clientcore.connections.metadata import Broker, read_metadata
from kalda.clientcore.connections.requests import COORDINATOR_BASE, COORDINATOR_MOVED
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.protocol.messages.groups import CoordinatorType
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.naming import MAX_ELEMENTS_SENT, elements_of
from kalda.protocol.notation import Request

if TYPE_CHECKING:
    from kalda.base.configs.admin import AdminConfig

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


NEW_TOPIC_MS = 1_500
"""For how long an unknown topic is requested again: it may be new, but the name may also be wrong."""


class TargetKind(Enum):
    """Who answers a request."""

    ANY = "any"
    BROKER = "broker"
    LEADER = "leader"
    NODE_THAT_LEADS = "node that leads"
    GROUP = "group"
    TRANSACTION = "transaction"


class Target(NamedTuple):
    """`key` is a node id, a partition, a group, a transactional id; None for any broker. A broker that is not alive is
    an error of the caller; a node that leads partitions no longer is one that passes."""

    kind: TargetKind
    key: Any = None


ANY = Target(TargetKind.ANY)
PAUSE = None


class _Question(Enum):
    """What a plan may ask the core itself."""

    ELAPSED_MS = "elapsed"


ELAPSED_MS = _Question.ELAPSED_MS


class Ask(NamedTuple):
    """A request, and who answers it."""

    target: Target
    request: Request | None
    """None: the reply is the node id of the partition's leader, or of the coordinator."""
    max_version: int | None = None


Reply = Any
"""A response, or an `ApiError`."""
Plan = Generator[list[Ask] | _Question | None, Any, V]


class Outcomes(dict[K, V | ApiError]):
    """The result of each item: a value, or an error. `results[item]` is either; `value(item)` raises the error."""

    def value(self, item: K) -> V:
        """The item's result. Raises its `ApiError`."""
        found = self[item]
        if isinstance(found, ApiError):
            raise found
        return found

    @property
    def errors(self) -> dict[K, ApiError]:
        """The items that have failed."""
        return {item: each for item, each in self.items() if isinstance(each, ApiError)}

    @property
    def succeeded(self) -> dict[K, V]:
        """The items that have not failed."""
        return {item: each for item, each in self.items() if not isinstance(each, ApiError)}

    def check(self) -> Outcomes[K, V]:
        """This object. Raises the first error, where there is one."""
        for error in self.errors.values():
            raise error
        return self


def per_item(
    items: Iterable[K],
    target_of: Callable[[K], Target],
    build: Callable[[list[K]], Request],
    read: Callable[[Any, list[K]], Iterable[tuple[K, V | ApiError]]],
    *,
    max_version: int | None = None,
    retries: bool = True,
    final: Collection[ErrorCode] = (),
) -> Plan[Outcomes[K, V]]:
    """One result for each item. `build` makes the request for items with the same target, `read` yields (item, value or
    error) from its response. Partitions with the same leader have the same target. Items with errors that pass are
    requested again, unless `retries` is False or the code is in `final`; those with an unknown topic for
    `NEW_TOPIC_MS` only. Raises `TypeError` for one name in place of several: its letters would be the items."""
    if isinstance(items, str | bytes):
        raise TypeError(f"{items!r} is one name: a list of names is expected")
    outcomes: Outcomes[K, V] = Outcomes()
    left = list(dict.fromkeys(items))
    for item in left:
        outcomes[item] = ApiError(ErrorCode.REQUEST_TIMED_OUT, f"there was no answer about {item} in time")
    while left:
        targets = yield from _with_leaders({item: target_of(item) for item in left})
        groups: dict[Target | ApiError, list[K]] = {}
        for item, target in targets.items():
            groups.setdefault(target, []).append(item)
        asks: list[tuple[Ask | ApiError, list[K]]] = []
        for target, group in groups.items():
            if isinstance(target, ApiError):
                asks.append((target, group))
            else:
                asks += [(Ask(target, each, max_version), some) for each, some in _requests(group, build)]
        sent = [each for each, _ in asks if isinstance(each, Ask)]
        answers = iter((yield sent) if sent else ())
        again: list[K] = []
        for ask, group in asks:
            reply = ask if isinstance(ask, ApiError) else next(answers)
            found: Iterable[tuple[K, V | ApiError]]
            found = [(item, reply) for item in group] if isinstance(reply, ApiError) else read(reply, group)
            for item, outcome in found:
                if item not in outcomes:
                    continue
                outcomes[item] = outcome
                code = _code(outcome)
                if retries and code is not None and code.retriable and code not in final:
                    again.append(item)
        unknown = {item for item in again if _code(outcomes[item]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        if unknown and (yield ELAPSED_MS) >= NEW_TOPIC_MS:
            again = [item for item in again if item not in unknown]
        left = again
        if left and (yield PAUSE):
            break
    return outcomes


def _requests(items: list[K], build: Callable[[list[K]], Request]) -> Iterator[tuple[Request, list[K]]]:
    """The request for these items, or several where it would have too many elements."""
    request = build(items)
    if len(items) > 1 and elements_of(request) > MAX_ELEMENTS_SENT:
        half = len(items) // 2
        yield from _requests(items[:half], build)
        yield from _requests(items[half:], build)
    else:
        yield request, items


def _with_leaders(targets: dict[K, Target]) -> Plan[dict[K, Target | ApiError]]:
    """The targets, where a partition's leader is one with the node that leads it in its place."""
    partitions = [each for each in dict.fromkeys(targets.values()) if each.kind is TargetKind.LEADER]
    replies = (yield [Ask(each, None) for each in partitions]) if partitions else []
    nodes = {
        each: reply if isinstance(reply, ApiError) else Target(TargetKind.NODE_THAT_LEADS, reply)
        for each, reply in zip(partitions, replies, strict=True)
    }
    return {item: nodes.get(target, target) for item, target in targets.items()}


def _code(outcome: object) -> ErrorCode | None:
    return outcome.code if isinstance(outcome, ApiError) else None


def single(
    ask: Ask, check: Callable[[Any], ApiError | None] = lambda _response: None, *, retries: bool = True
) -> Plan[Any]:
    """The response of one request. `check` returns the error that is in it: what passes is requested again, an
    `UnknownTopic` for `NEW_TOPIC_MS` only. Raises `ApiError`."""
    while True:
        (reply,) = yield [ask]
        error = reply if isinstance(reply, ApiError) else check(reply)
        if error is None:
            return reply
        if isinstance(error, UnknownTopic) and (yield ELAPSED_MS) >= NEW_TOPIC_MS:
            raise error
        if not (retries and error.code.retriable) or (yield PAUSE):
            raise error


def any_broker(_item: object) -> Target:
    """Every item goes to any broker."""
    return ANY


def leader_of(partition: TopicPartition) -> Target:
    """A partition goes to its leader."""
    return Target(TargetKind.LEADER, partition)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers by topic."""
    topics: dict[str, list[int]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(index)
    return topics


def error_in(answer: Any, what: str) -> ApiError | None:
    """The error in a response, or in a part of one, about `what`; its message is the broker's, where that sends one."""
    message = getattr(answer, "error_message", None)
    return refused(answer.error_code, what, message) if answer.error_code else None


def error_of(what: str) -> Callable[[Any], ApiError | None]:
    """The check of a response with one error."""
    return lambda answer: error_in(answer, what)


def errors_in(
    answer: Any, topics: Iterable[Any], asked: Iterable[TopicPartition], whole: str, part: str = ""
) -> Iterator[tuple[TopicPartition, ApiError | None]]:
    """The error, or None, of each partition that was `asked` for: that of the whole answer, where it has one, or those
    of its topics. They are about `whole`, and about `part` and the partition."""
    if getattr(answer, "error_code", 0):
        failed = error_in(answer, whole)
        yield from ((partition, failed) for partition in asked)
    for topic in topics:
        name = topic.name if hasattr(topic, "name") else topic.topic_name
        for each in topic.partitions:
            partition = TopicPartition(name, each.partition_index)
            yield partition, error_in(each, f"{part}partition {partition}")


def of_all_brokers(
    build: Callable[[], Request],
    read: Callable[[Any, int], Iterable[V]],
    check: Callable[[Any], ApiError | None] = lambda _: None,
) -> Plan[list[V]]:
    """What `read(answer, broker)` finds in the answers of all brokers that are in service. `check` returns an error of
    its own, where the answer has one. Raises `ApiError`."""

    def read_one(answer: Any, group: list[int]) -> Iterator[tuple[int, list[V] | ApiError]]:
        (node_id,) = group
        yield node_id, check(answer) or error_in(answer, f"broker {node_id}") or list(read(answer, node_id))

    nodes = yield from live_brokers()
    found = yield from per_item(nodes, lambda node_id: Target(TargetKind.BROKER, node_id), lambda _: build(), read_one)
    return [each for some in found.check().succeeded.values() for each in some]


def live_brokers() -> Plan[list[int]]:
    """The ids of the brokers that are in service, sorted."""
    answer = yield from single(Ask(ANY, MetadataRequest(topics=[], allow_auto_topic_creation=False)))
    return sorted(read_metadata(answer).brokers)


def coordinator_of(target: Target) -> Plan[int]:
    """The node id of the coordinator, which has just answered; -1 where it is unknown by now."""
    (node_id,) = yield [Ask(target, None)]
    return -1 if isinstance(node_id, ApiError) else node_id


class _Run:
    """A plan that is being run."""

    __slots__ = ("asks", "began_ms", "left", "operation", "pauses", "plan", "replies", "resume_at_ms")

    def __init__(self, plan: Plan[Any], operation: Operation, began_ms: int) -> None:
        self.plan = plan
        self.operation = operation
        self.began_ms = began_ms
        self.asks: list[Ask] = []
        self.replies: list[Reply] = []
        self.left: set[int] = set()
        """The asks that are not sent yet."""
        self.resume_at_ms: int | None = None
        """When a paused plan goes on; None: it waits for replies."""
        self.pauses = 0


_UNANSWERED = object()
_MAX_IDLE_MS = 300_000
"""For how long a topic that no plan asks for stays in the metadata."""


class AdminCore(ClientCore):
    """The machines of one administrative client."""

    def __init__(
        self,
        config: AdminConfig,
        *,
        client_id: str,
        software_version: str,
        random: Random,
        lock: AbstractContextManager[Any],
        now_ms: int,
        first_contact_ms: int | None = None,
    ) -> None:
        """Raises `InvalidConfig`."""
        super().__init__(
            config,
            ClientMetrics("admin-client", client_id, metric_config(config.values), version=software_version, lock=lock),
            client_id=client_id,
            software_version=software_version,
            random=random,
            now_ms=now_ms,
            controllers=config.bootstrap_controllers,
            max_idle_ms=_MAX_IDLE_MS,
            labels={},
        )
        self._first_contact_ms = first_contact_ms
        self._runs: list[_Run] = []
        self._coordinators: dict[Target, Broker] = {}
        self._finding: set[Target] = set()

    # -- turns

    def run(self, now_ms: int) -> None:
        """Do all that can be done now."""
        self.requests.now_ms = now_ms
        self.requests.run()
        for run in list(self._runs):
            self._run(run)
        self._run_own_metrics()

    def deadline_ms(self, now_ms: int) -> int | None:
        """When `run` is due, if nothing happens before."""
        self.requests.now_ms = now_ms
        requests_ms = self.requests.deadline_ms()
        if requests_ms == now_ms:
            return now_ms
        times = [requests_ms]
        times += [time for run in self._runs for time in (run.resume_at_ms, run.operation.deadline_ms)]
        if self._first_contact_ms is not None and not self.connections.was_connected:
            times += [run.began_ms + self._first_contact_ms for run in self._runs]
        # The end of a client makes the last push due in this millisecond, after a run: it is not one that has passed.
        due_ms = (self.requests.earliest(times), self._own_metrics_due_ms)
        return min((time for time in due_ms if time is not None), default=None)

    def end(self, error: ApiError) -> None:
        """Close the connections; plans that run fail with `error`."""
        self.connections.close(self.requests.now_ms)
        runs, self._runs = self._runs, []
        for run in runs:
            run.operation.fail(error)

    # -- plans

    def start(self, plan: Plan[Any], operation: Operation) -> None:
        """Run a plan."""
        run = _Run(plan, operation, self.requests.now_ms)
        self._runs.append(run)
        self._go_on(run, None)

    def _go_on(self, run: _Run, sent: Any) -> None:
        """Hand the plan what it waits for, up to its next request or its end."""
        try:
            asks = run.plan.send(sent)
            while asks is ELAPSED_MS:
                asks = run.plan.send(self.requests.now_ms - run.began_ms)
        except StopIteration as end:
            self._runs.remove(run)
            run.operation.succeed(end.value)
            return
        except Exception as error:
            self._runs.remove(run)
            run.operation.fail(error)
            return
        if not isinstance(asks, list):
            run.pauses += 1
            run.resume_at_ms = self.requests.now_ms + max(1, self._retry.pause_ms(run.pauses))
            self.metadata.request_update()
            return
        run.resume_at_ms = None
        run.asks, run.replies = asks, [_UNANSWERED] * len(asks)
        run.left = set(range(len(asks)))
        self._run(run)

    def _run(self, run: _Run) -> None:
        now_ms = self.requests.now_ms
        if self._is_unreached(run):
            self._runs.remove(run)
            run.plan.close()
            run.operation.fail(self._unreached(run))
            return
        is_late = self.refused is not None or now_ms >= run.operation.deadline_ms
        if run.resume_at_ms is not None:
            if is_late or now_ms >= run.resume_at_ms:
                run.resume_at_ms = None
                self._go_on(run, is_late)
            return
        if is_late:
            late = run.operation.late(self.connections.last_failure)
            for index, reply in enumerate(run.replies):
                if reply is _UNANSWERED:
                    self._reply(run, index, self.refused or late)
            return
        for index in sorted(run.left):
            if index in run.left:
                self._try_to_send(run, index)

    def _is_unreached(self, run: _Run) -> bool:
        """Whether the run has waited long enough for the first connection of all."""
        if self._first_contact_ms is None or self.connections.was_connected or self.refused is not None:
            return False
        return self.requests.now_ms >= min(run.operation.deadline_ms, run.began_ms + self._first_contact_ms)

    def _unreached(self, run: _Run) -> Unreachable:
        servers = ",".join(map(str, self.metadata.bootstrap))
        reason = self.connections.last_failure or str(run.operation.late(""))
        return Unreachable(
            f"cannot connect to the cluster at {servers}: {reason}. Check the address, and whether the cluster is "
            "running"
        )

    def _try_to_send(self, run: _Run, index: int) -> None:
        ask = run.asks[index]
        node_id = self._named(ask.target) if ask.request is None else self._node_of(ask.target)
        if isinstance(node_id, ApiError) or (node_id is not None and ask.request is None):
            run.left.discard(index)
            self._reply(run, index, node_id)
        elif node_id is not None and ask.request is not None:
            run.left.discard(index)
            asks = run.asks
            left_ms = max(1, run.operation.deadline_ms - self.requests.now_ms)
            timeout_ms = min(left_ms, self.connections.request_timeout_ms)

            sent_ms, metrics = self.requests.now_ms, self.connections.metrics

            def on_done(answer: Any, error: ApiError | None) -> None:
                if error is None:
                    metrics.node(node_id).latency.append(self.requests.now_ms - sent_ms)
                if run.asks is asks:
                    self._on_answer(run, index, answer, error)

            self.requests.send(node_id, ask.request, on_done, max_version=ask.max_version, timeout_ms=timeout_ms)

    def _on_answer(self, run: _Run, index: int, answer: Any, error: ApiError | None) -> None:
        target = run.asks[index].target
        if target in self._coordinators and (error is not None or _mentions_moved(answer)):
            del self._coordinators[target]
        if error is not None and target.kind in (TargetKind.LEADER, TargetKind.NODE_THAT_LEADS):
            self.metadata.request_update()
        self._reply(run, index, answer if error is None else error)

    def _reply(self, run: _Run, index: int, reply: Reply) -> None:
        if run.replies[index] is not _UNANSWERED:
            return
        run.replies[index] = reply
        if all(each is not _UNANSWERED for each in run.replies):
            replies, run.asks, run.left = run.replies, [], set()
            run.replies = []
            self._go_on(run, replies)

    # -- targets

    def _node_of(self, target: Target) -> int | ApiError | None:
        """The node, where it can be sent a request now; None: not yet; an error where there is no such node."""
        if target.kind is TargetKind.ANY:
            return self._active_controller() if self.metadata.is_of_controllers else self.requests.any_node()
        if target.kind is TargetKind.BROKER:
            return self._broker(target.key)
        if target.kind is TargetKind.LEADER:
            leader = self._leader(target.key)
            return leader if not isinstance(leader, int) or self.requests.is_ready(leader) else None
        if target.kind is TargetKind.NODE_THAT_LEADS:
            return self._node_that_leads(target.key)
        coordinator = self._coordinators.get(target)
        if coordinator is None:
            return self._find(target)
        return coordinator.node_id if self.requests.is_ready(coordinator.node_id) else self._unreachable(target)

    def _named(self, target: Target) -> int | ApiError | None:
        """The node id of a leader or a coordinator that need not be ready."""
        if target.kind is TargetKind.LEADER:
            return self._leader(target.key)
        coordinator = self._coordinators.get(target)
        return self._find(target) if coordinator is None else COORDINATOR_BASE - coordinator.node_id

    def _active_controller(self) -> int | ApiError | None:
        node_id = self.metadata.controller_id
        if node_id < 0:
            return self.metadata.refusal
        return node_id if self.requests.is_ready(node_id) else None

    def _unreachable(self, target: Target) -> ApiError | None:
        node_id = self._coordinators[target].node_id
        retry_at_ms = self.connections.ready_at_ms(node_id, self.requests.now_ms)
        if retry_at_ms is not None and retry_at_ms > self.requests.now_ms:
            del self._coordinators[target]
            return ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"the coordinator of {target.key!r} is unreachable")
        return None

    def _broker(self, node_id: int) -> int | ApiError | None:
        if node_id in self.metadata.brokers:
            return node_id if self.requests.is_ready(node_id) else None
        if any(each >= 0 for each in self.metadata.brokers):
            self.metadata.request_update()
            alive = ", ".join(map(str, sorted(self.metadata.brokers)))
            return ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {node_id} is not alive; those alive are {alive}")
        return None

    def _node_that_leads(self, node_id: int) -> int | ApiError | None:
        if node_id in self.metadata.brokers:
            if self.requests.is_ready(node_id):
                return node_id
            if not self.requests.is_unreachable(node_id):
                return None
        self.metadata.request_update()
        return ApiError(ErrorCode.LEADER_NOT_AVAILABLE, f"node {node_id}, which led the partitions, is unreachable")

    def _leader(self, partition: TopicPartition) -> int | ApiError | None:
        """The node id of the leader; None while the metadata lacks the topic."""
        self.metadata.want(partition.topic, self.requests.now_ms)
        leader = self.metadata.leader_of(*partition)
        if leader is not None:
            return leader.node_id
        topic = self.metadata.topics.get(partition.topic)
        if topic is None:
            return None
        if topic.error_code:
            return refused(topic.error_code, f"topic {partition.topic}")
        if partition.partition >= len(topic.partitions):
            count = len(topic.partitions)
            return ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {partition.topic} has no partition {partition.partition}; it has {count}, numbered from 0",
            )
        self.metadata.request_update()
        return refused(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition}")

    def _find(self, target: Target) -> ApiError | None:
        if target in self._finding:
            return None
        kind = CoordinatorType.GROUP if target.kind is TargetKind.GROUP else CoordinatorType.TRANSACTION

        def on_done(found: Any, error: ApiError | None) -> None:
            self._finding.discard(target)
            if error is None:
                self._coordinators[target] = found
                self.requests.add_node(found)
            else:
                self._fail_target(target, error)

        self._finding.add(target)  # before the lookup, which may fail at once
        if not self.requests.find(target.key, kind, f"the coordinator of {target.key!r}", on_done):
            self._finding.discard(target)
        return None

    def _fail_target(self, target: Target, error: ApiError) -> None:
        for run in list(self._runs):
            for index in sorted(run.left):
                if index in run.left and run.asks[index].target == target:
                    run.left.discard(index)
                    self._reply(run, index, error)


def _mentions_moved(answer: Any) -> bool:
    """Whether an error code anywhere in the response means that the coordinator has moved."""
    return any(code in COORDINATOR_MOVED for code in _codes(answer))


def _codes(value: Any) -> Iterator[int]:
    if isinstance(value, list):
        for each in value:
            yield from _codes(each)
    elif hasattr(value, "__slots__"):
        for name in value.__slots__:
            field = getattr(value, name, None)
            if name == "error_code" and isinstance(field, int):
                yield field
            elif isinstance(field, list):
                yield from _codes(field)
