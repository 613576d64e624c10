"""The records of a share partition that were delivered or passed over, from its start offset on, as runs.

A run is a range of offsets whose records are in the same state, have been delivered as often, and are held by the same
member until the same moment. Runs are split where a request names a part of one, and joined where they have become the
same. A change that is being written to the share coordinator is in transition: the run has the new state already, and
the one that it goes back to where the write fails. A run in transition is neither split nor joined, and no member may
change it.

A run is ARCHIVING from the end of its deliveries until its dead letters are written, where the group has a topic for
these. Its `cause` is set until they are begun.

Invariants:

- the runs cover `start` to `end` without gaps or overlaps. Offsets without records are archived;
- the first run is not one that is terminal and settled: the start moves past those.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from kalda.base.share_states import RecordState, StateBatch
from kalda.replication.share.dead_letters import Cause

NO_MEMBER = ""
"""The member that holds a run which is not acquired."""


class Run:
    """Records with consecutive offsets and one state."""

    __slots__ = ("cause", "count", "deadline_ms", "first", "former", "last", "member", "state")

    def __init__(
        self, first: int, last: int, state: RecordState, count: int, member: str = NO_MEMBER, deadline_ms: int = 0
    ) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.count = count
        """How often the records were delivered."""
        self.member = member
        """Who has acquired them; `NO_MEMBER` in all other states."""
        self.deadline_ms = deadline_ms
        """When the lock of that member ends."""
        self.former: tuple[RecordState, str] | None = None
        """State and member before a change that is being written; None where none is."""
        self.cause: Cause | None = None
        """Why the records become dead letters, until that is begun; None in all other cases."""

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def is_free(self) -> bool:
        """Whether a member may acquire the records."""
        return self.state is RecordState.AVAILABLE and self.former is None

    @property
    def is_settled(self) -> bool:
        """Whether nothing becomes of the records any more."""
        return self.state.is_terminal and self.former is None

    def as_batch(self) -> StateBatch:
        """What is written of it."""
        return StateBatch(self.first, self.last, int(self.state), self.count)

    def begin(self, state: RecordState, cause: Cause = Cause.DELIVERED_TOO_OFTEN) -> None:
        """Change the state; the change counts when it is written. `cause` is why a run becomes ARCHIVING."""
        assert self.former is None, "a run in transition is not changed"
        self.former = self.state, self.member
        self.state, self.member = state, NO_MEMBER
        self.cause = cause if state is RecordState.ARCHIVING else None

    def commit(self) -> None:
        """The change is written."""
        self.former = None

    def roll_back(self) -> None:
        """The change was not written: state and member are as before."""
        assert self.former is not None
        self.state, self.member = self.former
        self.former = self.cause = None

    def make_available(self) -> None:
        """No member holds the records any more, and they are delivered again."""
        self.state, self.member = RecordState.AVAILABLE, NO_MEMBER

    def archive(self) -> None:
        """Deliver the records no more."""
        self.state, self.member, self.cause = RecordState.ARCHIVED, NO_MEMBER, None


def _first(run: Run) -> int:
    return run.first


class InFlight:
    """The runs of one share partition."""

    def __init__(self, start: int) -> None:
        self.start = start
        """Nothing below it is delivered any more."""
        self.runs: list[Run] = []

    @property
    def end(self) -> int:
        """The offset after the last run; what follows was never delivered."""
        return self.runs[-1].last + 1 if self.runs else self.start

    @property
    def next_fetch_offset(self) -> int:
        """Where the next records to be delivered may be."""
        return next((run.first for run in self.runs if run.is_free), self.end)

    def count_terminal(self) -> int:
        """Records from the start on that need no delivery."""
        return sum(len(run) for run in self.runs if run.state.is_terminal)

    def count_open(self) -> int:
        """Records from the start on that do, or may."""
        return self.end - self.start - self.count_terminal()

    def overlapping(self, first: int, last: int) -> Iterator[Run]:
        """The runs with offsets from `first` to `last`; none where that is no range."""
        if first > last:
            return
        at = max(0, bisect_right(self.runs, first, key=_first) - 1)
        while at < len(self.runs) and self.runs[at].first <= last:
            if self.runs[at].last >= first:
                yield self.runs[at]
            at += 1

    def cut(self, run: Run, first: int, last: int) -> Run:
        """The part of a run from `first` to `last`, as a run of its own."""
        first, last = max(first, run.first), min(last, run.last)
        if (first, last) == (run.first, run.last):
            return run
        assert run.former is None, "a run in transition is not split"
        parts = [
            Run(begin, end, run.state, run.count, run.member, run.deadline_ms)
            for begin, end in ((run.first, first - 1), (first, last), (last + 1, run.last))
            if begin <= end
        ]
        for part in parts:
            part.cause = run.cause
        at = bisect_right(self.runs, run.first, key=_first) - 1
        self.runs[at : at + 1] = parts
        return parts[first > run.first]

    def append(self, run: Run) -> None:
        """Add records behind the last ones; offsets in between have none."""
        if run.first > self.end:
            self.runs.append(Run(self.end, run.first - 1, RecordState.ARCHIVED, 0))
        assert run.first == self.end, "runs do not overlap"
        self.runs.append(run)

    def archive_free(self, first: int, last: int) -> bool:
        """Archive what is available of these offsets, since the log does not have them; whether there was any."""
        found = [run for run in self.overlapping(first, last) if run.is_free]
        for run in found:
            self.cut(run, first, last).archive()
        return bool(found)

    def move_start(self, offset: int) -> None:
        """Forget all below `offset`: the log does not have it any more."""
        if offset <= self.start:
            return
        self.runs = [run for run in self.runs if run.last >= offset]
        if self.runs and self.runs[0].first < offset:
            self.runs[0].first = offset
        self.start = offset

    def tidy(self) -> bool:
        """Join runs that have become the same, and move the start past what is settled; whether it has moved."""
        joined: list[Run] = []
        start = self.start
        for run in self.runs:
            if not joined and run.is_settled:
                self.start = run.last + 1
                continue
            before = joined[-1] if joined else None
            if (
                before is not None
                and before.state is run.state
                and before.count == run.count
                and before.former is None
                and run.former is None
                and before.cause is run.cause
                and run.state is not RecordState.ACQUIRED
            ):
                before.last = run.last
            else:
                joined.append(run)
        self.runs = joined
        return self.start > start
