"""What the group coordinator asks of the share coordinator: state of partitions begins, ends, and is summed up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from kalda.base.errors import ApiError
from kalda.base.scheduling import Pending
from kalda.base.share_states import SharePartitionKey


class StateSummary(NamedTuple):
    """How far a group is with a partition."""

    start_offset: int
    leader_epoch: int
    delivery_complete_count: int


class ShareStates(Protocol):
    """The share coordinator, wherever it is (`kalda.broker.channels.share_persister`). Nothing fails as a whole."""

    def initialize(
        self, offsets: Mapping[SharePartitionKey, int], state_epoch: int
    ) -> Pending[dict[SharePartitionKey, ApiError | None]]:
        """Begin the state of partitions, each at an offset; the error of each."""
        ...

    def delete(self, keys: Collection[SharePartitionKey]) -> Pending[dict[SharePartitionKey, ApiError | None]]:
        """End the state of partitions; the error of each."""
        ...

    def summarize(
        self, keys: Collection[SharePartitionKey]
    ) -> Pending[dict[SharePartitionKey, StateSummary | ApiError]]:
        """The state of partitions, or the error of each."""
        ...


class LatestOffsets(Protocol):
    """The ends of partitions, wherever they are led (`kalda.broker.handlers.share_coordinators`)."""

    def find(self, partitions: Collection[tuple[str, int]]) -> Pending[dict[tuple[str, int], int | ApiError]]:
        """The end that consumers see of each, or its error."""
        ...
