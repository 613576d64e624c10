"""The target assignment of a consumer group, computed for its group epoch in steps, since a group may have thousands of
members."""

from __future__ import annotations

from collections.abc import Collection

from kalda.assignors.server_assignor import (
    AssignorError,
    GroupSpec,
    MemberSubscription,
    TargetAssignment,
    TopicShape,
)
from kalda.base.background import Steps
from kalda.base.ids import Uuid
from kalda.coordinator.groups.config import ConsumerSettings
from kalda.coordinator.groups.consumer_group import ConsumerGroup

_SMALL = 500
"""Members and partitions together."""
_MEMBERS_A_STEP = 100
_PARTITIONS_A_STEP = 5_000


class PartitionAssigner:
    """Computes the target assignments of one shard's groups."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self._assignors = settings.assignors
        self._find_topic = settings.catalog.shape_of

    @property
    def names(self) -> Collection[str]:
        """Of the assignors, the default first."""
        return self._assignors.keys()

    @property
    def default(self) -> str:
        """The assignor of a group whose members ask for none."""
        return next(iter(self._assignors))

    def target(self, group: ConsumerGroup) -> Steps[tuple[TargetAssignment, str]]:
        """By member, and the name of the assignor. Raises `AssignorError`."""
        preferred = group.preferred_assignor(self.default)
        assignor = self._assignors.get(preferred) or self._assignors[self.default]
        spec = yield from self._spec(group)
        target = yield from assignor.assign(spec)
        yield from check_target(spec, target)
        return target, assignor.name

    def is_small(self, group: ConsumerGroup) -> bool:
        """Whether the target takes some milliseconds at most, so that a member need not wait for its next heartbeat to
        get it."""
        size = len(group.members)
        for name in group.subscribed_topics:
            if size > _SMALL:
                return False
            found = self._find_topic(name)
            size += 1 if found is None else found[1].partitions
        return size <= _SMALL

    def _spec(self, group: ConsumerGroup) -> Steps[GroupSpec]:
        names: dict[str, Uuid | None] = {}
        topics: dict[Uuid, TopicShape] = {}
        ids_of: dict[frozenset[str], frozenset[Uuid]] = {}

        def resolve(subscribed: frozenset[str]) -> frozenset[Uuid]:
            for name in subscribed:
                if name not in names:
                    found = self._find_topic(name)
                    names[name] = None if found is None else found[0]
                    if found is not None:
                        topics[found[0]] = found[1]
            return frozenset(topic_id for name in subscribed if (topic_id := names[name]) is not None)

        members: dict[str, MemberSubscription] = {}
        for count, member in enumerate(list(group.members.values()), 1):
            subscribed = group.topics_of(member)
            if subscribed not in ids_of:
                ids_of[subscribed] = resolve(subscribed)
            members[member.member_id] = MemberSubscription(ids_of[subscribed], member.rack, member.instance_id)
            if count % _MEMBERS_A_STEP == 0:
                yield
        current = {member_id: group.targets[member_id] for member_id in members if member_id in group.targets}
        return GroupSpec(members, current, topics)


def check_target(spec: GroupSpec, target: TargetAssignment) -> Steps[None]:
    """Raises `AssignorError` unless every member has a target of partitions that exist and that it subscribes to, and
    no partition has two. An assignor may be a user's."""
    if target.keys() != spec.members.keys():
        raise AssignorError("the assignment does not have all members of the group, or has others")
    assigned: dict[Uuid, set[int]] = {}
    done = 0
    for member_id, partitions in target.items():
        subscribed = spec.members[member_id].topics
        for topic_id, numbers in partitions.items():
            if topic_id not in subscribed:
                raise AssignorError(f"member {member_id} gets a topic that it does not subscribe to")
            taken, done = assigned.setdefault(topic_id, set()), done + len(numbers)
            if not taken.isdisjoint(numbers):
                raise AssignorError(f"a partition of {spec.topics[topic_id].name} is assigned to two members")
            taken |= numbers
        if done >= _PARTITIONS_A_STEP:
            done = 0
            yield
    for topic_id, all_numbers in assigned.items():
        shape = spec.topics[topic_id]
        if all_numbers and not (min(all_numbers) >= 0 and max(all_numbers) < shape.partitions):
            raise AssignorError(f"a partition that {shape.name} does not have is assigned")
