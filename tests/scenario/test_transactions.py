"""The life of transactions: begun, ended, repeated, fenced; version by version."""

from __future__ import annotations

import pytest
from transactions_world import TIMEOUT_MS, Marker, World, done

from kalda.base.background import Steps, run_to_end
from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending

MAX_EPOCH = 32_767
NO_ID = (-1, -1)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_from_begin_to_end(version: int, committed: bool) -> None:
    world = World(version=version)
    assert world.init() == (1000, 0)
    assert world.begin((1000, 0), 0) == "NONE"
    assert world.begin((1000, 0), 1) == "NONE"
    assert world.label() == "Ongoing"
    bumped = int(version == 2)
    answer = world.commit((1000, 0)) if committed else world.abort((1000, 0))
    assert answer == ((1000, 1) if bumped else NO_ID)
    assert world.label() == ("PrepareCommit" if committed else "PrepareAbort")
    world.settle()
    assert world.label() == ("CompleteCommit" if committed else "CompleteAbort")
    client_version = 2 if version == 2 else 0
    assert world.written == [Marker("orders", index, 1000, bumped, committed, 1, client_version) for index in (0, 1)]
    assert world.begin((1000, bumped)) == "NONE"
    assert world.state().partitions == {"orders": frozenset((0,))}


def test_an_idempotent_producer_gets_an_id_of_its_own() -> None:
    world = World()
    assert world.init(None) == (1000, 0)
    assert world.init(None, expected=(1000, 0)) == (1001, 0)
    assert world.log.appends == 0


def test_a_new_instance_fences_the_one_before() -> None:
    world = World()
    assert world.init() == (1000, 0)
    assert world.init() == (1000, 1)
    assert world.begin((1000, 0)) == "PRODUCER_FENCED"
    assert world.commit((1000, 0), version=4) == "PRODUCER_FENCED"
    assert world.commit((1000, 0), version=1) == "INVALID_PRODUCER_EPOCH"
    assert world.init(expected=(1000, 0)) == "PRODUCER_FENCED"
    assert world.init(expected=(1000, 0), version=3) == "INVALID_PRODUCER_EPOCH"


def test_a_producer_that_continues_after_an_error_bumps_its_epoch_once() -> None:
    """KIP-360: the repeated request gets the same epoch; after another instance has begun it is fenced."""
    world = World()
    world.init()
    assert world.init(expected=(1000, 0)) == (1000, 1)
    assert world.init(expected=(1000, 0)) == (1000, 1)
    assert world.init() == (1000, 2)
    assert world.init(expected=(1000, 1)) == "PRODUCER_FENCED"
    assert world.init(expected=(999, 2)) == "PRODUCER_FENCED"


def test_an_unknown_id_with_an_expected_epoch_begins_anew() -> None:
    world = World()
    assert world.init(expected=(77, 5)) == (1000, 0)


@pytest.mark.parametrize("version", [0, 2])
def test_an_open_transaction_is_aborted_before_a_new_instance_begins(version: int) -> None:
    world = World(version=version)
    world.init()
    world.begin((1000, 0))
    assert world.init() == "CONCURRENT_TRANSACTIONS"
    assert world.label() == "PrepareAbort"
    assert world.state().producer_epoch == 1, "the epoch is bumped once"
    assert world.init() == "CONCURRENT_TRANSACTIONS"
    world.settle()
    assert world.written == [Marker("orders", 0, 1000, 1, False, 1, version)]
    assert world.commit((1000, 0), version=4) == "PRODUCER_FENCED"
    assert world.init() == (1000, 2)


def test_what_init_producer_id_refuses() -> None:
    world = World(max_timeout_ms=10_000)
    assert world.init("") == "INVALID_REQUEST"
    assert world.init(timeout_ms=0) == "INVALID_TRANSACTION_TIMEOUT"
    assert world.init(timeout_ms=-1) == "INVALID_TRANSACTION_TIMEOUT"
    assert world.init(timeout_ms=10_001) == "INVALID_TRANSACTION_TIMEOUT"
    assert world.init(timeout_ms=10_000) == (1000, 0)
    assert world.init(expected=(5, -1)) == "INVALID_REQUEST"
    assert world.init(expected=(-1, 5)) == "INVALID_REQUEST"
    assert world.init(version=6, enable2_pc=True) == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
    assert world.init(version=6, keep_prepared_txn=True) == "UNSUPPORTED_VERSION"


def test_a_transaction_with_two_phase_commit_has_no_timeout() -> None:
    """The timeout of the request is ignored, as by Apache Kafka."""
    world = World(two_phase_commit=True)
    for epoch, timeout_ms in enumerate((0, 1, -1, 900_001)):
        assert world.init(version=6, enable2_pc=True, timeout_ms=timeout_ms) == (1000, epoch)
        assert world.state().timeout_ms == 2**31 - 1
    world.begin((1000, 3))
    world.pass_ms(10 * 86_400_000)
    assert world.label() == "Ongoing"


def test_what_needs_an_id_that_is_known() -> None:
    world = World()
    assert world.begin((1000, 0)) == "INVALID_PRODUCER_ID_MAPPING"
    assert world.commit((1000, 0)) == "INVALID_PRODUCER_ID_MAPPING"
    assert world.commit((1000, 0), transactional_id="") == "INVALID_REQUEST"
    assert world.begin((1000, 0), transactional_id="") == "INVALID_REQUEST"
    assert world.label() == "TRANSACTIONAL_ID_NOT_FOUND"
    world.init()
    assert world.begin((1001, 0)) == "INVALID_PRODUCER_ID_MAPPING"
    assert world.commit((1001, 0)) == "INVALID_PRODUCER_ID_MAPPING"
    assert world.commit((1001, 0), version=4) == "INVALID_PRODUCER_ID_MAPPING"
    assert world.begin((1000, 1)) == "PRODUCER_FENCED"


# -- EndTxn, by version


def test_end_of_version_1() -> None:
    """Empty takes neither outcome; a complete state takes its own again."""
    world = World(version=1)
    world.init()
    assert world.commit((1000, 0)) == "INVALID_TXN_STATE"
    assert world.abort((1000, 0)) == "INVALID_TXN_STATE"
    world.begin((1000, 0))
    world.commit((1000, 0))
    assert world.commit((1000, 0)) == "CONCURRENT_TRANSACTIONS"
    world.settle()
    assert world.commit((1000, 0)) == NO_ID
    assert world.abort((1000, 0)) == "INVALID_TXN_STATE"
    world.begin((1000, 0))
    world.abort((1000, 0))
    world.settle()
    assert world.abort((1000, 0)) == NO_ID
    assert world.commit((1000, 0)) == "INVALID_TXN_STATE"


def _in_empty(world: World) -> None:
    world.init()
    world.init()


def _in_commit(world: World) -> None:
    world.init()
    world.begin((1000, 0))
    world.commit((1000, 0))
    world.settle()


def _in_abort(world: World) -> None:
    world.init()
    world.begin((1000, 0))
    world.abort((1000, 0))
    world.settle()


@pytest.mark.parametrize(
    ("reach", "abort_retry", "abort_current", "commit_retry", "commit_current"),
    [
        (_in_empty, "PRODUCER_FENCED", (1000, 2), "PRODUCER_FENCED", "INVALID_TXN_STATE"),
        (_in_abort, (1000, 1), (1000, 2), "INVALID_TXN_STATE", "INVALID_TXN_STATE"),
        (_in_commit, "INVALID_TXN_STATE", (1000, 2), (1000, 1), "INVALID_TXN_STATE"),
    ],
)
def test_end_of_version_2_without_an_open_transaction(
    reach: object, abort_retry: object, abort_current: object, commit_retry: object, commit_current: object
) -> None:
    """The table of KIP-890. The current epoch is 1 in each."""
    world = World()
    reach(world)  # type: ignore[operator]
    assert world.commit((1000, 0)) == commit_retry
    assert world.abort((1000, 0)) == abort_retry
    assert world.commit((1000, 1)) == commit_current
    assert world.commit((1000, 2)) == "PRODUCER_FENCED"
    assert world.abort((1000, 1)) == abort_current
    assert world.label() == "CompleteAbort", "no partition needs a marker"
    assert world.state().start_ms == world.now


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_of_version_2_is_no_repeated_one_of_a_successor_of_version_1(committed: bool) -> None:
    """The feature was downgraded. The former producer must not get the epoch of its successor."""
    world = World()
    world.init()
    world.version = 1
    assert world.init() == (1000, 1)
    world.begin((1000, 1))
    assert (world.commit if committed else world.abort)((1000, 1)) == NO_ID
    world.settle()
    for end in (world.commit, world.abort):
        assert end((1000, 0), version=5) == "PRODUCER_FENCED"
    assert world.begin((1000, 1)) == "NONE"


def test_a_repeated_end_of_version_2_while_markers_are_written() -> None:
    world = World()
    world.init()
    world.begin((1000, 0))
    assert world.commit((1000, 0)) == (1000, 1)
    assert world.commit((1000, 0)) == "CONCURRENT_TRANSACTIONS"
    world.settle()
    assert world.commit((1000, 0)) == (1000, 1)


def test_the_next_transaction_is_aborted_while_markers_are_written() -> None:
    """A client whose first batch of it was answered with CONCURRENT_TRANSACTIONS may give up. It is not fenced."""
    world = World()
    world.init()
    world.begin((1000, 0))
    assert world.commit((1000, 0)) == (1000, 1)
    assert world.abort((1000, 1)) == "CONCURRENT_TRANSACTIONS"
    world.settle()
    assert world.abort((1000, 1)) == (1000, 2)


def test_the_next_transaction_is_aborted_while_a_new_producer_id_waits_for_markers() -> None:
    world = World()
    world.init()
    _set_epoch(world, MAX_EPOCH - 1)
    world.begin((1000, MAX_EPOCH - 1))
    assert world.commit((1000, MAX_EPOCH - 1)) == (1001, 0)
    assert world.abort((1001, 0)) == "CONCURRENT_TRANSACTIONS"
    world.settle()
    assert world.abort((1001, 0)) == (1001, 1)


def test_the_last_epoch_of_a_producer_id_leads_to_a_new_id() -> None:
    """By InitProducerId, with and without an expected epoch."""
    world = World()
    world.init()
    _set_epoch(world, MAX_EPOCH - 1)
    assert world.init(expected=(1000, MAX_EPOCH - 1)) == (1001, 0)
    assert world.init(expected=(1000, MAX_EPOCH - 1)) == (1001, 0), "a repeated request"
    _set_epoch(world, MAX_EPOCH - 1)
    assert world.init(expected=(1001, 7)) == "PRODUCER_FENCED"
    assert world.init() == (1002, 0)


def test_version_2_hands_out_a_new_id_when_epochs_are_exhausted() -> None:
    world = World()
    world.init()
    _set_epoch(world, MAX_EPOCH - 1)
    world.begin((1000, MAX_EPOCH - 1))
    assert world.commit((1000, MAX_EPOCH - 1)) == (1001, 0)
    assert world.commit((1000, MAX_EPOCH - 1)) == "CONCURRENT_TRANSACTIONS"
    waiting = world.add_later((1001, 0))
    assert isinstance(waiting, Pending)
    assert not waiting.done, "the new id is current when the markers are written"
    world.settle()
    assert waiting.value is ErrorCode.NONE
    assert world.written == [Marker("orders", 0, 1000, MAX_EPOCH, True, 1, 2)]
    assert world.abort((1001, 0)) == (1001, 1)


def test_a_repeated_end_finds_the_new_id() -> None:
    world = World()
    world.init()
    _set_epoch(world, MAX_EPOCH - 1)
    world.begin((1000, MAX_EPOCH - 1))
    world.commit((1000, MAX_EPOCH - 1))
    world.settle()
    assert world.commit((1000, MAX_EPOCH - 1)) == (1001, 0)
    assert world.abort((1000, MAX_EPOCH - 1)) == "INVALID_TXN_STATE"


def test_a_fence_of_the_last_usable_epoch_before_version_2() -> None:
    world = World(version=0)
    world.init()
    _set_epoch(world, MAX_EPOCH - 1)
    world.begin((1000, MAX_EPOCH - 1))
    assert world.init() == "CONCURRENT_TRANSACTIONS"
    world.settle()
    assert world.written[-1].epoch == MAX_EPOCH
    assert world.init() == (1001, 0)


@pytest.mark.parametrize("times_out", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_a_fence_of_the_last_usable_epoch_leads_to_a_new_id(times_out: bool, held: bool) -> None:
    """The fenced producer may continue in version 2, but not with the last epoch, which nobody could fence."""
    world = World()
    world.init()
    _set_epoch(world, MAX_EPOCH - 1)
    world.begin((1000, MAX_EPOCH - 1))
    world.ids.held = [] if held else None
    if times_out:
        world.pass_ms(TIMEOUT_MS + 10_001)
    else:
        answer = world.init_later()
    if held:
        assert world.label() == "Ongoing"
        world.ids.give()
    if not times_out:
        assert ErrorCode(done(answer).error_code) is ErrorCode.CONCURRENT_TRANSACTIONS
    world.settle()
    assert world.written[-1].epoch == MAX_EPOCH
    assert (world.state().producer_id, world.state().producer_epoch) == (1001, 0)
    assert world.abort((1000, MAX_EPOCH - 1)) == (1001, 0)
    assert world.init(expected=(1000, MAX_EPOCH - 1)) == (1001, 0)
    assert world.init() == (1001, 1)


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("times_out", [True, False])
def test_an_open_transaction_with_the_last_epoch_is_aborted(version: int, times_out: bool) -> None:
    """Earlier releases of Apache Kafka could leave one in the log: no epoch is left to fence its producer with."""
    world = World(version=version)
    world.init()
    world.begin((1000, 0))
    _set_epoch(world, MAX_EPOCH)
    world.elect()
    if version == 2:
        assert world.commit((1000, MAX_EPOCH)) == "UNKNOWN_SERVER_ERROR"
    if times_out:
        world.pass_ms(TIMEOUT_MS + 10_001)
    else:
        assert world.init() == "CONCURRENT_TRANSACTIONS"
    world.settle()
    assert world.label() == "CompleteAbort"
    assert world.written == [Marker("orders", 0, 1000, MAX_EPOCH, False, 2, version)]
    assert world.init() == ((1001, 1) if version == 2 else (1001, 0))


def test_a_transaction_that_ends_before_its_fence_has_an_id() -> None:
    world = World()
    world.init()
    _set_epoch(world, MAX_EPOCH - 1)
    world.begin((1000, MAX_EPOCH - 1))
    world.ids.held = []
    world.pass_ms(TIMEOUT_MS + 10_001)
    held, world.ids.held = world.ids.held, None
    assert world.commit((1000, MAX_EPOCH - 1)) == (1001, 0)
    world.ids.next += 1
    held[0].complete(1002)
    world.settle()
    assert world.label() == "CompleteCommit"


def _set_epoch(world: World, epoch: int) -> None:
    world.shard.write("t", world.state()._replace(producer_epoch=epoch))


# -- requests that meet


def test_a_write_that_waits_for_its_commit_fences_other_requests() -> None:
    world = World()
    world.init()
    world.log.replicated = False
    adding = world.add_later((1000, 0))
    assert not adding.done
    assert world.begin((1000, 0), 1) == "CONCURRENT_TRANSACTIONS"
    assert world.commit((1000, 0)) == "CONCURRENT_TRANSACTIONS"
    assert world.init() == "CONCURRENT_TRANSACTIONS"
    assert world.label() == "Empty", "reads see what is committed"
    world.replicate()
    assert adding.value is ErrorCode.NONE
    assert world.label() == "Ongoing"


def test_markers_are_sent_when_the_outcome_is_committed() -> None:
    world = World()
    world.init()
    world.begin((1000, 0))
    world.log.replicated = False
    ending = world.end_later((1000, 0), committed=True)
    world.settle(1_000)
    assert not world.written
    assert not ending.done
    world.replicate()
    assert ending.value.producer_epoch == 1
    world.settle()
    assert len(world.written) == 1
    assert world.label() == "PrepareCommit", "the complete state is not committed"
    adding = world.add_later((1000, 1))
    assert not adding.done, "it follows the complete state in the log"
    world.replicate()
    assert adding.value is ErrorCode.NONE


def test_a_write_that_the_log_refuses_changes_nothing() -> None:
    world = World()
    world.init()
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.begin((1000, 0)) == "COORDINATOR_NOT_AVAILABLE"
    assert world.init() == "COORDINATOR_NOT_AVAILABLE"
    world.log.failure = None
    assert world.begin((1000, 0)) == "NONE"
    world.log.failure = ErrorCode.NOT_ENOUGH_REPLICAS
    assert world.init() == "COORDINATOR_NOT_AVAILABLE"
    assert world.commit((1000, 0)) == "COORDINATOR_NOT_AVAILABLE"
    world.log.failure = None
    assert world.commit((1000, 0)) == (1000, 1)


def test_a_write_that_is_not_committed_in_time() -> None:
    """The client learns nothing of its outcome; the write lasts, and its id stays fenced until it is committed."""
    world = World(write_timeout_ms=5_000)
    world.init()
    world.begin((1000, 0))
    world.log.replicated = False
    ending = world.end_later((1000, 0), committed=True)
    world.pass_ms(5_000)
    assert ErrorCode(ending.value.error_code) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.abort((1000, 0)) == "CONCURRENT_TRANSACTIONS"
    world.log.replicated = True
    world.replicate()
    world.settle()
    assert world.commit((1000, 0)) == (1000, 1)
    assert [marker.committed for marker in world.written] == [True]


def test_a_partition_that_is_in_the_transaction_is_added_without_a_write() -> None:
    world = World()
    world.init()
    world.begin((1000, 0), 0, 1)
    appends = world.log.appends
    assert world.begin((1000, 0), 1) == "NONE"
    assert world.log.appends == appends


def test_the_next_transaction_waits_for_the_markers_of_the_one_before() -> None:
    world = World()
    world.init()
    world.begin((1000, 0))
    world.commit((1000, 0))
    waiting = world.add_later((1000, 1), 2)
    assert not waiting.done
    world.settle()
    assert waiting.value is ErrorCode.NONE
    assert world.label() == "Ongoing"


def test_the_next_transaction_does_not_wait_for_long() -> None:
    """All requests together wait no longer than 100 ms after the end: they hold up answers to others."""
    world = World()
    world.init()
    world.begin((1000, 0))
    world.commit((1000, 0))
    waiting = [world.add_later((1000, 1)) for _ in range(5)]
    world.pass_ms(60)
    waiting += [world.add_later((1000, 1)) for _ in range(5)]
    assert world.begin((1000, 1)) == "CONCURRENT_TRANSACTIONS", "ten requests wait already"
    world.pass_ms(40)
    assert {each.value for each in waiting} == {ErrorCode.CONCURRENT_TRANSACTIONS}
    assert world.begin((1000, 1)) == "CONCURRENT_TRANSACTIONS"
    world.settle()
    assert world.begin((1000, 1)) == "NONE"


def test_the_next_transaction_does_not_wait_for_a_broker_that_is_away() -> None:
    world = World()
    world.init()
    world.begin((1000, 0))
    world.down.add(0)
    world.commit((1000, 0))
    world.deliver()
    assert world.begin((1000, 1)) == "CONCURRENT_TRANSACTIONS"


def test_a_request_that_waits_for_markers_is_answered_when_the_coordinator_resigns() -> None:
    world = World()
    world.init()
    world.begin((1000, 0))
    world.commit((1000, 0))
    waiting = world.add_later((1000, 1))
    world.resign()
    assert waiting.value is ErrorCode.NOT_COORDINATOR


def test_producer_ids_that_come_later() -> None:
    world = World()
    world.ids.held = []
    first, second = world.init_later(), world.init_later("u")
    assert not first.done
    world.ids.give()
    assert (first.value.producer_id, first.value.producer_epoch) == (1000, 0)
    assert (second.value.producer_id, second.value.producer_epoch) == (1001, 0)
    world.ids.failure = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.init("v") == "COORDINATOR_LOAD_IN_PROGRESS"
    assert world.init() == (1000, 1), "no id is needed"


# -- verification


def test_verification_of_partitions() -> None:
    world = World()
    verify = world.coordinator.verify_partitions
    assert verify("t", 1000, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert verify("", 1000, 0) is ErrorCode.INVALID_REQUEST
    world.init()
    world.begin((1000, 0), 1)
    found = verify("t", 1000, 0)
    assert not isinstance(found, ErrorCode)
    assert found.holds("orders", 1)
    assert not found.holds("orders", 0)
    assert verify("t", 1000, 1) is ErrorCode.PRODUCER_FENCED
    assert verify("t", 1001, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    world.commit((1000, 0))
    assert verify("t", 1000, 1) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert verify("t", 1000, 0) is ErrorCode.PRODUCER_FENCED


# -- time


@pytest.mark.parametrize("version", [0, 2])
def test_a_transaction_that_is_open_for_too_long_is_aborted(version: int) -> None:
    world = World(version=version)
    world.init()
    world.begin((1000, 0))
    world.pass_ms(TIMEOUT_MS)
    assert world.label() == "Ongoing"
    world.pass_ms(10_001)
    world.settle()
    assert world.label() == "CompleteAbort"
    assert world.written == [Marker("orders", 0, 1000, 1, False, 1, version)]
    assert world.begin((1000, 0)) == "PRODUCER_FENCED"


def test_a_wall_clock_that_jumps_ends_no_transaction() -> None:
    """As where a laptop has slept, with the producer and the node on it."""
    world, ahead_ms = World(), [0]
    world.runtime._wall_ms = lambda: world.now + ahead_ms[0]
    world.init()
    world.begin((1000, 0))
    ahead_ms[0] = 8 * 3_600_000
    world.pass_ms(TIMEOUT_MS - 1)
    world.begin((1000, 0), 1)
    assert world.label() == "Ongoing"
    world.pass_ms(10_002)
    world.settle()
    assert world.label() == "CompleteAbort", "its timeout is over"


def test_a_client_of_version_2_continues_after_a_timeout() -> None:
    world = World()
    world.init()
    world.begin((1000, 0))
    world.pass_ms(TIMEOUT_MS + 10_001)
    world.settle()
    assert world.commit((1000, 0)) == "INVALID_TXN_STATE"
    assert world.abort((1000, 0)) == (1000, 1)
    assert world.begin((1000, 1)) == "NONE"


def test_very_many_transactions_time_out_in_steps() -> None:
    world = World()
    background: list[Steps[None]] = []
    world.runtime.timers.run = background.append
    for index in range(250):
        producer = world.producer(f"t{index}")
        world.begin(producer, transactional_id=f"t{index}")
    world.now += TIMEOUT_MS + 20_000
    world.runtime.poll(world.now)
    [steps] = background
    assert len(world.shard.ongoing) == 250
    next(steps)
    assert len(world.shard.ongoing) == 249
    run_to_end(steps)
    assert not world.shard.ongoing


@pytest.mark.parametrize("task", ["abort", "expire"])
def test_steps_of_a_partition_that_is_led_elsewhere_end(task: str) -> None:
    world = World(expiration_ms=1_000)
    shard, background = world.shard, list[Steps[None]]()
    world.runtime.timers.run = background.append
    for index in range(250):
        producer = world.producer(f"t{index}")
        if task == "abort":
            world.begin(producer, transactional_id=f"t{index}")
    world.now += 3_600_000
    world.runtime.poll(world.now)
    for steps in background:
        next(steps, None)
    world.runtime.on_resigned(0)
    appends = world.log.appends
    for steps in background:
        run_to_end(steps)
    assert world.log.appends == appends
    assert shard.ongoing if task == "abort" else shard.transactions
    assert world.runtime.timers.next_deadline_ms() is None or not world.runtime.timers.fire(world.now + 10**9)


def test_ids_that_are_not_used_expire() -> None:
    world = World(expiration_ms=7_200_000)
    used = world.producer("used")
    opened = world.producer("open")
    world.init("idle")
    world.pass_ms(3_600_000)
    world.begin(used, transactional_id="used")
    world.abort(used, transactional_id="used")
    world.settle()
    world.version = 0
    world.shard.write("open", world.state("open").with_partitions({"orders": frozenset((0,))}, 0, world.now + 10**9))
    world.pass_ms(3_600_000)
    assert sorted(world.shard.transactions) == ["open", "used"]
    assert opened == (1001, 0)
    world.elect()
    assert sorted(world.shard.transactions) == ["open", "used"], "the tombstone is in the log"


def test_expired_ids_are_deleted_in_batches() -> None:
    """An id may have 32 KiB, a batch one megabyte."""
    world = World(expiration_ms=1_000)
    for index in range(40):
        world.init(f"{index}".ljust(32_000, "x"))
    appends = world.log.appends
    world.pass_ms(3_600_000)
    assert not world.shard.transactions
    assert world.log.appends - appends == 5


def test_an_id_that_is_pending_does_not_expire() -> None:
    world = World(expiration_ms=1_000, write_timeout_ms=10_000_000)
    world.init()
    world.log.replicated = False
    world.pass_ms(3_500_000)
    waiting = world.init_later()
    world.pass_ms(3_700_000)
    world.replicate()
    assert waiting.value.producer_epoch == 1
