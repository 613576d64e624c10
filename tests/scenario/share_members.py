"""Members of share groups, whose heartbeats take one line each."""

from __future__ import annotations

from typing import Any

from groups_world import Context, World

from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.protocol.messages.share import ShareGroupHeartbeatRequest


class ShareMember:
    """One member, which keeps its epoch and what it was assigned."""

    def __init__(self, world: World, name: str = "m", group: str = "s") -> None:
        self.world = world
        self.name = name
        self.group = group
        self.epoch = 0
        self.assigned: dict[str, list[int]] = {}
        self.waiting: Any = None
        """The answer that did not come at once."""

    def beat(self, *topics: str, epoch: int | None = None, **fields: Any) -> str:
        """The error's name; "waiting" while there is no answer."""
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.name,
            member_epoch=self.epoch if epoch is None else epoch,
            subscribed_topic_names=list(topics) or None,
            **fields,
        )
        context: Any = Context(1)
        answer = self.world.coordinator.share_group_heartbeat(context, request, self.world.now)
        if isinstance(answer, Pending):
            if not answer.done:
                self.waiting = answer
                return "waiting"
            assert answer.value is not None
            answer = answer.value
        if answer.error_code:
            return ErrorCode(answer.error_code).name
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            names = {topic_id: name for name, topic_id in self.world.topics.ids.items()}
            self.assigned = {names[each.topic_id]: each.partitions for each in answer.assignment.topic_partitions}
        return "NONE"

    def settle(self, *topics: str, beats: int = 4) -> dict[str, list[int]]:
        """What it has after some heartbeats, a second apart."""
        for number in range(beats):
            assert self.beat(*(topics if number == 0 else ())) == "NONE"
            self.world.pass_time(1_000)
        return self.assigned
