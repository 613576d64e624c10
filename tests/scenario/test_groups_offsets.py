"""Committed offsets: which commits are accepted, how long offsets are kept, and when they are readable."""

from __future__ import annotations

from typing import Any

import pytest
from groups_world import Answer, Client, Context, World, settle

from kalda.base.background import Steps, run_to_end
from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.coordinator.groups.offsets import Offsets
from kalda.coordinator.runtime import LoadState
from kalda.protocol.messages.groups import (
    DeleteGroupsRequest,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS


def delete_offsets(world: World, topic: str, *partitions: int, group: str = "g") -> Answer:
    asked = [OffsetDeleteRequestPartition(partition_index=each) for each in partitions]
    request = OffsetDeleteRequest(group_id=group, topics=[OffsetDeleteRequestTopic(name=topic, partitions=asked)])
    return Answer(world.coordinator.offsets.delete(Context(0), request, world.now), 0)


def test_a_member_commits_and_its_successor_resumes() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world)
    settle(world, a)
    assert a.commit({("orders", 0): 42, ("orders", 1): 7}).errors == ["NONE", "NONE"]
    a.leave()
    assert world.fetch({"orders": [0, 1, 2]}) == {("orders", 0): 42, ("orders", 1): 7, ("orders", 2): -1}
    assert world.fetch() == {("orders", 0): 42, ("orders", 1): 7}


def test_commits_are_checked_against_the_generation() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a, b = Client(world, "a"), Client(world, "b")
    settle(world, a)
    at = {("orders", 0): 1}
    assert world.commit(at, member=a.member_id, generation=9).error == "ILLEGAL_GENERATION"
    assert world.commit(at, member="nobody", generation=1).error == "UNKNOWN_MEMBER_ID"
    assert world.commit(at).error == "UNKNOWN_MEMBER_ID", "anonymous, while the group has members"
    b.join()
    assert a.commit(at).error == "NONE", "a rebalance is prepared: the last generation may still commit"
    a.join()
    assert a.commit(at).error == "REBALANCE_IN_PROGRESS"


def test_a_group_that_is_not_there() -> None:
    world = World()
    at = {("orders", 0): 1}
    assert world.commit(at, member="m", generation=3, version=9).error == "GROUP_ID_NOT_FOUND"
    assert world.commit(at, member="m", generation=3, version=8).error == "ILLEGAL_GENERATION"
    assert world.fetch({"orders": [0]}) == {("orders", 0): -1}
    assert world.fetch() == {}
    assert delete_offsets(world, "orders", 0).value.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_without_membership_make_a_simple_group() -> None:
    world = World()
    assert world.commit({("orders", 0): 5}, group="simple").error == "NONE"
    assert world.state("simple") == "Empty 0"
    assert world.group("simple").protocol_type is None
    assert world.commit({("orders", 0): 5}, group="").error == "NONE", "old clients may have no group at all"


def test_each_partition_that_cannot_be_committed_has_an_error() -> None:
    world = World(offset_metadata_max_bytes=10)
    answer = world.commit({("orders", 0): 1, ("orders", 99): 1, ("nothing", 0): 1})
    assert answer.errors == ["NONE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert world.commit({("orders", 0): 1}, metadata="x" * 11).error == "OFFSET_METADATA_TOO_LARGE"
    assert world.commit({("orders", 0): 1}, metadata="🚂" * 5).error == "NONE"
    assert world.commit({("orders", 0): 1}, metadata="🚂" * 5 + "x").error == "OFFSET_METADATA_TOO_LARGE"


def test_a_commit_is_answered_and_seen_when_it_is_replicated() -> None:
    world = World()
    world.commit({("orders", 0): 1})
    world.log.replicated = False
    answer = world.commit({("orders", 0): 2, ("orders", 1): 2})
    assert answer.waits
    assert world.fetch() == {("orders", 0): 1}
    assert world.fetch({"orders": [0, 1]}) == {("orders", 0): 1, ("orders", 1): -1}
    world.replicate()
    assert answer.error == "NONE"
    assert world.fetch() == {("orders", 0): 2, ("orders", 1): 2}


def test_require_stable_waits_for_the_commits_under_way() -> None:
    world = World()
    world.log.replicated = False
    world.commit({("orders", 0): 2})
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=True)
    answer = Answer(world.coordinator.offsets.fetch(Context(9), request, world.now), 9)
    assert answer.waits
    world.replicate()
    assert answer.value.groups[0].topics[0].partitions[0].committed_offset == 2


def test_a_commit_that_is_not_replicated_in_time_fails() -> None:
    world = World(commit_timeout_ms=5_000)
    world.log.replicated = False
    answer = world.commit({("orders", 0): 2})
    world.pass_time(4_999)
    assert answer.waits
    world.pass_time(1)
    assert answer.error == "COORDINATOR_NOT_AVAILABLE"
    world.replicate()
    assert world.fetch() == {("orders", 0): 2}, "it was written all the same"


def test_an_append_that_fails_changes_nothing() -> None:
    world = World()
    world.commit({("orders", 0): 1})
    for failure, error in (
        (ErrorCode.NOT_ENOUGH_REPLICAS, "COORDINATOR_NOT_AVAILABLE"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "NOT_COORDINATOR"),
        (ErrorCode.MESSAGE_TOO_LARGE, "UNKNOWN_SERVER_ERROR"),
    ):
        world.log.failure = failure
        assert world.commit({("orders", 0): 2}).error == error
    assert world.fetch() == {("orders", 0): 1}
    assert Client(world, group="new").join().error == "UNKNOWN_SERVER_ERROR"
    assert world.state("new") == "Dead"


@pytest.mark.parametrize(("version", "error"), [(10, "UNKNOWN_TOPIC_ID"), (9, "UNKNOWN_TOPIC_OR_PARTITION")])
def test_topic_ids_distinguish_topics_of_one_name(version: int, error: str) -> None:
    world = World()
    old = world.topics.ids["orders"]
    assert world.commit({("orders", 0): 5, ("nothing", 0): 1}, version=version).errors == ["NONE", error]
    world.topics.remove("orders")
    new = world.topics.add("orders", generation=2)

    def fetch(topic_id: Uuid) -> tuple[int, int]:
        asked = [OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=asked)])
        answer = Answer(world.coordinator.offsets.fetch(Context(10), request, world.now), 10)
        found = answer.value.groups[0].topics[0]
        assert found.topic_id == topic_id
        return found.partitions[0].committed_offset, found.partitions[0].error_code

    asked = [OffsetFetchRequestTopics(topic_id=each, partition_indexes=[0]) for each in (old, new, Uuid(b"?" * 16))]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=asked)])
    answer = Answer(world.coordinator.offsets.fetch(Context(10), request, world.now), 10)
    ids = [each.topic_id for each in answer.value.groups[0].topics]
    assert ids == [new, old, Uuid(b"?" * 16)], "topics of unknown ids come last"
    assert fetch(new) == (-1, 0)
    assert fetch(old) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)
    world.runtime.on_topics_deleted({"orders": new})
    world.topics.remove("orders")
    assert world.fetch() == {("orders", 0): 5}, "the offset was not that topic's"
    world.runtime.on_topics_deleted({"orders": old})
    assert world.fetch() == {}


def test_a_topic_begins_without_the_offsets_of_a_former_topic_of_its_name() -> None:
    """It was deleted while the partition of its group was being loaded, and made again under its old name."""
    world = World()
    world.commit({("orders", 0): 5})
    world.topics.remove("orders")
    world.elect()
    world.topics.add("orders", generation=2)
    assert world.fetch() == {}
    assert world.fetch({"orders": [0]}) == {("orders", 0): -1}
    world.commit({("orders", 0): 1})
    assert world.fetch() == world.fetch({"orders": [0]}) == {("orders", 0): 1}


def test_fetches_of_old_versions_have_one_group() -> None:
    world = World()
    world.commit({("orders", 0): 5})
    asked = [OffsetFetchRequestTopic(name="orders", partition_indexes=[0])]
    for version in range(1, 8):
        request = OffsetFetchRequest(group_id="g", topics=asked)
        answer = Answer(world.coordinator.offsets.fetch(Context(version), request, world.now), version)
        assert answer.value.topics[0].partitions[0].committed_offset == 5
    everything = OffsetFetchRequest(group_id="g", topics=None)
    answer = Answer(world.coordinator.offsets.fetch(Context(2), everything, world.now), 2)
    assert answer.value.topics[0].name == "orders"


def test_groups_of_partitions_that_are_not_served_get_errors() -> None:
    world = World(partitions=4)
    world.elect(range(1, 4))
    at = {("orders", 0): 1}
    assert world.commit(at, group="a").error == "NONE"
    assert world.commit(at, group="").error == "NOT_COORDINATOR"
    assert world.fetch(group="classic-group") == "NOT_COORDINATOR"
    request = OffsetFetchRequest(group_id="", topics=[OffsetFetchRequestTopic(name="orders", partition_indexes=[0])])
    old = world.coordinator.offsets.fetch(Context(1), request, world.now)
    assert Answer(old, 1).errors == ["NOT_COORDINATOR"]
    world.runtime.on_elected(0, 9, world.now)
    assert world.fetch(group="classic-group") == "COORDINATOR_LOAD_IN_PROGRESS"
    assert Client(world, group="classic-group").beat() == "NONE", "whether the member exists is unknown during the load"
    world.partitions = 0
    assert world.commit(at, group="a").error == "NOT_COORDINATOR"
    assert world.fetch(group="classic-group") == "NOT_COORDINATOR", "as in Apache Kafka, while there is no topic"


def test_offsets_expire_when_their_group_was_empty_for_the_retention_time() -> None:
    world = World(initial_rebalance_delay_ms=0, offsets_retention_ms=WEEK_MS)
    a = Client(world)
    settle(world, a)
    a.commit({("orders", 0): 1})
    for _ in range(10):
        world.pass_time(6_000)
        a.beat()
    a.leave()
    world.pass_time(WEEK_MS - 600_001)
    assert world.fetch() == {("orders", 0): 1}
    world.pass_time(1_200_000)
    assert world.fetch() == {}
    assert world.state() == "Dead"


def counted(world: World) -> dict[str, float]:
    """What the coordinator has counted, where that is not 0."""
    sensors = world.coordinator.counters.sensors()
    return {name.name: value for name, sensor in sensors if (value := sensor.measure(world.now))}


def test_rebalances_and_offsets_are_counted() -> None:
    world = World(initial_rebalance_delay_ms=1, offsets_retention_ms=WEEK_MS)
    a, b = Client(world, "a"), Client(world, "b")
    settle(world, a, b)
    a.commit({("orders", 0): 1, ("orders", 1): 1})
    a.commit({("payments", 0): 2})
    assert a.commit({("nothing", 0): 2}).errors == ["UNKNOWN_TOPIC_OR_PARTITION"]
    found = counted(world)
    assert (found["group-completed-rebalance-count"], found["offset-commit-count"]) == (1, 3)
    assert found["offset-commit-rate"] > found["group-completed-rebalance-rate"] > 0
    for client in (a, b):
        client.leave()
    delete_offsets(world, "payments", 0)
    assert counted(world)["offset-deletion-count"] == 1
    world.pass_time(WEEK_MS + 600_000)
    found = counted(world)
    assert found.pop("offset-expiration-count") == 2
    assert "offset-commit-rate" not in found, "a rate is of the last minute"
    runtime = world.coordinator.runtime
    assert [runtime.count(state) for state in LoadState] == [0, 0, len(list(runtime.active_shards()))]


def test_offsets_of_a_topic_that_live_members_subscribe_to_never_expire() -> None:
    world = World(initial_rebalance_delay_ms=0, offsets_retention_ms=3_600_000)
    a = Client(world, topics=("orders",), session_ms=1_800_000)
    settle(world, a)
    a.commit({("orders", 0): 1, ("payments", 0): 2})
    for _ in range(10):
        world.pass_time(1_000_000)
        assert a.beat() == "NONE"
    assert world.fetch() == {("orders", 0): 1}
    assert world.state() == "Stable 1"


def test_offsets_of_a_live_group_with_unreadable_subscriptions_never_expire() -> None:
    world = World(initial_rebalance_delay_ms=0, offsets_retention_ms=3_600_000)
    a = Client(world, session_ms=1_800_000)
    a.protocols[0].metadata = b"\x00\x00\x7f\xff\xff\xff"
    settle(world, a)
    a.commit({("payments", 0): 2})
    for _ in range(10):
        world.pass_time(1_000_000)
        a.beat()
    assert world.fetch() == {("payments", 0): 2}


def test_simple_groups_expire_by_commit_and_by_the_clients_own_retention() -> None:
    world = World(offsets_retention_ms=DAY_MS)
    world.commit({("orders", 0): 1}, group="simple")
    world.commit({("orders", 1): 1}, group="simple", version=4, retention_ms=3_600_000)
    world.pass_time(2 * 3_600_000)
    assert world.fetch(group="simple") == {("orders", 0): 1}
    world.pass_time(DAY_MS)
    assert world.state("simple") == "Dead"


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 2**63 - 10**12, 0, -2, -(2**63)])
@pytest.mark.parametrize("offset", [2**63 - 1, 0, -(2**63)])
def test_every_number_of_a_commit_can_be_stored_and_read_again(retention_ms: int, offset: int) -> None:
    world = World(offsets_retention_ms=DAY_MS)
    answer = world.commit({("orders", 0): offset}, group="simple", version=4, retention_ms=retention_ms)
    assert answer.errors == ["NONE"]
    world.elect()
    assert world.fetch(group="simple") == {("orders", 0): offset}
    world.pass_time(30 * DAY_MS)
    assert world.state("simple") == ("Empty 0" if retention_ms > 0 else "Dead")


def test_offsets_of_subscribed_topics_cannot_be_deleted() -> None:
    world = World(initial_rebalance_delay_ms=0)
    a = Client(world, topics=("orders",))
    settle(world, a)
    a.commit({("orders", 0): 1, ("payments", 0): 2})
    assert delete_offsets(world, "orders", 0).errors == ["GROUP_SUBSCRIBED_TO_TOPIC"]
    assert delete_offsets(world, "payments", 0, 1).errors == ["NONE", "NONE"]
    assert delete_offsets(world, "nothing", 0).errors == ["UNKNOWN_TOPIC_OR_PARTITION"]
    assert world.fetch() == {("orders", 0): 1}
    worker = Client(world, group="workers", protocol_type="connect")
    settle(world, worker)
    assert delete_offsets(world, "orders", 0, group="workers").value.error_code == ErrorCode.NON_EMPTY_GROUP


@pytest.mark.parametrize("reason", ["expired", "the topic is deleted", "the group is deleted"])
def test_more_offsets_are_deleted_than_fit_into_a_batch(reason: str) -> None:
    name = "long" * 50
    world = World(offsets_retention_ms=10_000, retention_check_interval_ms=1_000)
    world.topics.add(name, partitions=6_000)
    for start in range(0, 6_000, 2_000):
        assert set(world.commit({(name, at): 1 for at in range(start, start + 2_000)}).errors) == {"NONE"}
    if reason == "expired":
        world.pass_time(12_000)
    elif reason == "the topic is deleted":
        world.runtime.on_topics_deleted({name: world.topics.ids[name]})
    else:
        request = DeleteGroupsRequest(groups_names=["g"])
        answer = Answer(world.coordinator.delete_groups(Context(2), request, world.now), 2)
        assert [each.error_code for each in answer.value.results] == [0]
    assert world.fetch() == {}


def test_offsets_of_many_groups_expire_in_steps() -> None:
    """Those of one group in one step."""
    world = World(offsets_retention_ms=10_000, retention_check_interval_ms=1_000)
    background: list[Steps[None]] = []
    world.runtime.timers.run = background.append
    world.topics.add("large", partitions=600)
    groups = ("one", "two", "three")
    for group in groups:
        assert set(world.commit({("large", at): 1 for at in range(600)}, group=group).errors) == {"NONE"}
    world.now += 12_000
    world.runtime.poll(world.now)
    [steps] = background
    next(steps)
    assert [len(world.fetch(group=group)) for group in groups] == [0, 600, 600]
    run_to_end(steps)
    assert [len(world.fetch(group=group)) for group in groups] == [0, 0, 0]
    assert [world.state(group) for group in groups] == ["Dead"] * 3


def test_a_fault_in_one_group_keeps_no_other_from_expiring(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(offsets_retention_ms=10_000, retention_check_interval_ms=1_000)
    for group in ("one", "two", "three"):
        world.commit({("orders", 0): 1}, group=group)
    expire = Offsets.expire

    def faulty(self: Offsets, group: Any, *rest: Any) -> bool:
        if group.group_id == "two":
            raise RuntimeError("thrown on purpose")
        return expire(self, group, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Offsets, "expire", faulty)
        world.pass_time(12_000)
        assert [world.state(group) for group in ("one", "two", "three")] == ["Dead", "Empty 0", "Dead"]
    world.pass_time(1_000)
    assert world.state("two") == "Dead", "the next pass has no fault"
