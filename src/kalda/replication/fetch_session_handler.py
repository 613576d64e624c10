"""The fetcher's end of a fetch session (KIP-227): name every partition once, then only those that have changed.

A session begins with a full request of epoch 0; the leader answers with the session's id, or with 0 where it has no
room, and then the next request is full again. Each further request carries the next epoch. After any error the next
request is full: it closes the old session and begins another. A machine.
"""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
    FetchResponse,
)

Key = tuple[Uuid, int]
"""Topic id and partition."""

_MAX_EPOCH = 2**31 - 1


class FetchSessionHandler:
    """One fetcher's session with one leader. Requests and responses alternate."""

    __slots__ = ("_epoch", "_id", "_in_session")

    def __init__(self) -> None:
        self._id = 0
        """0: there is no session."""
        self._epoch = 0
        """Of the next request; 0: a full one."""
        self._in_session: dict[Key, FetchRequestFetchPartition] = {}
        """The partitions that the leader's session holds after the last request."""

    def fill(self, request: FetchRequest, wanted: dict[Key, FetchRequestFetchPartition]) -> None:
        """Fill `request` so that the leader's session holds exactly the partitions that are wanted."""
        request.session_id, request.session_epoch = self._id, self._epoch
        if self._epoch == 0:
            request.topics = _by_topic(wanted.items())
        else:
            in_session = self._in_session
            request.topics = _by_topic(
                (key, each)
                for key, each in wanted.items()
                if (before := in_session.get(key)) is not each and _differs(before, each)
            )
            forgotten: dict[Uuid, list[int]] = {}
            for key in in_session:
                if key not in wanted:
                    forgotten.setdefault(key[0], []).append(key[1])
            request.forgotten_topics_data = [
                FetchRequestForgottenTopic(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in forgotten.items()
            ]
        self._in_session = wanted

    def on_response(self, response: FetchResponse) -> bool:
        """Whether the response can be used: it belongs to this session."""
        if response.error_code != ErrorCode.NONE:
            # A session that the leader does not have need not be closed; any other is, by the next, full request.
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._id = 0
            self._epoch = 0
            return False
        if self._epoch == 0:
            self._id = response.session_id
            self._epoch = 1 if self._id else 0
        elif response.session_id != self._id:
            self.restart()
            return response.session_id == 0
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        return True

    def restart(self) -> None:
        """Begin another session: what the leader's one holds is unknown, or has to be sent again."""
        self._epoch = 0


def _differs(in_session: FetchRequestFetchPartition | None, now: FetchRequestFetchPartition) -> bool:
    return (
        in_session is None
        or in_session.fetch_offset != now.fetch_offset
        or in_session.current_leader_epoch != now.current_leader_epoch
        or in_session.last_fetched_epoch != now.last_fetched_epoch
        or in_session.log_start_offset != now.log_start_offset
        or in_session.partition_max_bytes != now.partition_max_bytes
    )


def _by_topic(
    partitions: Iterable[tuple[Key, FetchRequestFetchPartition]],
) -> list[FetchRequestFetchTopic]:
    topics: dict[Uuid, FetchRequestFetchTopic] = {}
    for (topic_id, _), asked in partitions:
        topic = topics.get(topic_id)
        if topic is None:
            topic = topics[topic_id] = FetchRequestFetchTopic(topic_id=topic_id)
        topic.partitions.append(asked)
    return list(topics.values())
