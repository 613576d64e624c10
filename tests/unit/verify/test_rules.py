"""Each rule with a history written by hand: what is found, and which record, transaction and place are named."""

from __future__ import annotations

import pytest
from hand_made import ABORTED, COMMITTED, UNKNOWN, A, B, findings_of, log, only, read, transaction

from kalda.verify.history import Append, Consumed, Fault, FinalOffset, OffsetSample, Place, Settings
from kalda.verify.rules import Rule

IN = Consumed("g", A, 0, 2)


def test_a_committed_transaction_is_all_there() -> None:
    assert not findings_of(transaction("p", COMMITTED, (A, "x", 0), (B, "y", 0)), log(A, "x"), log(B, "y"))


def test_lost() -> None:
    found = only(transaction("p", COMMITTED, (A, "x", 3)), log(A))
    assert (found.rule, found.transaction, found.record, found.place) == (Rule.LOST, "p/0/0", "x", Place(A, 3))
    assert "record 'x' of transaction p/0/0 (committed), acknowledged at t-0@3, not in the log" in found.text


def test_lost_though_it_is_in_the_log() -> None:
    found = only(transaction("p", COMMITTED, (A, "x", 0)), log(A, "x", hidden=(0,)))
    assert found.rule is Rule.LOST
    assert "at t-0@0, is not visible" in found.text


def test_torn() -> None:
    for outcome in (COMMITTED, UNKNOWN):
        found = only(transaction("p", outcome, (A, "x", 0), (B, "y", 0)), log(A, "x"), log(B, "y", hidden=(0,)))
        assert (found.rule, found.record, found.place) == (Rule.TORN, "y", Place(B, 0))
        assert "1 of its 2 records are, as 'x' at t-0@0" in found.text


def test_without_an_answer_all_or_nothing_is_right() -> None:
    one = transaction("p", UNKNOWN, (A, "x", 0), (B, "y", 0))
    assert not findings_of(one, log(A, "x"), log(B, "y"))
    assert not findings_of(one, log(A, "x", hidden=(0,)), log(B, "y", hidden=(0,)))


def test_without_a_request_to_commit_nothing_may_be_visible() -> None:
    found = only(transaction("p", UNKNOWN, (A, "x", 0), commit_sent_us=None), log(A, "x"))
    assert found.rule is Rule.ABORTED_VISIBLE
    assert "no commit was requested" in found.text


def test_aborted_visible() -> None:
    assert only(transaction("p", ABORTED, (A, "x", 0)), log(A, "x")).rule is Rule.ABORTED_VISIBLE


def test_duplicate() -> None:
    found = only(transaction("p", COMMITTED, (A, "x", 0)), log(A, "x", None, "x"))
    assert (found.rule, found.place) == (Rule.DUPLICATE, Place(A, 2))
    assert "at t-0@0 and t-0@2" in found.text


def test_a_record_from_nowhere() -> None:
    assert only(log(A, "x")).rule is Rule.UNKNOWN_RECORD


def test_misplaced() -> None:
    found = only(transaction("p", COMMITTED, (A, "x", 1)), log(A, "x"))
    assert found.rule is Rule.MISPLACED
    assert "is at t-0@0, but was acknowledged at t-0@1" in found.text
    found = only(transaction("p", COMMITTED, (A, "x")), log(A), log(B, "x"))
    assert "is at t-1@0, but was sent to t-0" in found.text


def test_order_within_a_transaction_and_between_two() -> None:
    assert only(transaction("p", COMMITTED, (A, "x", 1), (A, "y", 0)), log(A, "y", "x")).rule is Rule.ORDER
    later, earlier = transaction("p", COMMITTED, (A, "y"), number=1), transaction("p", COMMITTED, (A, "x"))
    assert only(later, earlier, log(A, "y", "x")).record == "y"


def test_a_fenced_producer_writes_nothing_after_its_successor() -> None:
    zombie = transaction("p", UNKNOWN, (A, "old"), number=7)
    successor = transaction("p", COMMITTED, (A, "new"), incarnation=1)
    found = only(zombie, successor, log(A, "new", None, "old", None))
    assert (found.rule, found.transaction) == (Rule.ORDER, "p/1/0")


def test_an_aborted_read() -> None:
    for outcome in (ABORTED, UNKNOWN):
        aborted = transaction("p", outcome, (A, "x", 0))
        found = only(aborted, log(A, "x", None, hidden=(0,)), read(A, 0, 1, (0, "x")))
        assert (found.rule, found.record, found.place) == (Rule.G1A, "x", Place(A, 0))
        assert found.text.startswith("reader read record 'x' of transaction p/0/0")


def test_a_read_before_the_commit() -> None:
    found = only(transaction("p", COMMITTED, (A, "x", 0)), log(A, "x"), read(A, 0, 1, (0, "x"), at_us=49))
    assert found.rule is Rule.G1B
    assert "1 µs before its commit was requested" in found.text


def test_a_read_of_half_a_transaction() -> None:
    both = transaction("p", COMMITTED, (A, "x", 0), (B, "y", 0))
    found = only(both, log(A, "x"), log(B, "y", None), read(A, 0, 1, (0, "x")), read(B, 0, 2))
    assert (found.rule, found.record) == (Rule.G1B, "y")
    assert "but got 1 other records of this transaction" in found.text


def test_a_skipped_record() -> None:
    found = only(transaction("p", COMMITTED, (A, "x", 0)), log(A, "x", None), read(A, 0, 2))
    assert (found.rule, found.record, found.place) == (Rule.SKIPPED, "x", Place(A, 0))


def test_an_offset_with_another_record() -> None:
    first, second = transaction("p", COMMITTED, (A, "x", 0)), transaction("q", COMMITTED, (A, "y"))
    found = findings_of(first, second, log(A, "y"), read(A, 0, 1, (0, "x")))
    assert {each.rule for each in found} == {Rule.LOST, Rule.UNSTABLE_READ}


def test_records_outside_of_the_positions() -> None:
    one = transaction("p", COMMITTED, (A, "x", 0), (A, "y", 1))
    found = only(one, log(A, "x", "y"), read(A, 0, 2, (1, "y"), (0, "x")))
    assert found.rule is Rule.UNSTABLE_READ
    assert "t-0@0 after offset 1" in found.text


def test_a_circle_of_two() -> None:
    first, second = transaction("p", COMMITTED, (A, "x", 0)), transaction("q", COMMITTED, (B, "y", 0))
    reads = read(B, 0, 1, (0, "y"), of="p/0/0"), read(A, 0, 1, (0, "x"), of="q/0/0")
    found = only(first, second, log(A, "x"), log(B, "y"), *reads)
    assert found.rule is Rule.G1C
    assert "p/0/0 read t-1 up to 0, where q/0/0 had written 'y' at t-1@0" in found.text
    assert "q/0/0 read t-0 up to 0, where p/0/0 had written 'x' at t-0@0" in found.text


def test_a_circle_through_a_prefix() -> None:
    """q read beyond the record of p, so p had ended; p read the record of q, so q had ended."""
    first, second = transaction("p", COMMITTED, (A, "x", 0)), transaction("q", COMMITTED, (B, "y", 0))
    third = transaction("r", COMMITTED, (A, "z", 1))
    reads = read(B, 0, 1, (0, "y"), of="p/0/0"), read(A, 1, 2, (1, "z"), of="q/0/0")
    assert only(first, second, third, log(A, "x", "z"), log(B, "y"), *reads).rule is Rule.G1C


def test_writes_may_interleave() -> None:
    """G0 is allowed: two transactions are in one order in one partition, and in the other order in another one."""
    first = transaction("p", COMMITTED, (A, "x1", 0), (B, "x2", 1))
    second = transaction("q", COMMITTED, (B, "y1", 0), (A, "y2", 1))
    assert not findings_of(first, second, log(A, "x1", "y2"), log(B, "y1", "x2"))


def test_an_aborted_transaction_may_read_beyond_its_own_record() -> None:
    """Its coordinator aborted it before it read."""
    zombie, other = transaction("p", ABORTED, (A, "x", 0)), transaction("q", COMMITTED, (A, "y", 2))
    late = read(A, 0, 3, (2, "y"), of="p/0/0")
    assert not findings_of(zombie, other, log(A, "x", None, "y", hidden=(0,)), late)


def test_a_read_of_an_own_record() -> None:
    own = transaction("p", COMMITTED, (A, "x", 0))
    found = only(own, log(A, "x"), read(A, 0, 1, (0, "x"), of="p/0/0"))
    assert found.rule is Rule.G1C


INPUTS = (transaction("in", COMMITTED, (A, "i0", 0), (A, "i1", 1)), log(A, "i0", "i1"))


def test_each_input_has_an_output() -> None:
    loop = transaction("p", COMMITTED, Append(B, "o0", 0, "i0"), Append(B, "o1", 1, "i1"), consumed=(IN,))
    assert not findings_of(*INPUTS, loop, log(B, "o0", "o1"), FinalOffset("g", A, 2))


def test_an_input_without_an_output() -> None:
    loop = transaction("p", COMMITTED, Append(B, "o0", 0, "i0"), consumed=(IN,))
    found = only(*INPUTS, loop, log(B, "o0"), FinalOffset("g", A, 2))
    assert (found.rule, found.record, found.place) == (Rule.INPUT_LOST, "i1", Place(A, 1))


def test_a_lost_update() -> None:
    loops = [
        transaction(
            name, COMMITTED, Append(B, f"{name}0", None, "i0"), Append(B, f"{name}1", None, "i1"), consumed=(IN,)
        )
        for name in ("p", "q")
    ]
    found = findings_of(*INPUTS, *loops, log(B, "p0", "p1", "q0", "q1"), FinalOffset("g", A, 2))
    assert [each.rule for each in found].count(Rule.LOST_UPDATE) == 1
    assert [each.rule for each in found].count(Rule.INPUT_TWICE) == 2
    assert "was advanced from the same offset by two transactions" in str(found[0])


def test_outputs_in_another_order() -> None:
    loop = transaction("p", COMMITTED, Append(B, "o0", None, "i0"), consumed=(IN._replace(end=1),))
    other = transaction("q", COMMITTED, Append(B, "o1", None, "i1"), consumed=(IN._replace(start=1),))
    found = only(*INPUTS, loop, other, log(B, "o1", "o0"), FinalOffset("g", A, 2))
    assert (found.rule, found.record) == (Rule.OUTPUT_ORDER, "o1")


def test_offsets_of_a_committed_transaction_that_are_not_the_group_s() -> None:
    loop = transaction("p", COMMITTED, Append(B, "o0", 0, "i0"), Append(B, "o1", 1, "i1"), consumed=(IN,))
    found = only(*INPUTS, loop, log(B, "o0", "o1"), FinalOffset("g", A, 0))
    assert found.rule is Rule.GROUP_OFFSET
    assert "has committed offset 0 of t-0 in the end, but transaction p/0/0 (committed) committed 2" in found.text


SETTINGS = Settings(1_000, 500)


def test_the_last_stable_offset_moves_back() -> None:
    found = only(OffsetSample(A, 5, 5, 1), OffsetSample(A, 4, 5, 2), OffsetSample(A, 5, 5, 3))
    assert (found.rule, found.place) == (Rule.LSO_BACKWARDS, Place(A, 4))


def test_the_last_stable_offset_is_above_the_high_watermark() -> None:
    assert only(OffsetSample(A, 6, 5, 1)).rule is Rule.LSO_BACKWARDS


def test_a_stuck_last_stable_offset_names_the_transaction() -> None:
    hanging = transaction("p", UNKNOWN, (A, "x", 1), commit_sent_us=None)
    final = log(A, None, "x", hidden=(1,))
    fault = Fault("kill -9", 0, 1_000_000)
    late = OffsetSample(A, 1, 2, 2_600_000)
    found = only(SETTINGS, hanging, final, fault, late)
    assert (found.rule, found.transaction, found.record, found.place) == (Rule.LSO_STUCK, "p/0/0", "x", Place(A, 1))
    assert "1.6 s after the last fault" in found.text


def test_an_open_transaction_has_its_timeout() -> None:
    fault, waiting = Fault("kill -9", 0, 1_000_000), OffsetSample(A, 1, 2, 2_400_000)
    assert not findings_of(SETTINGS, fault, waiting, OffsetSample(A, 2, 2, 2_600_000))
    assert not findings_of(SETTINGS, fault, waiting)


def test_a_late_record_begins_a_transaction_that_nobody_ends() -> None:
    """The partition was stable after the fault: a record arrived later, from a broker that had been paused."""
    hanging = transaction("p", ABORTED, (A, "x", 1))
    final = log(A, None, "x", hidden=(1,))
    fault, reached = Fault("kill -STOP", 0, 1_000_000), OffsetSample(A, 1, 1, 1_200_000)
    assert not findings_of(SETTINGS, hanging, fault, reached, OffsetSample(A, 1, 2, 2_600_000), final)
    found = only(SETTINGS, hanging, fault, reached, OffsetSample(A, 1, 2, 2_800_000), final)
    assert (found.rule, found.transaction, found.place) == (Rule.LSO_STUCK, "p/0/0", Place(A, 1))
    assert "1.6 s after it had reached it last" in found.text


@pytest.mark.parametrize("samples", [(), (OffsetSample(A, 0, 0, 100),)])
def test_a_log_that_is_not_stable_in_the_end(samples: tuple[OffsetSample, ...]) -> None:
    final = log(A, "x", hidden=(0,))
    stuck = type(final)(A, 0, 1, 0, final.records, ())
    assert only(transaction("p", ABORTED, (A, "x", 0)), stuck, *samples).rule is Rule.LSO_STUCK
