"""The lines of a history: the last line may be cut off, others may not."""

from __future__ import annotations

import json

import pytest
from hand_made import COMMITTED, UNKNOWN, A, log, read, transaction

from kalda.verify.history import FIRST_LINE, FinalLog, History, MalformedHistory, Seen, read_history, write_operation

LINES = [FIRST_LINE, write_operation(transaction("p", COMMITTED, (A, "x", 0))), write_operation(log(A, "x"))]


def with_fields(line: int, **fields: object) -> list[str]:
    """`LINES` and one more, with other fields in that line."""
    changed = json.dumps({**json.loads(LINES[line]), **fields})
    return [*LINES[:line], changed, *LINES[line + 1 :], LINES[1]]


def test_the_last_record_of_a_transaction_counts() -> None:
    begun = write_operation(transaction("p", UNKNOWN, (A, "x"), commit_sent_us=None))
    assert read_history([FIRST_LINE, begun, *LINES[1:]]) == read_history(LINES)


def test_a_last_line_that_was_cut_off_is_left_out() -> None:
    assert not read_history([*LINES[:2], LINES[2][:-5]]).logs


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([FIRST_LINE, LINES[1][:-5], LINES[2]], "line 2: "),
        ([FIRST_LINE, '{"op":"dance"}', LINES[2]], "line 2: unknown operation 'dance'"),
        ([FIRST_LINE, '{"op":"sample"}', LINES[2]], "line 2: 'partition'"),
        (LINES[1:], "line 1: .* is not a history of kalda verify"),
        (["x"], "line 1: "),
        ([], "it is empty"),
        (with_fields(1, transactional_id=[1]), r"line 2: \[1\] is not a string"),
        (with_fields(1, begun_us=float("inf")), "line 2: inf is not an integer"),
        (with_fields(1, incarnation=True), "line 2: True is not an integer"),
        (with_fields(1, appends=[["t-0", {}, 0]]), "line 2: {} is not a string"),
        (with_fields(1, appends=[[{}, "x", 0]]), "line 2: {} is not a string"),
        (with_fields(1, consumed=[["g", "t-0", 0, []]]), r"line 2: \[\] is not an integer"),
        (with_fields(2, different=[[0, {}]]), "line 3: {} is not a string"),
        ([FIRST_LINE, "[" * 100_000, LINES[1]], "line 2: "),
    ],
)
def test_a_malformed_line_is_named(lines: list[str], words: str) -> None:
    with pytest.raises(MalformedHistory, match=words):
        read_history(lines)


def test_a_visible_record_may_differ_from_the_log_s() -> None:
    operations = (
        FinalLog(A, 0, 2, 2, (Seen(0, "x"),), (Seen(0, "y"), Seen(1, "z"))),
        read(A, 0, 1, (0, "x"), of="p/0/0"),
    )
    history = History()
    for operation in operations:
        history.add(operation)
    assert read_history([FIRST_LINE, *map(write_operation, operations)]) == history
