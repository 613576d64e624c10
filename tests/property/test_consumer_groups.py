"""Groups of consumers through random joins, kills, leaves, broken connections, moved leaders and new coordinators.

Every record is processed at least once, and what is committed was processed. In a cooperative group, no partition is
owned by two members at the same time.
"""

from __future__ import annotations

from random import Random

import pytest
from consumer_world import Cluster, Member

from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.clientcore.consuming.consumer_errors import CommitFailed
from kalda.protocol.apis import ApiKey

PARTITIONS = 5
STEPS = 60
KEYS = {"group.id": "g", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 1_000, "max.poll.records": 7}


class Run:
    """One random run."""

    def __init__(self, seed: int, strategy: str) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(seed, brokers=3)
        self.cluster.add_topic("t", PARTITIONS)
        self.strategy = strategy
        self.processed: set[bytes] = set()
        self.produced: list[bytes] = []
        self.names = 0
        self.members: list[Member] = []
        self.commits = self.random.choice((True, False))
        """The application commits; otherwise it is automatic."""

    def join(self) -> None:
        self.names += 1
        keys = {**KEYS, "partition.assignment.strategy": self.strategy, "enable.auto.commit": not self.commits}
        self.members.append(
            Member(self.cluster, f"m{self.names}", **keys, **{"auto.commit.interval.ms": 300}).subscribe("t")
        )

    def produce(self) -> None:
        partition = self.random.randrange(PARTITIONS)
        new = [
            b"%d" % number for number in range(len(self.produced), len(self.produced) + self.random.randrange(1, 30))
        ]
        self.produced += new
        self.cluster.append("t", partition, *new)

    def poll(self, member: Member) -> None:
        # What the poll before this one returned is processed when this one begins.
        self.processed.update(record.value for record in member.got)
        member.got.clear()
        try:
            if self.commits and self.random.random() < 0.5 and member.core.subscription.positions():
                member.commit()
            member.poll(self.random.choice((5, 20, 60)), limit=7)
        except CommitFailed:
            pass
        except ApiError as error:
            if not error.code.retriable:
                raise
        self.check()

    def check(self) -> None:
        if self.strategy != "cooperative-sticky":
            return
        owned = [partition for member in self.members for partition in member.owned]
        assert len(owned) == len(set(owned)), [(member.name, sorted(member.owned)) for member in self.members]

    def step(self) -> None:
        action = self.random.random()
        member = self.random.choice(self.members) if self.members else None
        if (action < 0.12 and len(self.members) < 6) or member is None:
            self.join()
        elif action < 0.17 and len(self.members) > 1:
            member.kill()
            self.members.remove(member)
        elif action < 0.22 and len(self.members) > 1:
            self.processed.update(record.value for record in member.got)
            member.close()
            self.members.remove(member)
        elif action < 0.28:
            member.cut(self.random.choice((0, 1, 2, None)))
        elif action < 0.34:
            key = self.random.choice((ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.FETCH, ApiKey.OFFSET_COMMIT))
            self.cluster.lose_next[key] = 1
        elif action < 0.38:
            log = self.cluster.logs[TopicPartition("t", self.random.randrange(PARTITIONS))]
            log.leader, log.epoch = self.random.choice(self.cluster.brokers), log.epoch + 1
        elif action < 0.41:
            self.cluster.world.elect()
        elif action < 0.7:
            self.produce()
        for each in list(self.members):
            if self.random.random() < 0.8:
                self.poll(each)

    def finish(self) -> None:
        """All that was produced is processed by those that are left."""
        self.cluster.lose_next.clear()
        end_ms = self.cluster.now_ms + 600_000
        while self.processed != set(self.produced):
            assert self.cluster.now_ms < end_ms, sorted(set(self.produced) - self.processed, key=int)
            for member in self.members:
                self.poll(member)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.parametrize("seed", range(6))
def test_every_record_is_processed_at_least_once(seed: int, strategy: str) -> None:
    run = Run(seed, strategy)
    run.join()
    for _ in range(STEPS):
        run.step()
    run.finish()
    committed = run.cluster.world.fetch({"t": list(range(PARTITIONS))})
    assert isinstance(committed, dict)
    assert all(offset <= run.cluster.logs[TopicPartition(*pair)].end for pair, offset in committed.items())
