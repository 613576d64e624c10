"""Share sessions: which partitions a member fetches from this broker, as it has named them one after another.

A session belongs to a member of a group, and ends with the connection that made it. Its epoch counts the requests: one
that comes again, or out of order, is refused, so that no acknowledgement counts twice. Epoch 0 begins a session in
place of a former one, -1 ends it. The number of sessions is bounded; a member without one fetches nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.share_states import MAX_MEMBER_ID
from kalda.protocol.naming import MAX_ELEMENTS_SENT

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_LAST_EPOCH = (1 << 31) - 1
_MOST_PARTITIONS = 2 * MAX_ELEMENTS_SENT
"""As many as one request may name, and a share group consumes."""


class TopicIdPartition(NamedTuple):
    """A partition, by its topic's id."""

    topic_id: Uuid
    number: int


class ShareSession:
    """One member's."""

    __slots__ = ("connection_id", "epoch", "group_id", "is_new", "member_id", "partitions")

    def __init__(self, group_id: str, member_id: str, connection_id: int) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection_id = connection_id
        self.epoch = INITIAL_EPOCH
        """That of the latest request."""
        self.partitions: dict[TopicIdPartition, None] = {}
        """What the member fetches, in the order in which it was named."""

    def rotated(self) -> list[TopicIdPartition]:
        """The partitions, with another one first in each request: none is always last where the first ones have
        enough for every answer."""
        partitions = list(self.partitions)
        if not partitions:
            return partitions
        at = self.epoch % len(partitions)
        return partitions[at:] + partitions[:at]


class ShareSessions:
    """Those of one broker."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_member: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[int, dict[tuple[str, str], None]] = {}
        self.partition_count = 0
        """Partitions in all sessions."""
        self.evictions = 0
        """Sessions that ended with their connection."""

    def __len__(self) -> int:
        return len(self._by_member)

    def begin(self, group_id: str, member_id: str, connection_id: int) -> ShareSession:
        """A new session, in place of the member's former one. Raises SHARE_SESSION_LIMIT_REACHED; the former one has
        ended all the same."""
        self.end(group_id, member_id)
        if len(self._by_member) >= self._most:
            raise ApiError(
                ErrorCode.SHARE_SESSION_LIMIT_REACHED,
                f"This broker has {self._most} share sessions, the most that group.share.max.share.sessions allows.",
            )
        session = self._by_member[group_id, member_id] = ShareSession(group_id, member_id, connection_id)
        self._by_connection.setdefault(connection_id, {})[group_id, member_id] = None
        return session

    def get(self, group_id: str, member_id: str) -> ShareSession:
        """Raises SHARE_SESSION_NOT_FOUND."""
        session = self._by_member.get((group_id, member_id))
        if session is None:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND, f"The member {member_id} has no share session here.")
        return session

    def advance(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session, one request later. Raises SHARE_SESSION_NOT_FOUND, and INVALID_SHARE_SESSION_EPOCH where
        `epoch` does not follow that of the latest request."""
        session = self.get(group_id, member_id)
        if epoch != session.epoch % _LAST_EPOCH + 1:
            raise ApiError(
                ErrorCode.INVALID_SHARE_SESSION_EPOCH,
                f"The share session epoch {epoch} does not follow {session.epoch}.",
            )
        session.epoch = epoch
        return session

    def update(
        self, session: ShareSession, added: Collection[TopicIdPartition], forgotten: Iterable[TopicIdPartition]
    ) -> None:
        """Fetch these partitions too, and those no more. Raises INVALID_REQUEST where that would be more than a
        session may have."""
        before = len(session.partitions)
        if before + len(added) > _MOST_PARTITIONS < len(session.partitions.keys() | added):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"A share session has {_MOST_PARTITIONS} partitions at most.")
        for partition in forgotten:
            session.partitions.pop(partition, None)
        session.partitions.update(dict.fromkeys(added))
        self.partition_count += len(session.partitions) - before

    def end(self, group_id: str, member_id: str) -> ShareSession | None:
        """The session has ended; None where there was none."""
        session = self._by_member.pop((group_id, member_id), None)
        if session is not None:
            self.partition_count -= len(session.partitions)
            of_connection = self._by_connection.get(session.connection_id, {})
            of_connection.pop((group_id, member_id), None)
            if not of_connection:
                self._by_connection.pop(session.connection_id, None)
        return session

    def on_disconnect(self, connection_id: int) -> list[ShareSession]:
        """A connection was closed: its sessions, which have ended."""
        ended = [self.end(*key) for key in list(self._by_connection.get(connection_id, ()))]
        self.evictions += len(ended)
        return [session for session in ended if session is not None]


def check_member(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    """Group and member of a request. Raises INVALID_REQUEST where either is missing."""
    if group_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid group id in the request.")
    if not member_id or len(member_id) > MAX_MEMBER_ID:
        raise ApiError(ErrorCode.INVALID_REQUEST, "Invalid member id in the request.")
    return group_id, member_id
