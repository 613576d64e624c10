"""The first records of a new active controller.

On an empty log these are the bootstrap records, which finalize the release that the cluster was formatted for, in one
metadata transaction where that release has them (KIP-868): a log can then never be left with half of them. On any
other log there is something to write only where the predecessor died inside a transaction, which is aborted.
"""

from __future__ import annotations

from collections.abc import Sequence

from kalda.controller.configs import CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS
from kalda.metadata.features import ELIGIBLE_LEADER_REPLICAS_VERSION
from kalda.metadata.metadata_version import FEATURE_NAME as METADATA_VERSION
from kalda.metadata.metadata_version import MetadataVersion, from_level
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
    """`metadata_version` is the log's, without the open transaction if there is one; None where nothing is in it yet.
    `min_insync_replicas` is what the node's properties say, for the cluster-wide value that eligible leader replicas
    need (KIP-966). Raises `ValueError` where the log cannot be carried on.
    """
    is_log_empty = metadata_version is None
    version = bootstrap_metadata_version(bootstrap) if metadata_version is None else metadata_version
    records: list[VersionedRecord] = []
    if is_transaction_open:
        if not version.is_metadata_transaction_supported:
            raise ValueError(f"the metadata log holds a partial transaction, which {version} does not have")
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
    """Raises `ValueError` for records that name none: a cluster cannot start without."""
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
