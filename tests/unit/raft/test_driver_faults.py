"""Bugs of the driver, as exceptions that it has no handling for, and a leader that gives up its epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raft_world import Replica, World, append, static_voter, topic

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.broker.quorum.raft_listeners import AppendedBatches
from kalda.protocol.messages.quorum import VoteRequest, VoteResponse
from kalda.protocol.notation import Request
from kalda.raft import reconfiguration, wire
from kalda.raft.voters import Destination, OffsetAndEpoch, VoterSet


class Bug(Exception):
    """The program has no handling for it."""


def raise_bug(*_: Any, **__: Any) -> Any:
    raise Bug("a bug")


def a_replica(directory: Path) -> Replica:
    replica = Replica(World(), f"{directory}/m", static_voters=static_voter())
    replica.start()
    return replica


def test_a_lone_leader_that_resigns_leads_a_later_epoch_by_itself(tmp_path: Path) -> None:
    replica = a_replica(tmp_path)
    append(replica.driver, 1, [topic("a")])
    replica.driver.resign(1)
    with pytest.raises(ApiError) as refused:
        replica.driver.prepare_append(1, [topic("b")])
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    replica.world.run(30_000)
    assert not replica.failures
    leader_id, epoch = replica.driver.leader_and_epoch()
    assert leader_id == 1
    assert epoch > 1
    append(replica.driver, epoch, [topic("b")])
    replica.world.run()
    assert replica.listener.records == [topic("a"), topic("b")]
    assert replica.listener.leaders[-1] == (1, epoch)


def test_a_batch_that_is_prepared_and_not_scheduled_is_not_written(tmp_path: Path) -> None:
    replica = a_replica(tmp_path)
    assert replica.driver.prepare_append(1, [topic("a"), topic("b")]) == 2
    replica.world.run()
    assert replica.driver.log_end_offset == 1
    assert append(replica.driver, 1, [topic("c")]) == 1
    replica.world.run()
    assert replica.listener.records == [topic("c")]


def test_a_replica_that_has_failed_takes_no_batch(tmp_path: Path) -> None:
    replica = a_replica(tmp_path)
    replica.driver._fail(Bug())
    with pytest.raises(ApiError):
        replica.driver.prepare_append(1, [topic("a")])


def a_sync_that_fails(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.driver.log, "flush_job", raise_bug)
    append(replica.driver, 1, [topic("a")])


def the_end_of_a_sync_that_fails(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    begin = replica.driver.log.flush_job

    class Job:
        def __init__(self, job: Any) -> None:
            self.run = job.run

        finish = raise_bug

    patch.setattr(replica.driver.log, "flush_job", lambda offset: Job(begin(offset)))
    append(replica.driver, 1, [topic("a")])


def a_machine_that_fails_at_an_append(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.driver.machine, "step", raise_bug)
    with pytest.raises(Bug):
        append(replica.driver, 1, [topic("a")])


def an_installation_that_fails(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.driver.log, "publish_job", lambda _: lambda: None)
    patch.setattr(replica.driver.log, "restart_at", raise_bug)
    replica.driver._install(OffsetAndEpoch(5, 1))


def a_snapshot_that_cannot_be_added(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.driver.log, "add_snapshot", raise_bug)
    done = replica.driver.create_snapshot(1, 1, [], 5)
    replica.world.run()
    assert done.value is False


def a_clean_up_that_fails(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.driver.log, "clean", raise_bug)
    replica.world.run(60_000)


def a_snapshot_whose_end_calls_back_what_raises(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    replica.driver.create_snapshot(1, 1, [], 5).then(raise_bug)


def a_transition_that_cannot_be_logged(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.driver, "_log_transition", raise_bug)
    replica.driver.resign(1)


def a_delivery_that_fails_in_a_turn(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.driver.listeners, "deliver", raise_bug)
    append(replica.driver, 1, [topic("a")])


def a_delivery_that_fails_in_a_pass(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    replica.driver.listeners._continue()
    patch.setattr(AppendedBatches, "drop_before", raise_bug)


def a_deadline_that_cannot_be_set(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica.driver, "_set_timer", raise_bug)
    append(replica.driver, 1, [topic("a")])


def an_upgrade_at_which_the_machine_fails(replica: Replica, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconfiguration, "upgrade_refusal", lambda *_: None)
    patch.setattr(replica.driver.machine, "step", raise_bug)
    with pytest.raises(Bug):
        replica.driver.upgrade_kraft_version(1, validate_only=False)


@pytest.mark.parametrize(
    "fail",
    [
        a_snapshot_whose_end_calls_back_what_raises,
        a_transition_that_cannot_be_logged,
        a_delivery_that_fails_in_a_turn,
        a_delivery_that_fails_in_a_pass,
        a_deadline_that_cannot_be_set,
        an_upgrade_at_which_the_machine_fails,
        a_sync_that_fails,
        the_end_of_a_sync_that_fails,
        a_machine_that_fails_at_an_append,
        an_installation_that_fails,
        a_snapshot_that_cannot_be_added,
        a_clean_up_that_fails,
    ],
)
def test_no_exception_ends_a_replica_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[[Replica, pytest.MonkeyPatch], None]
) -> None:
    replica = a_replica(tmp_path)
    fail(replica, monkeypatch)
    replica.world.run()
    assert [type(failure) for failure in replica.failures] == [Bug]


def test_a_response_that_cannot_be_read_is_a_failed_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the machine would wait for the response for ever, and send that voter nothing more."""
    sent: list[Request] = []

    def send(_: Destination, request: Request, __: int) -> Pending[Any]:
        sent.append(request)
        pending: Pending[Any] = Pending()
        pending.complete(VoteResponse())
        return pending

    monkeypatch.setattr(wire, "reply_of", raise_bug)
    world = World()
    voters = VoterSet.static("CONTROLLER", [(1, "127.0.0.1", 9001), (2, "127.0.0.1", 9002)])
    replica = Replica(world, f"{tmp_path}/m", static_voters=voters, send=send)
    replica.start()
    world.run(20_000)
    assert not replica.failures
    assert len([request for request in sent if isinstance(request, VoteRequest)]) > 1
    assert any("cannot be read" in record.getMessage() for record in caplog.records)
