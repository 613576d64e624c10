"""All rules over one history, and the verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import chain

from kalda.verify.findings import Finding, Rule
from kalda.verify.history import History, Outcome
from kalda.verify.rules import (
    exactly_once_findings,
    final_findings,
    information_flow_findings,
    read_findings,
    stable_offset_findings,
)
from kalda.verify.view import HistoryIndex

MAX_FINDINGS_A_RULE = 100
"""How many findings of a rule are kept; the others are counted."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`findings` has at most `MAX_FINDINGS_A_RULE` of each rule, `violations` the number of all of each rule."""

    findings: tuple[Finding, ...]
    violations: dict[Rule, int]
    outcomes: dict[Outcome, int]
    records_sent: int
    records_visible: int
    records_read: int
    reads: int
    faults: int

    @property
    def is_sound(self) -> bool:
        """Whether no rule was violated."""
        return not self.violations


def judge(history: History) -> Verdict:
    """The verdict over a history. A history without final logs is judged by its reads and samples only."""
    view = HistoryIndex(history)
    counts: Counter[Rule] = Counter()
    kept: list[Finding] = []
    for finding in chain(
        final_findings(view),
        read_findings(view),
        information_flow_findings(view),
        exactly_once_findings(view),
        stable_offset_findings(view),
    ):
        counts[finding.rule] += 1
        if counts[finding.rule] <= MAX_FINDINGS_A_RULE:
            kept.append(finding)
    transactions = history.transactions.values()
    outcomes = Counter(transaction.outcome for transaction in transactions)
    return Verdict(
        tuple(kept),
        dict(counts),
        {outcome: outcomes[outcome] for outcome in Outcome},
        sum(len(transaction.appends) for transaction in transactions),
        sum(len(log.visible) for log in history.logs.values()),
        sum(len(read.records) for read in history.reads),
        len(history.reads),
        len(history.faults),
    )
