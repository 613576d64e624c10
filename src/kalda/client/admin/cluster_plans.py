"""Plans about configs, brokers, the quorum, features, quotas, ACLs, SCRAM credentials and delegation tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kalda import __version__
from kalda.base.configs.resources import ConfigResourceType, ConfigSource
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import METADATA_TOPIC_NAME, TopicPartition, Uuid
from kalda.client.admin.acls import Acl, AclFilter
from kalda.client.admin.configs import Alteration, ConfigEntry, Resource, entry_of
from kalda.client.admin.features import Feature, Features
from kalda.client.admin.nodes import ClusterDescription, LogDir, Node
from kalda.client.admin.quorum import Quorum, VoterListener, quorum_of
from kalda.client.core.administration import ANY, Ask, Kind, Outcomes, Plan, Target, per_item, single
from kalda.client.core.errors import UnknownTopic, refused
from kalda.protocol.calls import PeerVersions, api_versions_request, peer_versions
from kalda.protocol.kinds import UpgradeType
from kalda.protocol.messages.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    ComponentData,
    DescribableLogDirTopic,
    DescribeClientQuotasRequest,
    DescribeLogDirsRequest,
    FeatureUpdateKey,
    OpData,
    UpdateFeaturesRequest,
)
from kalda.protocol.messages.brokers import UnregisterBrokerRequest
from kalda.protocol.messages.configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    ListConfigResourcesRequest,
)
from kalda.protocol.messages.metadata import DescribeClusterRequest, EndpointType
from kalda.protocol.messages.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterRequestListener,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    RemoveRaftVoterRequest,
)
from kalda.protocol.messages.security import (
    AclCreation,
    AlterUserScramCredentialsRequest,
    CreateAclsRequest,
    DeleteAclsFilter,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)

QuotaEntity = tuple[tuple[str, str | None], ...]
"""Pairs of a type (`user`, `client-id`, `ip`) and a name, None for the default; sorted by type."""


class ScramCredential(NamedTuple):
    """`mechanism`: 1 for SCRAM-SHA-256, 2 for SCRAM-SHA-512."""

    mechanism: int
    iterations: int


class ScramUpsertion(NamedTuple):
    """A credential to set. `salted_password` is PBKDF2 of the password with the salt and the iterations."""

    user: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


_SHOWN = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_BROKER_CONFIG)
_TOPICS_A_REQUEST = 100
"""A response lists every config of each topic: some 4 KB."""


def _error_of(what: str) -> Any:
    """The check of a response with one error."""

    def check(answer: Any) -> ApiError | None:
        message = getattr(answer, "error_message", None)
        return refused(answer.error_code, what, message) if answer.error_code else None

    return check


# -- configs


def _resource_target(resource: Resource) -> Target:
    broker_id = resource.broker_id
    return ANY if broker_id is None else Target(Kind.BROKER, broker_id)


def describe_configs(
    resources: Collection[Resource], *, documentation: bool
) -> Plan[Outcomes[Resource, dict[str, ConfigEntry]]]:
    """DescribeConfigs."""

    def build(group: list[Resource]) -> DescribeConfigsRequest:
        return DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=r.type, resource_name=r.name, configuration_keys=None)
                for r in group
            ],
            include_synonyms=True,
            include_documentation=documentation,
        )

    def read(answer: Any, _: list[Resource]) -> Iterator[tuple[Resource, dict[str, ConfigEntry] | ApiError]]:
        for each in answer.results:
            resource = Resource(ConfigResourceType(each.resource_type), each.resource_name)
            if each.error_code:
                yield resource, refused(each.error_code, str(resource), each.error_message)
            else:
                yield resource, {config.name: entry_of(config) for config in each.configs}

    return per_item(resources, _resource_target, build, read)


def alter_configs(
    alterations: Mapping[Resource, Collection[Alteration]], *, validate_only: bool
) -> Plan[Outcomes[Resource, None]]:
    """IncrementalAlterConfigs."""

    def build(group: list[Resource]) -> IncrementalAlterConfigsRequest:
        return IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsRequestAlterConfigsResource(
                    resource_type=resource.type,
                    resource_name=resource.name,
                    configs=[
                        IncrementalAlterConfigsRequestAlterableConfig(
                            name=change.name, config_operation=change.operation, value=change.value
                        )
                        for change in alterations[resource]
                    ],
                )
                for resource in group
            ],
            validate_only=validate_only,
        )

    def read(answer: Any, _: list[Resource]) -> Iterator[tuple[Resource, ApiError | None]]:
        for each in answer.responses:
            resource = Resource(ConfigResourceType(each.resource_type), each.resource_name)
            error = refused(each.error_code, str(resource), each.error_message) if each.error_code else None
            yield resource, error

    return per_item(alterations, _resource_target, build, read)


def topic_overrides(topics: Sequence[str]) -> Plan[dict[str, dict[str, str | None]]]:
    """DescribeConfigs in few requests: the configs that are set on each topic, or dynamically on the brokers. A topic
    whose configs this user has no right to see has none. Raises `ApiError`."""
    overrides: dict[str, dict[str, str | None]] = {}

    def check(answer: Any) -> ApiError | None:
        for result in answer.results:
            if result.error_code and result.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                error = refused(result.error_code, f"topic {result.resource_name}", result.error_message)
                is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                return UnknownTopic(error.message) if is_unknown else error
        return None

    for start in range(0, len(topics), _TOPICS_A_REQUEST):
        resources = [
            DescribeConfigsResource(resource_type=ConfigResourceType.TOPIC, resource_name=name, configuration_keys=None)
            for name in topics[start : start + _TOPICS_A_REQUEST]
        ]
        answer = yield from single(Ask(ANY, DescribeConfigsRequest(resources=resources)), check)
        for result in answer.results:
            entries = sorted(map(entry_of, result.configs))
            overrides[result.resource_name] = {each.name: each.value for each in entries if each.source in _SHOWN}
    return overrides


def list_config_resources(
    types: Collection[ConfigResourceType], what: str = "the config resources"
) -> Plan[list[Resource]]:
    """ListConfigResources."""
    answer = yield from single(Ask(ANY, ListConfigResourcesRequest(resource_types=list(types))), _error_of(what))
    return sorted(Resource(ConfigResourceType(r.resource_type), r.resource_name) for r in answer.config_resources)


# -- nodes


def describe_cluster(*, fenced: bool, of_controllers: bool) -> Plan[ClusterDescription]:
    """DescribeCluster."""
    kind = EndpointType.CONTROLLERS if of_controllers else EndpointType.BROKERS
    request = DescribeClusterRequest(endpoint_type=kind, include_fenced_brokers=fenced)
    answer = yield from single(Ask(ANY, request), _error_of("the cluster"))
    nodes = tuple(
        Node(each.broker_id, each.host, each.port, each.rack, each.is_fenced)
        for each in sorted(answer.brokers, key=lambda broker: int(broker.broker_id))
    )
    return ClusterDescription(answer.cluster_id, answer.controller_id, nodes)


def unregister_broker(broker_id: int) -> Plan[None]:
    """UnregisterBroker."""
    yield from single(Ask(ANY, UnregisterBrokerRequest(broker_id=broker_id)), _error_of(f"broker {broker_id}"))


def describe_log_dirs(
    broker_ids: Collection[int], partitions: Collection[TopicPartition] | None = None
) -> Plan[Outcomes[int, list[LogDir]]]:
    """DescribeLogDirs: each directory with those of `partitions`, or with None all, that are in it."""
    topics: dict[str, DescribableLogDirTopic] = {}
    for name, index in partitions or ():
        topics.setdefault(name, DescribableLogDirTopic(topic=name)).partitions.append(index)
    request = DescribeLogDirsRequest(topics=None if partitions is None else list(topics.values()))

    def read(answer: Any, group: list[int]) -> Iterator[tuple[int, list[LogDir] | ApiError]]:
        (broker_id,) = group
        if answer.error_code:
            yield broker_id, refused(answer.error_code, f"broker {broker_id}")
            return
        yield (
            broker_id,
            [
                LogDir(
                    broker_id,
                    each.log_dir,
                    each.error_code,
                    each.total_bytes,
                    each.usable_bytes,
                    each.is_cordoned,
                    {
                        TopicPartition(topic.name, partition.partition_index): partition.partition_size
                        for topic in each.topics
                        for partition in topic.partitions
                    },
                )
                for each in answer.results
            ],
        )

    return per_item(
        broker_ids,
        lambda broker_id: Target(Kind.BROKER, broker_id),
        lambda _: request,
        read,
    )


def alter_replica_log_dirs(broker_id: int, paths: Mapping[TopicPartition, str]) -> Plan[Outcomes[TopicPartition, None]]:
    """AlterReplicaLogDirs."""

    def build(partitions: list[TopicPartition]) -> AlterReplicaLogDirsRequest:
        by_path: dict[str, dict[str, list[int]]] = {}
        for partition in partitions:
            by_path.setdefault(paths[partition], {}).setdefault(partition.topic, []).append(partition.partition)
        return AlterReplicaLogDirsRequest(
            dirs=[
                AlterReplicaLogDir(
                    path=path,
                    topics=[AlterReplicaLogDirTopic(name=n, partitions=indexes) for n, indexes in topics.items()],
                )
                for path, topics in by_path.items()
            ]
        )

    def read(answer: Any, _: list[TopicPartition]) -> Iterator[tuple[TopicPartition, ApiError | None]]:
        for topic in answer.results:
            for each in topic.partitions:
                partition = TopicPartition(topic.topic_name, each.partition_index)
                what = f"partition {partition} on broker {broker_id}"
                yield partition, refused(each.error_code, what) if each.error_code else None

    return per_item(paths, lambda _: Target(Kind.BROKER, broker_id), build, read)


def describe_quorum() -> Plan[Quorum]:
    """DescribeQuorum."""

    def check(answer: Any) -> ApiError | None:
        failed = [answer, *(partition for topic in answer.topics for partition in topic.partitions)]
        for each in failed:
            if each.error_code:
                return refused(each.error_code, "the metadata quorum", each.error_message)
        return None

    request = DescribeQuorumRequest(
        topics=[
            DescribeQuorumRequestTopicData(
                topic_name=METADATA_TOPIC_NAME, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
            )
        ]
    )
    return quorum_of((yield from single(Ask(ANY, request), check)))


def add_voter(node_id: int, directory_id: Uuid, listeners: Collection[VoterListener], *, timeout_ms: int) -> Plan[None]:
    """AddRaftVoter."""
    request = AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=timeout_ms,
        voter_id=node_id,
        voter_directory_id=directory_id,
        listeners=[AddRaftVoterRequestListener(name=each.name, host=each.host, port=each.port) for each in listeners],
    )
    yield from single(Ask(ANY, request), _error_of(f"controller {node_id}"))


def remove_voter(node_id: int, directory_id: Uuid) -> Plan[None]:
    """RemoveRaftVoter."""
    request = RemoveRaftVoterRequest(cluster_id=None, voter_id=node_id, voter_directory_id=directory_id)
    yield from single(Ask(ANY, request), _error_of(f"controller {node_id}"))


def describe_features() -> Plan[Features]:
    """ApiVersions."""
    answer = yield from single(Ask(ANY, api_versions_request(__version__)), _error_of("the broker's features"))
    finalized = {feature.name: feature.max_version_level for feature in answer.finalized_features}
    supported = {feature.name: (feature.min_version, feature.max_version) for feature in answer.supported_features}
    names = sorted({*finalized, *supported})
    return Features(
        answer.finalized_features_epoch,
        tuple(Feature(name, *supported.get(name, (0, 0)), finalized.get(name, 0)) for name in names),
    )


def supported_apis(broker_id: int) -> Plan[PeerVersions]:
    """ApiVersions of one broker. Raises `ApiError`."""
    return peer_versions((yield from single(Ask(Target(Kind.BROKER, broker_id), api_versions_request(__version__)))))


def update_features(
    levels: Mapping[str, int], upgrade_type: UpgradeType, *, timeout_ms: int, validate_only: bool
) -> Plan[None]:
    """UpdateFeatures: all or none."""

    def check(answer: Any) -> ApiError | None:
        for result in answer.results:
            if result.error_code:
                return refused(result.error_code, f"feature {result.feature}", result.error_message)
        error: ApiError | None = _error_of("features " + ", ".join(levels))(answer)
        return error

    request = UpdateFeaturesRequest(
        timeout_ms=timeout_ms,
        feature_updates=[
            FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade_type)
            for name, level in levels.items()
        ],
        validate_only=validate_only,
    )
    yield from single(Ask(ANY, request), check)


# -- quotas and security


def describe_client_quotas(
    components: Mapping[str, str | bool | None], *, strict: bool
) -> Plan[dict[QuotaEntity, dict[str, float]]]:
    """DescribeClientQuotas. A component's match is a name, None for the default, or True for any name."""
    data = [
        ComponentData(entity_type=kind, match_type=2)
        if match is True
        else ComponentData(entity_type=kind, match_type=1, match=None)
        if not isinstance(match, str)
        else ComponentData(entity_type=kind, match_type=0, match=match)
        for kind, match in components.items()
    ]
    for each in data:
        each.match = each.match if each.match_type == 0 else None
    request = DescribeClientQuotasRequest(components=data, strict=strict)
    answer = yield from single(Ask(ANY, request), _error_of("quotas"))
    return {
        tuple(sorted((part.entity_type, part.entity_name) for part in entry.entity)): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries or ()
    }


def alter_client_quotas(
    quotas: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool
) -> Plan[Outcomes[QuotaEntity, None]]:
    """AlterClientQuotas; a value of None removes the quota."""

    def build(entities: list[QuotaEntity]) -> AlterClientQuotasRequest:
        return AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequestEntryData(
                    entity=[AlterClientQuotasRequestEntityData(entity_type=k, entity_name=n) for k, n in entity],
                    ops=[
                        OpData(key=key, value=0.0 if value is None else value, remove=value is None)
                        for key, value in quotas[entity].items()
                    ],
                )
                for entity in entities
            ],
            validate_only=validate_only,
        )

    def read(answer: Any, entities: list[QuotaEntity]) -> Iterator[tuple[QuotaEntity, ApiError | None]]:
        by_parts = {tuple(sorted(entity, key=str)): entity for entity in entities}
        for each in answer.entries:
            parts = tuple(sorted(((part.entity_type, part.entity_name) for part in each.entity), key=str))
            entity = by_parts.get(parts)
            if entity is not None:
                yield entity, refused(each.error_code, "quota", each.error_message) if each.error_code else None

    return per_item(quotas, lambda _: ANY, build, read)


def describe_acls(acl_filter: AclFilter) -> Plan[list[Acl]]:
    """DescribeAcls."""
    request = DescribeAclsRequest(
        resource_type_filter=acl_filter.resource_type,
        resource_name_filter=acl_filter.resource_name,
        pattern_type_filter=acl_filter.pattern_type,
        principal_filter=acl_filter.principal,
        host_filter=acl_filter.host,
        operation=acl_filter.operation,
        permission_type=acl_filter.permission,
    )
    answer = yield from single(Ask(ANY, request), _error_of("ACLs"))
    return sorted(
        Acl(
            resource.resource_type,
            resource.resource_name,
            resource.pattern_type,
            acl.principal,
            acl.host,
            acl.operation,
            acl.permission_type,
        )
        for resource in answer.resources
        for acl in resource.acls
    )


def create_acls(acls: Collection[Acl]) -> Plan[Outcomes[Acl, None]]:
    """CreateAcls."""

    def build(group: list[Acl]) -> CreateAclsRequest:
        return CreateAclsRequest(
            creations=[
                AclCreation(
                    resource_type=acl.resource_type,
                    resource_name=acl.resource_name,
                    resource_pattern_type=acl.pattern_type,
                    principal=acl.principal,
                    host=acl.host,
                    operation=acl.operation,
                    permission_type=acl.permission,
                )
                for acl in group
            ]
        )

    def read(answer: Any, group: list[Acl]) -> Iterator[tuple[Acl, ApiError | None]]:
        for acl, each in zip(group, answer.results, strict=False):
            what = f"ACL of {acl.principal} on {acl.resource_name}"
            yield acl, refused(each.error_code, what, each.error_message) if each.error_code else None

    return per_item(acls, lambda _: ANY, build, read)


def delete_acls(filters: Collection[AclFilter]) -> Plan[Outcomes[AclFilter, list[Acl]]]:
    """DeleteAcls: the rules that were deleted for each filter."""

    def build(group: list[AclFilter]) -> DeleteAclsRequest:
        return DeleteAclsRequest(
            filters=[
                DeleteAclsFilter(
                    resource_type_filter=each.resource_type,
                    resource_name_filter=each.resource_name,
                    pattern_type_filter=each.pattern_type,
                    principal_filter=each.principal,
                    host_filter=each.host,
                    operation=each.operation,
                    permission_type=each.permission,
                )
                for each in group
            ]
        )

    def read(answer: Any, group: list[AclFilter]) -> Iterator[tuple[AclFilter, list[Acl] | ApiError]]:
        for each, result in zip(group, answer.filter_results, strict=False):
            if result.error_code:
                yield each, refused(result.error_code, "ACLs", result.error_message)
                continue
            yield (
                each,
                [
                    Acl(
                        acl.resource_type,
                        acl.resource_name,
                        acl.pattern_type,
                        acl.principal,
                        acl.host,
                        acl.operation,
                        acl.permission_type,
                    )
                    for acl in result.matching_acls
                    if not acl.error_code
                ],
            )

    return per_item(filters, lambda _: ANY, build, read)


def describe_scram_credentials(users: Collection[str] | None) -> Plan[Outcomes[str, list[ScramCredential]]]:
    """DescribeUserScramCredentials; None: of all users."""
    names = None if users is None else [UserName(name=user) for user in users]
    answer = yield from single(Ask(ANY, DescribeUserScramCredentialsRequest(users=names)), _error_of("users"))
    outcomes: Outcomes[str, list[ScramCredential]] = Outcomes()
    for each in answer.results:
        if each.error_code:
            outcomes[each.user] = refused(each.error_code, f"user {each.user}", each.error_message)
        else:
            outcomes[each.user] = [ScramCredential(one.mechanism, one.iterations) for one in each.credential_infos]
    return outcomes


def alter_scram_credentials(
    upsertions: Collection[ScramUpsertion], deletions: Collection[tuple[str, int]]
) -> Plan[Outcomes[str, None]]:
    """AlterUserScramCredentials, by user."""
    users = [*(each.user for each in upsertions), *(user for user, _ in deletions)]

    def build(group: list[str]) -> AlterUserScramCredentialsRequest:
        return AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=user, mechanism=m) for user, m in deletions if user in group],
            upsertions=[
                ScramCredentialUpsertion(
                    name=each.user,
                    mechanism=each.mechanism,
                    iterations=each.iterations,
                    salt=each.salt,
                    salted_password=each.salted_password,
                )
                for each in upsertions
                if each.user in group
            ],
        )

    def read(answer: Any, _: list[str]) -> Iterator[tuple[str, ApiError | None]]:
        for each in answer.results:
            error = refused(each.error_code, f"user {each.user}", each.error_message) if each.error_code else None
            yield each.user, error

    return per_item(users, lambda _: ANY, build, read)
