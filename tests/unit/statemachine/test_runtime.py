"""The runtime: when answers are given, and what is reverted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.statemachine.runtime import Prepared, ReplayFault, ReplicatedRuntime, Result
from kalda.statemachine.timeline import SnapshotRegistry, TimelineDict

Put = tuple[str, int]


class Store:
    """A map over a log, with the markers of a metadata transaction as records of their own."""

    def __init__(self, limit: int = 10) -> None:
        self.registry = SnapshotRegistry()
        self.state: TimelineDict[str, int] = TimelineDict(self.registry)
        self.log: list[Put] = []
        self.batches: list[list[Put]] = []
        self.prepared: list[Put] = []
        self.refuse: ErrorCode | None = None
        self.runtime: ReplicatedRuntime[Put] = ReplicatedRuntime(
            self.registry,
            self.prepare,
            self.replay,
            schedule=self.schedule,
            not_leader=ErrorCode.NOT_CONTROLLER,
            max_records_per_batch=limit,
        )

    def prepare(self, epoch: int, records: Sequence[Put]) -> Prepared:
        if self.refuse is not None:
            raise ApiError(self.refuse)
        self.prepared = list(records)
        return Prepared(len(self.log), len(self.log) + len(records) - 1)

    def schedule(self) -> None:
        self.log.extend(self.prepared)
        self.batches.append(self.prepared)

    def replay(self, record: Put, offset: int) -> None:
        match record[0]:
            case "begin":
                self.runtime.offsets.begin_transaction(offset)
            case "end":
                self.runtime.offsets.end_transaction(offset)
            case "abort":
                self.runtime.offsets.abort_transaction(offset)
            case "poison":
                raise ValueError("nobody can apply it")
            case key:
                self.state[key] = record[1]

    def put(self, *records: Put, atomic: bool = False):  # type: ignore[no-untyped-def]
        return self.runtime.write(lambda: Result(records, f"wrote {len(records)}", atomic))

    def follow(self, *records: Put, at: int) -> None:
        """A batch that another node wrote is committed."""
        self.runtime.offsets.begin_replay()
        self.runtime.replay_some(records, at)
        self.runtime.on_commit(at + len(records) - 1)

    def seen(self) -> dict[str, int]:
        return dict(self.runtime.read(lambda epoch: dict(self.state.items(epoch))).value or {})


def claimed() -> Store:
    store = Store()
    store.runtime.claim(1, 0)
    return store


def test_a_write_is_applied_at_once_and_answered_when_committed() -> None:
    store = claimed()
    answer = store.put(("a", 1))
    assert dict(store.state) == {"a": 1}
    assert store.seen() == {}
    assert not answer.done
    store.runtime.on_commit(0)
    assert answer.value == "wrote 1"
    assert store.seen() == {"a": 1}


def test_only_the_leader_writes() -> None:
    answer = Store().put(("a", 1))
    assert answer.error is not None
    assert answer.error.code is ErrorCode.NOT_CONTROLLER


def test_an_answer_without_records_waits_for_the_writes_before_it() -> None:
    store = claimed()
    first, second = store.put(("a", 1)), store.put()
    assert not second.done
    store.runtime.on_commit(0)
    assert first.done
    assert second.value == "wrote 0"
    assert store.put().done


def test_renouncing_reverts_and_fails_what_is_not_committed() -> None:
    store = claimed()
    kept, lost = store.put(("a", 1)), store.put(("a", 2), ("b", 3))
    store.runtime.on_commit(0)
    states: list[dict[str, int]] = []
    lost.then(lambda value, error: states.append(dict(store.state)))
    store.runtime.renounce()
    assert kept.value == "wrote 1"
    assert lost.error is not None
    assert states == [{"a": 1}]
    assert not store.runtime.active
    store.follow(("b", 9), at=1)
    assert dict(store.state) == {"a": 1, "b": 9}
    store.runtime.claim(3, 2)
    assert store.put(("c", 1)).done is False


def test_a_long_result_is_cut_unless_it_is_atomic() -> None:
    store = claimed()
    answer = store.put(*[(str(n), n) for n in range(25)])
    assert [len(batch) for batch in store.batches] == [10, 10, 5]
    store.runtime.on_commit(9)
    store.runtime.on_commit(19)
    assert not answer.done
    assert len(store.seen()) == 20
    store.runtime.on_commit(24)
    assert answer.done
    refused = store.put(*[(str(n), n) for n in range(11)], atomic=True)
    assert refused.error is not None
    assert len(store.log) == 25


def test_a_refused_append_or_operation_changes_nothing() -> None:
    store = claimed()
    store.refuse = ErrorCode.MESSAGE_TOO_LARGE
    answer = store.put(("a", 1))
    assert answer.error is not None
    assert answer.error.code is ErrorCode.MESSAGE_TOO_LARGE
    assert dict(store.state) == {}

    def invalid() -> Result[Put, None]:
        raise ApiError(ErrorCode.INVALID_REQUEST, "no")

    error = store.runtime.write(invalid).error
    assert error is not None
    assert error.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("poison", ["end", "poison"])
def test_a_batch_that_cannot_be_applied_is_not_written(poison: str) -> None:
    store = claimed()
    store.put(("a", 1))
    with pytest.raises(ReplayFault, match=r"at offset 3 cannot be applied \(its batch begins at offset 1\)") as raised:
        store.put(("a", 2), ("b", 2), (poison, 0), ("c", 3))
    assert isinstance(raised.value.__cause__, AssertionError | ValueError)
    assert store.log == [("a", 1)]
    assert dict(store.state) == {"a": 1}
    answer = store.put(("d", 4))
    store.runtime.on_commit(1)
    assert answer.done
    assert store.seen() == {"a": 1, "d": 4}


def test_a_transaction_that_began_in_a_batch_that_cannot_be_applied_is_reverted() -> None:
    store = claimed()
    store.put(("a", 1))
    with pytest.raises(ReplayFault):
        store.put(("a", 2), ("begin", 0), ("b", 2), ("poison", 0))
    assert dict(store.state) == {"a": 1}
    assert store.runtime.offsets.transaction_start_offset == -1
    store.put(("begin", 0), ("c", 3), ("end", 0))
    store.runtime.on_commit(3)
    assert store.seen() == {"a": 1, "c": 3}


def test_batches_before_one_that_cannot_be_applied_stay() -> None:
    store = claimed()
    records: list[Put] = [(str(n), n) for n in range(25)]
    with pytest.raises(ReplayFault):
        store.put(*records[:23], ("poison", 0))
    assert store.log == records[:20]
    assert dict(store.state) == dict(records[:20])
    store.runtime.on_commit(19)
    assert store.seen() == dict(records[:20])


def test_a_record_of_another_node_that_cannot_be_applied_is_a_fault() -> None:
    with pytest.raises(ReplayFault, match="at offset 8 "):
        Store().follow(("a", 1), ("poison", 0), at=7)


def test_an_answer_that_cannot_be_given_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    store = claimed()
    for end in (lambda: store.runtime.on_commit(len(store.log) - 1), store.runtime.renounce):
        failing, following = store.put(("a", 1)), store.put(("b", 2))
        failing.then(lambda value, error: 1 // 0)
        end()
        assert failing.done
        assert following.done
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError] * 2


def test_half_a_transaction_is_never_read() -> None:
    store = claimed()
    store.put(("a", 1))
    store.put(("begin", 0), ("b", 2))
    store.put(("c", 3))
    store.runtime.on_commit(3)
    assert store.seen() == {"a": 1}
    assert store.runtime.offsets.last_stable_offset == 0
    ended = store.put(("d", 4), ("end", 0))
    assert store.seen() == {"a": 1}, "the end is appended, not committed"
    store.runtime.on_commit(5)
    assert ended.done
    assert store.seen() == {"a": 1, "b": 2, "c": 3, "d": 4}


def test_an_aborted_transaction_leaves_nothing() -> None:
    store = claimed()
    store.put(("a", 1))
    store.put(("begin", 0), ("a", 2), ("b", 2))
    store.put(("abort", 0))
    assert dict(store.state) == {"a": 1}
    store.runtime.on_commit(4)
    assert store.seen() == {"a": 1}
    assert store.runtime.offsets.transaction_start_offset == -1


def test_an_uncommitted_end_or_abort_is_reverted_to_the_open_transaction() -> None:
    for closing in ("end", "abort"):
        store = claimed()
        store.put(("a", 1))
        store.put(("begin", 0), ("b", 2))
        store.runtime.on_commit(2)
        store.put((closing, 0))
        store.runtime.renounce()
        assert dict(store.state) == {"a": 1, "b": 2}
        assert store.runtime.offsets.transaction_start_offset == 1
        assert store.seen() == {"a": 1}
        store.follow(("abort", 0), at=3)
        assert store.seen() == dict(store.state) == {"a": 1}


def test_an_uncommitted_begin_is_reverted() -> None:
    store = claimed()
    store.put(("begin", 0), ("b", 2))
    store.runtime.renounce()
    assert store.runtime.offsets.transaction_start_offset == -1
    store.follow(("begin", 0), ("c", 1), ("end", 0), at=0)
    assert store.seen() == {"c": 1}


def test_loading_a_snapshot_replaces_everything() -> None:
    store = Store()
    store.follow(("a", 1), at=0)
    store.runtime.offsets.begin_load_snapshot()
    store.replay(("z", 26), 9)
    store.runtime.offsets.end_load_snapshot(9)
    assert store.seen() == {"z": 26}
    store.log = [("old", 0)] * 10
    store.runtime.claim(4, 10)
    store.put(("y", 25))
    store.runtime.renounce()
    assert dict(store.state) == {"z": 26}


def test_commits_inside_a_batch_do_not_answer_it() -> None:
    store = claimed()
    answer = store.put(("a", 1), ("b", 2))
    store.runtime.on_commit(0)
    assert not answer.done
    assert store.seen() == {}
    store.runtime.renounce()
    assert dict(store.state) == {}


def test_a_log_that_commits_by_its_end_offset_works_the_same() -> None:
    store = Store()
    log: list[Put] = []

    def append(epoch: int, records: Sequence[Put]) -> Prepared:
        first = len(log)
        log.extend(records)
        return Prepared(first, len(log))

    runtime: ReplicatedRuntime[Put] = ReplicatedRuntime(
        store.registry, append, store.replay, not_leader=ErrorCode.NOT_COORDINATOR
    )
    store.runtime = runtime
    runtime.claim(1, 0)
    answers = [store.put((name, 1)) for name in "ab"]
    runtime.on_commit(1)
    assert [answer.done for answer in answers] == [True, False]
    runtime.on_commit(2)
    assert answers[1].done


def test_a_run_of_records_is_replayed_at_once_up_to_one_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kalda.statemachine.runtime._MANY", 3)
    runs: list[int] = []

    class Runs(Store):
        def replay_run(self, records: Sequence[Put], first: int) -> int:
            good = 0
            while first + good < len(records) and records[first + good][0] in "abc":
                self.state[records[first + good][0]] = records[first + good][1]
                good += 1
            runs.append(good)
            return good

    store = Runs(limit=100)
    store.runtime._replay_run = store.replay_run
    store.runtime.claim(1, 0)
    store.put(("a", 1), ("b", 2), ("other", 3), ("c", 4))
    assert (runs, dict(store.state)) == ([2, 0, 1], {"a": 1, "b": 2, "other": 3, "c": 4})
    with pytest.raises(ReplayFault, match="at offset 6 cannot be applied"):
        store.put(("a", 5), ("b", 6), ("poison", 0), ("c", 7))
    assert dict(store.state) == {"a": 1, "b": 2, "other": 3, "c": 4}
