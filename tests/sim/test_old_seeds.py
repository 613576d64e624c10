"""Seeds that once violated an invariant, with the cause. A seed is another run when the simulator changes, so each of
these faults also has a small test beside the code, where one is possible.

By default every third is run, the last one among them, with all sets of kinds; with `KALDA_SIM_SEEDS`, which runs other
seeds of today's kinds too, all of them.
"""

from __future__ import annotations

import os

import pytest

from kalda.sim import faults
from kalda.sim.scenario import SimPlan, simulate

LINKS = ("cut", "cut-one-way", "slow", "loss", "reset", "backlog")
FIRST = (*faults.KILLS, *faults.POWER, *LINKS, *faults.MACHINE, "disk")
LOST = ("unsynced", "lie", "rot", "misdirect", "stale")
SECOND = (*FIRST, "full", *faults.CLIENTS, *LOST)
"""The kinds of faults when the seeds were found: with more kinds a seed is another run."""
THIRD = (*FIRST, "full", "dir", *faults.CLIENTS, *LOST)
FOURTH = (
    *faults.KILLS, *faults.POWER, *LINKS, "reject", *faults.MACHINE, "disk", "full", "dir", *faults.CLIENTS, "stall",
    "bug", *LOST, "alone",
)  # fmt: skip
OPERATED = ("groups", "churn", "moves", "voters")
MOVED = (*OPERATED, "dirs", "racks", "deletes", "phoenix")
CLEANED = (*MOVED, "compaction")

SEEDS = {
    "a truncated follower waited for a flush of removed records, and never fetched again": SimPlan(
        39, 3, ("kill", "pause", "slow"), loads=()
    ),
    "a failed sync of the metadata log was ignored, and the node continued": SimPlan(16, 3, FIRST, loads=()),
    "retention met a failed disk, and periodic tasks ended": SimPlan(185, 1, FIRST, loads=()),
    "the failure to start a flush was not reported": SimPlan(2173, 3, FIRST, loads=()),
    "a replica that was added and then removed stayed awaited in the ISR": SimPlan(1004, 5, SECOND, loads=OPERATED),
    "a torn file of leader epochs was read as valid": SimPlan(133, 3, SECOND, loads=OPERATED),
    "a directory that failed at the start ended the node": SimPlan(2, 1, THIRD, loads=MOVED),
    "groups on a directory that could not be read ended the node": SimPlan(116, 1, THIRD, loads=MOVED),
    "the log of a deleted topic in a repaired directory prevented the start": SimPlan(139, 1, THIRD, loads=MOVED),
    "a full disk prevented the log line with the reason of a failed start": SimPlan(128, 1, THIRD, loads=MOVED),
    "the cleaner met a full disk, and cleaned no log any more": SimPlan(1023, 3, THIRD, loads=CLEANED),
    "a move into a failed directory prevented the start": SimPlan(10101, 3, THIRD, loads=CLEANED),
    "a disk that failed under one of two logs ended the fetcher of both": SimPlan(40178, 3, THIRD, loads=CLEANED),
    "a move that was cancelled before the controller had it was recorded all the same": SimPlan(
        50093, 3, THIRD, loads=CLEANED
    ),
    "a copy without acknowledged records replaced the log, whose directory had failed": SimPlan(
        51107, 1, THIRD, loads=CLEANED
    ),
    "the last member of the ISR of a partition without a leader was removed": SimPlan(40008, 3, THIRD, loads=CLEANED),
    "retention took zeros of an unsynced time index for a timestamp": SimPlan(61281, 3, THIRD, loads=CLEANED),
    "a failed directory took another offline, which a replica had left": SimPlan(61289, 3, THIRD, loads=CLEANED),
    "leader epochs of an emptied log came back, and a voter never fetched again": SimPlan(
        73108, 5, THIRD, loads=CLEANED
    ),
    "a log whose file could not be opened for a fetch left the other partitions unanswered": SimPlan(
        70129, 1, THIRD, loads=CLEANED
    ),
    "a broker that was cut off named itself as the leader to a reader": SimPlan(82014, 4, THIRD, loads=CLEANED),
    "offsets of a group were lost with the unsynced end of a segment, as compaction leaves gaps": SimPlan(
        82175, 4, THIRD, loads=CLEANED
    ),
    "a follower whose start offset was within a damaged batch ended before it": SimPlan(93031, 5, THIRD, loads=CLEANED),
    "a drive that lied kept its checkpoint and lost a segment": SimPlan(1005, 4, THIRD, loads=MOVED),
    "a disk that was repaired twice ended its node while the only other replica had lost data": SimPlan(
        810007, 3, FOURTH, loads=CLEANED
    ),
    "a clean stop with a failed disk lost the state of producers": SimPlan(351, 3, FIRST, loads=()),
    "a log that was emptied at the end of its move was compared with its copy, and the node ended": SimPlan(
        91300014, 3, FOURTH, loads=CLEANED
    ),
    "a follower was cut back into a batch of its leader, which it refused for good": SimPlan(
        91300093, 3, FOURTH, loads=CLEANED
    ),
    "a disk that had failed under a log was first met by its fetcher, and the node ended": SimPlan(
        97400002, 4, FOURTH, loads=CLEANED
    ),
    "a consumer passed over a batch whose damaged header ended before it began": SimPlan(
        96000134, 3, FOURTH, loads=CLEANED
    ),
}
CHOSEN = tuple(SEEDS) if "KALDA_SIM_SEEDS" in os.environ else tuple(SEEDS)[::-3]


@pytest.mark.parametrize("cause", CHOSEN)
def test_an_old_seed(cause: str) -> None:
    verdict = simulate(SEEDS[cause])
    assert verdict.passed, verdict.violation
