"""Consumers of the classic protocol that speak to a coordinator in virtual time, in groups of either kind."""

from __future__ import annotations

from typing import Any

from groups_world import Answer, Client, World

from kalda.assignors.consumer_protocol import read_assignment, write_assignment
from kalda.base.errors import ErrorCode
from kalda.base.ids import TopicPartition
from kalda.protocol.messages.groups import SyncGroupRequestAssignment


class ClassicMember(Client):
    """An eager consumer: it gives everything back before it joins. As the leader it deals the partitions of `t`."""

    def __init__(self, world: World, name: str, **more: Any) -> None:
        super().__init__(world, name, **{"topics": ("t",), "session_ms": 60_000, "rebalance_ms": 60_000, **more})
        self.owned: set[tuple[str, int]] = set()
        self.error = "NONE"
        self._join: Answer | None = None
        self._sync: Answer | None = None

    @property
    def numbers(self) -> list[int]:
        return sorted(partition for _, partition in self.owned)

    def step(self) -> None:
        """What a client does next: a heartbeat; JoinGroup and SyncGroup where that is answered with an error."""
        if self._join is None and self._sync is None:
            self.error = "REBALANCE_IN_PROGRESS" if self.generation < 0 else self.beat()
            if self.error == "NONE":
                return
            self._forget_unknown()
            self.owned = set()
            self._join = self.join()
        if self._join is not None and not self._join.waits:
            answer, self._join = self._join.value, None
            if self._succeeded(answer):
                self._sync = self.sync(assignments=self._deal(answer))
        if self._sync is not None and not self._sync.waits:
            answer, self._sync = self._sync.value, None
            if self._succeeded(answer):
                self.owned = set(read_assignment(answer.assignment))

    def _succeeded(self, answer: Any) -> bool:
        self.error = ErrorCode(answer.error_code).name
        if answer.error_code:
            self.generation = -1
            self._forget_unknown()
        return not answer.error_code

    def _forget_unknown(self) -> None:
        if self.error in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
            self.member_id, self.generation = "", -1

    def _deal(self, answer: Any) -> list[SyncGroupRequestAssignment]:
        if answer.leader != self.member_id:
            return []
        ids = sorted(member.member_id for member in answer.members)
        count = self.world.topics.partitions["t"]
        return [
            SyncGroupRequestAssignment(
                member_id=each,
                assignment=write_assignment(TopicPartition("t", number) for number in range(order, count, len(ids))),
            )
            for order, each in enumerate(ids)
        ]
