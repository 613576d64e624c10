"""What a controller's listener answers: the quorum's APIs, the controller's, and envelopes from brokers.

Every admin API that changes the cluster ends here, whether a broker forwarded it or a tool sent it directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kalda.base.background import Background
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Clock, Pending
from kalda.broker.channels.forwarding import Unwrapping, envelope_failed
from kalda.broker.handlers.configs import ConfigHandlers
from kalda.broker.handlers.connections import ROWS as SASL_ROWS
from kalda.broker.handlers.describe import AclHandlers
from kalda.broker.handlers.forwarded import alter_configs_failed, forwarded_row
from kalda.broker.handlers.shared import check_endpoint_type, error_on_top, fetch_failed
from kalda.broker.handlers.tokens import create_token_failed
from kalda.broker.quorum.raft_driver import RaftDriver
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.context import RequestContext
from kalda.broker.requests.pipeline import RequestPipeline
from kalda.broker.requests.rows import (
    MAX_ELEMENTS_BETWEEN_NODES,
    Authorization,
    QuotaClass,
    Row,
    joined,
    mapped,
    on_cluster,
)
from kalda.broker.requests.throttling import ClientThrottle
from kalda.controller.quorum_controller import QuorumController
from kalda.metadata.loader import MetadataLoader
from kalda.network.server.connection import Connection
from kalda.protocol.access import OMITTED_OPERATIONS, Authorizer, Caller, cluster_operations
from kalda.protocol.apis import ApiKey, Listener
from kalda.protocol.messages.admin import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from kalda.protocol.messages.brokers import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from kalda.protocol.messages.metadata import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    EndpointType,
)
from kalda.protocol.messages.security import AclOperation
from kalda.protocol.notation import Request, Response, shallow_copy

# How the APIs of controllers alone report that the whole request failed: Vote (52) to AssignReplicasToDirs (73).
#
# All of them have one error code on top. Those that brokers forward are in `handlers.forwarded`.


class _Timed(Protocol):
    timeout_ms: int


Q = TypeVar("Q", bound=Request)
T = TypeVar("T", bound=_Timed)
R = TypeVar("R", bound=Response)
Handle = Callable[[Q, Caller, int], Pending[R]]
"""A `handle_*` of the controller: request, caller, now."""

_PER_ITEM = Authorization.PER_ITEM
_EXEMPT = QuotaClass.EXEMPT
_REQUEST = QuotaClass.REQUEST


def _in_time(handle: Callable[[RequestContext, T], Pending[R]]) -> Callable[[RequestContext, T], Pending[R]]:
    """`handle`, unless the request's timeout is not positive: it has expired already then, and nothing is changed."""

    def handler(context: RequestContext, request: T) -> Pending[R]:
        if request.timeout_ms <= 0:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
        return handle(context, request)

    return handler


def _authorized(handle: Callable[[RequestContext, Q], Pending[R]]) -> Callable[[RequestContext, Q], Pending[R]]:
    """`handle`, unless this node has no authorizer: nothing would enforce the entries."""

    def handler(context: RequestContext, request: Q) -> Pending[R]:
        if context.authorizer is None:
            raise ApiError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
        return handle(context, request)

    return handler


class ControllerHandlers:
    """Passes requests to the quorum and to the controller of this node."""

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
        """`configs` describes the configs that this node has, whether it is active or not. `on_handled` is called after
        each request to the controller: its next deadline may be nearer than its timer."""
        self._raft = raft
        self._controller = controller
        self._loader = loader
        self._clock = clock
        self._cluster_id = cluster_id
        self._configs = configs
        self._on_handled = on_handled
        self._brokers: dict[int, tuple[int, int]] = {}
        """Id and epoch of the broker whose heartbeat came last over a connection, by the id of the connection."""

    def on_close(self, connection: Connection) -> None:
        """A connection of a controller's listener has ended, for whatever reason."""
        broker = self._brokers.pop(connection.id, None)
        if broker is not None and self._controller.is_active:
            self._controller.on_broker_disconnected(*broker, self._clock.mono_ms())
            self._on_handled()

    def pipeline(
        self,
        features: Callable[[], Features],
        background: Background,
        *,
        unstable_versions: bool = False,
        authorizer: Authorizer | None = None,
        throttle: ClientThrottle | None = None,
    ) -> RequestPipeline:
        """The pipeline of controller listeners."""
        pipeline: RequestPipeline
        rows = self.rows()
        unwrapping = Unwrapping(rows, lambda context: pipeline.answer(context))
        is_broker = on_cluster(AclOperation.CLUSTER_ACTION)
        rows.append(Row(ApiKey.ENVELOPE, unwrapping.unwrap, envelope_failed, is_broker, _EXEMPT))
        pipeline = RequestPipeline(
            rows,
            features,
            background,
            unstable_versions=unstable_versions,
            authorizer=authorizer,
            throttle=throttle,
        )
        return pipeline

    def rows(self) -> list[Row]:
        """Every API of the controller's listener but ApiVersions and Envelope, which the pipeline itself answers."""
        return joined(
            Listener.CONTROLLER, SASL_ROWS, self._quorum_rows(), self._admin_rows(), self._node_rows(), self._own_rows()
        )

    def _own_rows(self) -> list[Row]:
        """What this node answers by itself, whether it is the active controller or not."""
        return [
            Row(ApiKey.DESCRIBE_CLUSTER, self._describe_cluster, error_on_top, on_cluster(AclOperation.ALTER)),
            self._configs.describe_row(),
            *AclHandlers(lambda: self._loader.image.acls.acls.values()).rows(),
        ]

    def _quorum_rows(self) -> list[Row]:
        quorum, node = self._quorum, on_cluster(AclOperation.CLUSTER_ACTION)
        describe, alter = on_cluster(AclOperation.DESCRIBE), on_cluster(AclOperation.ALTER)
        return [
            Row(ApiKey.FETCH, quorum, fetch_failed, node, _EXEMPT),
            Row(ApiKey.FETCH_SNAPSHOT, quorum, error_on_top, node, _EXEMPT),
            Row(ApiKey.VOTE, quorum, error_on_top, node, _EXEMPT),
            Row(ApiKey.BEGIN_QUORUM_EPOCH, quorum, error_on_top, node, _EXEMPT),
            Row(ApiKey.END_QUORUM_EPOCH, quorum, error_on_top, node, _EXEMPT),
            Row(ApiKey.UPDATE_RAFT_VOTER, quorum, error_on_top, node, _EXEMPT),
            forwarded_row(ApiKey.DESCRIBE_QUORUM, quorum, describe),
            forwarded_row(ApiKey.ADD_RAFT_VOTER, quorum, alter),
            forwarded_row(ApiKey.REMOVE_RAFT_VOTER, quorum, alter),
        ]

    def _admin_rows(self) -> list[Row]:
        """What brokers forward for their clients."""
        controller, handled = self._controller, self._handled
        describe, alter = on_cluster(AclOperation.DESCRIBE), on_cluster(AclOperation.ALTER)
        alter_configs = on_cluster(AclOperation.ALTER_CONFIGS)
        incremental = self._with_loggers(handled(controller.handle_incremental_alter_configs))
        return [
            forwarded_row(ApiKey.CREATE_TOPICS, _in_time(handled(controller.handle_create_topics)), _PER_ITEM),
            forwarded_row(ApiKey.DELETE_TOPICS, _in_time(handled(controller.handle_delete_topics)), _PER_ITEM),
            forwarded_row(ApiKey.CREATE_PARTITIONS, _in_time(handled(controller.handle_create_partitions)), _PER_ITEM),
            Row(
                ApiKey.ALTER_CONFIGS, handled(controller.handle_alter_configs), alter_configs_failed, _PER_ITEM,
                _REQUEST, True,
            ),
            Row(ApiKey.INCREMENTAL_ALTER_CONFIGS, incremental, alter_configs_failed, _PER_ITEM, _REQUEST, True),
            forwarded_row(ApiKey.ALTER_CLIENT_QUOTAS, handled(controller.handle_alter_client_quotas), alter_configs),
            forwarded_row(
                ApiKey.ALTER_USER_SCRAM_CREDENTIALS, handled(controller.handle_alter_user_scram_credentials), alter
            ),
            forwarded_row(ApiKey.CREATE_ACLS, _authorized(handled(controller.handle_create_acls)), alter),
            forwarded_row(ApiKey.DELETE_ACLS, _authorized(handled(controller.handle_delete_acls)), alter),
            *self._token_rows(),
            forwarded_row(ApiKey.UPDATE_FEATURES, handled(controller.handle_update_features), alter),
            forwarded_row(ApiKey.ELECT_LEADERS, _in_time(handled(controller.handle_elect_leaders)), alter),
            forwarded_row(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                _in_time(handled(controller.handle_alter_partition_reassignments)), alter,
            ),
            forwarded_row(
                ApiKey.LIST_PARTITION_REASSIGNMENTS, handled(controller.handle_list_partition_reassignments), describe
            ),
            forwarded_row(ApiKey.UNREGISTER_BROKER, handled(controller.handle_unregister_broker), alter),
            forwarded_row(ApiKey.UNREGISTER_CONTROLLER, handled(controller.handle_unregister_controller), alter),
        ]  # fmt: skip

    def _token_rows(self) -> list[Row]:
        handle: Callable[[RequestContext, Any], Pending[Any]] = self._handled(self._controller.handle_delegation_token)
        return [
            Row(ApiKey.CREATE_DELEGATION_TOKEN, handle, create_token_failed, _PER_ITEM, _REQUEST, True),
            Row(ApiKey.RENEW_DELEGATION_TOKEN, handle, error_on_top, _PER_ITEM, _REQUEST, True),
            Row(ApiKey.EXPIRE_DELEGATION_TOKEN, handle, error_on_top, _PER_ITEM, _REQUEST, True),
        ]

    def _node_rows(self) -> list[Row]:
        """What brokers and controllers send for themselves."""
        controller, handled = self._controller, self._handled
        node = on_cluster(AclOperation.CLUSTER_ACTION)
        register = handled(controller.handle_broker_registration)
        register_controller = handled(controller.handle_controller_registration)
        alter_partition = handled(controller.handle_alter_partition)
        allocate = handled(controller.handle_allocate_producer_ids)
        assign = handled(controller.handle_assign_replicas_to_dirs)
        return [
            Row(ApiKey.BROKER_REGISTRATION, register, error_on_top, node, _EXEMPT),
            Row(ApiKey.BROKER_HEARTBEAT, self._broker_heartbeat, error_on_top, node, _EXEMPT),
            Row(ApiKey.CONTROLLER_REGISTRATION, register_controller, error_on_top, node, _EXEMPT),
            Row(
                ApiKey.ALTER_PARTITION,
                alter_partition,
                error_on_top,
                node,
                _EXEMPT,
                max_elements=MAX_ELEMENTS_BETWEEN_NODES,
            ),
            Row(ApiKey.ALLOCATE_PRODUCER_IDS, allocate, error_on_top, node, _EXEMPT, True),
            Row(
                ApiKey.ASSIGN_REPLICAS_TO_DIRS,
                assign,
                error_on_top,
                node,
                _EXEMPT,
                max_elements=MAX_ELEMENTS_BETWEEN_NODES,
            ),
        ]

    def _quorum(self, context: RequestContext, request: Request) -> Response | Pending[Response]:
        if context.forwarded_by is not None and not self._raft.machine.is_leader:
            raise ApiError(ErrorCode.NOT_CONTROLLER)
        return self._raft.handle(request, context.api_version)

    def _handled(self, handle: Handle[Q, R]) -> Callable[[RequestContext, Q], Pending[R]]:
        """`handle` with the time, and `on_handled` after it."""

        def handler(context: RequestContext, request: Q) -> Pending[R]:
            reply = handle(request, context, self._clock.mono_ms())
            self._on_handled()
            return reply

        return handler

    def _with_loggers(
        self,
        alter: Callable[[RequestContext, IncrementalAlterConfigsRequest], Pending[IncrementalAlterConfigsResponse]],
    ) -> Callable[[RequestContext, IncrementalAlterConfigsRequest], Any]:
        """`alter`, where this node sets the levels of its own loggers itself (KIP-412), as a broker does."""

        def handler(context: RequestContext, request: IncrementalAlterConfigsRequest) -> Any:
            rows = self._configs.alter_loggers_of_controller(context, request)
            if not rows:
                return alter(context, request)
            rest = shallow_copy(request)
            rest.resources = [
                each for each in request.resources if each.resource_type != ConfigResourceType.BROKER_LOGGER
            ]
            if not rest.resources:
                return IncrementalAlterConfigsResponse(responses=rows)

            def add(response: IncrementalAlterConfigsResponse) -> IncrementalAlterConfigsResponse:
                response.responses += rows
                return response

            return mapped(alter(context, rest), add)

        return handler

    def _broker_heartbeat(
        self, context: RequestContext, request: BrokerHeartbeatRequest
    ) -> Pending[BrokerHeartbeatResponse]:
        """Handle a heartbeat, and note over which connection it came. Registrations need no such note: a broker is
        fenced until its first heartbeat."""
        reply = self._controller.handle_broker_heartbeat(request, context, self._clock.mono_ms())
        self._on_handled()
        self._brokers[context.connection.id] = (request.broker_id, request.broker_epoch)
        return reply

    def _describe_cluster(self, context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
        """The controllers, for tools that bootstrap from them (KIP-919)."""
        check_endpoint_type(request.endpoint_type, EndpointType.CONTROLLERS, context.api_version)
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id,
            endpoint_type=EndpointType.CONTROLLERS,
            cluster_authorized_operations=cluster_operations(context)
            if request.include_cluster_authorized_operations
            else OMITTED_OPERATIONS,
            controller_id=-1 if self._controller.leader_id is None else self._controller.leader_id,
        )
        controllers = self._loader.image.cluster.controllers
        for controller_id in sorted(controllers):
            endpoint = controllers[controller_id].listeners.get(context.listener_name)
            if endpoint is not None:
                response.brokers.append(
                    DescribeClusterBroker(broker_id=controller_id, host=endpoint.host, port=endpoint.port)
                )
        if response.controller_id not in {each.broker_id for each in response.brokers}:
            response.controller_id = -1
        return response
