"""A partition and its replicas: what is committed, who is in sync, how diverged logs are reconciled."""

from __future__ import annotations

import pytest
from replication_world import LAG_MAX_MS, Broker, World

from kalda.base.errors import ApiError, ErrorCode
from kalda.storage.log.deletion import delete_segments, truncate_to


def ends(world: World) -> list[tuple[int, int]]:
    """(high watermark, log end) of each broker that is up."""
    return [(broker.log.high_watermark, broker.log.log_end_offset) for broker in world.brokers.values() if broker.up]


def test_a_record_is_committed_when_every_member_has_it() -> None:
    world = World()
    world.run()
    world.cut.add((3, 1))
    world.run(600)
    world[1].write("abc")
    world.run(10)
    assert ends(world) == [(0, 3), (0, 3), (0, 0)], "3 does not have it, so it is not committed"
    world.cut.clear()
    world.run(1_100)
    assert world[1].log.high_watermark == 3
    world.run(1_000)
    assert ends(world) == [(3, 3)] * 3, "the followers receive it with their next responses"
    assert [broker.values for broker in world.brokers.values()] == ["abc"] * 3


def test_a_follower_that_keeps_pace_is_in_sync_though_never_at_the_end() -> None:
    world = World(size=2)
    world.watch_isrs()
    for _ in range(3 * LAG_MAX_MS // 2):
        world[1].write("x")
        world.run(2)
        if world[1].partition.in_sync.followers[2].log_end_offset == world[1].log.log_end_offset:
            world[1].write("y")
    assert world.lines == []


def test_a_follower_that_falls_behind_leaves_the_isr_and_returns_when_caught_up() -> None:
    world = World()
    world.watch_isrs()
    world.run()
    world.cut.add((3, 1))
    world[1].write("ab")
    world.run(LAG_MAX_MS * 2)
    assert world.lines == ["1 proposes [1, 2]", "the ISR is [1, 2]"]
    assert world[1].log.high_watermark == 2, "what waited for 3 is committed without it"
    world[1].write("c")
    world.run(20)
    assert world[1].log.high_watermark == 3
    world.cut.clear()
    world.run(LAG_MAX_MS * 2)
    assert world.lines[2:] == ["1 proposes [1, 2, 3]", "the ISR is [1, 2, 3]"]
    assert world[3].values == "abc"


def test_a_proposed_member_counts_as_one() -> None:
    world = World(size=2)
    world.kill(2)
    world.elect(1, (1,))
    world[1].write("a")
    assert world[1].log.high_watermark == 1
    world.controller_delay_ms = 500
    world.restart(2)
    world.run(100)
    assert world.lines[-1] == "1 proposes [1, 2]"
    assert list(world[1].partition.in_sync.maximal) == [1, 2]
    world.cut.add((2, 1))
    world[1].write("b")
    world.run(10)
    assert world[1].log.high_watermark == 1, "the controller may have made 2 a member"
    world.refuses = ErrorCode.INELIGIBLE_REPLICA
    world.run(500)
    assert list(world[1].partition.in_sync.maximal) == [1], "it has not, and will not"


def test_a_proposal_is_sent_until_it_is_decided() -> None:
    world = World(size=2)
    world.watch_isrs()
    world.refuses = ErrorCode.UNKNOWN_SERVER_ERROR
    world.run()
    world.kill(2)
    world[1].write("a")
    world.run(LAG_MAX_MS * 2)
    assert world[1].log.high_watermark == 0
    world.refuses = None
    world.run(100)
    assert world.lines == ["1 proposes [1]", "the ISR is [1]"], "one proposal, sent until it was decided"
    assert world[1].log.high_watermark == 1


def test_a_smaller_isr_counts_when_the_metadata_brings_it() -> None:
    """The minimum ISR was raised before the ISR shrank, so the controller has made the replica that left eligible: it
    lacks nothing that is committed. A leader that still has the former minimum must not commit without it."""
    world = World(size=2)
    world.watch_isrs()
    world.run()
    leader = world[1]
    leader.paused = True
    world.cut.add((2, 1))
    leader.write("a")
    world.run(LAG_MAX_MS * 2)
    assert world.lines == ["1 proposes [1]", "the ISR is [1]"]
    assert leader.log.high_watermark == 0
    assert list(leader.partition.in_sync.maximal) == [1, 2]
    leader.log.update_config(leader.log.config._replace(min_insync_replicas=2))  # the records come in this order
    leader.partition.on_config()
    leader.paused = False
    world.publish()
    assert (leader.log.high_watermark, list(leader.partition.isr)) == (0, [1])
    leader.log.update_config(leader.log.config._replace(min_insync_replicas=1))
    leader.partition.on_config()
    assert leader.log.high_watermark == 1


def test_below_the_in_sync_minimum_nothing_is_committed() -> None:
    world = World(min_isr=2)
    world.watch_isrs()
    world.run()
    world.kill(2)
    world.kill(3)
    world[1].write("a", acks=1)
    world.run(LAG_MAX_MS * 2)
    assert world.lines[-1] == "the ISR is [1]"
    with pytest.raises(ApiError) as refused:
        world[1].write("b", acks=-1)
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    world.run()
    assert ends(world) == [(0, 1)]
    world.restart(3)
    world.run(200)
    assert world.lines[-1] == "the ISR is [1, 3]"
    assert world[1].log.high_watermark == 1


def test_a_former_leader_truncates_what_no_replica_has_copied() -> None:
    world = World()
    world[1].write("abc")
    world.run()
    world.cut.update({(2, 1), (3, 1), (1, 2), (1, 3)})
    world[1].write("lost")
    world.run(10)
    world.kill(1)
    world.elect(2, (2, 3))
    world.cut.clear()
    world[2].write("de")
    world.run(100)
    world.restart(1)
    assert world[1].values == "abclost"
    world.run(1_000)
    assert [broker.values for broker in world.brokers.values()] == ["abcde"] * 3
    assert world.lines[-1] == "the ISR is [2, 3, 1]"
    assert len({tuple(broker.log.leader_epochs.entries) for broker in world.brokers.values()}) == 1


def test_logs_that_diverged_twice_are_reconciled_step_by_step() -> None:
    world = World()
    world[1].write("a")
    world.run()
    everybody = {(sender, to) for sender in (1, 2, 3) for to in (1, 2, 3)}
    world.cut |= everybody
    world[1].write("bcd")
    world.elect(2, (1, 2, 3))
    world[2].write("x")
    world.elect(1, (1, 2, 3))
    world[1].write("e")
    world.elect(2, (1, 2, 3))
    world[2].write("yz")
    world.elect(3, (1, 2, 3))
    world[3].write("f")
    world.cut.clear()
    world.run(3_000)
    assert [broker.values for broker in world.brokers.values()] == ["af"] * 3
    assert {tuple(broker.log.leader_epochs.entries) for broker in world.brokers.values()} == {((0, 0), (4, 1))}


def test_a_leader_that_missed_another_leaders_epoch_drops_its_followers_offsets() -> None:
    """It receives the metadata of both elections at once. Meanwhile a follower has truncated what it had copied."""
    world = World(min_isr=2)
    world[1].write("a")
    world.run()
    world.cut.update({(1, 2), (2, 1)})
    world.run()
    world[1].write("bcd")
    world.run()
    assert ends(world) == [(1, 4), (0, 1), (1, 4)]
    world.cut.update({(1, 3), (3, 1)})
    world[1].paused = True
    world.elect(2)
    world[2].write("xy")
    world.run()
    assert world[3].values == "axy"
    world.kill(2)
    world[1].paused = False
    world.elect(1, (1, 3))
    assert world[1].log.high_watermark == 1
    world.cut.clear()
    world.run(1_000)
    assert (world[1].log.high_watermark, world[3].values) == (4, "abcd")


def test_a_leader_that_wrote_nothing_follows_again() -> None:
    world = World()
    world[1].write("abc")
    world.run()
    world.elect(2)
    world.elect(1)
    world.run(1_000)
    world[1].write("d")
    world.run(1_000)
    assert [broker.values for broker in world.brokers.values()] == ["abcd"] * 3


def test_a_follower_behind_the_leaders_log_start_begins_there() -> None:
    world = World(size=2)
    world.kill(2)
    world.elect(1, (1,))
    for values in ("abc", "def"):
        world[1].write(values)
    world[1].partition.delete_records(3)
    world[1].log.roll(0)
    delete_segments(world[1].log, [])
    world.restart(2)
    world.run(1_000)
    assert world[2].log.log_start_offset == 3
    assert world[2].values[-3:] == "def"
    assert world.lines[-1] == "the ISR is [1, 2]"


def test_a_log_start_within_a_batch_copies_the_whole_batch() -> None:
    world = World(size=2)
    world.kill(2)
    world.elect(1, (1,))
    world[1].write("abcdef")
    world[1].partition.delete_records(2)
    world.restart(2)
    world.run(1_000)
    assert (world[2].log.log_start_offset, world[2].log.log_end_offset) == (2, 6)


def test_a_follower_that_was_cut_back_into_a_batch_of_its_leader_comes_back() -> None:
    world = World(size=2)
    world[1].write("abcdef")
    world.run(1_000)
    world.kill(2)
    world.elect(1, (1,))
    world[1].partition.delete_records(2)
    world[1].write("gh")
    world.restart(2)
    broker = world[2]
    truncate_to(broker.log, 2)
    assert (broker.log.log_start_offset, broker.log.log_end_offset) == (0, 2)
    world.run(1_000)
    assert (broker.log.log_start_offset, broker.log.log_end_offset) == (2, 8)
    assert world.lines[-1] == "the ISR is [1, 2]"


def test_a_follower_ahead_of_an_unclean_leader_is_truncated() -> None:
    world = World(size=2)
    world.cut.add((2, 1))
    world[1].write("abc")
    world.run(10)
    world.kill(1)
    world.elect(2, (2,))
    world.run()
    assert world[2].values == ""
    world.cut.clear()
    world.restart(1)
    world.run(1_000)
    assert world[1].values == ""
    world[2].write("x")
    world.run(1_000)
    assert world[1].values == "x"


def truncating(world: World) -> Broker:
    """A former leader that has begun to truncate what no replica has copied; its disk does not answer."""
    world[1].write("abc")
    world.run()
    world.cut.update({(2, 1), (3, 1), (1, 2), (1, 3)})
    world[1].write("lost")
    world.run(10)
    world.elect(2, (1, 2, 3))
    world[2].write("de")
    world[1].jobs.hold_jobs = True
    world.cut.clear()
    world.run(100)
    assert world[1].log.truncation is not None
    return world[1]


def test_a_follower_fetches_nothing_while_its_log_is_truncated() -> None:
    world = World()
    broker = truncating(world)
    world.run(1_000)
    assert broker.values == "abc"
    broker.jobs.hold_jobs = False
    broker.jobs.let_jobs_run()
    world.run(100)
    assert [each.values for each in world.brokers.values()] == ["abcde"] * 3


def test_a_replica_that_becomes_leader_while_its_log_is_truncated_completes_that_first() -> None:
    world = World()
    broker = truncating(world)
    world.elect(1, (1, 2, 3))
    broker.write("f")
    assert broker.values == "abcf"
    broker.jobs.hold_jobs = False
    broker.jobs.let_jobs_run()
    world.run(1_000)
    assert [each.values for each in world.brokers.values()] == ["abcf"] * 3
    assert len({tuple(each.log.leader_epochs.entries) for each in world.brokers.values()}) == 1


def test_a_former_incarnation_is_refused() -> None:
    world = World(size=2)
    world.run()
    leader = world[1].partition
    leader.on_follower_fetch(2, 112, 0, 0, epoch_known=True)
    with pytest.raises(ApiError) as refused:
        leader.on_follower_fetch(2, 12, 0, 0, epoch_known=True)
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_unregistered_incarnation_may_not_join() -> None:
    world = World(size=2)
    world.kill(2)
    world.elect(1, (1,))
    world.restart(2)
    world[2].epoch += 1
    world[1].partition.on_follower_fetch(2, 5, 0, 0, epoch_known=True)
    assert world.lines[-1] == "1 leads, ISR [1]"


def test_a_broker_that_is_no_replica_is_refused_by_whose_metadata_lags() -> None:
    world = World(size=2)
    for epoch_known, code in ((True, ErrorCode.UNKNOWN_LEADER_EPOCH), (False, ErrorCode.NOT_LEADER_OR_FOLLOWER)):
        with pytest.raises(ApiError) as refused:
            world[1].partition.on_follower_fetch(9, 1, 0, 0, epoch_known=epoch_known)
        assert refused.value.code is code


def test_deleted_records_are_deleted_on_every_replica() -> None:
    world = World()
    world[1].write("abc")
    world[1].write("def")
    world.run(1_100)
    leader = world[1].partition
    assert leader.delete_records(3) == 0, "the followers still have them"
    world.run(20)
    assert leader.low_watermark == 3
    assert [broker.log.log_start_offset for broker in world.brokers.values()] == [3, 3, 3]


def test_a_new_leader_knows_the_high_watermark_when_it_has_reached_its_epochs_start() -> None:
    world = World()
    world[1].write("abc")
    world.run(5)
    assert world[2].log.high_watermark < 3
    world.kill(1)
    world.elect(2, (2, 3))
    assert world[2].partition.predecessor_hw_unknown
    world.run(100)
    assert not world[2].partition.predecessor_hw_unknown


def test_offsets_that_came_with_a_truncation_are_sent_again() -> None:
    world = World(size=2)
    world[1].write("abc")
    world[1].write("def")
    world.run(1_100)
    world.elect(2)
    world.run(5)
    world.elect(1)
    world[1].partition.delete_records(3)
    world.run(1_100)
    assert world[2].log.log_start_offset == 3
    assert world[1].partition.low_watermark == 3
