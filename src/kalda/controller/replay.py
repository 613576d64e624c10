"""Which manager of the controller applies which record, and the records that an image stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from kalda.controller.acls import AclControl
from kalda.controller.client_quotas import ClientQuotaControl
from kalda.controller.cluster import ClusterControl
from kalda.controller.configs import ConfigControl
from kalda.controller.credentials import DelegationTokenControl, ScramControl
from kalda.controller.features import FeatureControl
from kalda.controller.partitions import PartitionControl
from kalda.controller.producer_ids import ProducerIdControl
from kalda.metadata.features import LATEST_TESTING
from kalda.metadata.image import MetadataImage
from kalda.metadata.image_records import ImageWriter
from kalda.protocol.messages import metadata_records as records
from kalda.protocol.record_framing import VersionedRecord
from kalda.statemachine.runtime import ReplicatedRuntime


class Managers(Protocol):
    """What a `QuorumController` is made of, as far as records change it."""

    runtime: ReplicatedRuntime[VersionedRecord]
    partitions: PartitionControl
    cluster: ClusterControl
    configs: ConfigControl
    features: FeatureControl
    producer_ids: ProducerIdControl
    client_quotas: ClientQuotaControl
    scram: ScramControl
    acls: AclControl
    tokens: DelegationTokenControl


def replay_table(controller: Managers) -> Mapping[type, Callable[[Any, int], object]]:
    """By type of record, the function that applies one, given the record and its offset."""
    offsets = controller.runtime.offsets
    partitions, cluster = controller.partitions, controller.cluster
    configs, features, producer_ids = controller.configs, controller.features, controller.producer_ids
    quotas, scram, acls = controller.client_quotas, controller.scram, controller.acls
    tokens = controller.tokens

    def remove_topic(record: records.RemoveTopicRecord, _offset: int) -> None:
        configs.replay_topic_removal(partitions.replay_remove_topic(record))

    def ignore(_record: Any, _offset: int) -> None:
        return None

    return {
        records.RegisterBrokerRecord: cluster.replay_broker,
        records.UnregisterBrokerRecord: lambda record, _: cluster.replay_unregister(record),
        records.BrokerRegistrationChangeRecord: lambda record, _: cluster.replay_change(record),
        records.FenceBrokerRecord: lambda record, _: cluster.replay_fence(record),
        records.UnfenceBrokerRecord: lambda record, _: cluster.replay_unfence(record),
        records.RegisterControllerRecord: lambda record, _: cluster.replay_controller(record),
        records.UnregisterControllerRecord: lambda record, _: cluster.replay_unregister_controller(record),
        records.TopicRecord: lambda record, _: partitions.replay_topic(record),
        records.PartitionRecord: lambda record, _: partitions.replay_partition(record),
        records.PartitionChangeRecord: lambda record, _: partitions.replay_partition_change(record),
        records.RemoveTopicRecord: remove_topic,
        records.ClearElrRecord: lambda record, _: partitions.replay_clear_elr(record),
        records.ConfigRecord: lambda record, _: configs.replay(record),
        records.FeatureLevelRecord: lambda record, _: features.replay(record),
        records.ProducerIdsRecord: lambda record, _: producer_ids.replay(record),
        records.ClientQuotaRecord: lambda record, _: quotas.replay(record),
        records.UserScramCredentialRecord: lambda record, _: scram.replay_credential(record),
        records.RemoveUserScramCredentialRecord: lambda record, _: scram.replay_removal(record),
        records.AccessControlEntryRecord: lambda record, _: acls.replay_entry(record),
        records.RemoveAccessControlEntryRecord: lambda record, _: acls.replay_removal(record),
        records.BeginTransactionRecord: lambda _, offset: offsets.begin_transaction(offset),
        records.EndTransactionRecord: lambda _, offset: offsets.end_transaction(offset),
        records.AbortTransactionRecord: lambda _, offset: offsets.abort_transaction(offset),
        records.DelegationTokenRecord: lambda record, _: tokens.replay(record),
        records.RemoveDelegationTokenRecord: lambda record, _: tokens.replay_removal(record),
        records.NoOpRecord: ignore,
        # In logs of clusters that were migrated from ZooKeeper.
        records.ZkMigrationStateRecord: ignore,
    }


def replay_run(controller: Managers, batch: Sequence[VersionedRecord], first: int) -> int:
    """Apply records of a long batch from `batch[first]` on together. Returns how many; 0 where that record has to be
    applied by itself."""
    new = controller.partitions.replay_new_partitions(batch, first)
    return new or controller.acls.replay_removals(batch, first)


def other_records(image: MetadataImage) -> Iterator[VersionedRecord]:
    """Records of all domains except topics and configs. They are replayed and not stored, so they are written at the
    latest metadata.version, which can express all of the image."""
    features = image.features.metadata_version
    if features is not None:
        writer = ImageWriter(features)
        image.features.write(writer)
        yield from writer.records
    parts = (image.cluster, image.client_quotas, image.producer_ids, image.scram, image.acls, image.delegation_tokens)
    for part in parts:
        writer = ImageWriter(LATEST_TESTING, elr_enabled=True)
        part.write(writer)
        yield from writer.records
