"""A member's next step from the tasks that it has to its target: who must give back what first, and who waits."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from kalda.assignors.server_assignor import MemberTasks, TaskId
from kalda.base.errors import ApiError, ErrorCode
from kalda.coordinator.groups.streams.member import HeldTasks, StreamsMember, TaskState, next_member


@dataclass
class Holders:
    """Processes by task of subtopology "0", given by partition."""

    active: dict[int, str] = field(default_factory=dict)
    standby: dict[int, str] = field(default_factory=dict)
    warmup: dict[int, str] = field(default_factory=dict)

    @property
    def active_processes(self) -> dict[TaskId, str]:
        return {TaskId("0", partition): process for partition, process in self.active.items()}

    @property
    def standby_processes(self) -> dict[TaskId, frozenset[str]]:
        return {TaskId("0", partition): frozenset({process}) for partition, process in self.standby.items()}

    @property
    def warmup_processes(self) -> dict[TaskId, frozenset[str]]:
        return {TaskId("0", partition): frozenset({process}) for partition, process in self.warmup.items()}


def held(*active: int, standby: set[int] | None = None, warmup: set[int] | None = None) -> HeldTasks:
    return HeldTasks(
        {"0": dict.fromkeys(active, 5)} if active else {},
        {"0": frozenset(standby)} if standby else {},
        {"0": frozenset(warmup)} if warmup else {},
    )


def target(*active: int, standby: set[int] | None = None, warmup: set[int] | None = None) -> MemberTasks:
    return held(*active, standby=standby, warmup=warmup).tasks


def member(assigned: HeldTasks, state: TaskState = TaskState.STABLE, epoch: int = 5) -> StreamsMember:
    return StreamsMember("m", epoch, process_id="p", state=state, assigned=assigned)


def step(
    present: StreamsMember, wanted: MemberTasks, holders: Holders | None = None, owned: MemberTasks | None = None
) -> StreamsMember:
    return next_member(present, 6, wanted, holders or Holders(), present.assigned.tasks if owned is None else owned)


def test_a_member_that_has_its_target_stays() -> None:
    present = member(held(1), epoch=6)
    assert step(present, target(1)) is present


def test_new_tasks_have_the_epoch_in_which_they_come() -> None:
    after = step(member(held(1)), target(1, 2))
    assert (after.epoch, after.previous_epoch, after.state) == (6, 5, TaskState.STABLE)
    assert after.assigned.active == {"0": {1: 5, 2: 6}}


def test_tasks_are_given_back_before_the_next_epoch() -> None:
    after = step(member(held(1, 2)), target(1, 3))
    assert (after.epoch, after.state) == (5, TaskState.UNREVOKED_TASKS)
    assert (after.assigned, after.revoking) == (held(1), held(2))
    assert step(after, target(1, 3), owned=target(1, 2)) is after, "it has not given them back"
    assert next_member(after, 6, target(1, 3), Holders(), None) is after, "it does not say so"
    done = step(after, target(1, 3), owned=target(1))
    assert (done.epoch, done.state) == (6, TaskState.STABLE)
    assert done.assigned.active == {"0": {1: 5, 3: 6}}


def test_what_was_given_back_counts_at_once() -> None:
    after = step(member(held(1, 2)), target(1), owned=target(1))
    assert (after.epoch, after.state, bool(after.revoking)) == (6, TaskState.STABLE, False)


def test_a_task_of_another_member_is_waited_for() -> None:
    waiting = step(member(held(1)), target(1, 2), Holders(active={2: "other"}))
    assert (waiting.epoch, waiting.state) == (6, TaskState.UNRELEASED_TASKS)
    assert waiting.assigned.tasks == target(1)
    assert step(waiting, target(1, 2), Holders(active={2: "other"})).assigned.tasks == target(1)
    got = step(waiting, target(1, 2))
    assert (got.state, got.assigned.tasks) == (TaskState.STABLE, target(1, 2))


@pytest.mark.parametrize(
    ("wanted", "holders", "waits"),
    [
        (target(2), Holders(standby={2: "p"}), True),
        (target(2), Holders(warmup={2: "p"}), True),
        (target(2), Holders(standby={2: "other"}, warmup={2: "other"}), False),
        (target(standby={2}), Holders(active={2: "p"}), True),
        (target(standby={2}), Holders(active={2: "other"}), False),
        (target(standby={2}), Holders(standby={2: "p"}), True),
        (target(standby={2}), Holders(standby={2: "other"}), False),
        (target(standby={2}), Holders(warmup={2: "p"}), True),
        (target(warmup={2}), Holders(active={2: "p"}), True),
        (target(warmup={2}), Holders(active={2: "other"}), False),
        (target(warmup={2}), Holders(standby={2: "p"}), True),
        (target(warmup={2}), Holders(warmup={2: "p"}), True),
    ],
)
def test_a_process_has_one_copy_of_a_task(wanted: MemberTasks, holders: Holders, waits: bool) -> None:
    after = step(member(held()), wanted, holders)
    assert after.state is (TaskState.UNRELEASED_TASKS if waits else TaskState.STABLE)
    assert after.assigned.tasks == (MemberTasks() if waits else wanted)


def test_an_active_task_becomes_a_standby_copy_before_it_is_given_back() -> None:
    after = step(member(held(1)), target(standby={1}), Holders(active={1: "p"}))
    assert (after.epoch, after.state) == (5, TaskState.UNREVOKED_TASKS)
    assert (after.assigned, after.revoking) == (held(standby={1}), held(1))


def test_a_standby_copy_is_kept_until_its_task_may_run() -> None:
    present = member(held(standby={1}))
    waiting = step(present, target(1), Holders(active={1: "other"}, standby={1: "p"}))
    assert (waiting.state, waiting.assigned) == (TaskState.UNRELEASED_TASKS, held(standby={1}))
    running = step(waiting, target(1), Holders(standby={1: "p"}))
    assert (running.state, running.assigned.tasks) == (TaskState.STABLE, target(1))


def test_a_copy_warms_up_and_cools_down_in_its_place() -> None:
    warm = step(member(held(standby={1})), target(warmup={1}), Holders(standby={1: "p"}))
    assert (warm.state, warm.assigned, bool(warm.revoking)) == (TaskState.STABLE, held(warmup={1}), False)
    cool = step(member(held(warmup={1})), target(standby={1}), Holders(warmup={1: "p"}))
    assert (cool.state, cool.assigned, bool(cool.revoking)) == (TaskState.STABLE, held(standby={1}), False)


def test_a_member_in_a_state_of_a_later_release_is_fenced_until_it_has_nothing() -> None:
    present = member(held(1), TaskState.UNKNOWN)
    with pytest.raises(ApiError) as refused:
        step(present, target(1))
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH
    assert step(present, target(1), owned=MemberTasks()).epoch == 6
