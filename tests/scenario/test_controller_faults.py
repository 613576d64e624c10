"""Bugs of a controller, as exceptions that it has no handling for: one that is raised before there are records changes
nothing, and the controller goes on; after one that is raised later the node stops."""

from __future__ import annotations

import operator
import re
from typing import Any

import pytest
from controller_world import World, creatable, state

from kalda.base.errors import ApiError, ErrorCode
from kalda.controller import broker_changes as departures_module
from kalda.controller.liveness import Probe
from kalda.protocol.access import Caller
from kalda.protocol.messages.brokers import BrokerHeartbeatRequest
from kalda.protocol.messages.metadata_records import NoOpRecord, PartitionChangeRecord, PartitionRecord, TopicRecord
from kalda.protocol.messages.topics import CreateTopicsRequest, ListPartitionReassignmentsRequest
from kalda.statemachine.runtime import ReplayFault

CREATE = CreateTopicsRequest(topics=[creatable("t", {0: [0]})])


class Bug(Exception):
    """The program has no handling for it."""


def raise_bug(*_: Any, **__: Any) -> Any:
    raise Bug("a bug")


def a_world(*brokers: int, **settings: Any) -> World:
    world = World(2, **settings)
    world.start_brokers(*brokers)
    world.active.poll(world.now_ms)
    return world


def assert_goes_on(world: World, caplog: pytest.LogCaptureFixture, kind: type[Exception] = Bug) -> None:
    active = world.controllers[1]
    assert active.is_active
    assert world.log.resigned == []
    assert active.faults.count == 1
    assert world.fatal_faults == []
    (fault,) = [record for record in caplog.records if "non-fatal fault" in record.getMessage()]
    assert "has changed nothing" in fault.getMessage()
    assert fault.exc_info is not None
    assert fault.exc_info[0] is kind


@pytest.mark.parametrize("kind", [Bug, OverflowError, RecursionError, MemoryError, re.error, AssertionError])
def test_a_request_that_fails_unforeseen_changes_nothing_and_the_controller_goes_on(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(0)
    world.auto_commit = False
    parked = world.send("create_topics", CREATE)
    before, end = state(world.active), world.log.log_end_offset

    def fail(*_: Any) -> Any:
        raise kind("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(world.active.alter_partitions, "alter", fail)
        failed = world.active.handle_alter_partition(None, Caller(), world.now_ms)  # type: ignore[arg-type]
    assert failed.error is not None
    assert failed.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert isinstance(failed.error.__cause__, kind)
    assert (state(world.active), world.log.log_end_offset) == (before, end)
    assert_goes_on(world, caplog, kind)
    assert not parked.done
    world.commit()
    assert parked.error is None
    assert state(world.controllers[1]) == state(world.controllers[2]) == state(world.replayed())
    world.auto_commit = True
    assert world.create_topic("u", {0: [0]}).error_code == ErrorCode.NONE


def test_a_record_that_cannot_be_encoded_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(0)
    before = state(world.active)
    with monkeypatch.context() as patch:
        patch.setattr(world.log, "prepare_append", raise_bug)
        failed = world.active.handle_create_topics(CREATE, Caller(), world.now_ms)
    assert failed.error is not None
    assert failed.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert state(world.active) == before
    assert_goes_on(world, caplog)
    assert world.create_topic("t", {0: [0]}).error_code == ErrorCode.NONE


def test_a_batch_that_cannot_be_appended_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its records are applied already."""
    world = a_world(0)
    before = state(world.active)
    monkeypatch.setattr(world.log, "schedule_append", raise_bug)
    world.active.runtime._schedule = world.log.schedule_append
    failed = world.active.handle_create_topics(CREATE, Caller(), world.now_ms)
    assert failed.error is not None
    (fault,) = world.fatal_faults
    assert isinstance(fault, ReplayFault)
    assert "cannot be appended" in str(fault)
    assert not world.controllers[1].is_active
    assert state(world.controllers[1]) == before


def test_a_read_that_fails_unforeseen_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(0)
    monkeypatch.setattr(world.active.reassignments, "list_ongoing", raise_bug)
    request = ListPartitionReassignmentsRequest()
    failed = world.active.handle_list_partition_reassignments(request, Caller(), world.now_ms)
    assert failed.error is not None
    assert failed.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert_goes_on(world, caplog)


@pytest.mark.parametrize(
    ("part", "method", "after_ms"), [("elections", "balance", 1_000), ("cluster.heartbeats", "expired", 1_200)]
)
def test_a_periodic_task_that_fails_runs_again(
    part: str, method: str, after_ms: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In an event, and outside of one. The other tasks run in the same call."""
    world = a_world(0, leader_imbalance_check_interval_ms=1_000, metadata_max_idle_interval_ms=500)
    active, due_ms = world.active, world.now_ms + after_ms
    with monkeypatch.context() as patch:
        patch.setattr(operator.attrgetter(part)(active), method, raise_bug)
        written = world.written_by(lambda: active.poll(due_ms))
    assert [type(record) for record in written] == [NoOpRecord]
    assert_goes_on(world, caplog)
    again: list[int] = []

    def run(*_: Any) -> Any:
        again.append(1)
        return ([], False) if method == "balance" else []

    monkeypatch.setattr(operator.attrgetter(part)(active), method, run)
    assert active.poll(due_ms + 1_200) is not None
    assert again


@pytest.mark.parametrize("fault", ["in the event", "before the event"])
def test_a_broker_that_cannot_be_fenced_keeps_no_other_from_being_fenced(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = a_world(0, 1, 2)
    part: Any = world.active.broker_changes if fault == "in the event" else world.active.broker_changes.departures
    method = "fence_stale" if fault == "in the event" else "begin_fencing"
    fence = getattr(part, method)

    def fail_for_0(broker_id: int, epoch: int) -> Any:
        return raise_bug() if broker_id == 0 else fence(broker_id, epoch)

    def fenced() -> list[int]:
        return [broker_id for broker_id, broker in world.active.cluster.brokers.items() if broker.fenced]

    with monkeypatch.context() as patch:
        patch.setattr(part, method, fail_for_0)
        world.poll_until(world.now_ms + 30_000)
        assert fenced() == [1, 2]
    world.poll_until(world.now_ms + 10_000)
    assert fenced() == [0, 1, 2], "it is tried again"


def test_nor_does_a_broker_that_cannot_stop_or_an_election_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(departures_module, "PARTITIONS_A_STEP", 1)
    world = a_world(0, 1, 2)
    world.create_topic("t", {0: [0, 2], 1: [0, 2], 2: [1, 2], 3: [1, 2]})
    departures, holds = world.active.broker_changes.departures, world.active.cluster.unclean_holds
    liveness, tried = world.active._liveness, list[int]()

    def fail(broker_id: int) -> Any:
        tried.append(broker_id)
        return raise_bug()

    for broker_id in (0, 1):
        world.heartbeat(broker_id, want_shut_down=True)
        holds.hold(broker_id, world.now_ms)
    monkeypatch.setattr(departures, "records", fail)
    monkeypatch.setattr(world.active.elections, "elect_unclean", fail)
    for step in (liveness.continue_shutdown, liveness.elect_after_hold):
        tried.clear()
        assert [step(world.now_ms + 1) for _ in range(3)] == [False] * 3
        assert tried == [0, 1, 0]


@pytest.mark.parametrize("method", ["on_probed", "probes_due", "on_disconnected", "poll"])
def test_the_detection_of_dead_brokers_that_fails_does_not_end_the_leadership(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(0)
    part = world.active._periodic if method == "poll" else world.active._liveness
    monkeypatch.setattr(type(part), method, raise_bug)
    if method == "on_probed":
        world.active.on_probed(Probe(0, 1, ()), True)
    elif method == "probes_due":
        assert world.active.probes_due(world.now_ms) == []
    elif method == "poll":
        assert world.active.poll(world.now_ms) == world.now_ms + 1_000
    else:
        world.active.on_broker_disconnected(0, 1, world.now_ms)
    assert_goes_on(world, caplog)


def test_faults_in_a_loop_are_counted_and_not_logged_each(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = a_world(0)
    monkeypatch.setattr(world.active.topics, "create", raise_bug)
    for _ in range(5):
        world.active.handle_create_topics(CREATE, Caller(), world.now_ms)
    world.elapsed_ms += 1_000
    world.active.handle_create_topics(CREATE, Caller(), world.now_ms)
    faults = [record.getMessage() for record in caplog.records if "non-fatal fault" in record.getMessage()]
    assert len(faults) == 2
    assert faults[1].endswith("(4 more since the last line)")
    assert world.active.faults.count == 6


def test_a_record_that_cannot_be_applied_is_not_written_and_stops_the_node() -> None:
    world = a_world(0)
    active, before = world.active, state(world.active)
    applying = active._replays
    active._replays = {**applying, PartitionRecord: raise_bug}
    for _ in range(2):  # the client tries again
        end = world.log.log_end_offset
        pending = active.handle_create_topics(CREATE, Caller(), world.now_ms)
        assert pending.error is not None
        assert pending.error.code in (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NOT_CONTROLLER)
        assert world.log.log_end_offset == end
    (fault,) = world.fatal_faults
    assert isinstance(fault, ReplayFault)
    assert f"PartitionRecord at offset {end + 1}" in str(fault)
    assert not active.is_active
    active._replays = applying
    world.elect(2)
    assert state(world.active) == state(active) == before
    assert world.create_topic("t", {0: [0]}).error_code == ErrorCode.NONE
    assert [type(record) for record in world.records].count(TopicRecord) == 1
    assert state(world.replayed()) == state(world.active)


def test_batches_before_the_one_that_cannot_be_applied_are_in_log_and_state() -> None:
    """A result that need not be written at once is cut into batches."""
    world = a_world(0, 1, max_records_per_batch=10)
    world.create_topic("a", {at: [0, 1] for at in range(6)})
    world.create_topic("b", {at: [0, 1] for at in range(6)})
    active, applied = world.active, 0
    apply = active._replays[PartitionChangeRecord]

    def apply_ten(record: Any, offset: int) -> None:
        nonlocal applied
        applied += 1
        if applied > 10:
            raise_bug()
        apply(record, offset)

    world.auto_commit = False
    active._replays = {**active._replays, PartitionChangeRecord: apply_ten}
    request = BrokerHeartbeatRequest(broker_id=0, broker_epoch=world.epochs[0], want_shut_down=True)
    written = world.written_by(lambda: world.send("broker_heartbeat", request))
    assert len(written) == 10
    assert len(world.fatal_faults) == 1
    active._replays = {**active._replays, PartitionChangeRecord: apply}
    world.commit()
    assert state(world.controllers[2]) == state(world.replayed()) == state(active)


def test_a_standby_that_cannot_apply_a_record_raises() -> None:
    """The listeners of the quorum stop the node then."""
    world = a_world(0)
    standby = world.controllers[2]
    standby._replays = {**standby._replays, TopicRecord: raise_bug}
    with pytest.raises(ReplayFault, match="TopicRecord at offset"):
        world.create_topic("t", {0: [0]})


def test_an_activation_that_the_log_refuses_ends_the_leadership() -> None:
    world = World(lead=False)
    world.log.refuse = ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many metadata records wait for their commit")
    world.elect(1)
    assert not world.controllers[1].is_active
    assert world.log.resigned == [1]
    world.log.refuse = None
    world.elect(1)
    assert world.controllers[1].is_active
    assert world.records


def test_a_leadership_that_cannot_be_given_up_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(lead=False)
    world.log.refuse = ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many metadata records wait for their commit")
    monkeypatch.setattr(world.log, "resign", raise_bug)
    world.elect(1)
    assert [type(fault) for fault in world.fatal_faults] == [Bug]


def test_a_commit_goes_on_as_a_standby_when_an_answer_ends_the_leadership() -> None:
    world = a_world(0)
    world.auto_commit = False
    first = world.send("create_topics", CREATE)
    second = world.send("create_topics", CreateTopicsRequest(topics=[creatable("u", {0: [0]})]))
    first.then(lambda *_: world.controllers[1].resign())
    world.commit()
    assert second.error is not None
    assert second.error.code is ErrorCode.NOT_CONTROLLER
    assert set(world.controllers[1].partitions.topic_ids) == {"t", "u"}
    assert state(world.controllers[1]) == state(world.controllers[2])


def test_the_error_of_a_standby_names_the_active_controller() -> None:
    world = a_world(0)
    refused = world.controllers[2].handle_create_topics(CREATE, Caller(), 0).error
    assert refused is not None
    assert (refused.code, refused.message) == (
        ErrorCode.NOT_CONTROLLER,
        "The active controller appears to be node 1.",
    )
    world.auto_commit = False
    parked = world.send("create_topics", CREATE)
    world.elect(2)
    assert parked.error is not None
    assert parked.error.message == "No controller appears to be active."
    for controller in world.controllers.values():
        controller.on_leader_change(None, 9)
        refused = controller.handle_create_topics(CREATE, Caller(), 0).error
        assert refused is not None
        assert refused.message == "No controller appears to be active."


def test_slow_events_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    world = World(leader_imbalance_check_interval_ms=None, unclean_leader_election_interval_ms=10**9)
    world.start_brokers(0)
    world.active.poll(world.now_ms)
    create = world.active.topics.create

    def slowly(*arguments: Any) -> Any:
        world.elapsed_ms += 2_000
        return create(*arguments)

    monkeypatch.setattr(world.active.topics, "create", slowly)
    with caplog.at_level("INFO", "kalda.controller"):
        world.create_topic("t", {0: [0]})
        slow = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert slow == ["Exceptionally slow controller event createTopics took 2000 ms."]
        world.poll_until(world.now_ms + 60_000)
        world.poll_until(world.now_ms + 60_000)
    periodic = [record.getMessage() for record in caplog.records if "60000 ms period" in record.getMessage()]
    assert periodic[0].startswith("In the last 60000 ms period, ")
    assert "The slowest event was createTopics, which took 2000.00 ms." in periodic[0]
    assert periodic[1] == "In the last 60000 ms period, there were no controller events completed."
