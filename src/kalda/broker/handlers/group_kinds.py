"""Which kinds of groups a broker serves now, and the APIs of groups of each kind.

Without anything of the coordinator of groups: that is imported at its first use.
"""

from __future__ import annotations

from typing import Final

from kalda.base.configs.server import ServerConfig
from kalda.broker.metadata_cache import MetadataCache
from kalda.metadata.features import GROUP_VERSION, SHARE_VERSION, STREAMS_VERSION
from kalda.protocol.apis import ApiKey

CLASSIC_GROUP_APIS: Final = frozenset(
    {
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DELETE_GROUPS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
    }
)
"""These, and those of offsets, which groups of all kinds but share groups have."""
CONSUMER_GROUP_APIS: Final = frozenset({ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE})
STREAMS_GROUP_APIS: Final = frozenset(
    {
        ApiKey.STREAMS_GROUP_HEARTBEAT,
        ApiKey.STREAMS_GROUP_DESCRIBE,
        ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,
    }
)
SHARE_MEMBER_APIS: Final = frozenset({ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE})
"""At the leaders of partitions."""
SHARE_GROUP_APIS: Final = frozenset(
    {
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ApiKey.SHARE_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
    }
)
"""At the coordinator of groups."""
SHARE_STATE_APIS: Final = frozenset(
    {
        ApiKey.INITIALIZE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE,
        ApiKey.WRITE_SHARE_GROUP_STATE,
        ApiKey.DELETE_SHARE_GROUP_STATE,
        ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    }
)
"""Between brokers."""
GROUP_APIS: Final = CLASSIC_GROUP_APIS | CONSUMER_GROUP_APIS | STREAMS_GROUP_APIS | SHARE_GROUP_APIS
"""Of the coordinator of groups."""


class GroupKinds:
    """Those of one broker: by its properties, and by the features of the cluster."""

    def __init__(self, config: ServerConfig, cache: MetadataCache) -> None:
        self._protocols = config["group.coordinator.rebalance.protocols"]
        self._cache = cache

    def serves_consumer_groups(self) -> bool:
        """Those of KIP-848."""
        return "consumer" in self._protocols and self._cache.image.features.level(GROUP_VERSION) > 0

    def serves_streams_groups(self) -> bool:
        """Those of KIP-1071."""
        return "streams" in self._protocols and self._cache.image.features.level(STREAMS_VERSION) > 0

    def serves_share_groups(self) -> bool:
        """Those of KIP-932."""
        return self._cache.image.features.level(SHARE_VERSION) > 0

    def hidden_apis(self) -> frozenset[ApiKey]:
        """The APIs that ApiVersions does not announce now, since they are not served."""
        hidden: frozenset[ApiKey] = frozenset()
        if not self.serves_consumer_groups():
            hidden |= CONSUMER_GROUP_APIS
        if not self.serves_streams_groups():
            hidden |= STREAMS_GROUP_APIS
        return hidden if self.serves_share_groups() else hidden | SHARE_GROUP_APIS | SHARE_MEMBER_APIS
