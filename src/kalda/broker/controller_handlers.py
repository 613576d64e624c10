"""What a controller's listener answers: the quorum's APIs, the controller's, and envelopes from brokers.

Every admin API that changes the cluster ends here, whether a broker forwarded it or a tool came directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kalda.base.clock import Clock
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.dispatch import Dispatcher, Features, ForwardedContext, Handler, Reply, RequestContext
from kalda.broker.forwarding import Unwrapping
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.raft_driver import RaftDriver
from kalda.controller.quorum_controller import QuorumController
from kalda.metadata.loader import MetadataLoader
from kalda.network.connection import Connection
from kalda.protocol.apis import API, ApiKey, Listener
from kalda.protocol.caller import Caller
from kalda.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    EndpointType,
)

_TIMED = frozenset(
    (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    )
)
"""APIs whose timeout is over before they begin where it is not positive: nothing is changed then."""
_QUORUM = (
    ApiKey.FETCH,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.UPDATE_RAFT_VOTER,
)


class ControllerHandlers:
    """Hands requests to the quorum and to the controller of this node."""

    def __init__(
        self,
        raft: RaftDriver,
        controller: QuorumController,
        loader: MetadataLoader,
        clock: Clock,
        cluster_id: str,
        configs: ConfigHandlers,
        on_handled: Callable[[], None],
    ) -> None:
        """`configs` describes them as this node has them, leader or not. `on_handled` is told after each request that
        the controller handled: its deadlines may have moved."""
        self._raft = raft
        self._controller = controller
        self._loader = loader
        self._clock = clock
        self._cluster_id = cluster_id
        self._configs = configs
        self._on_handled = on_handled
        self._brokers: dict[int, tuple[int, int]] = {}
        """Whose heartbeats came last over a connection, by its id: broker and epoch."""

    def on_close(self, connection: Connection) -> None:
        """A connection of a controller's listener has ended, for whatever reason."""
        broker = self._brokers.pop(connection.id, None)
        if broker is not None and self._controller.is_active:
            self._controller.on_broker_disconnected(*broker, self._clock.mono_ms())
            self._on_handled()

    def dispatcher(self, features: Callable[[], Features], unstable_versions: bool) -> Dispatcher:
        """The dispatcher of controller listeners."""
        controller = self._controller
        handlers: dict[ApiKey, Handler] = dict.fromkeys(_QUORUM, self._quorum)
        for key, handle in (
            (ApiKey.CREATE_TOPICS, controller.handle_create_topics),
            (ApiKey.DELETE_TOPICS, controller.handle_delete_topics),
            (ApiKey.CREATE_PARTITIONS, controller.handle_create_partitions),
            (ApiKey.ALTER_CONFIGS, controller.handle_alter_configs),
            (ApiKey.INCREMENTAL_ALTER_CONFIGS, controller.handle_incremental_alter_configs),
            (ApiKey.ALTER_CLIENT_QUOTAS, controller.handle_alter_client_quotas),
            (ApiKey.ALTER_USER_SCRAM_CREDENTIALS, controller.handle_alter_user_scram_credentials),
            (ApiKey.UPDATE_FEATURES, controller.handle_update_features),
            (ApiKey.ELECT_LEADERS, controller.handle_elect_leaders),
            (ApiKey.ALTER_PARTITION_REASSIGNMENTS, controller.handle_alter_partition_reassignments),
            (ApiKey.LIST_PARTITION_REASSIGNMENTS, controller.handle_list_partition_reassignments),
            (ApiKey.UNREGISTER_BROKER, controller.handle_unregister_broker),
            (ApiKey.BROKER_REGISTRATION, controller.handle_broker_registration),
            (ApiKey.BROKER_HEARTBEAT, controller.handle_broker_heartbeat),
            (ApiKey.CONTROLLER_REGISTRATION, controller.handle_controller_registration),
            (ApiKey.ALTER_PARTITION, controller.handle_alter_partition),
            (ApiKey.ALLOCATE_PRODUCER_IDS, controller.handle_allocate_producer_ids),
            (ApiKey.ASSIGN_REPLICAS_TO_DIRS, controller.handle_assign_replicas_to_dirs),
        ):
            assert API[key].listeners & Listener.CONTROLLER
            handlers[key] = self._controlled(handle)
        handlers[ApiKey.BROKER_HEARTBEAT] = self._remembered(handlers[ApiKey.BROKER_HEARTBEAT])
        handlers[ApiKey.DESCRIBE_CLUSTER] = self._describe_cluster
        handlers[ApiKey.DESCRIBE_CONFIGS] = self._configs.describe_configs
        dispatcher: Dispatcher
        unwrapping = Unwrapping(lambda context: dispatcher.answer(context))
        handlers[ApiKey.ENVELOPE] = unwrapping.unwrap
        dispatcher = Dispatcher(handlers, features, unstable_versions)
        return dispatcher

    def _quorum(self, context: RequestContext, request: Any) -> Reply:
        if isinstance(context, ForwardedContext) and not self._raft.machine.is_leader:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self._raft.handle(request, context.api_version)

    def _controlled(self, handle: Callable[[Any, Caller, int], Reply]) -> Handler:
        def handler(context: RequestContext, request: Any) -> Reply:
            if request.API_KEY in _TIMED and request.timeout_ms <= 0:
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
            caller = Caller(principal=context.principal, api_version=context.api_version)
            reply = handle(request, caller, self._clock.mono_ms())
            self._on_handled()
            return reply

        return handler

    def _remembered(self, handle: Handler) -> Handler:
        """Remember who sends heartbeats over which connection. Registrations need not be: a broker is fenced until it
        sends a heartbeat."""
        brokers = self._brokers

        def handler(context: RequestContext, request: Any) -> Reply:
            reply = handle(context, request)
            brokers[context.connection.id] = (request.broker_id, request.broker_epoch)
            return reply

        return handler

    def _describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """The controllers, for tools that bootstrap from them (KIP-919)."""
        if request.endpoint_type != EndpointType.CONTROLLERS:
            raise ApiError(
                ErrorCode.MISMATCHED_ENDPOINT_TYPE,
                "The request was sent to a controller's endpoint",
            )
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id,
            endpoint_type=EndpointType.CONTROLLERS,
            controller_id=-1 if self._controller.leader_id is None else self._controller.leader_id,
        )
        controllers = self._loader.image.cluster.controllers
        for controller_id in sorted(controllers):
            endpoint = controllers[controller_id].listeners.get(context.listener_name)
            if endpoint is not None:
                response.brokers.append(
                    DescribeClusterBroker(broker_id=controller_id, host=endpoint.host, port=endpoint.port)
                )
        return response
