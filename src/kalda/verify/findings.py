"""The rules that every history of transactions has to follow, and what violates one of them."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from kalda.verify.history import Place


class Rule(Enum):
    """The value is the rule's name in output; `meaning` is a sentence about it."""

    LOST = "lost-record"
    TORN = "torn-transaction"
    ABORTED_VISIBLE = "aborted-record-visible"
    DUPLICATE = "duplicate-record"
    UNKNOWN_RECORD = "unknown-record"
    MISPLACED = "misplaced-record"
    ORDER = "order"
    G1A = "G1a-aborted-read"
    G1B = "G1b-intermediate-read"
    SKIPPED = "skipped-record"
    UNSTABLE_READ = "unstable-read"
    G1C = "G1c-circular-information-flow"
    LOST_UPDATE = "lost-update"
    INPUT_LOST = "input-without-output"
    INPUT_TWICE = "input-processed-twice"
    OUTPUT_ORDER = "output-order"
    GROUP_OFFSET = "group-offset"
    LSO_BACKWARDS = "last-stable-offset-moved-back"
    LSO_STUCK = "last-stable-offset-stuck"

    @property
    def meaning(self) -> str:
        return _MEANINGS[self]


_MEANINGS = {
    Rule.LOST: "every record of a committed transaction is visible",
    Rule.TORN: "all records of a transaction are visible, or none",
    Rule.ABORTED_VISIBLE: "no record of an aborted transaction is visible",
    Rule.DUPLICATE: "a record is visible once",
    Rule.UNKNOWN_RECORD: "every visible record was sent by a client",
    Rule.MISPLACED: "a record is in the partition that it was sent to, at the offset that was acknowledged",
    Rule.ORDER: "a producer's records are in the order of sending, and a fenced producer's precede its successor's",
    Rule.G1A: "no read_committed consumer reads a record of an aborted transaction",
    Rule.G1B: "no read_committed consumer reads a part of a transaction, or one that has not ended",
    Rule.SKIPPED: "a read_committed consumer gets every committed record between two of its positions",
    Rule.UNSTABLE_READ: "a record that was read keeps its offset and its value",
    Rule.G1C: "no two transactions have read each other's records, directly or through others",
    Rule.LOST_UPDATE: "no two committed transactions have advanced a group from the same offset",
    Rule.INPUT_LOST: "every input record below a group's committed offset has an output record",
    Rule.INPUT_TWICE: "no input record has two output records",
    Rule.OUTPUT_ORDER: "outputs of one input partition are in the order of their inputs",
    Rule.GROUP_OFFSET: "a group's committed offset is the one that its last committed transaction committed",
    Rule.LSO_BACKWARDS: "the last stable offset never moves back, and is not above the high watermark",
    Rule.LSO_STUCK: "the last stable offset reaches the high watermark within the transaction timeout after the faults",
}


class Finding(NamedTuple):
    """One violation. `record` is a record's value, `transaction` a transaction's name, `place` where in the log; each
    is None where the violation does not concern one."""

    rule: Rule
    text: str
    transaction: str | None = None
    record: str | None = None
    place: Place | None = None

    def __str__(self) -> str:
        return f"{self.rule.value}: {self.text}"
