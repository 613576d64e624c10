"""What share consumers, the leaders of partitions and the share coordinator have in common: share partitions, the
delivery states of their records, what a member says of a record, and what is written (KIP-932)."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from kalda.base.ids import Uuid, uuid_to_text

NO_OFFSET = -1
"""The start offset of a share partition that was initialized and never read."""
MAX_MEMBER_ID = 36
"""Characters of the id of a member of a share group."""


class SharePartitionKey(NamedTuple):
    """A partition of a topic, as one share group consumes it."""

    group_id: str
    topic_id: Uuid
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key of FindCoordinator, whose hash has the partition of `__share_group_state`."""
        return f"{self.group_id}:{uuid_to_text(self.topic_id)}:{self.partition}"


class RecordState(IntEnum):
    """How far the delivery of a record to a share group is, as it is stored."""

    AVAILABLE = 0
    """Some member may acquire it."""
    ACQUIRED = 1
    """A member has it, and a lock on it. Never stored: after a change of leaders it is available."""
    ACKNOWLEDGED = 2
    """It was processed."""
    ARCHIVING = 3
    """It is not delivered again, and is archived when its dead letter is written (KIP-1191)."""
    ARCHIVED = 4
    """It is not delivered again: it was rejected, delivered too often, or removed from the log."""

    @property
    def is_terminal(self) -> bool:
        """Whether no state follows."""
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED


class AcknowledgeType(IntEnum):
    """What a member says of a record that it had."""

    GAP = 0
    """There is no such record."""
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    """It needs more time (KIP-1222)."""


class AcquireMode(IntEnum):
    """How strictly a fetch keeps to the number of records that it asks for (KIP-1206)."""

    BATCH_OPTIMIZED = 0
    """Whole record batches are acquired, so there may be more."""
    RECORD_LIMIT = 1
    """Not one more."""


class StateBatch(NamedTuple):
    """The records from `first_offset` to `last_offset`, both included."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


class StateWrite(NamedTuple):
    """What a partition's leader writes about a share partition."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: list[StateBatch]


class StateRead(NamedTuple):
    """What a partition's leader begins with."""

    state_epoch: int
    start_offset: int
    """`NO_OFFSET` where nothing was consumed yet."""
    batches: list[StateBatch]
