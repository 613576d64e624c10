"""Requests about configs, quotas, credentials, access control entries and features."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from controller_world import Rights, World, result

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller.features import KraftVersionControl
from kalda.metadata.features import MetadataVersion, VersionRange, supported_ranges
from kalda.protocol.access import Caller
from kalda.protocol.messages import admin, security
from kalda.protocol.messages.brokers import (
    ControllerRegistrationRequest,
    ControllerRegistrationRequestFeature,
    UnregisterControllerRequest,
)
from kalda.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord, FeatureLevelRecord

TOPIC, BROKER, METRICS, GROUP = 2, 4, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def world() -> World:
    world = World()
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]})
    return world


FORWARDED = Caller(forwarded_by="User:broker")


def alter(
    world: World, kind: int, name: str, *ops: tuple[str, int, str | None], validate_only: bool = False, **fields: Any
) -> tuple[ErrorCode, str | None]:
    resource = admin.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            admin.IncrementalAlterConfigsRequestAlterableConfig(name=key, config_operation=op, value=value)
            for key, op, value in ops
        ],
    )
    request = admin.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return result(world.request("incremental_alter_configs", request, **fields).responses[0])


def values(world: World, kind: int, name: str) -> dict[str, str]:
    return dict(world.active.configs.values.get((kind, name)) or {})  # type: ignore[call-overload]


def test_keys_are_set_appended_to_subtracted_from_and_deleted(world: World) -> None:
    assert alter(world, TOPIC, "t", ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact"))[0] == 0
    assert values(world, TOPIC, "t") == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    alter(world, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None))
    assert values(world, TOPIC, "t") == {"cleanup.policy": "compact"}
    unchanged = world.written_by(lambda: alter(world, TOPIC, "t", ("cleanup.policy", SET, "compact")))
    assert unchanged == []
    assert alter(world, TOPIC, "t", ("retention.ms", SET, "9"), validate_only=True)[0] == 0
    assert "retention.ms" not in values(world, TOPIC, "t")


def test_a_key_of_a_broker_is_written_even_where_its_value_is_unchanged(world: World) -> None:
    op = ("log.retention.ms", SET, "5")
    alter(world, BROKER, "0", op)
    assert len(world.written_by(lambda: alter(world, BROKER, "0", op))) == 1


REFUSED: list[tuple[int, str, tuple[str, int, str | None], ErrorCode]] = [
    (TOPIC, "t", ("no.such.key", SET, "1"), ErrorCode.INVALID_CONFIG),
    (TOPIC, "t", ("retention.ms", SET, "long"), ErrorCode.INVALID_CONFIG),
    (TOPIC, "t", ("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG),
    (TOPIC, "t", ("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
    (TOPIC, "t", ("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
    (TOPIC, "nope", ("retention.ms", SET, "1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (TOPIC, "", ("retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
    (TOPIC, "a b", ("retention.ms", SET, "1"), ErrorCode.INVALID_TOPIC_EXCEPTION),
    (BROKER, "7", ("log.retention.ms", SET, "1"), ErrorCode.BROKER_ID_NOT_REGISTERED),
    (BROKER, "x", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
    (BROKER, "-1", ("log.retention.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
    (BROKER, "", ("unclean.leader.election.enable", SET, "maybe"), ErrorCode.INVALID_CONFIG),
    (BROKER, "0", ("min.insync.replicas", SET, "2"), ErrorCode.INVALID_CONFIG),
    (BROKER, "", ("min.insync.replicas", DELETE, None), ErrorCode.INVALID_CONFIG),
    (METRICS, "", ("interval.ms", SET, "1000"), ErrorCode.INVALID_REQUEST),
    (METRICS, "m", ("interval.ms", SET, "1"), ErrorCode.INVALID_REQUEST),
    (GROUP, "", ("consumer.session.timeout.ms", SET, "50000"), ErrorCode.INVALID_REQUEST),
    (GROUP, "g", ("consumer.session.timeout.ms", SET, "1"), ErrorCode.INVALID_CONFIG),
    (77, "x", ("a", SET, "1"), ErrorCode.UNSUPPORTED_VERSION),
]


@pytest.mark.parametrize(("kind", "name", "op", "code"), REFUSED, ids=lambda value: str(value)[:30])
def test_alterations_that_are_refused(
    world: World, kind: int, name: str, op: tuple[str, int, str | None], code: ErrorCode
) -> None:
    answers: list[Any] = []
    written = world.written_by(lambda: answers.append(alter(world, kind, name, op)))
    assert (answers[0][0], written) == (code, [])


def test_a_resource_that_a_request_has_twice_is_not_altered(world: World) -> None:
    resource = admin.AlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name="t")
    request = admin.AlterConfigsRequest(resources=[resource, resource])
    answer = world.request("alter_configs", request).responses
    assert [result(one) for one in answer] == [(ErrorCode.INVALID_REQUEST, "Duplicate resource.")]


def test_the_legacy_request_deletes_all_other_keys(world: World) -> None:
    alter(world, TOPIC, "t", ("retention.ms", SET, "5"), ("segment.ms", SET, "6"))
    config = admin.AlterConfigsRequestAlterableConfig(name="segment.ms", value="7")
    resource = admin.AlterConfigsRequestAlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])
    world.request("alter_configs", admin.AlterConfigsRequest(resources=[resource]))
    assert values(world, TOPIC, "t") == {"segment.ms": "7"}
    config.value = None
    answer = world.request("alter_configs", admin.AlterConfigsRequest(resources=[resource])).responses[0]
    assert answer.error_code == ErrorCode.NONE
    assert values(world, TOPIC, "t") == {}


def test_a_change_of_the_minimum_isr_clears_eligible_replicas(world: World) -> None:
    alter(world, TOPIC, "t", ("min.insync.replicas", SET, "2"))
    world.heartbeat(1, want_fence=True)
    before = world.partition("t")
    assert before.elr == (1,)
    records = world.written_by(lambda: alter(world, TOPIC, "t", ("min.insync.replicas", SET, "1")))
    assert [type(record) for record in records] == [ConfigRecord, ClearElrRecord]
    after = world.partition("t")
    assert (after.elr, after.partition_epoch) == ((), before.partition_epoch)
    assert list(world.active.partitions.index.with_in_elr(1)) == []
    whole = world.written_by(lambda: alter(world, BROKER, "", ("min.insync.replicas", SET, "2")))
    assert whole[1].topic_name == ""


def test_rights_over_configs(world: World) -> None:
    nothing = Caller(authorizer=Rights(lambda *_: False))
    codes = [
        alter(world, kind, name, ("x", SET, "1"), caller=nothing)[0]
        for kind, name in ((TOPIC, "t"), (GROUP, "g"), (BROKER, "0"))
    ]
    assert codes == [
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ]


def test_a_policy_is_called_with_the_altered_keys(world: World) -> None:
    seen: list[Any] = []
    world.active.configs._policy = lambda resource, altered: seen.append((resource.name, dict(altered)))
    alter(world, TOPIC, "t", ("retention.ms", SET, "5"))
    assert seen == [("t", {"retention.ms": "5"})]


def quota(world: World, entity: dict[str, str | None], **ops: float | None) -> tuple[ErrorCode, str | None]:
    entry = admin.AlterClientQuotasRequestEntryData(
        entity=[admin.AlterClientQuotasRequestEntityData(entity_type=k, entity_name=v) for k, v in entity.items()],
        ops=[admin.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops.items()],
    )
    request = admin.AlterClientQuotasRequest(entries=[entry])
    return result(world.request("alter_client_quotas", request).entries[0])


def test_quotas(world: World) -> None:
    entity: dict[str, str | None] = {"user": "a", "client-id": None}
    assert quota(world, entity, producer_byte_rate=5.0)[0] == ErrorCode.NONE
    assert dict(world.active.client_quotas.quotas.items()) == {
        (("client-id", None), ("user", "a")): {"producer_byte_rate": 5.0}
    }
    assert world.written_by(lambda: quota(world, entity, producer_byte_rate=5.0)) == []
    quota(world, entity, producer_byte_rate=None)
    assert len(world.active.client_quotas.quotas) == 0
    assert quota(world, entity, producer_byte_rate=2.0**63)[0] == ErrorCode.NONE, "as in Kafka, which compares doubles"
    for bad_entity, ops in (
        ({}, {"producer_byte_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"planet": "x"}, {"producer_byte_rate": 1.0}),
        ({"ip": "10.0.0.1", "user": "a"}, {"connection_creation_rate": 1.0}),
        ({"ip": "nowhere at all"}, {"connection_creation_rate": 1.0}),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 1e10}),
        ({"user": "a"}, {"producer_byte_rate": 1.5}),
        ({"user": "a"}, {"producer_byte_rate": 1e19}),
        ({"user": "a"}, {"producer_byte_rate": -1.0}),
        ({"user": "a"}, {"producer_byte_rate": float("nan")}),
        ({"user": "a"}, {"request_percentage": float("nan")}),
        ({"user": "a"}, {"controller_mutation_rate": float("-inf")}),
        ({"user": "a"}, {"producer_byte_rate": float("inf")}),
        ({"user": "a"}, {"unheard_of": 1.0}),
    ):
        assert quota(world, bad_entity, **ops)[0] == ErrorCode.INVALID_REQUEST  # type: ignore[arg-type]
    op = admin.OpData(key="producer_byte_rate", value=1.0)
    named = {"user": "u", "client-id": None}
    parts = [admin.AlterClientQuotasRequestEntityData(entity_type=k, entity_name=v) for k, v in named.items()]
    entry = admin.AlterClientQuotasRequestEntryData(entity=parts, ops=[op, op])
    (answer,) = world.request("alter_client_quotas", admin.AlterClientQuotasRequest(entries=[entry])).entries
    assert answer.error_message == "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=null, user=u})"
    assert [each.entity_type for each in answer.entity] == ["client-id", "user"], "in the order of Java's tables"


def scram(world: World, *upsertions: tuple[str, int, int], deletions: tuple[tuple[str, int], ...] = ()) -> Any:
    request = security.AlterUserScramCredentialsRequest(
        upsertions=[
            security.ScramCredentialUpsertion(
                name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=b"salted"
            )
            for name, mechanism, iterations in upsertions
        ],
        deletions=[security.ScramCredentialDeletion(name=name, mechanism=kind) for name, kind in deletions],
    )
    answer = world.request("alter_user_scram_credentials", request)
    return {one.user: ErrorCode(one.error_code) for one in answer.results}


def test_credentials(world: World) -> None:
    assert scram(world, ("a", 1, 4096), ("b", 2, 16384)) == {"a": ErrorCode.NONE, "b": ErrorCode.NONE}
    stored = world.active.scram.credentials[1, "a"]
    assert stored.server_key == hmac.digest(b"salted", b"Server Key", "sha256")
    assert stored.stored_key == hashlib.sha256(hmac.digest(b"salted", b"Client Key", "sha256")).digest()
    assert scram(world, ("c", 1, 4096), ("c", 2, 4096)) == {"c": ErrorCode.DUPLICATE_RESOURCE}
    assert scram(world, ("", 1, 4096), ("d", 1, 4095), ("e", 1, 16385), ("f", 3, 4096)) == {
        "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "d": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "e": ErrorCode.UNACCEPTABLE_CREDENTIAL,
        "f": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
    }
    assert scram(world, deletions=(("a", 2), ("b", 2))) == {"a": ErrorCode.RESOURCE_NOT_FOUND, "b": ErrorCode.NONE}
    assert list(world.active.scram.credentials) == [(1, "a")]


def acl(**fields: Any) -> security.AclCreation:
    defaults = {
        "resource_type": 2,
        "resource_name": "t",
        "principal": "User:a",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    return security.AclCreation(**{**defaults, **fields})


def test_access_control_entries(world: World) -> None:
    creations = [acl(), acl(), acl(resource_name="te", resource_pattern_type=4), acl(resource_name="*")]
    answer = world.request("create_acls", security.CreateAclsRequest(creations=creations))
    assert [result(one) for one in answer.results] == [(ErrorCode.NONE, "")] * 4
    assert len(world.active.acls.by_id) == 3
    bad = [
        acl(resource_type=1),
        acl(resource_type=4, resource_name="x"),
        acl(resource_pattern_type=2),
        acl(operation=1),
        acl(permission_type=1),
        acl(resource_name=""),
        acl(principal="a"),
    ]
    refused = world.request("create_acls", security.CreateAclsRequest(creations=bad)).results
    assert [one.error_code for one in refused] == [ErrorCode.INVALID_REQUEST] * len(bad)

    def delete(**fields: Any) -> list[str]:
        entry_filter = security.DeleteAclsFilter(
            **{
                "resource_type_filter": 1,
                "resource_name_filter": None,
                "pattern_type_filter": 1,
                "principal_filter": None,
                "host_filter": None,
                "operation": 1,
                "permission_type": 1,
                **fields,
            }
        )
        answer = world.request("delete_acls", security.DeleteAclsRequest(filters=[entry_filter]))
        return [acl.resource_name for acl in answer.filter_results[0].matching_acls]

    assert delete(principal_filter="User:b") == []
    assert delete(pattern_type_filter=3, resource_name_filter="te") == []
    assert delete(pattern_type_filter=2, resource_name_filter="test") == ["te", "*"]
    assert delete() == ["t"]


def update(world: World, *updates: tuple[str, int, int], validate_only: bool = False) -> tuple[ErrorCode, str]:
    request = admin.UpdateFeaturesRequest(
        feature_updates=[
            admin.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level, kind in updates
        ],
        validate_only=validate_only,
    )
    answer = world.request("update_features", request)
    return ErrorCode(answer.error_code), answer.error_message or ""


UPGRADE, SAFE, UNSAFE = 1, 2, 3


def test_features() -> None:
    world = World(version=MetadataVersion.IBP_4_2_IV1)
    world.start_brokers(0)
    assert update(world, ("metadata.version", 30, UPGRADE), validate_only=True) == (ErrorCode.NONE, "")
    assert world.active.features.metadata_version == MetadataVersion.IBP_4_2_IV1
    assert update(world, ("metadata.version", 30, UPGRADE)) == (ErrorCode.NONE, "")
    assert world.active.features.metadata_version == MetadataVersion.IBP_4_3_IV0
    assert update(world, ("transaction.version", 1, SAFE))[0] == ErrorCode.NONE
    for refused in (
        ("metadata.version", 34, UPGRADE),
        ("metadata.version", 29, UPGRADE),
        ("metadata.version", 29, SAFE),
        ("metadata.version", 29, UNSAFE),
        ("metadata.version", 3, UNSAFE),
        ("transaction.version", 0, UPGRADE),
        ("transaction.version", 2, SAFE),
        ("transaction.version", 3, UPGRADE),
        ("transaction.version", -1, SAFE),
        ("transaction.version", 2, 0),
        ("transaction.version", 2, 9),
        ("unheard.of", 1, UPGRADE),
        ("unheard.of", 0, UPGRADE),
        ("kraft.version", 1, UPGRADE),
    ):
        assert update(world, refused)[0] == ErrorCode.INVALID_UPDATE_VERSION
    both = update(world, ("transaction.version", 2, UPGRADE), ("unheard.of", 1, UPGRADE))
    assert both[0] == ErrorCode.INVALID_UPDATE_VERSION
    assert world.active.features.level("transaction.version") == 1


def test_a_level_must_be_supported_by_all_nodes() -> None:
    world = World(version=MetadataVersion.IBP_4_2_IV1, voters=lambda: (1, 2))
    behind = {**supported_ranges(), "metadata.version": VersionRange(7, 29)}
    world.register(0, features=behind)
    raised = ("metadata.version", 30, UPGRADE)
    assert "Broker 0 only supports versions 7-29" in update(world, raised)[1]
    world.register(0)
    assert "controller 2 has not registered" in update(world, raised)[1]

    def register(highest: int) -> None:
        feature = ControllerRegistrationRequestFeature(
            name="metadata.version", min_supported_version=7, max_supported_version=highest
        )
        request = ControllerRegistrationRequest(controller_id=2, features=[feature])
        world.request("controller_registration", request)

    register(29)
    assert "Controller 2 only supports versions 7-29" in update(world, raised)[1]
    register(30)
    assert update(world, raised) == (ErrorCode.NONE, "")


def test_a_controller_that_is_gone_for_good_is_unregistered() -> None:
    """Until then features are not raised beyond what it supports."""
    world = World(version=MetadataVersion.IBP_4_4_IV1, voters=lambda: (1,))
    own = world.active.config.node_id

    def refusal(controller_id: int) -> ErrorCode:
        request = UnregisterControllerRequest(controller_id=controller_id)
        return world.failure("unregister_controller", request).code

    feature = ControllerRegistrationRequestFeature(
        name="metadata.version", min_supported_version=7, max_supported_version=32
    )
    world.request("controller_registration", ControllerRegistrationRequest(controller_id=2, features=[feature]))
    assert refusal(2) == ErrorCode.UNSUPPORTED_VERSION
    raised = ("metadata.version", 33, UPGRADE)
    assert "Controller 2 only supports versions 7-32" in update(world, raised)[1]
    world = World(voters=lambda: (1,))
    world.request("controller_registration", ControllerRegistrationRequest(controller_id=2, features=[feature]))
    assert set(world.active.cluster.controllers) == {2}
    assert refusal(own) == ErrorCode.INVALID_REQUEST
    assert refusal(3) == ErrorCode.CONTROLLER_ID_NOT_REGISTERED
    world.request("unregister_controller", UnregisterControllerRequest(controller_id=2))
    assert not world.active.cluster.controllers
    assert not world.replayed().cluster.controllers


def test_turning_eligible_replicas_on_sets_one_minimum_isr_for_the_cluster() -> None:
    world = World(levels={}, properties={"min.insync.replicas": "2"})
    world.start_brokers(0)
    alter(world, BROKER, "0", ("min.insync.replicas", SET, "3"))
    records = world.written_by(lambda: update(world, ("eligible.leader.replicas.version", 1, UPGRADE)))
    assert [type(record) for record in records] == [FeatureLevelRecord, ConfigRecord, ConfigRecord]
    assert (values(world, BROKER, ""), values(world, BROKER, "0")) == ({"min.insync.replicas": "2"}, {})


def test_turning_eligible_replicas_on_again_clears_the_earlier_ones() -> None:
    """In between the leader has committed alone."""
    world = World()
    world.start_brokers(0, 1)
    world.create_topic("t", {0: [0, 1]}, configs={"min.insync.replicas": "2"})
    world.alter_partition("t", 0, [0])
    assert world.partition("t").elr == (1,)
    assert update(world, ("eligible.leader.replicas.version", 0, SAFE)) == (ErrorCode.NONE, "")
    for minimum in ("1", "2"):
        alter(world, TOPIC, "t", ("min.insync.replicas", SET, minimum))
    assert update(world, ("eligible.leader.replicas.version", 1, UPGRADE)) == (ErrorCode.NONE, "")
    assert world.partition("t").elr == ()
    world.alter_partition("t", 0, [0, 1])
    world.alter_partition("t", 0, [0])
    update(world, ("eligible.leader.replicas.version", 1, UPGRADE))
    assert world.partition("t").elr == (1,), "the feature was on already"


def test_an_update_of_kraft_version_is_passed_to_the_quorum(world: World) -> None:
    class Quorum:
        level = 0

        def upgrade(self, level: int, *, validate_only: bool) -> None:
            if level > 1:
                raise ApiError(ErrorCode.INVALID_UPDATE_VERSION)
            self.level = self.level if validate_only else level

    quorum = Quorum()
    control: KraftVersionControl = quorum
    world.active.features._kraft_version = control
    assert update(world, ("kraft.version", 1, UPGRADE), validate_only=True) == (ErrorCode.NONE, "")
    assert quorum.level == 0
    assert update(world, ("kraft.version", 1, UPGRADE)) == (ErrorCode.NONE, "")
    assert quorum.level == 1
    assert update(world, ("kraft.version", 0, SAFE))[0] == ErrorCode.INVALID_UPDATE_VERSION


def test_cordoning_needs_a_metadata_version_that_supports_it() -> None:
    cordon = ("cordoned.log.dirs", SET, "*")
    old, new = World(version=MetadataVersion.IBP_4_2_IV1), World(version=MetadataVersion.IBP_4_3_IV0)
    for world in (old, new):
        world.start_brokers(0)
    code, message = alter(old, BROKER, "0", cordon)
    assert (code, "requires metadata.version >= 4.3-IV0" in str(message)) == (ErrorCode.INVALID_CONFIG, True)
    assert alter(new, BROKER, "0", cordon, caller=FORWARDED)[0] == ErrorCode.NONE


def test_a_controller_takes_directories_out_of_the_cordoned_ones_only() -> None:
    """It has the ids of a broker's directories, not their paths: what no broker has checked may add none."""
    world = World()
    world.start_brokers(0)
    refusal = (
        ErrorCode.INVALID_CONFIG,
        "When updating cordoned.log.dirs via controllers,  the new value must be a subset of the current configuration "
        "value.",
    )
    for name in ("0", ""):
        assert alter(world, BROKER, name, ("cordoned.log.dirs", SET, "/a")) == refusal
    assert alter(world, BROKER, "0", ("cordoned.log.dirs", SET, "/a, /b"), caller=FORWARDED)[0] == ErrorCode.NONE
    assert alter(world, BROKER, "0", ("cordoned.log.dirs", SET, "/b,/c")) == refusal
    assert alter(world, BROKER, "0", ("cordoned.log.dirs", SET, "/b"))[0] == ErrorCode.NONE
    assert alter(world, BROKER, "0", ("cordoned.log.dirs", SET, " "))[0] == ErrorCode.NONE
    assert alter(world, BROKER, "0", ("cordoned.log.dirs", DELETE, None))[0] == ErrorCode.NONE


def test_a_value_that_no_record_can_hold_is_refused(world: World) -> None:
    refusal = "The configuration value cannot be added because it exceeds the maximum value size of 32767 bytes."
    assert alter(world, BROKER, "", ("no.key", SET, "x" * 32_767))[0] is ErrorCode.NONE
    assert alter(world, BROKER, "", ("no.key", SET, "x" * 32_768)) == (ErrorCode.INVALID_CONFIG, refusal)


def test_the_list_of_a_subscription_is_replaced_as_a_whole(world: World) -> None:
    """Apache Kafka's controller has no types for this resource."""
    assert alter(world, METRICS, "subscribed", ("metrics", SET, "org.apache.kafka.producer"))[0] is ErrorCode.NONE
    for op, name in ((APPEND, "APPEND"), (SUBTRACT, "SUBTRACT")):
        code, message = alter(world, METRICS, "subscribed", ("metrics", op, "org.apache.kafka.consumer"))
        assert code is ErrorCode.INVALID_CONFIG
        assert message == f"Can't {name} to key metrics because its type is not LIST."
