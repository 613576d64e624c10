"""The interface of an operator's own class that decides whose quota applies: `client.quota.callback.class`.

It replaces the eight levels of `entities`. Kafka's `ClientQuotaCallback` (KIP-257), with Python's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kalda.quota.entities import Entity


class ClientQuotaCallback(Protocol):
    """All methods are called on the event loop: they must return at once, without files or network.

    `quota_type` is PRODUCE, FETCH, REQUEST or CONTROLLER_MUTATION.
    """

    def quota_metric_tags(self, quota_type: str, user: str, client_id: str) -> Mapping[str, str]:
        """Clients with the same tags share a quota. Called for every request."""
        ...

    def quota_limit(self, quota_type: str, metric_tags: Mapping[str, str]) -> float | None:
        """The quota of those tags; None for no limit."""
        ...

    def update_quota(self, quota_type: str, entity: Entity, value: float) -> None:
        """A quota in the metadata was set."""
        ...

    def remove_quota(self, quota_type: str, entity: Entity) -> None:
        """A quota in the metadata was removed."""
        ...

    def quota_reset_required(self, quota_type: str) -> bool:
        """Whether limits have changed since the last call: all are asked for again then."""
        ...
