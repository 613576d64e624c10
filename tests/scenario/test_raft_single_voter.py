"""A quorum of one voter, effect by effect."""

from __future__ import annotations

from stepped_quorum import SteppedQuorum


def test_it_elects_itself_and_commits() -> None:
    lines: list[str] = []
    cluster = SteppedQuorum((1,), trace=lambda line: lines.append(line[7:]))
    cluster.start()
    cluster.elect()
    cluster.append("a", "b")
    cluster.run(10)
    assert lines == [
        "1: persist epoch=1 leader=None voted=1",
        "1: leader None epoch=1",
        "1: persist epoch=1 leader=1 voted=-",
        "1: append 0@1 LeaderChangeMessage KRaftVersionRecord VotersRecord",
        "1: flush 3",
        "1: high watermark 3",
        "1: leader 1 epoch=1",
        "1: append 3@1 ['a', 'b']",
        "1: flush 5",
        "1: high watermark 5",
    ]


def test_after_a_restart_it_leads_the_next_epoch() -> None:
    lines: list[str] = []
    cluster = SteppedQuorum((1,), trace=lambda line: lines.append(line[7:]))
    cluster.start()
    cluster.elect()
    cluster.append("a")
    cluster.run(10)
    cluster.crash(1)
    lines.clear()
    cluster.start()
    cluster.elect()
    assert lines == [
        "1: leader None epoch=1",
        "1: persist epoch=2 leader=None voted=1",
        "1: leader None epoch=2",
        "1: persist epoch=2 leader=1 voted=-",
        "1: append 4@2 LeaderChangeMessage",
        "1: flush 5",
        "1: high watermark 5",
        "1: leader 1 epoch=2",
    ]


def test_a_static_voter_does_the_same_without_voter_records() -> None:
    lines: list[str] = []
    cluster = SteppedQuorum((1,), dynamic=False, trace=lambda line: lines.append(line[7:]))
    cluster.start()
    cluster.elect()
    assert "1: append 0@1 LeaderChangeMessage" in lines
