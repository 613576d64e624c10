"""The levels of metadata.version, and what each one allows.

Every record format, and every behaviour that must be the same on all nodes, depends on this feature (KIP-778). A level
is named after the release that introduced it; a release may have several, `IV0` upwards. No downgrade from a level that
changed the records is possible: the log may have records that the lower level cannot express.
"""

from __future__ import annotations

from enum import IntEnum

FEATURE_NAME = "metadata.version"


class MetadataVersion(IntEnum):
    """A level. Where there is no property for a behaviour, compare levels."""

    IBP_3_3_IV3 = 7  # the lowest for clusters without ZooKeeper
    IBP_3_4_IV0 = 8  # ZooKeeper migration state; kept because old logs contain it
    IBP_3_5_IV0 = 9  # Fetch 14
    IBP_3_5_IV1 = 10  # Fetch 15 (KIP-903)
    IBP_3_5_IV2 = 11  # SCRAM credentials (KIP-900)
    IBP_3_6_IV0 = 12  # an ISR shrink no longer bumps the leader epoch
    IBP_3_6_IV1 = 13  # metadata transactions (KIP-868)
    IBP_3_6_IV2 = 14  # delegation tokens (KIP-900)
    IBP_3_7_IV0 = 15  # controller registrations (KIP-919)
    IBP_3_7_IV1 = 16
    IBP_3_7_IV2 = 17  # log directories of replicas (KIP-858)
    IBP_3_7_IV3 = 18
    IBP_3_7_IV4 = 19  # Fetch 16 (KIP-951)
    IBP_3_8_IV0 = 20
    IBP_3_9_IV0 = 21  # dynamic quorums (KIP-853); Fetch 17
    IBP_4_0_IV0 = 22  # the consumer rebalance protocol (KIP-848)
    IBP_4_0_IV1 = 23  # eligible leader replicas (KIP-966)
    IBP_4_0_IV2 = 24  # transactions of the second version (KIP-890)
    IBP_4_0_IV3 = 25  # ListOffsets 10
    IBP_4_1_IV0 = 26  # eligible leader replicas by default
    IBP_4_1_IV1 = 27  # Fetch 18
    IBP_4_2_IV0 = 28  # share groups (KIP-932)
    IBP_4_2_IV1 = 29  # streams groups (KIP-1071); ListOffsets 11
    IBP_4_3_IV0 = 30  # cordoned log directories (KIP-1066)
    IBP_4_4_IV0 = 31  # dead letters of share groups (KIP-1191)
    IBP_4_4_IV1 = 32  # ranges of addresses in access control entries (KIP-1276)
    IBP_4_4_IV2 = 33  # controllers are unregistered (KIP-1312)
    IBP_4_5_IV0 = 34  # not for production yet

    @property
    def short_version(self) -> str:
        """The release: `4.3`."""
        _, major, minor, _ = self.name.split("_")
        return f"{major}.{minor}"

    @property
    def version(self) -> str:
        """The text form: `4.3-IV0`."""
        return f"{self.short_version}-{self.name.rpartition('_')[2]}"

    def __str__(self) -> str:
        return self.version

    @property
    def is_production(self) -> bool:
        return self <= LATEST_PRODUCTION

    @property
    def did_metadata_change(self) -> bool:
        """Whether this level changed the records, compared with the level below."""
        return self in _CHANGED_RECORDS

    @property
    def is_scram_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_5_IV2

    @property
    def is_leader_epoch_bump_required_on_isr_shrink(self) -> bool:
        return self < MetadataVersion.IBP_3_6_IV0

    @property
    def is_metadata_transaction_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_6_IV1

    @property
    def is_delegation_token_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_6_IV2

    @property
    def is_controller_registration_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_7_IV0

    @property
    def is_directory_assignment_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_7_IV2

    @property
    def is_elr_supported(self) -> bool:
        return self >= MetadataVersion.IBP_4_0_IV1

    @property
    def is_cordoned_log_dirs_supported(self) -> bool:
        return self >= MetadataVersion.IBP_4_3_IV0

    @property
    def is_cidr_acl_supported(self) -> bool:
        return self >= MetadataVersion.IBP_4_4_IV1

    @property
    def is_controller_unregistration_supported(self) -> bool:
        return self >= MetadataVersion.IBP_4_4_IV2

    @property
    def is_migration_supported(self) -> bool:
        return self >= MetadataVersion.IBP_3_4_IV0

    @property
    def register_broker_record_version(self) -> int:
        if self >= MetadataVersion.IBP_4_3_IV0:
            return 4
        if self >= MetadataVersion.IBP_3_7_IV2:
            return 3
        return 2 if self >= MetadataVersion.IBP_3_4_IV0 else 1

    @property
    def register_controller_record_version(self) -> int:
        """Raises `ValueError` for a level without controller registrations."""
        if not self.is_controller_registration_supported:
            raise ValueError(f"metadata.version {self} has no controller registrations")
        return 0

    @property
    def partition_record_version(self) -> int:
        if self.is_elr_supported:
            return 2
        return 1 if self.is_directory_assignment_supported else 0

    @property
    def partition_change_record_version(self) -> int:
        return self.partition_record_version


V = MetadataVersion
MINIMUM = V.IBP_3_3_IV3
LATEST_PRODUCTION = V.IBP_4_4_IV2
LATEST_TESTING = V.IBP_4_5_IV0

_CHANGED_RECORDS = frozenset(
    {
        V.IBP_3_3_IV3,
        V.IBP_3_4_IV0,
        V.IBP_3_5_IV2,
        V.IBP_3_6_IV1,
        V.IBP_3_6_IV2,
        V.IBP_3_7_IV0,
        V.IBP_3_7_IV2,
        V.IBP_4_0_IV1,
        V.IBP_4_3_IV0,
        V.IBP_4_4_IV1,
        V.IBP_4_4_IV2,
    }
)
_BY_TEXT = {level.version: level for level in V}
_BY_RELEASE = {level.short_version: level for level in V if level.is_production}


def from_version_string(text: str) -> MetadataVersion:
    """The level of a text: `4.1-IV0` is that level; `4.1` and `4.1.2` are the last production level of the release.

    Raises `ValueError` for anything else.
    """
    release = ".".join(text.split(".")[:2])
    level = _BY_TEXT.get(text) or _BY_RELEASE.get(release)
    if level is None:
        raise ValueError(f"Version {text} is not a valid version. The minimum version is {MINIMUM}")
    return level


def from_level(level: int) -> MetadataVersion:
    """Raises `ValueError` for a level that this release does not have."""
    try:
        return MetadataVersion(level)
    except ValueError:
        raise ValueError(
            f"No MetadataVersion with feature level {level}. Valid feature levels are from "
            f"{MINIMUM.value} to {LATEST_TESTING.value}."
        ) from None


def metadata_changed_between(one: MetadataVersion, other: MetadataVersion) -> bool:
    """Whether any level above the lower one, up to the higher one, changed the records. If so, a downgrade would lose
    metadata."""
    low, high = sorted((one, other))
    return any(level.did_metadata_change for level in MetadataVersion if low < level <= high)
