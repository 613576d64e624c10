"""How the cores of clients send requests: metadata kept up to date, nodes chosen, coordinators found.

    run(now)                   Metadata and FindCoordinator requests that are due, timeouts of connections
    is_ready(node)             whether a request can be sent to the node now; connects where it cannot
    send(node, request, done)  send; `done(answer, error)` is called once
    coordinator()              the group's coordinator, looked up where it is unknown; None until it is found
    find(key, type, done)      look up a coordinator; `done(broker, error)` is called once

A broker answers a connection's requests in order. So the coordinator, and the Fetches of each broker, have connections
of their own: a heartbeat or a lookup does not wait behind a Fetch that waits for records. Their node ids are
`COORDINATOR_BASE` minus the broker's, and `FETCH_BASE` plus the broker's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kalda.base.errors import ApiError, ErrorCode
from kalda.clientcore.connections.connections import Connections, OnDone
from kalda.clientcore.connections.errors import Backoff, refused
from kalda.clientcore.connections.metadata import Broker, ClusterMetadata
from kalda.protocol.messages.metadata import MetadataRequest
from kalda.protocol.notation import Request

COORDINATOR_BASE = 2**32
FETCH_BASE = 2**31
MAX_FIND_COORDINATOR = 3
"""The last version with a single key in its request and response."""


class Requests:
    """Sends for one client. `now_ms` is the time of the last event, which every entry of the core sets."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        connections: Connections,
        backoff: Backoff,
        now_ms: int,
        *,
        group_id: str | None = None,
        is_fetching: bool = False,
    ) -> None:
        """`group_id`: the group whose coordinator is used. `is_fetching`: brokers have connections for Fetches."""
        self.metadata = metadata
        self.connections = connections
        connections.on_unreachable = metadata.request_update
        if metadata.checks_cluster:
            connections.meant_node = self._meant_node
            connections.on_misrouted = self._on_misrouted
        self.now_ms = now_ms
        self.ran_at_ms = -1
        """When `run` ran last: what was due then is done. What has become due since is still to do."""
        self.coordinator_error: ApiError | None = None
        """Why the group's coordinator cannot be used, where a repetition does not help."""
        self._backoff = backoff
        self._group_id = group_id
        self._is_fetching = is_fetching
        self._nodes_version = -1
        """`metadata.version` of which the connections have the nodes."""
        self._coordinator: Broker | None = None
        """Under its own node id, `COORDINATOR_BASE` minus the broker's."""
        self._is_finding = False
        self._find_failures = 0
        self._find_at_ms = 0
        self._added: dict[int, Broker] = {}
        """Coordinators besides that of the group, under ids of their own as it is."""

    def run(self) -> None:
        """Send what is due, and let connections time out."""
        now_ms = self.ran_at_ms = self.now_ms
        self.connections.run(now_ms)
        if self._nodes_version != self.metadata.version:
            self._update_nodes()
        due_ms = self.metadata.next_request_at_ms(now_ms)
        if due_ms is not None and due_ms <= now_ms:
            if self.metadata.has_to_rebootstrap(now_ms, self.connections.is_any_usable(now_ms)):
                self.metadata.rebootstrap(now_ms)
                self._update_nodes()
            node_id = self.any_node()
            if node_id is not None:
                self.connections.send(node_id, self.metadata.next_request(now_ms), now_ms, self._on_metadata)

    def deadline_ms(self) -> int | None:
        """When `run` is due, which may be now; None where only an event helps."""
        due_ms = self.metadata.next_request_at_ms(self.now_ms)
        if due_ms is not None and due_ms <= self.now_ms and self.connections.may_find_node(self.now_ms):
            return self.now_ms  # the request has become due since `run`
        retry_ms = self.connections.next_retry_ms(self.ran_at_ms)
        return self.earliest((self.connections.deadline_ms(self.now_ms), retry_ms, due_ms, self._find_at_ms))

    def any_node_at_ms(self, due_ms: int | None, now_ms: int) -> int | None:
        """When a request to any node that is due at `due_ms` may be sent; None where only an event helps."""
        if due_ms is None or due_ms > now_ms:
            return due_ms
        if self.connections.may_find_node(now_ms):
            return now_ms  # it has become due since the last attempt
        # There is no node for it before a connection is made, fails, or may be tried again.
        retry_ms = self.connections.next_retry_ms()
        return retry_ms if retry_ms is not None and retry_ms > now_ms else None

    def earliest(self, times_ms: Iterable[int | None]) -> int | None:
        """The first of these times that the last `run` has not passed; now, where it has come since."""
        first_ms = min((time for time in times_ms if time is not None and time > self.ran_at_ms), default=None)
        return None if first_ms is None else max(first_ms, self.now_ms)

    def any_node(self) -> int | None:
        """A node that can be sent a request now; where there is none, one is connected."""
        return self.connections.least_loaded(self.now_ms)

    def is_ready(self, node_id: int) -> bool:
        """Whether the node can be sent a request now; where it is not connected, that is begun. A node that cannot be
        connected to may have lost what it leads: the metadata is fetched again."""
        if self.connections.is_ready(node_id, self.now_ms):
            return True
        if self.is_unreachable(node_id):
            self.metadata.request_update()
        return False

    def is_unreachable(self, node_id: int) -> bool:
        """Whether the last attempt to connect has failed, and the next one waits."""
        retry_at_ms = self.connections.ready_at_ms(node_id, self.now_ms)
        return retry_at_ms is not None and retry_at_ms > self.now_ms and not self.connections.is_connected(node_id)

    def send(
        self,
        node_id: int,
        request: Request,
        on_done: OnDone,
        *,
        max_version: int | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send to a node that `is_ready`."""
        self.connections.send(node_id, request, self.now_ms, on_done, max_version=max_version, timeout_ms=timeout_ms)

    def retry_at_ms(self, failures: int = 1) -> int:
        """When what has failed so many times in a row is tried again."""
        return self.now_ms + self._backoff.pause_ms(failures)

    def add_node(self, node: Broker) -> None:
        """A coordinator that is connected to under an id of its own."""
        self._added[node.node_id] = node
        self._nodes_version = -1
        self._update_nodes()

    # -- the coordinator

    def coordinator(self) -> int | None:
        """The node id under which the group's coordinator can be sent requests now; None: not yet."""
        if self._coordinator is None:
            self._find_coordinator()
            return None
        node_id = self._coordinator.node_id
        if self.is_ready(node_id):
            self._find_failures = 0
            return node_id
        if self.is_unreachable(node_id):
            # No connection can be made: another broker may coordinate the group by now.
            self._find_failures += 1
            self._find_at_ms = self.now_ms + self._backoff.pause_ms(self._find_failures)
            self.drop_coordinator()
        return None

    def drop_coordinator(self) -> None:
        """The coordinator has moved, or does not answer: it is looked up again."""
        if self._coordinator is not None:
            self._coordinator = None
            self._nodes_version = -1
            self._find_at_ms = max(self._find_at_ms, self.now_ms)

    def on_coordinator_error(self, error: ApiError) -> None:
        """Look the coordinator up again where `error` means that it has moved or is unreachable."""
        if error.code in COORDINATOR_MOVED:
            self.drop_coordinator()

    def _find_coordinator(self) -> None:
        if self._is_finding or self._group_id is None or self.now_ms < self._find_at_ms:
            return
        self._is_finding = True  # before the lookup, which may fail at once
        if not self.find(self._group_id, 0, f"group {self._group_id!r}", self._on_coordinator):
            self._is_finding = False

    def find(self, key: str, kind: int, what: str, on_done: OnDone) -> bool:
        """Look up a coordinator (`kind`: a `CoordinatorType`) at any node; False where no request can be sent now.

        `on_done` is called with the coordinator, under a node id of its own, and None; with None and an error; or,
        where a broker refuses, with its answer and the error, which names `what`."""
        # Imported where it is needed: most producers look none up.
        from kalda.protocol.messages.groups import FindCoordinatorRequest

        node_id = self.any_node()
        if node_id is None:
            return False

        def on_answer(answer: Any, error: ApiError | None) -> None:
            if error is not None:
                on_done(None, error)
            elif answer.error_code:
                on_done(answer, refused(answer.error_code, what, answer.error_message))
            else:
                on_done(Broker(COORDINATOR_BASE - answer.node_id, answer.host, answer.port, None), None)

        request = FindCoordinatorRequest(key=key, key_type=kind)
        self.send(node_id, request, on_answer, max_version=MAX_FIND_COORDINATOR)
        return True

    def _on_coordinator(self, found: Any, error: ApiError | None) -> None:
        self._is_finding = False
        if error is not None:
            if found is not None and not error.code.retriable:
                self.coordinator_error = error
            self._find_failures += 1
            self._find_at_ms = self.now_ms + self._backoff.pause_ms(self._find_failures)
            return
        self.coordinator_error = None
        self._coordinator = found
        self._nodes_version = -1
        self._update_nodes()
        self.is_ready(found.node_id)

    # -- metadata

    def _meant_node(self, node_id: int) -> tuple[str, int] | None:
        """The cluster and the broker that a connection is for. None for a bootstrap server: which one it is, and of
        which cluster, is found out over the connection."""
        cluster_id = self.metadata.cluster_id
        if cluster_id is None or node_id < 0:
            return None
        is_coordinator = self._coordinator is not None and node_id == self._coordinator.node_id
        if is_coordinator or node_id in self._added:
            return cluster_id, COORDINATOR_BASE - node_id
        return cluster_id, node_id - FETCH_BASE if node_id >= FETCH_BASE else node_id

    def _on_misrouted(self, now_ms: int) -> None:
        self.metadata.rebootstrap(now_ms)
        self._coordinator = None
        self._update_nodes()

    def _update_nodes(self) -> None:
        if self._nodes_version == self.metadata.version:
            return
        self._nodes_version = self.metadata.version
        nodes = dict(self.metadata.brokers)
        if self._is_fetching:
            nodes |= {FETCH_BASE + node_id: broker for node_id, broker in nodes.items() if node_id >= 0}
        nodes |= self._added
        if self._coordinator is not None:
            nodes[self._coordinator.node_id] = self._coordinator
        self.connections.set_nodes(nodes, self.now_ms)

    def _on_metadata(self, answer: Any, error: ApiError | None) -> None:
        if error is not None:
            self.metadata.on_failure(self.now_ms)
        else:
            self.metadata.on_response(answer, self.now_ms)
        self._update_nodes()


COORDINATOR_MOVED = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
"""Errors after which the group's coordinator is looked up again."""


def all_topics_request() -> MetadataRequest:
    """For subscriptions by pattern: every topic that this user may see; none is created."""
    return MetadataRequest(topics=None, allow_auto_topic_creation=False)
