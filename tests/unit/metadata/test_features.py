"""The feature tables against Kafka's, and the rules of an update."""

from __future__ import annotations

import json
from typing import Any

import pytest
from metadata_logs import GOLDEN

from kalda.metadata import features
from kalda.metadata.features import FEATURE_NAME as METADATA_VERSION
from kalda.metadata.features import (
    FEATURES,
    LATEST_PRODUCTION,
    LATEST_TESTING,
    MINIMUM,
    MetadataVersion,
    VersionRange,
    check_dependencies,
    default_levels,
    from_level,
    from_version_string,
    metadata_changed_between,
    metadata_version_refusal,
    supported_ranges,
    unsupported_reason,
)

KAFKA: dict[str, Any] = json.loads((GOLDEN / "features.json").read_text())
LEVELS = KAFKA["metadata_version"]["levels"]
V = MetadataVersion

GETTERS = {
    "didMetadataChange": "did_metadata_change",
    "isControllerRegistrationSupported": "is_controller_registration_supported",
    "isCidrAclSupported": "is_cidr_acl_supported",
    "isControllerUnregistrationSupported": "is_controller_unregistration_supported",
    "isCordonedLogDirsSupported": "is_cordoned_log_dirs_supported",
    "isDelegationTokenSupported": "is_delegation_token_supported",
    "isDirectoryAssignmentSupported": "is_directory_assignment_supported",
    "isElrSupported": "is_elr_supported",
    "isLeaderEpochBumpRequiredOnIsrShrink": "is_leader_epoch_bump_required_on_isr_shrink",
    "isMetadataTransactionSupported": "is_metadata_transaction_supported",
    "isMigrationSupported": "is_migration_supported",
    "isProduction": "is_production",
    "isScramSupported": "is_scram_supported",
    "partitionChangeRecordVersion": "partition_change_record_version",
    "partitionRecordVersion": "partition_record_version",
    "registerBrokerRecordVersion": "register_broker_record_version",
    "registerControllerRecordVersion": "register_controller_record_version",
    "shortVersion": "short_version",
    "version": "version",
}


def test_the_levels_are_kafkas() -> None:
    assert [(level.name, level.value) for level in V] == [(level["name"], level["level"]) for level in LEVELS]
    assert (MINIMUM.name, LATEST_PRODUCTION.name, LATEST_TESTING.name) == tuple(
        KAFKA["metadata_version"][end] for end in ("minimum", "latest_production", "latest_testing")
    )


@pytest.mark.parametrize("expected", LEVELS, ids=lambda level: level["name"])
def test_a_level_allows_what_kafka_allows(expected: dict[str, Any]) -> None:
    level = from_level(expected["level"])
    for theirs, ours in GETTERS.items():
        if str(expected[theirs]).startswith("throws"):
            with pytest.raises(ValueError, match=r"metadata\.version"):
                getattr(level, ours)
        else:
            assert getattr(level, ours) == expected[theirs], theirs
    assert default_levels(level) == expected["default_levels"]


@pytest.mark.parametrize("row", KAFKA["metadata_version"]["version_strings"], ids=lambda row: row["text"])
def test_version_strings(row: dict[str, Any]) -> None:
    if row["means"] is None:
        with pytest.raises(ValueError, match="not a valid version"):
            from_version_string(row["text"])
    else:
        assert from_version_string(row["text"]).name == row["means"]


@pytest.mark.parametrize("text", ["", "9.9", "4", "4.3-IV1", "four", "3.2"])
def test_invalid_version_strings(text: str) -> None:
    with pytest.raises(ValueError, match="not a valid version"):
        from_version_string(text)


@pytest.mark.parametrize("expected", KAFKA["features"], ids=lambda feature: feature["name"])
def test_the_features_are_kafkas(expected: dict[str, Any]) -> None:
    feature = FEATURES[expected["name"]]
    assert feature.latest == expected["latest_production"] == expected["latest_testing"]
    assert supported_ranges()[feature.name] == (expected["supported_min"], expected["supported_max"])
    for ours, theirs in zip(feature.levels, expected["levels"], strict=True):
        assert ours.level == theirs["level"]
        assert ours.default_from.name == theirs["bootstrapMetadataVersion"] or ours.level == 0
        assert dict(ours.depends_on) == theirs["dependencies"]


def test_unstable_levels_are_announced_only_when_asked() -> None:
    assert supported_ranges()[METADATA_VERSION] == VersionRange(7, 33)
    assert supported_ranges(unstable=True)[METADATA_VERSION] == VersionRange(7, 34)


def test_dependencies() -> None:
    elr = features.ELIGIBLE_LEADER_REPLICAS_VERSION
    check_dependencies(elr, 1, {METADATA_VERSION: 23})
    check_dependencies(elr, 0, {})
    with pytest.raises(
        ValueError, match=f"^{elr} could not be set to 1 because it depends on metadata.version level 23$"
    ):
        check_dependencies(elr, 1, {METADATA_VERSION: 22})
    with pytest.raises(ValueError, match=r"depends on metadata\.version=7"):
        check_dependencies(features.GROUP_VERSION, 1, {})
    with pytest.raises(ValueError, match=r"^No feature:group\.version with feature level 5$"):
        check_dependencies(features.GROUP_VERSION, 5, {METADATA_VERSION: 30})


@pytest.mark.parametrize(
    ("low", "high", "changed"),
    [
        (V.IBP_4_2_IV1, V.IBP_4_3_IV0, True),
        (V.IBP_4_3_IV0, V.IBP_4_4_IV0, False),
        (V.IBP_4_3_IV0, V.IBP_4_4_IV2, True),
        (V.IBP_4_0_IV1, V.IBP_4_2_IV1, False),
        (V.IBP_4_0_IV0, V.IBP_4_2_IV1, True),
        (V.IBP_3_7_IV2, V.IBP_4_0_IV0, False),
        (V.IBP_3_3_IV3, V.IBP_3_3_IV3, False),
    ],
)
def test_a_downgrade_is_safe_unless_a_level_between_changed_the_records(
    low: MetadataVersion, high: MetadataVersion, changed: bool
) -> None:
    assert metadata_changed_between(low, high) is metadata_changed_between(high, low) is changed
    refusal = metadata_version_refusal(high, low.value, unsafe_downgrade=False)
    assert (refusal is not None) is changed
    assert metadata_version_refusal(low, high.value, unsafe_downgrade=False) is None


def test_an_unsafe_downgrade_is_refused_too() -> None:
    refusal = metadata_version_refusal(V.IBP_4_3_IV0, 7, unsafe_downgrade=True)
    assert refusal == "Unsafe metadata downgrade is not supported in this version."
    assert metadata_version_refusal(V.IBP_4_3_IV0, 6, unsafe_downgrade=True) == "Unknown metadata.version."


def test_levels_that_a_node_does_not_support() -> None:
    ranges = {"group.version": VersionRange(0, 1)}
    assert unsupported_reason("group.version", 1, "Broker 3", ranges) is None
    assert unsupported_reason("group.version", 2, "Broker 3", ranges) == "Broker 3 only supports versions 0-1"
    assert unsupported_reason("x.version", 1, "Broker 3", ranges) == "Broker 3 does not support this feature."
    assert unsupported_reason("x.version", 0, "Broker 3", ranges) is None
