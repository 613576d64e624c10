"""All metadata at one offset of the log: immutable, so that any reader may keep a reference to it.

Two nodes that have replayed the log to the same offset have equal images. Equality compares the metadata, not the
provenance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from kalda.metadata import (
    acls,
    client_quotas,
    cluster,
    configs,
    delegation_tokens,
    finalized,
    producer_ids,
    scram,
    topics,
)
from kalda.metadata.acls import AclsDelta
from kalda.metadata.client_quotas import ClientQuotasDelta
from kalda.metadata.cluster import ClusterDelta
from kalda.metadata.configs import ConfigsDelta
from kalda.metadata.delegation_tokens import DelegationTokensDelta
from kalda.metadata.features import MetadataVersion
from kalda.metadata.finalized import FeaturesDelta
from kalda.metadata.image_records import ImageWriter, LossHandler, Writable, refuse
from kalda.metadata.producer_ids import ProducerIdsDelta
from kalda.metadata.scram import ScramDelta
from kalda.metadata.topics import PartitionRegistration, TopicsDelta
from kalda.protocol.messages import metadata_records as records
from kalda.protocol.notation import Struct
from kalda.protocol.record_framing import VersionedRecord


class Provenance(NamedTuple):
    """The position in the log at which an image ends. A snapshot may end only where a batch ends too."""

    last_contained_offset: int
    last_contained_epoch: int
    last_contained_log_time_ms: int
    is_batch_aligned: bool = True

    @property
    def snapshot_offset(self) -> int:
        """The offset after the last contained one: snapshots are named by it."""
        return self.last_contained_offset + 1

    def __str__(self) -> str:
        return f"{self.snapshot_offset:020d}-{self.last_contained_epoch:010d}"


BEGINNING = Provenance(-1, -1, -1)


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """An image of each domain, and their common provenance."""

    provenance: Provenance = field(default=BEGINNING, compare=False)
    features: finalized.FeaturesImage = finalized.EMPTY
    cluster: cluster.ClusterImage = cluster.EMPTY
    topics: topics.TopicsImage = topics.EMPTY
    configs: configs.ConfigsImage = configs.EMPTY
    client_quotas: client_quotas.ClientQuotasImage = client_quotas.EMPTY
    producer_ids: producer_ids.ProducerIdsImage = producer_ids.EMPTY
    acls: acls.AclsImage = acls.EMPTY
    scram: scram.ScramImage = scram.EMPTY
    delegation_tokens: delegation_tokens.DelegationTokensImage = delegation_tokens.EMPTY

    @property
    def is_empty(self) -> bool:
        return (
            self.features.is_empty
            and self.cluster.is_empty
            and self.topics.is_empty
            and self.configs.is_empty
            and self.client_quotas.is_empty
            and self.producer_ids.is_empty
            and self.acls.is_empty
            and self.scram.is_empty
            and self.delegation_tokens.is_empty
        )

    @property
    def offset(self) -> int:
        return self.provenance.last_contained_offset

    @property
    def epoch(self) -> int:
        return self.provenance.last_contained_epoch

    def write(
        self, metadata_version: MetadataVersion | None = None, on_loss: LossHandler = refuse
    ) -> list[VersionedRecord]:
        """`records` as a list."""
        return list(self.records(metadata_version, on_loss))

    def records(
        self, metadata_version: MetadataVersion | None = None, on_loss: LossHandler = refuse
    ) -> Iterator[VersionedRecord]:
        """The records that turn an empty image into this one, at `metadata_version` or the image's own.

        Each record is made when the iterator reaches it, from immutable data, so any thread may iterate. Features come
        first, because they determine the format of the others. `on_loss` is called for data that a lower
        metadata.version cannot express; by default it raises `UnwritableMetadata`. Raises `ValueError` for an image
        with data and without a metadata.version.
        """
        if self.is_empty:
            return
        version = metadata_version or self.features.metadata_version_or_raise()
        writer = ImageWriter(version, self.features.is_elr_enabled, on_loss)
        parts: Iterable[Writable] = chain(
            (self.features, self.cluster),
            self.topics.by_id.values(),
            (self.configs, self.client_quotas, self.producer_ids, self.acls, self.scram, self.delegation_tokens),
        )
        for part in parts:
            part.write(writer)
            yield from writer.records
            writer.records.clear()


EMPTY = MetadataImage()


class MetadataDelta:
    """The changes that records make to an image. Mutable, and used once: replay records, apply, start the next
    delta from the result.

    A domain whose delta is None did not change: the next image refers to the same object, and publishers skip the
    domain.

    Deltas of the domains that a record changed; the others are None.
    """

    __slots__ = (
        "acls",
        "client_quotas",
        "cluster",
        "configs",
        "delegation_tokens",
        "features",
        "image",
        "producer_ids",
        "scram",
        "topics",
    )

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.features: FeaturesDelta | None = None
        self.cluster: ClusterDelta | None = None
        self.topics: TopicsDelta | None = None
        self.configs: ConfigsDelta | None = None
        self.client_quotas: ClientQuotasDelta | None = None
        self.producer_ids: ProducerIdsDelta | None = None
        self.acls: AclsDelta | None = None
        self.scram: ScramDelta | None = None
        self.delegation_tokens: DelegationTokensDelta | None = None

    @classmethod
    def of_whole(cls, image: MetadataImage) -> MetadataDelta:
        """From nothing to `image`, without replaying a record: the first delta of a publisher."""
        delta = cls(EMPTY)
        for domain, delta_class in _DOMAINS.items():
            part = getattr(image, domain)
            if not part.is_empty:
                setattr(delta, domain, delta_class.of_whole(part))
        return delta

    @property
    def metadata_version_changed(self) -> MetadataVersion | None:
        """The metadata.version that a record set, which may be the same as before; None where no record did."""
        return None if self.features is None else self.features.metadata_version_change

    def replay(self, record: Struct) -> None:
        """Raises `ValueError` for a record that contradicts the image, or whose type is unknown.

        A node that cannot replay a committed record is not safe to run: the caller must not go on.
        """
        handler = _HANDLERS.get(type(record))
        if handler is None:
            raise ValueError(f"Unknown metadata record type {type(record).__name__}")
        handler(self, record)

    def features_delta(self) -> FeaturesDelta:
        if self.features is None:
            self.features = FeaturesDelta(self.image.features)
        return self.features

    def cluster_delta(self) -> ClusterDelta:
        if self.cluster is None:
            self.cluster = ClusterDelta(self.image.cluster)
        return self.cluster

    def topics_delta(self) -> TopicsDelta:
        if self.topics is None:
            self.topics = TopicsDelta(self.image.topics)
        return self.topics

    def configs_delta(self) -> ConfigsDelta:
        if self.configs is None:
            self.configs = ConfigsDelta(self.image.configs)
        return self.configs

    def client_quotas_delta(self) -> ClientQuotasDelta:
        if self.client_quotas is None:
            self.client_quotas = ClientQuotasDelta(self.image.client_quotas)
        return self.client_quotas

    def producer_ids_delta(self) -> ProducerIdsDelta:
        if self.producer_ids is None:
            self.producer_ids = ProducerIdsDelta(self.image.producer_ids)
        return self.producer_ids

    def acls_delta(self) -> AclsDelta:
        if self.acls is None:
            self.acls = AclsDelta(self.image.acls)
        return self.acls

    def scram_delta(self) -> ScramDelta:
        if self.scram is None:
            self.scram = ScramDelta(self.image.scram)
        return self.scram

    def delegation_tokens_delta(self) -> DelegationTokensDelta:
        if self.delegation_tokens is None:
            self.delegation_tokens = DelegationTokensDelta(self.image.delegation_tokens)
        return self.delegation_tokens

    def _remove_topic(self, record: records.RemoveTopicRecord) -> None:
        name = self.topics_delta().remove_topic(record)
        self.configs_delta().remove_topic(name)

    def finish_snapshot(self) -> None:
        """After the last record of a snapshot: remove all that the image has and the snapshot does not."""
        self.features_delta().finish_snapshot()
        self.cluster_delta().finish_snapshot()
        self.topics_delta().finish_snapshot()
        self.configs_delta().finish_snapshot()
        self.client_quotas_delta().finish_snapshot()
        self.producer_ids_delta().finish_snapshot()
        self.acls_delta().finish_snapshot()
        self.scram_delta().finish_snapshot()
        self.delegation_tokens_delta().finish_snapshot()

    def apply(self, provenance: Provenance) -> MetadataImage:
        """The next image. Domains without a delta are those of the old image."""
        image = self.image
        return MetadataImage(
            provenance,
            image.features if self.features is None else self.features.apply(),
            image.cluster if self.cluster is None else self.cluster.apply(),
            image.topics if self.topics is None else self.topics.apply(),
            image.configs if self.configs is None else self.configs.apply(),
            image.client_quotas if self.client_quotas is None else self.client_quotas.apply(),
            image.producer_ids if self.producer_ids is None else self.producer_ids.apply(),
            image.acls if self.acls is None else self.acls.apply(),
            image.scram if self.scram is None else self.scram.apply(),
            image.delegation_tokens if self.delegation_tokens is None else self.delegation_tokens.apply(),
        )


_DOMAINS: dict[str, Any] = {
    "features": FeaturesDelta,
    "cluster": ClusterDelta,
    "topics": TopicsDelta,
    "configs": ConfigsDelta,
    "client_quotas": ClientQuotasDelta,
    "producer_ids": ProducerIdsDelta,
    "acls": AclsDelta,
    "scram": ScramDelta,
    "delegation_tokens": DelegationTokensDelta,
}


def _ignore(delta: MetadataDelta, record: object) -> None:
    """For NoOpRecord, which only advances offsets, and ZkMigrationStateRecord, which only old logs contain."""


def _add_partition(delta: MetadataDelta, record: records.PartitionRecord) -> None:
    """`TopicsDelta.add_partition` with fewer calls: most of a snapshot's million records are PartitionRecords."""
    topics = delta.topics if delta.topics is not None else delta.topics_delta()
    topic = topics.changed.get(record.topic_id)
    if topic is None:
        topics.add_partition(record)
    else:
        topic.partition_changes[record.partition_id] = PartitionRegistration.from_record(record)


def _change_partition(delta: MetadataDelta, record: records.PartitionChangeRecord) -> None:
    """`TopicsDelta.change_partition` with fewer calls."""
    topics = delta.topics if delta.topics is not None else delta.topics_delta()
    topic = topics.changed.get(record.topic_id)
    before = None if topic is None else topic.partition_changes.get(record.partition_id)
    if topic is None or before is None:
        topics.change_partition(record)
    else:
        topic.partition_changes[record.partition_id] = before.merge(record)


_HANDLERS: dict[type[Struct], Callable[[MetadataDelta, Any], object]] = {
    records.FeatureLevelRecord: lambda delta, record: delta.features_delta().replay(record),
    records.RegisterBrokerRecord: lambda delta, record: delta.cluster_delta().register_broker(record),
    records.UnregisterBrokerRecord: lambda delta, record: delta.cluster_delta().unregister_broker(record),
    records.FenceBrokerRecord: lambda delta, record: delta.cluster_delta().fence_broker(record),
    records.UnfenceBrokerRecord: lambda delta, record: delta.cluster_delta().unfence_broker(record),
    records.BrokerRegistrationChangeRecord: lambda delta, record: delta.cluster_delta().change_broker(record),
    records.RegisterControllerRecord: lambda delta, record: delta.cluster_delta().register_controller(record),
    records.UnregisterControllerRecord: lambda delta, record: delta.cluster_delta().unregister_controller(record),
    records.TopicRecord: lambda delta, record: delta.topics_delta().add_topic(record),
    records.PartitionRecord: _add_partition,
    records.PartitionChangeRecord: _change_partition,
    records.RemoveTopicRecord: MetadataDelta._remove_topic,
    records.ClearElrRecord: lambda delta, record: delta.topics_delta().clear_elr(record),
    records.ConfigRecord: lambda delta, record: delta.configs_delta().replay(record),
    records.ClientQuotaRecord: lambda delta, record: delta.client_quotas_delta().replay(record),
    records.ProducerIdsRecord: lambda delta, record: delta.producer_ids_delta().replay(record),
    records.AccessControlEntryRecord: lambda delta, record: delta.acls_delta().replay(record),
    records.RemoveAccessControlEntryRecord: lambda delta, record: delta.acls_delta().remove(record),
    records.UserScramCredentialRecord: lambda delta, record: delta.scram_delta().replay(record),
    records.RemoveUserScramCredentialRecord: lambda delta, record: delta.scram_delta().remove(record),
    records.DelegationTokenRecord: lambda delta, record: delta.delegation_tokens_delta().replay(record),
    records.RemoveDelegationTokenRecord: lambda delta, record: delta.delegation_tokens_delta().remove(record),
    records.NoOpRecord: _ignore,
    records.ZkMigrationStateRecord: _ignore,
}
