"""The publisher that starts a snapshot when one is due.

A snapshot is due when enough bytes of records were loaded since the last one, or enough time has passed. Snapshots
bound how much of the log a starting node must replay, so bytes that were replayed at the start count too. A snapshot
that was loaded, from the disk or from the leader, counts as the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage
from kalda.metadata.publisher import Manifest

log = logging.getLogger(__name__)

MAX_BYTES = 20 * 1024 * 1024
MAX_INTERVAL_MS = 60 * 60 * 1000


class SnapshotGenerator:
    """`emit` starts to write the image as a snapshot. It returns False where another one is still being written: then
    the next image is tried.

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
