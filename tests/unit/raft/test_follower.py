"""What a follower does with answers, one machine by hand."""

from __future__ import annotations

from kalda.base.errors import ErrorCode
from kalda.raft import effects as fx
from kalda.raft import events as ev
from kalda.raft import rpc
from kalda.raft.log_state import LogState
from kalda.raft.machine import RaftConfig, RaftMachine
from kalda.raft.quorum_state import ElectionState
from kalda.raft.values import Endpoint, OffsetAndEpoch, ReplicaKey
from kalda.raft.voters import VoterHistory, VoterSet

VOTERS = VoterSet.from_config("CONTROLLER", [f"{i}@host{i}:9000" for i in (1, 2, 3)])
EPOCH = 4


class Follower:
    """Follows voter 1 in epoch 4. `sent` are its requests that nobody has answered."""

    def __init__(self, node_id: int, log: LogState) -> None:
        config = RaftConfig(ReplicaKey(node_id), "cluster", endpoints=(Endpoint("CONTROLLER", f"host{node_id}", 9000),))
        election = ElectionState(EPOCH, 1)
        self.machine = RaftMachine(config, log, VoterHistory(VOTERS), election, lambda below: 0)
        self.now = 0
        self.sent: list[fx.Send] = []
        self.effects: list[fx.Effect] = []
        self.step(ev.Start())

    def step(self, event: ev.Event, wait_ms: int = 1) -> list[fx.Effect]:
        self.now += wait_ms
        self.effects = self.machine.step(event, self.now)
        self.sent += [effect for effect in self.effects if isinstance(effect, fx.Send)]
        return self.effects

    def fetch(self) -> fx.Send:
        """The fetch that is under way."""
        at = next(at for at, sent in enumerate(self.sent) if isinstance(sent.ask, rpc.FetchAsk))
        return self.sent.pop(at)

    def answer(self, request: fx.Send, answer: rpc.Answer) -> list[fx.Effect]:
        return self.step(ev.Answered(request.correlation, answer))


def standing(error: ErrorCode = ErrorCode.NONE) -> rpc.Standing:
    return rpc.Standing(error, EPOCH, 1)


def fetched(first: int, end: int, epoch: int = EPOCH, high_watermark: int = 0) -> rpc.FetchAnswer:
    return rpc.FetchAnswer(
        standing(), high_watermark, 0, records=b"", batches=(rpc.FetchedBatch(first, end - 1, epoch),)
    )


def test_who_may_become_a_voter_fetches_only_after_what_is_durable() -> None:
    observer = Follower(9, LogState())
    observer.answer(observer.fetch(), fetched(0, 5))
    assert [(e.offset, e.generation) for e in observer.effects if isinstance(e, fx.FlushLog)] == [(5, 0)]
    assert not observer.sent, "once it is added, what it has fetched counts"
    observer.step(ev.Flushed(5, 0))
    ask = observer.fetch().ask
    assert isinstance(ask, rpc.FetchAsk)
    assert ask.fetch_from == OffsetAndEpoch(5, EPOCH)
