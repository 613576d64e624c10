"""The interfaces around the loader: publishers, the manifest of an image, committed batches and snapshots.

Batches and snapshots come from the quorum. This floor has their interfaces only, so it does not depend on the quorum.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from kalda.metadata.image import MetadataDelta, MetadataImage, Provenance
from kalda.protocol.record_framing import VersionedRecord


class ReplayedBatch(Protocol):
    """One batch of the log below the high watermark. A control batch has no records."""

    @property
    def base_offset(self) -> int: ...

    @property
    def last_offset(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def append_timestamp_ms(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def records(self) -> Sequence[VersionedRecord]: ...


class CommittedSnapshot(Protocol):
    """A snapshot; its records in order, control records left out."""

    @property
    def last_contained_offset(self) -> int: ...

    @property
    def last_contained_epoch(self) -> int: ...

    @property
    def last_contained_log_time_ms(self) -> int: ...

    @property
    def records(self) -> Iterable[VersionedRecord]: ...


class Manifest(NamedTuple):
    """What an image was loaded from: batches of the log, `num_bytes` in all, or a snapshot. The first image of a
    publisher counts as a snapshot; `num_bytes` are then those of the batches since the last stored snapshot."""

    provenance: Provenance
    is_snapshot: bool = False
    num_bytes: int = 0


class Publisher(Protocol):
    """Is called with every image in order, once the node has caught up.

    The loader calls publishers one after another, and loads nothing meanwhile: a publisher must not block. The delta of
    its first image starts from an empty image. An exception is passed to the loader's fault handler.
    """

    @property
    def name(self) -> str:
        """Unique in a loader; used in log and error messages."""
        ...

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """`image` is `delta` applied."""
        ...

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """Called with the quorum's leader, None while there is none; also right after the first image."""
        ...


# The publisher that calls for a new registration of this broker when its old one lacks log directories.
#
# The registration of a broker under a metadata.version below 3.7-IV2 has no log directories. Once the cluster is at
# that level or higher the registration must list them, or no replica could be assigned to one. A rolling upgrade does
# not restart brokers after the level was raised, so the broker registers anew without a restart (KIP-858). A
# superfluous registration is harmless; a replay of old records may cause one.

log = logging.getLogger(__name__)


class BrokerRegistrationTracker:
    """Calls `refresh` when the registration of `broker_id` lists no log directories, and the metadata.version requires
    them."""

    name = "BrokerRegistrationTracker"

    def __init__(self, broker_id: int, refresh: Callable[[], None]) -> None:
        self.broker_id = broker_id
        self._refresh = refresh

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        version_changed = delta.metadata_version_changed is not None
        ours_changed = delta.cluster is not None and self.broker_id in delta.cluster.changed_brokers
        if not version_changed and not ours_changed:
            return
        registration = image.cluster.brokers.get(self.broker_id)
        version = image.features.metadata_version
        if registration is None or version is None:
            return
        if version.is_directory_assignment_supported and not registration.directories:
            log.info("[BrokerRegistrationTracker id=%d] registering anew to list log directories", self.broker_id)
            self._refresh()

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """Registrations do not depend on the leader of the quorum."""


MAX_BYTES = 20 * 1024 * 1024
MAX_INTERVAL_MS = 60 * 60 * 1000


class SnapshotGenerator:
    """The publisher that starts a snapshot when one is due.

    A snapshot is due when enough bytes of records were loaded since the last one, or enough time has passed. Snapshots
    bound how much of the log a starting node must replay, so bytes that were replayed at the start count too. A
    snapshot that was loaded, from the disk or from the leader, counts as the last one.

    `emit` starts to write the image as a snapshot. It returns False where another one is still being written: then the
    next image is tried.

    `max_bytes` is metadata.log.max.record.bytes.between.snapshots, `max_interval_ms` (0: no limit)
    metadata.log.max.snapshot.interval.ms, `mono_ms` the monotonic clock. Where `disabled_reason` is set, as after a
    failure to load a record, no snapshots are written.
    """

    name = "SnapshotGenerator"

    def __init__(
        self,
        node_id: int,
        emit: Callable[[MetadataImage], bool],
        mono_ms: Callable[[], int],
        *,
        max_bytes: int = MAX_BYTES,
        max_interval_ms: int = MAX_INTERVAL_MS,
    ) -> None:
        self.node_id = node_id
        self.max_bytes = max_bytes
        self.max_interval_ms = max_interval_ms
        self.disabled_reason: str | None = None
        self._emit = emit
        self._mono_ms = mono_ms
        self._bytes = 0
        self._last_ms = mono_ms()

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        if manifest.is_snapshot:
            self._reset()
            self._bytes = manifest.num_bytes
            return
        self._bytes += manifest.num_bytes
        if self._bytes >= self.max_bytes:
            self._due(image, f"{self._bytes} bytes were loaded since the last")
        elif self.max_interval_ms and self._mono_ms() - self._last_ms >= self.max_interval_ms:
            self._due(image, f"the last was made more than {self.max_interval_ms} ms ago")

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """Every node makes its own snapshots: they do not depend on the leader of the quorum."""

    def _due(self, image: MetadataImage, reason: str) -> None:
        if self.disabled_reason is not None:
            log.error(
                "[SnapshotGenerator id=%d] no snapshot %s although %s: snapshots are disabled, %s",
                self.node_id,
                image.provenance,
                reason,
                self.disabled_reason,
            )
        elif image.provenance.is_batch_aligned:
            log.info("[SnapshotGenerator id=%d] snapshot %s, because %s", self.node_id, image.provenance, reason)
            if self._emit(image):
                self._reset()

    def _reset(self) -> None:
        self._bytes = 0
        self._last_ms = self._mono_ms()
