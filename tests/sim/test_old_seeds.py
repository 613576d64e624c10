"""Seeds that once broke a promise, with what it was. A seed means other things when the simulator changes, so each of
these faults has a test of its own beside the code as well, where it can be had small."""

from __future__ import annotations

import pytest

from kalda.sim import faults
from kalda.sim.scenario import Plan, simulate

LINKS = ("cut", "cut-one-way", "slow", "loss", "reset", "backlog")
FIRST = (*faults.KILLS, *faults.POWER, *LINKS, *faults.MACHINE, "disk")
LOST = ("unsynced", "lie", "rot", "misdirect", "stale")
SECOND = (*FIRST, "full", *faults.CLIENTS, *LOST)
"""What befell clusters when the seeds were found: a seed means other things where more may befall them."""
THIRD = (*FIRST, "full", "dir", *faults.CLIENTS, *LOST)
OPERATED = ("groups", "churn", "moves", "voters")
MOVED = (*OPERATED, "dirs", "racks", "deletes", "phoenix")
CLEANED = (*MOVED, "compaction")

SEEDS = {
    "a truncated follower owed the disk what was gone, and never fetched again": Plan(
        39, 3, ("kill", "pause", "slow"), loads=()
    ),
    "a failed sync of the metadata log was nobody's, and the node went on": Plan(16, 3, FIRST, loads=()),
    "retention met a disk that failed, and nothing was polled any more": Plan(185, 1, FIRST, loads=()),
    "nobody was told of a flush that could not be started": Plan(2173, 3, FIRST, loads=()),
    "who was added and then removed was waited for in the ISR for ever": Plan(1004, 5, SECOND, loads=OPERATED),
    "a torn file of leader epochs was believed": Plan(133, 3, SECOND, loads=OPERATED),
    "a directory that failed at the start ended the node": Plan(2, 1, THIRD, loads=MOVED),
    "groups on a directory that could not be read ended the node": Plan(116, 1, THIRD, loads=MOVED),
    "the log of a former topic, back with its directory, kept the node from starting": Plan(139, 1, THIRD, loads=MOVED),
    "a full disk kept a node from saying why it did not start": Plan(128, 1, THIRD, loads=MOVED),
    "the cleaner met a full disk, and nothing was cleaned any more": Plan(1023, 3, THIRD, loads=CLEANED),
    "a move that went on into a failed directory kept the node from starting": Plan(10101, 3, THIRD, loads=CLEANED),
    "a disk that failed under one of two logs ended the fetcher of both": Plan(40178, 3, THIRD, loads=CLEANED),
    "a placement that was taken back before it was heard of came true all the same": Plan(
        50093, 3, THIRD, loads=CLEANED
    ),
    "a copy that lacked what was acknowledged took the place of the log, whose directory was away": Plan(
        51107, 1, THIRD, loads=CLEANED
    ),
    "the last member of an ISR without a leader was forgotten": Plan(40008, 3, THIRD, loads=CLEANED),
    "retention took zeros in a time index, which nobody had synced, for an age": Plan(61281, 3, THIRD, loads=CLEANED),
    "a directory was blamed for another, which a replica had moved to": Plan(61289, 3, THIRD, loads=CLEANED),
    "epochs of a log that was emptied came back, and a voter never fetched again": Plan(73108, 5, THIRD, loads=CLEANED),
    "a log whose file could not be opened for a fetch left the other partitions unanswered": Plan(
        70129, 1, THIRD, loads=CLEANED
    ),
    "a broker that was cut off told a reader of itself as the leader": Plan(82014, 4, THIRD, loads=CLEANED),
    "offsets of a group were lost with the unsynced end of a segment, as compaction leaves gaps": Plan(
        82175, 4, THIRD, loads=CLEANED
    ),
    "a follower that was to start within a batch was left ending before it, as what followed was damaged": Plan(
        93031, 5, THIRD, loads=CLEANED
    ),
    "a drive that lied kept its checkpoint and lost a segment": Plan(1005, 4, THIRD, loads=MOVED),
    "a clean stop on a disk without power forgot producers": Plan(351, 3, FIRST, loads=()),
}


@pytest.mark.parametrize("what", SEEDS)
def test_once_broken(what: str) -> None:
    verdict = simulate(SEEDS[what])
    assert verdict.kept, verdict.why
