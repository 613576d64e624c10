"""AlterConfigs and IncrementalAlterConfigs: requests to alterations, and results to responses.

A resource that a request has twice is refused, because the result would depend on the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kalda.base.background import ITEMS_A_STEP, Steps
from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.answers import check_batch_size, error_fields
from kalda.controller.configs import ConfigControl, KeyOp, Outcome
from kalda.metadata.configs import ConfigResource
from kalda.protocol.access import Caller
from kalda.protocol.messages.admin import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    AlterConfigsResponseAlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import Result


class _Named(Protocol):
    @property
    def resource_type(self) -> int: ...

    @property
    def resource_name(self) -> str: ...


def incremental_alter_configs(
    configs: ConfigControl, request: IncrementalAlterConfigsRequest, caller: Caller
) -> Steps[Result[VersionedRecord, IncrementalAlterConfigsResponse]]:
    """IncrementalAlterConfigs (KIP-339): keys that are not in the request are not changed."""
    check_batch_size(len(request.resources) + sum(len(resource.configs) for resource in request.resources))
    outcome, accepted = yield from _check_resources(request.resources, caller)
    changes: dict[ConfigResource, list[KeyOp]] = {}
    for number, resource in enumerate(request.resources, 1):
        if number % ITEMS_A_STEP == 0:
            yield
        key = _key(resource)
        if key not in accepted:
            continue
        try:
            changes[key] = _operations(resource)
        except ApiError as error:
            outcome[key] = error
    result = yield from configs.incremental_alter(changes, is_forwarded=caller.forwarded_by is not None)
    outcome.update(result.response)
    response = IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
                resource_type=int(resource.type),
                resource_name=resource.name,
                **error_fields(error),
            )
            for resource, error in outcome.items()
        ]
    )
    return Result([] if request.validate_only else result.records, response, atomic=True)


def legacy_alter_configs(
    configs: ConfigControl, request: AlterConfigsRequest, caller: Caller
) -> Steps[Result[VersionedRecord, AlterConfigsResponse]]:
    """AlterConfigs: keys that are not in the request are deleted."""
    check_batch_size(len(request.resources) + sum(len(resource.configs) for resource in request.resources))
    outcome, accepted = yield from _check_resources(request.resources, caller)
    changes = {
        _key(resource): {config.name: config.value for config in resource.configs}
        for resource in request.resources
        if _key(resource) in accepted
    }
    result = yield from configs.legacy_alter(changes, is_forwarded=caller.forwarded_by is not None)
    outcome.update(result.response)
    response = AlterConfigsResponse(
        responses=[
            AlterConfigsResponseAlterConfigsResourceResponse(
                resource_type=int(resource.type),
                resource_name=resource.name,
                **error_fields(error),
            )
            for resource, error in outcome.items()
        ]
    )
    return Result([] if request.validate_only else result.records, response, atomic=True)


def _operations(resource: IncrementalAlterConfigsRequestAlterConfigsResource) -> list[KeyOp]:
    ops: dict[str, KeyOp] = {}
    for config in resource.configs:
        if config.name in ops:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Error due to duplicate config keys : {config.name}")
        if config.config_operation not in ConfigOperation.__members__.values():
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Unknown operation {config.config_operation} on config {config.name}"
            )
        ops[config.name] = KeyOp(config.name, ConfigOperation(config.config_operation), config.value)
    return list(ops.values())


def _key(resource: _Named) -> ConfigResource:
    return ConfigResource(resource.resource_type, resource.resource_name)


def _check_resources(resources: Sequence[_Named], caller: Caller) -> Steps[tuple[Outcome, set[ConfigResource]]]:
    """The outcome so far of each resource, with the errors of refused ones, and the resources that are not refused."""
    outcome: Outcome = {}
    accepted: set[ConfigResource] = set()
    for number, resource in enumerate(resources, 1):
        if number % ITEMS_A_STEP == 0:
            yield
        key = _key(resource)
        if key in outcome:
            accepted.discard(key)
            outcome[key] = ApiError(ErrorCode.INVALID_REQUEST, "Duplicate resource.")
            continue
        outcome[key] = _refusal(key, caller)
        if outcome[key] is None:
            accepted.add(key)
    return outcome, accepted


def _refusal(resource: ConfigResource, caller: Caller) -> ApiError | None:
    """Topics and groups need ALTER_CONFIGS on themselves; brokers and metrics subscriptions need it on the cluster."""
    match resource.type:
        case ConfigResourceType.TOPIC:
            allowed = caller.allows(AclOperation.ALTER_CONFIGS, AclResourceType.TOPIC, resource.name)
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        case ConfigResourceType.GROUP:
            allowed = caller.allows(AclOperation.ALTER_CONFIGS, AclResourceType.GROUP, resource.name)
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        case ConfigResourceType.BROKER | ConfigResourceType.BROKER_LOGGER | ConfigResourceType.CLIENT_METRICS:
            allowed = caller.allows_on_cluster(AclOperation.ALTER_CONFIGS)
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        case _:
            return ApiError(ErrorCode.UNSUPPORTED_VERSION, f"Unknown resource type {resource.type}.")
    return None if allowed else ApiError(code)
