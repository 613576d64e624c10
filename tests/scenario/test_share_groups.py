"""Share groups at their coordinator: heartbeats, initialization, assignment, sessions, offsets, their end."""

from __future__ import annotations

from typing import Any

import pytest
from groups_world import Context, World
from share_members import ShareMember

from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending
from kalda.base.share_states import SharePartitionKey
from kalda.protocol.messages.groups import DeleteGroupsRequest, ListGroupsRequest
from kalda.protocol.messages.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    ShareGroupDescribeRequest,
)


@pytest.fixture
def world() -> World:
    """Topics `orders` and `payments` of four partitions each."""
    return World()


def key(world: World, partition: int, topic: str = "orders") -> SharePartitionKey:
    return SharePartitionKey("s", world.topics.ids[topic], partition)


def value_of(answer: Any) -> Any:
    if isinstance(answer, Pending):
        assert answer.done
        assert answer.error is None, answer.error
        return answer.value
    return answer


def described(world: World, group: str = "s") -> Any:
    (found,) = world.coordinator.describe_share_groups(ShareGroupDescribeRequest(group_ids=[group]), world.now)
    return found


def deleted(world: World, group: str = "s") -> str:
    request = DeleteGroupsRequest(groups_names=[group])
    context: Any = Context(2)
    (result,) = value_of(world.coordinator.delete_groups(context, request, world.now)).results
    return ErrorCode(result.error_code).name


# -- members


def test_partitions_are_assigned_once_they_are_initialized(world: World) -> None:
    """Those who join meanwhile wait for that, and get them with their first answer."""
    world.states.holds = True
    first, second = ShareMember(world, "a"), ShareMember(world, "b")
    assert [first.beat("orders"), second.beat("orders")] == ["waiting", "waiting"]
    assert sorted(each.partition for each in world.states.starts) == [0, 1, 2, 3]
    assert set(world.states.starts.values()) == {-1}
    assert set(world.states.epochs.values()) == {2}, "the state epoch is the group's"
    world.states.settle()
    answers = [first.waiting.value, second.waiting.value]
    assert [(each.error_code, each.member_epoch) for each in answers] == [(0, 3), (0, 3)]
    given = [number for each in answers for topic in each.assignment.topic_partitions for number in topic.partitions]
    assert sorted(given) == [0, 1, 2, 3]


def test_a_member_waits_for_its_first_partitions_for_a_second(world: World) -> None:
    world.states.holds = True
    member = ShareMember(world)
    assert member.beat("orders") == "waiting"
    world.pass_time(1_000)
    answer = member.waiting.value
    assert (answer.error_code, answer.member_epoch, answer.assignment.topic_partitions) == (0, 2, [])
    member.epoch = 2
    assert member.beat() == "NONE"
    world.states.settle()
    world.pass_time(1_000)
    assert member.beat() == "NONE"
    assert (member.epoch, member.assigned) == (3, {"orders": [0, 1, 2, 3]})


def test_a_member_of_a_coordinator_that_is_replaced_meanwhile_looks_for_the_next(world: World) -> None:
    world.states.holds = True
    member = ShareMember(world)
    assert member.beat("orders") == "waiting"
    world.runtime.on_resigned(0)
    world.states.settle()
    assert ErrorCode(member.waiting.value.error_code) is ErrorCode.NOT_COORDINATOR


def test_members_share_partitions(world: World) -> None:
    members = [ShareMember(world, f"m{number}") for number in range(6)]
    for member in members:
        member.settle("orders")
    for member in members:
        member.settle()
    held = [partition for member in members for partition in member.assigned.get("orders", [])]
    assert set(held) == {0, 1, 2, 3}
    assert all(member.assigned for member in members), "more members than partitions, and none is idle"
    found = described(world)
    assert (found.group_state, len(found.members), found.assignor_name) == ("Stable", 6, "simple")
    assert found.group_epoch == found.assignment_epoch


def test_what_a_member_subscribes_to_changes_its_assignment(world: World) -> None:
    member = ShareMember(world)
    assert member.settle("orders") == {"orders": [0, 1, 2, 3]}
    assert member.settle("payments") == {"payments": [0, 1, 2, 3]}
    epoch = member.epoch
    member.settle("payments")
    assert member.epoch == epoch, "a subscription that is sent again changes nothing"


def test_a_topic_that_grows_is_initialized_and_assigned(world: World) -> None:
    member = ShareMember(world)
    member.settle("orders")
    world.topics.partitions["orders"] = 6
    world.coordinator.on_topics_changed(["orders"], 1, created=False)
    assert member.settle() == {"orders": [0, 1, 2, 3, 4, 5]}
    assert len(world.states.starts) == 6


def test_a_deleted_topic_is_forgotten(world: World) -> None:
    member = ShareMember(world)
    member.settle("orders", "payments")
    deleted_topics = {"orders": world.topics.ids["orders"]}
    world.topics.remove("orders")
    world.runtime.on_topics_deleted(deleted_topics)
    world.coordinator.on_topics_changed(["orders"], 1, created=False)
    assert member.settle() == {"payments": [0, 1, 2, 3]}
    assert set(world.shard("s").shares.get("s").initialization.initialized) == {world.topics.ids["payments"]}


def test_an_initialization_that_fails_or_is_lost_is_tried_again(world: World) -> None:
    world.states.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    member = ShareMember(world)
    assert member.settle("orders") == {}
    world.states.failure = None
    assert member.settle() == {"orders": [0, 1, 2, 3]}
    world.states.holds = True
    member.settle("orders", "payments")
    assert member.assigned == {"orders": [0, 1, 2, 3]}
    world.states.waiting.clear()  # the broker that asked has stopped
    world.states.holds = False
    world.pass_time(20_000)
    member.settle()
    assert "payments" not in member.assigned
    world.pass_time(10_000)
    assert "payments" in member.settle()


def test_an_initialization_that_is_lost_does_not_wait_for_a_clock_that_was_set_back(world: World) -> None:
    member = ShareMember(world)
    member.settle("orders")
    world.states.holds = True
    member.settle("orders", "payments")
    world.states.waiting.clear()  # the broker that asked has stopped
    world.states.holds = False
    world.runtime._wall_ms = lambda: world.now - 3_600_000
    assert member.settle().keys() == {"orders", "payments"}


def test_a_member_leaves(world: World) -> None:
    first, second = ShareMember(world, "m1"), ShareMember(world, "m2")
    first.settle("orders")
    second.settle("orders")
    first.settle()
    assert first.beat(epoch=-1) == "NONE"
    assert second.settle() == {"orders": [0, 1, 2, 3]}
    assert first.beat(epoch=3) == "UNKNOWN_MEMBER_ID"
    assert second.beat(epoch=-1) == "NONE"
    found = described(world)
    assert (found.group_state, found.assignment_epoch) == ("Empty", found.group_epoch)


def test_a_silent_member_is_removed(world: World) -> None:
    member, other = ShareMember(world, "m1"), ShareMember(world, "m2")
    member.settle("orders")
    other.settle("orders")
    for _ in range(5):
        world.pass_time(10_000)
        assert other.beat() == "NONE"
    assert member.beat() == "UNKNOWN_MEMBER_ID"
    assert other.settle() == {"orders": [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(2, "FENCED_MEMBER_EPOCH"), (3, "NONE"), (4, "NONE"), (5, "FENCED_MEMBER_EPOCH"), (0, "NONE")],
)
def test_a_heartbeat_of_the_epoch_before_is_accepted(world: World, epoch: int, expected: str) -> None:
    member = ShareMember(world)
    member.settle("orders")
    member.settle("orders", "payments")
    assert member.epoch == 4
    assert member.beat("orders", "payments", epoch=epoch) == expected


def test_a_heartbeat_of_the_epoch_before_is_answered_with_the_assignment(world: World) -> None:
    """The answer of the present epoch may have been that of a request which its client had given up."""
    a, b = ShareMember(world, "a"), ShareMember(world, "b")
    a.settle("orders")
    b.settle("orders")
    epoch, assigned = a.epoch, a.assigned
    assert a.beat() == "NONE"
    assert a.epoch > epoch
    assert a.assigned != assigned
    a.assigned = {}
    assert a.beat(epoch=epoch) == "NONE"
    assert a.assigned


def test_forged_heartbeats_are_refused(world: World) -> None:
    assert ShareMember(world).beat() == "INVALID_REQUEST", "the first one names topics"
    assert ShareMember(world).beat("orders", epoch=-2) == "INVALID_REQUEST"
    assert ShareMember(world, "").beat("orders") == "INVALID_REQUEST"
    assert ShareMember(world, "m" * 37).beat("orders") == "INVALID_REQUEST"
    assert ShareMember(world, group=" ").beat("orders") == "INVALID_REQUEST"
    assert ShareMember(world).beat("orders", rack_id="") == "INVALID_REQUEST"
    assert ShareMember(world).beat(epoch=5) == "GROUP_ID_NOT_FOUND"
    assert ShareMember(world).beat(epoch=-1) == "GROUP_ID_NOT_FOUND"


def test_a_group_has_so_many_members_and_no_more() -> None:
    world = World(consumers={"group.share.max.size": 2})
    members = [ShareMember(world, f"m{number}") for number in range(3)]
    assert [member.beat("orders") for member in members] == ["NONE", "NONE", "GROUP_MAX_SIZE_REACHED"]
    assert members[0].beat() == "NONE"


def test_a_group_has_so_many_partitions_and_no_more(world: World, monkeypatch: Any) -> None:
    monkeypatch.setattr("kalda.coordinator.groups.share_protocol.MAX_ASSIGNED", 6)
    assigned = ShareMember(world).settle("orders", "payments")
    assert sum(map(len, assigned.values())) == 6


def test_an_id_belongs_to_one_kind_of_group(world: World) -> None:
    world.commit({("orders", 0): 5}, group="classic")
    assert ShareMember(world, group="classic").beat("orders") == "GROUP_ID_NOT_FOUND"
    ShareMember(world).settle("orders")
    assert world.commit({("orders", 0): 5}, group="s") != "NONE"
    listed = world.coordinator.list_groups(ListGroupsRequest(types_filter=["share"]), world.now)
    assert [(each.group_id, each.group_type, each.group_state) for each in listed] == [("s", "share", "Stable")]


def test_another_coordinator_goes_on_with_the_group(world: World) -> None:
    member = ShareMember(world)
    member.settle("orders")
    before = described(world)
    world.elect()
    assert described(world) == before
    assert member.beat() == "NONE"
    assert (member.epoch, member.assigned) == (2, {"orders": [0, 1, 2, 3]})
    world.pass_time(46_000)
    assert member.beat() == "UNKNOWN_MEMBER_ID", "its session began with the load"


def test_answers_wait_for_the_commit(world: World) -> None:
    world.log.replicated = False
    member = ShareMember(world)
    assert member.beat("orders") == "waiting"


# -- offsets


def offsets(world: World, *partitions: int) -> list[tuple[int, int, int]]:
    """Partition, start offset and lag of `orders`; of all that is initialized where none is named."""
    topics = [DescribeShareGroupOffsetsRequestTopic(topic_name="orders", partitions=list(partitions))]
    request = DescribeShareGroupOffsetsRequestGroup(group_id="s", topics=topics if partitions else None)
    group = value_of(world.coordinator.share_offsets.describe(request))
    return [(each.partition_index, each.start_offset, each.lag) for topic in group.topics for each in topic.partitions]


def alter(world: World, starts: dict[int, int], topic: str = "orders") -> Any:
    partitions = [
        AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=start)
        for partition, start in starts.items()
    ]
    topics = [AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)]
    request = AlterShareGroupOffsetsRequest(group_id="s", topics=topics)
    return value_of(world.coordinator.share_offsets.alter(request))


def test_offsets_and_lags_are_those_of_the_share_coordinator(world: World) -> None:
    ShareMember(world).settle("orders")
    world.states.starts[key(world, 1)] = 40
    world.states.completed[key(world, 1)] = 15
    assert offsets(world, 0, 1) == [(0, -1, -1), (1, 40, 45)]
    assert sorted(offsets(world)) == [(0, -1, -1), (1, 40, 45), (2, -1, -1), (3, -1, -1)]
    unknown = DescribeShareGroupOffsetsRequestTopic(topic_name="none", partitions=[0])
    request = DescribeShareGroupOffsetsRequestGroup(group_id="s", topics=[unknown])
    (topic,) = value_of(world.coordinator.share_offsets.describe(request)).topics
    assert topic.partitions[0].start_offset == -1


def test_offsets_are_altered_without_members(world: World) -> None:
    member = ShareMember(world)
    member.settle("orders")
    assert ErrorCode(alter(world, {0: 7}).error_code) is ErrorCode.NON_EMPTY_GROUP
    member.beat(epoch=-1)
    (topic,) = alter(world, {0: 7, 9: 1}).responses
    codes = {each.partition_index: ErrorCode(each.error_code).name for each in topic.partitions}
    assert codes == {0: "NONE", 9: "UNKNOWN_TOPIC_OR_PARTITION"}
    assert world.states.starts[key(world, 0)] == 7
    assert world.states.epochs[key(world, 0)] == described(world).group_epoch


def test_offsets_may_be_altered_before_the_group_has_members(world: World) -> None:
    alter(world, {0: 7})
    assert described(world).group_state == "Empty"
    assert ShareMember(world).settle("orders") == {"orders": [0, 1, 2, 3]}
    assert world.states.starts[key(world, 0)] == 7
    assert world.states.starts[key(world, 1)] == -1


def test_a_failed_alteration_is_answered_with_its_error(world: World) -> None:
    world.states.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    (topic,) = alter(world, {0: 7}).responses
    assert ErrorCode(topic.partitions[0].error_code) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.shard("s").shares.get("s").initialization.initializing


def test_offsets_are_deleted_topic_by_topic(world: World) -> None:
    def delete(*topics: str) -> Any:
        named = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics]
        request = DeleteShareGroupOffsetsRequest(group_id="s", topics=named)
        answer = value_of(world.coordinator.share_offsets.delete(request))
        return ErrorCode(answer.error_code).name, {
            each.topic_name: ErrorCode(each.error_code).name for each in answer.responses
        }

    assert delete("orders")[0] == "GROUP_ID_NOT_FOUND"
    member = ShareMember(world)
    member.settle("orders", "payments")
    assert delete("orders")[0] == "NON_EMPTY_GROUP"
    member.beat(epoch=-1)
    world.states.failure = ErrorCode.NOT_COORDINATOR
    assert delete("orders")[1] == {"orders": "NOT_COORDINATOR"}
    world.states.failure = None
    assert delete("orders", "none") == ("NONE", {"orders": "NONE", "none": "UNKNOWN_TOPIC_OR_PARTITION"})
    assert {each.topic_id for each in world.states.starts} == {world.topics.ids["payments"]}
    assert delete("orders")[1] == {"orders": "UNKNOWN_TOPIC_OR_PARTITION"}


# -- the end


def test_a_group_ends_with_its_state(world: World) -> None:
    member = ShareMember(world)
    member.settle("orders")
    assert deleted(world) == "NON_EMPTY_GROUP"
    member.beat(epoch=-1)
    world.states.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert deleted(world) == "COORDINATOR_NOT_AVAILABLE"
    world.states.failure = None
    assert deleted(world) == "NONE"
    assert world.states.starts == {}
    assert ErrorCode(described(world).error_code) is ErrorCode.GROUP_ID_NOT_FOUND
    assert not world.loaded_anew().shares.groups
    assert deleted(world) == "GROUP_ID_NOT_FOUND"
