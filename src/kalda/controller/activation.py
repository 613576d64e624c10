"""The first records of a new active controller.

On an empty log these are the bootstrap records, which finalize the metadata.version that the cluster was formatted for.
They are one metadata transaction where that version has transactions (KIP-868), so no log has only a part of them. On
any other log there is a record only where the previous controller stopped inside a transaction: one that aborts it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kalda.controller.configs import CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS
from kalda.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION, MetadataVersion, from_level
from kalda.metadata.features import FEATURE_NAME as METADATA_VERSION
from kalda.protocol.messages.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
)
from kalda.protocol.record_framing import VersionedRecord

_BOOTSTRAP_TRANSACTION = "Bootstrap records"
_ABORT_REASON = "Controller failover"


def activation_records(
    *,
    is_transaction_open: bool,
    bootstrap: Sequence[VersionedRecord],
    metadata_version: MetadataVersion | None,
    min_insync_replicas: str,
) -> list[VersionedRecord]:
    """`metadata_version` is that of the log, without an open transaction; None for an empty log. `min_insync_replicas`
    is the value in the node's properties: eligible leader replicas need a cluster-wide value (KIP-966). Raises
    `ValueError` where the bootstrap records set no metadata.version, or the log has a transaction and a version
    without transactions.
    """
    is_log_empty = metadata_version is None
    version = bootstrap_metadata_version(bootstrap) if metadata_version is None else metadata_version
    records: list[VersionedRecord] = []
    if is_transaction_open:
        if not version.is_metadata_transaction_supported:
            raise ValueError(f"the metadata log has an open transaction, but {version} has no transactions")
        records.append(VersionedRecord(AbortTransactionRecord(reason=_ABORT_REASON), 0))
    if not is_log_empty:
        return records
    records += bootstrap
    if _level(bootstrap, ELIGIBLE_LEADER_REPLICAS_VERSION) > 0:
        record = ConfigRecord(
            resource_type=int(CLUSTER_DEFAULT.type),
            resource_name=CLUSTER_DEFAULT.name,
            name=MIN_INSYNC_REPLICAS,
            value=min_insync_replicas,
        )
        records.append(VersionedRecord(record, 0))
    if not version.is_metadata_transaction_supported:
        return records
    aborts = int(is_transaction_open)
    begin = VersionedRecord(BeginTransactionRecord(name=_BOOTSTRAP_TRANSACTION), 0)
    end = VersionedRecord(EndTransactionRecord(), 0)
    return [*records[:aborts], begin, *records[aborts:], end]


def bootstrap_metadata_version(bootstrap: Sequence[VersionedRecord]) -> MetadataVersion:
    """Raises `ValueError` for records that set none: no cluster can start without one."""
    level = _level(bootstrap, METADATA_VERSION)
    if level == 0:
        raise ValueError("the bootstrap records do not set metadata.version: format the storage again")
    return from_level(level)


def _level(records: Sequence[VersionedRecord], feature: str) -> int:
    level = 0
    for versioned in records:
        record = versioned.record
        if isinstance(record, FeatureLevelRecord) and record.name == feature:
            level = record.feature_level
    return level
