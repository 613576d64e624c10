"""All metadata at one offset of the log: immutable, so that any reader may keep a reference to it.

Two nodes that have replayed the log to the same offset have equal images. Equality compares the metadata, not the
provenance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

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
from kalda.metadata.image_records import ImageWriter, LossHandler, Writable, refuse
from kalda.metadata.metadata_version import MetadataVersion
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
