"""Members of consumer groups (KIP-848) that speak to a coordinator in virtual time."""

from __future__ import annotations

from typing import Any

from groups_world import Answer, Context, World

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.protocol.messages.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

Partitions = set[tuple[str, int]]


class Member:
    """A client: it owns what it was assigned, and gives back at once what it is told to."""

    def __init__(
        self,
        world: World,
        member_id: str,
        *topics: str,
        group: str = "g",
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rebalance_timeout_ms: int = 60_000,
    ) -> None:
        self.world = world
        self.member_id = member_id
        self.topics = list(topics)
        self.group = group
        self.instance = instance
        self.regex = regex
        self.assignor = assignor
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.epoch = 0
        self.owned: Partitions = set()
        self.host = "127.0.0.1"
        self.error = "NONE"
        self.response: Any = None

    def send(self, version: int = 1, authorizer: Any = None, **fields: Any) -> Answer:
        """A heartbeat with these fields; the member does not look at the answer."""
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, **fields)
        context = Context(version, client_host=self.host, authorizer=authorizer)
        return Answer(self.world.coordinator.consumer_group_heartbeat(context, request, self.world.now), version)

    def beat(self, **changed: Any) -> str:
        """A heartbeat as a client sends it, and what it makes of the answer; the name of the error."""
        fields: dict[str, Any] = {"member_epoch": self.epoch, "instance_id": self.instance}
        if self.epoch == 0:
            self.owned = set()
            fields |= {
                "subscribed_topic_names": self.topics,
                "subscribed_topic_regex": self.regex,
                "rebalance_timeout_ms": self.rebalance_timeout_ms,
                "server_assignor": self.assignor,
            }
        fields["topic_partitions"] = self.owned_topics()
        return self.take(self.send(**(fields | changed)))

    def take(self, answer: Answer) -> str:
        """What a client makes of an answer."""
        self.response = response = answer.value
        self.error = ErrorCode(response.error_code).name
        if self.error == "NONE":
            self.epoch = response.member_epoch
            if response.assignment is not None:
                name_of = self.world.topics.name_of
                self.owned = {
                    (str(name_of(topic.topic_id)), partition)
                    for topic in response.assignment.topic_partitions
                    for partition in topic.partitions
                }
        elif self.error in ("FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"):
            self.epoch, self.owned = 0, set()
        return self.error

    def owned_topics(self) -> list[ConsumerGroupHeartbeatRequestTopicPartitions]:
        """What the member owns, as it says so in a heartbeat."""
        topics: dict[Uuid, list[int]] = {}
        for name, partition in sorted(self.owned):
            topic_id = self.world.topics.id_of(name)
            if topic_id is not None:
                topics.setdefault(topic_id, []).append(partition)
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ]

    def leave(self, epoch: int = -1) -> str:
        """Leave for good, or with -2 for a while."""
        answer = self.send(member_epoch=epoch, instance_id=self.instance)
        self.owned = set()
        return ErrorCode(answer.value.error_code).name

    @property
    def numbers(self) -> list[int]:
        """The partitions that it owns, of whichever topic."""
        return sorted(partition for _, partition in self.owned)


def settle(world: World, *members: Member, rounds: int = 6) -> None:
    """Heartbeats of all members, a second apart, until the group is stable."""
    for _ in range(rounds):
        for member in members:
            member.beat()
        world.pass_time(1_000)
        if state(world) == "Stable" and all(member.epoch == epochs(world)[1] for member in members):
            return


def state(world: World, group: str = "g") -> str:
    """The state of a group, Dead where there is none."""
    found = world.shard(group).consumers.groups.get(group)
    return "Dead" if found is None else found.state().value


def epochs(world: World, group: str = "g") -> tuple[int, int]:
    """Group epoch and assignment epoch."""
    found = world.shard(group).consumers.groups[group].epochs
    return found.group, found.assignment


def describe(world: World, *groups: str) -> list[Any]:
    """ConsumerGroupDescribe."""
    request = ConsumerGroupDescribeRequest(group_ids=list(groups))
    return list(world.coordinator.describe_consumer_groups(request, world.now))


def contents(world: World, group: str = "g", *, shard: Any = None) -> Any:
    """All of a group's replayed state, to be compared."""
    found = (world.shard(group) if shard is None else shard).consumers.groups.get(group)
    if found is None:
        return None
    tables = (
        found.members,
        found.targets,
        found.static_members,
        found.regexes,
        found._owners,
        found._by_topic,
        found._by_regex,
        found._by_assignor,
        found._by_protocol,
    )
    return found.epochs, [dict(table.items()) for table in tables]
