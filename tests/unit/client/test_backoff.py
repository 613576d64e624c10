"""The pauses of clients: exponential, with jitter, and never longer than `retry.backoff.max.ms`."""

from __future__ import annotations

from random import Random

import pytest
from consumer_world import Cluster, Member
from model_cluster import World

from kalda.base.errors import ErrorCode
from kalda.clientcore.connections.errors import Backoff
from kalda.clientcore.producing.transaction_manager import TransactionManager


@pytest.mark.parametrize(("random", "pauses"), [(0.0, [80, 160, 320, 640, 800]), (0.5, [100, 200, 400, 800, 1_000])])
def test_a_pause_doubles_and_has_jitter(random: float, pauses: list[int]) -> None:
    backoff = Backoff(100, 1_000, lambda: random)
    assert [backoff.pause_ms(failures) for failures in range(1, 6)] == pauses
    assert backoff.pause_ms(0) == 0


def test_no_pause_is_longer_than_the_longest() -> None:
    backoff = Backoff(100, 1_000, lambda: 0.999)
    assert backoff.pause_ms(1) == 119
    assert [backoff.pause_ms(failures) for failures in (4, 5, 6, 40)] == [959, 1_000, 1_000, 1_000]


@pytest.mark.parametrize("first_ms", [1_000, 30_000])
def test_a_first_pause_that_is_not_less_than_the_longest_is_that(first_ms: int) -> None:
    backoff = Backoff(first_ms, 1_000, lambda: 0.0)
    assert [backoff.pause_ms(failures) for failures in (1, 2, 9)] == [1_000] * 3


def test_requests_of_a_transaction_pause_as_configured() -> None:
    manager = TransactionManager("tx", 9_000, Backoff(10, 40, Random(3).random))
    manager.initialize()
    pauses = []
    for attempt in range(1, 6):
        manager._retry(0)
        pauses.append(manager._retry_at_ms)
        assert 8 * 2 ** min(attempt - 1, 2) <= pauses[-1] <= 40
    assert len(set(pauses[2:])) > 1, "with jitter"


def test_a_batch_is_never_retried_later_than_configured() -> None:
    world = World(partitions=1, brokers=1, **{"retry.backoff.ms": 10, "retry.backoff.max.ms": 20})
    times: list[int] = []

    def refuse(_partition: object, _batch: bytes) -> ErrorCode | None:
        times.append(world.now_ms)
        return ErrorCode.NOT_ENOUGH_REPLICAS if len(times) < 8 else None

    world.on_produce = refuse
    world.send(b"v", 0)
    before = world.now_ms
    world.run_until_idle()
    assert len(times) == 8
    assert times[-1] - before < 8 * 100


def test_a_member_of_a_group_pauses_as_configured() -> None:
    member = Member(Cluster(), **{"group.id": "g", "retry.backoff.ms": 5, "retry.backoff.max.ms": 7})
    requests = member.core.requests
    assert all(5 * 0.8 - 1 <= requests.retry_at_ms(failures) - requests.now_ms <= 7 for failures in range(1, 9))
