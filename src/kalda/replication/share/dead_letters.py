"""What a share partition hands to its group's dead letter topic (KIP-1191). That a record is given up is decided in
`share_partition.py` (`ShareSettings.given_up`, `after_release`), and `DeadLetterWriter` of the broker writes it.

A record that a member rejects, or that comes back after as many deliveries as the group allows, becomes a dead letter
where the group names a topic for these. It is archived when its dead letter is written, and not before: see
`DeadLetterQueue`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol

from kalda.base.scheduling import Pending
from kalda.base.share_states import SharePartitionKey


class Cause(Enum):
    """Why a record is not delivered again. The value is what its dead letter says, in Apache Kafka's words."""

    REJECTED = "Offset rejected by client."
    DELIVERED_TOO_OFTEN = "Offset delivery count exceeded the threshold."


class DeadRecords(NamedTuple):
    """The records from `first_offset` to `last_offset`, both included, of a share partition."""

    first_offset: int
    last_offset: int
    delivery_count: int
    cause: Cause


class DeadLetterQueue(Protocol):
    """Where the dead letters of all groups are written."""

    def write(self, key: SharePartitionKey, records: DeadRecords, is_wanted: Callable[[], bool]) -> Pending[None]:
        """Settles when all are in the dead letter topic of the group and acknowledged by the in-sync replicas there, or
        when the group names no such topic any more. What fails is tried again while `is_wanted()`; only after that the
        answer fails. Records may be written twice, where an answer is lost or the leader of the share partition
        changes."""
        ...
