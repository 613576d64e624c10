"""Whatever members do, a coordinator that loads the log holds what the live one holds.

Random members of two groups join, sync, commit, leave, stop and restart over a log whose replication lags, stalls
and fails. After every step invariants of the live groups hold, and another coordinator that loads the log has the same
checkpoints, and the same groups where they are Stable or Empty.
"""

from __future__ import annotations

from groups_world import Client, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kalda.base.errors import ErrorCode
from kalda.coordinator.groups.classic_group import ClassicGroup, GroupState

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f"])
STATIC = {"c": "three", "d": "four", "f": "six"}
IN_H = ("e", "f")
"""The members of group h; the others are in g."""


class GroupLife(RuleBasedStateMachine):
    @initialize(delay=st.sampled_from([0, 3_000]))
    def begin(self, delay: int) -> None:
        self.world = World(initial_rebalance_delay_ms=delay, retention_check_interval_ms=100_000_000)
        self.clients: dict[str, Client] = {}
        self.log_failed = False

    def client(self, name: str) -> Client:
        if name not in self.clients:
            group = "h" if name in IN_H else "g"
            self.clients[name] = Client(self.world, name, group=group, instance=STATIC.get(name), session_ms=10_000)
        return self.clients[name]

    @rule(name=NAMES, changed=st.booleans())
    def join(self, name: str, changed: bool) -> None:
        client = self.client(name)
        if changed:
            client.protocols[0].metadata += b"+"
        answer = client.join()
        if not answer.waits and answer.error in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
            client.member_id = ""

    @rule(name=NAMES)
    def sync(self, name: str) -> None:
        client = self.client(name)
        client.sync({each: each.name.encode() for each in self.clients.values()})

    @rule(name=NAMES)
    def beat(self, name: str) -> None:
        if self.client(name).beat() == "UNKNOWN_MEMBER_ID":
            self.client(name).member_id = ""

    @rule(name=NAMES, partition=st.integers(0, 3), offset=st.integers(0, 99))
    def commit(self, name: str, partition: int, offset: int) -> None:
        self.client(name).commit({("orders", partition): offset})

    @rule(partition=st.integers(0, 3), offset=st.integers(0, 99))
    def commit_anonymously(self, partition: int, offset: int) -> None:
        self.world.commit({("payments", partition): offset})

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.client(name).leave()

    @rule(name=NAMES)
    def restart(self, name: str) -> None:
        self.clients.pop(name, None)

    @rule(ms=st.sampled_from([1, 1_000, 3_000, 9_999, 30_000, 3_600_000, 900_000_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule(replicated=st.booleans())
    def replicate(self, replicated: bool) -> None:
        self.world.replicate()
        self.world.log.replicated = replicated

    @rule(failure=st.sampled_from([None, None, ErrorCode.NOT_ENOUGH_REPLICAS]))
    def fail_appends(self, failure: ErrorCode | None) -> None:
        self.world.log.failure = failure
        self.log_failed |= failure is not None

    @rule()
    def fail_over(self) -> None:
        self.world.runtime.on_resigned(0)
        self.world.elect()

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def groups_are_sound(self) -> None:
        for group in self.world.shard().groups.values():
            self.check_group(group)

    @precondition(lambda self: hasattr(self, "world"))
    @invariant()
    def replay_gives_the_same(self) -> None:
        live, loaded = self.world.shard(), self.world.loaded_anew()
        assert dict(loaded.checkpoints) == dict(live.checkpoints)
        assert set(loaded.groups) == set(live.groups)
        for group_id, checkpoint in live.checkpoints.items():
            group = live.groups[group_id]
            # Where the record of a group that became Empty could not be written, the group is ahead of its checkpoint.
            if group.state is GroupState.STABLE or (group.is_empty and not self.log_failed):
                assert group.to_record() == checkpoint == loaded.groups[group_id].to_record()
                assert group.subscribed_topics == loaded.groups[group_id].subscribed_topics

    def check_group(self, group: ClassicGroup) -> None:
        members = group.members.values()
        assert group.awaiting_joins == sum(each.awaiting_join is not None for each in members)
        assert group.static_members == {
            each.instance_id: each.member_id for each in members if each.instance_id is not None
        }
        assert not members or group.leader_id in group.members
        assert not members or group.state is not GroupState.EMPTY
        assert not set(group.pending_joins) & set(group.members)
        assert set(group.pending_syncs) <= set(group.members)
        waiting = [each.awaiting_join.pending for each in members if each.awaiting_join is not None]
        assert not any(pending.done for pending in waiting)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            assert not waiting
        for each in members:
            assert each.session_timer is not None
            assert each.session_timer.deadline_ms is not None or each.satisfies_heartbeat()

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.replicate()
        offsets = world.fetch(), world.fetch(group="h")
        world.elect()
        assert (world.fetch(), world.fetch(group="h")) == offsets


TestGroupLife = GroupLife.TestCase
TestGroupLife.settings = settings(max_examples=60, stateful_step_count=40)
