"""The publisher that calls for a new registration of this broker when its old one lacks log directories.

The registration of a broker under a metadata.version below 3.7-IV2 has no log directories. Once the cluster is at that
level or higher the registration must list them, or no replica could be assigned to one. A rolling upgrade does not
restart brokers after the level was raised, so the broker registers anew without a restart (KIP-858). A superfluous
registration is harmless; a replay of old records may cause one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage
from kalda.metadata.publisher import Manifest

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
