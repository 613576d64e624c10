"""Safeguards, switched off one by one: with any of them off some seed must break a promise, or the simulator would
prove nothing about it.

The switches are patches of named functions, made here and undone at once. Nothing in the product knows of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kalda.sim import faults
from kalda.sim.quorum_storm import calm, storm
from kalda.sim.scenario import Plan, Verdict, simulate


class Switch:
    """Replaces attributes, and puts them back."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """`owner.name` is `value` until the end. Fails where there is no such attribute."""
        self._undo.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._undo:
            setattr(*self._undo.pop())


@dataclass(frozen=True, slots=True)
class Ablation:
    """A safeguard, how it is switched off, and under which plans its lack must show within `seeds` seeds."""

    name: str
    off: Callable[[Switch], None]
    nodes: int
    kinds: tuple[str, ...]
    duration_s: float = 20.0
    seeds: int = 40

    loads: tuple[str, ...] = ()

    def plan(self, seed: int) -> Plan:
        return Plan(seed, self.nodes, self.kinds, self.duration_s, self.loads)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Without the safeguard."""
        switch = Switch()
        try:
            self.off(switch)
            yield
        finally:
            switch.restore()

    def find(self, seeds: Iterable[int] | None = None) -> Verdict | None:
        """The first run in which a promise is broken; None where the lack does not show."""
        with self.applied():
            for seed in range(self.seeds) if seeds is None else seeds:
                verdict = simulate(self.plan(seed))
                if not verdict.kept:
                    return verdict
        return None


def _acknowledge_unsynced(switch: Switch) -> None:
    from kalda.replication.partition import Partition

    switch.set(Partition, "_local_end", lambda self: self.log.log_end_offset)


def _recover_without_checksums(switch: Switch) -> None:
    from kalda.storage import loading

    switch.set(loading, "check_crc", lambda *_: None)


def _take_any_sequence(switch: Switch) -> None:
    from kalda.storage.producer_state import ProducerStates

    switch.set(ProducerStates, "admit", lambda *_: None)


def _commit_without_followers(switch: Switch) -> None:
    from kalda.replication.in_sync import InSync

    switch.set(InSync, "committed_end", lambda self, local_end, leader_end: local_end)


def _diverge(switch: Switch) -> None:
    from kalda.replication import fetch

    switch.set(fetch, "_diverges", lambda *_: False)


def _commit_below_min_isr(switch: Switch) -> None:
    from kalda.replication.partition import Partition

    switch.set(Partition, "min_isr", 1)


def _keep_what_a_snapshot_lacks(switch: Switch) -> None:
    from kalda.broker import raft_driver
    from kalda.metadata.topics import TopicsDelta

    switch.set(raft_driver, "CLEAN_INTERVAL_MS", 500)
    switch.set(TopicsDelta, "finish_snapshot", lambda self: None)


def _trust_any_broker_epoch(switch: Switch) -> None:
    from kalda.controller.alter_partition import AlterPartitionControl

    switch.set(AlterPartitionControl, "_is_eligible", lambda self, replica: self._cluster.is_active(replica.broker_id))


def _forget_votes(switch: Switch) -> None:
    from kalda.raft.machine import RaftMachine

    switch.set(RaftMachine, "_persist", lambda self: None)


def _vote_again(switch: Switch) -> None:
    from kalda.raft import elections

    switch.set(elections, "_same_candidate", lambda voted, candidate: True)


def _vote_for_any_log(switch: Switch) -> None:
    from kalda.raft.values import OffsetAndEpoch

    switch.set(OffsetAndEpoch, "is_up_to_date", lambda self, other: True)


def find_in_quorum(off: Callable[[Switch], None], seeds: int = 60) -> str:
    """What a storm over the quorum's machines says without a safeguard; empty where its lack does not show."""
    switch = Switch()
    try:
        off(switch)
        for seed in range(seeds):
            try:
                calm(storm(seed))
            except (AssertionError, IndexError) as error:
                return f"seed {seed}: {error}"
    finally:
        switch.restore()
    return ""


QUORUM_ABLATIONS: dict[str, Callable[[Switch], None]] = {
    "votes on disk": _forget_votes,
    "one vote an epoch": _vote_again,
    "votes only for logs that lack nothing": _vote_for_any_log,
}
"""Safeguards of elections, which the machines alone show soonest."""


ABLATIONS = {
    each.name: each
    for each in (
        Ablation("sync before acknowledging", _acknowledge_unsynced, 1, faults.POWER),
        Ablation("checksums at recovery", _recover_without_checksums, 1, (*faults.POWER, "slow-disk")),
        Ablation("producers' sequences", _take_any_sequence, 1, ("reset", "kill")),
        Ablation("all in sync before committing", _commit_without_followers, 3, ("kill", "cut", "slow")),
        Ablation("truncation by epoch", _diverge, 3, ("kill", "pause", "cut-one-way"), seeds=80),
        Ablation("the in-sync minimum", _commit_below_min_isr, 3, ("lie", "pause", "cut", "slow")),
        Ablation("brokers' epochs", _trust_any_broker_epoch, 3, ("stale",)),
        Ablation("removal of what a snapshot lacks", _keep_what_a_snapshot_lacks, 3, ("kill", "cut"), 40.0),
    )
}
"""By the name of the safeguard."""
