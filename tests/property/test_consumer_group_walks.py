"""Random walks of consumer groups (KIP-848): heartbeats that are lost, sent twice or too late, members that die, return
and leave, topics that grow and go, assignments that take a while, coordinators that move.

In no epoch a partition has two owners, whatever the clients believe; the log gives the state that the coordinator has,
after every step; and when the storm is over, all partitions are assigned.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final

import pytest
from consumer_members import Member, contents, settle, state
from group_walk import TOPICS, GroupWalk
from groups_world import World

from kalda.assignors.server_assignors import load_assignors

KEY: Final = "group.consumer.assignors"


class Walk(GroupWalk):
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        interval_ms = self.random.choice([0, 1_000])
        self.world = world = World(consumers={"group.consumer.assignment.interval.ms": interval_ms})
        world.assignors.clear()
        world.assignors.update(load_assignors(KEY, ["uniform", "range"] if self.random.random() < 0.5 else ["range"]))
        for name in TOPICS:
            world.topics.add(name, self.random.randint(1, 5))
        self.background: deque[Any] = deque()
        self.members: list[Member] = []
        self.made = 0
        self.delayed: list[tuple[Member, dict[str, Any]]] = []
        """Heartbeats that the network has kept, each with its sender."""
        self.owners: dict[tuple[int, str, int], str] = {}
        """By epoch and partition, who was told to own it."""
        self.on_elected()

    def step(self) -> None:
        pick = self.random
        action = pick.choices(
            [self.join, self.beat, self.lose, self.repeat, self.leave, self.die, self.topic, self.move, self.work],
            [3, 20, 3, 3, 2, 1, 2, 1, 10],
        )[0]
        action()
        self.world.pass_time(pick.choice([0, 100, 1_000, 5_000]))
        self.check()

    # -- what happens

    def join(self) -> None:
        if len(self.members) >= 6:
            return
        self.made += 1
        absent = None if self.random.random() < 0.7 else f"i{self.random.randint(0, 2)}"
        if any(member.instance == absent and absent is not None for member in self.members):
            absent = None
        names = [name for name in TOPICS if self.random.random() < 0.7]
        regex = "[tu]" if self.random.random() < 0.2 else None
        member = Member(self.world, f"m{self.made}", *names, instance=absent, regex=regex, rebalance_timeout_ms=20_000)
        self.members.append(member)
        self.take(member)

    def beat(self) -> None:
        if self.members:
            self.take(self.random.choice(self.members))

    def take(self, member: Member, *, steady: bool = False) -> None:
        changed: dict[str, Any] = {}
        if member.epoch and not steady and self.random.random() < 0.1:
            member.topics = changed["subscribed_topic_names"] = [n for n in TOPICS if self.random.random() < 0.7]
        member.beat(**changed)
        if member.error == "NONE":
            who = member.instance or member.member_id
            for topic, partition in member.owned:
                key = (member.epoch, f"{topic}{self.world.topics.id_of(topic)!r}", partition)
                assert self.owners.setdefault(key, who) == who, f"{key} has two owners"

    def _fields(self, member: Member) -> dict[str, Any]:
        fields: dict[str, Any] = {"member_epoch": member.epoch, "instance_id": member.instance}
        if member.epoch == 0:
            fields |= {"subscribed_topic_names": member.topics, "rebalance_timeout_ms": 20_000}
        return fields | {"topic_partitions": member.owned_topics() if member.epoch else []}

    def lose(self) -> None:
        """The answer is lost, or the request comes later."""
        if not self.members:
            return
        member = self.random.choice(self.members)
        if self.random.random() < 0.5:
            self.delayed.append((member, self._fields(member)))
        else:
            member.send(**self._fields(member))

    def repeat(self) -> None:
        """A request of some time ago arrives; nobody waits for the answer."""
        if self.delayed:
            member, fields = self.delayed.pop(self.random.randrange(len(self.delayed)))
            member.send(**fields)

    def leave(self) -> None:
        if self.members:
            member = self.members.pop(self.random.randrange(len(self.members)))
            member.leave(-2 if member.instance is not None and self.random.random() < 0.5 else -1)

    def die(self) -> None:
        if self.members:
            self.members.pop(self.random.randrange(len(self.members)))

    def topic(self) -> None:
        name, created = self.change_topic(removal=0.3)
        if name not in self.world.topics.ids:
            for member in self.members:
                member.owned = {owned for owned in member.owned if owned[0] != name}
        self.world.coordinator.on_topics_changed([name], self.made, created=created)

    def move(self) -> None:
        """Another coordinator; what the former one had begun is not finished."""
        self.background.clear()
        self.world.elect()
        self.on_elected()

    # -- what holds

    def check(self) -> None:
        group = self.world.shard().consumers.groups.get("g")
        if group is None:
            return
        owners: dict[Any, str] = {}
        for member in group.members.values():
            for partition in member.owned():
                assert owners.setdefault(partition, member.member_id) == member.member_id, "two members own a partition"
        assert dict(group._owners.items()) == owners
        assert contents(self.world) == contents(self.world, shard=self.world.loaded_anew())

    def settle(self) -> None:
        """The storm is over: every member is heard, until the group is stable."""
        world = self.world
        for member in self.members:
            member.topics, member.regex, member.epoch = list(TOPICS), "", 0
        for _ in range(40):
            for member in self.members:
                self.take(member, steady=True)
            while self.background:
                self.work()
            world.pass_time(2_000)
        if not self.members:
            return
        assert state(world) == "Stable"
        owned = [partition for member in self.members for partition in member.owned]
        assert sorted(owned) == self.all_partitions()


@pytest.mark.parametrize("seed", range(12))
def test_no_partition_has_two_owners_in_one_epoch(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every second seed, assignments are computed in the background, as those of large groups."""
    if seed % 2:
        monkeypatch.setattr("kalda.coordinator.groups.consumer_protocol._SMALL", 0)
    walk = Walk(seed)
    for _ in range(150):
        walk.step()
    walk.settle()


def test_every_prefix_of_the_log_is_a_state_that_a_group_goes_on_from() -> None:
    world = World(consumers={"group.consumer.assignment.interval.ms": 0})
    world.topics.add("t", 6)
    members = [Member(world, name, "t") for name in "abc"]
    settle(world, *members)
    members.pop().leave()
    settle(world, *members)
    records = list(world.log.batches[0])
    for count in range(len(records) + 1):
        other = World(consumers={"group.consumer.assignment.interval.ms": 0})
        other.topics.add("t", 6)
        other.log.batches[0] = records[:count]
        other.log.ends[0] = other.log.high_watermarks[0] = 10_000 + count
        other.elect()
        late = [Member(other, name, "t") for name in "abc"]
        for _ in range(8):
            for member in late:
                member.beat()
            other.pass_time(1_000)
        assert state(other) == "Stable"
        assert sorted(partition for member in late for partition in member.numbers) == list(range(6))
