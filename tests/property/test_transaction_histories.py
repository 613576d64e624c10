"""Random lives of transactional producers, with coordinators that are replaced between any two records.

Whatever happens, the markers of one transaction have one outcome; an outcome that was answered is that of the markers,
in every partition of the transaction; and when the faults have healed, no transaction stays prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from transactions_world import TIMEOUT_MS, World

from kalda.base.errors import ErrorCode
from kalda.base.scheduling import Pending

STEPS = 120
IDS = ("a", "b", "c")
FATAL = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_TXN_STATE)
"""The instance does not own its epoch any more."""
Producer = tuple[int, int]


class Client:
    """One instance of a producer. An unanswered request is repeated, or given up with the instance."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.producer: Producer | None = None
        self.version = 0
        """The transaction.version that it uses. With another one it begins anew, so that no two transactions have
        markers of one epoch here."""
        self.partitions: set[int] = set()
        """Those that were added to the open transaction, as the client knows it."""
        self.ending: tuple[bool, int] | None = None
        """Outcome and version of an EndTxn that has no definite answer: it is repeated."""
        self.waiting: Pending[Any] | None = None
        self.then: Callable[[Any], None] = lambda _: None

    def settle(self) -> bool:
        """Take the answer, where it is there. False while it is not."""
        if self.waiting is None:
            return True
        if not self.waiting.done:
            return False
        answer, self.waiting = self.waiting, None
        assert answer.error is None
        self.then(answer.value)
        return True

    def send(self, answer: Any, then: Callable[[Any], None]) -> None:
        self.then = then
        if isinstance(answer, Pending):
            self.waiting = answer
        else:
            then(answer)


class History:
    """One random run."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(version=self.random.choice([0, 1, 2]), abort_interval_ms=1_000)
        self.clients = {name: Client(name) for name in IDS}
        self.zombies: list[Client] = []
        self.answered: dict[tuple[str, int, int], tuple[bool, frozenset[int]]] = {}
        """Outcome and partitions of each end that succeeded, by transactional id, producer id and epoch of its
        markers."""

    def run(self) -> None:
        for _ in range(STEPS):
            self._step()
            self._check_outcomes()
        self._heal()

    def _step(self) -> None:
        world, random = self.world, self.random
        match random.randrange(12):
            case 0 | 1 | 2 | 3 | 4:
                self._act(self.clients[random.choice(IDS)])
            case 5:
                world.log.replicated = not world.log.replicated
                if world.log.replicated:
                    world.replicate()
            case 6:
                world.replicate()
            case 7:
                world.down = {broker for broker in range(3) if random.random() < 0.3}
            case 8:
                world.settle(random.choice([0, 30, 2_000]))
            case 9:
                self._replace_coordinator()
            case 10:
                name = random.choice(IDS)
                self.zombies.append(self.clients[name])
                self.clients[name] = Client(name)
            case 11:
                if self.zombies:
                    self._act(random.choice(self.zombies))
                if random.random() < 0.1:
                    world.version = random.choice([0, 1, 2])
                if random.random() < 0.1:
                    world.pass_ms(TIMEOUT_MS + 1_001)

    def _replace_coordinator(self) -> None:
        """The successor may lack what was not replicated. Clients that wait get NOT_COORDINATOR."""
        world = self.world
        world.resign()
        if self.random.random() < 0.5:
            committed = world.log.high_watermarks.get(0, 0)
            batches = world.log.batches.get(0, [])
            while world.log.ends.get(0, 0) > committed:
                batches.pop()  # a batch of this world has one record, but tombstones: none expires here
                world.log.ends[0] -= 1
        world.elect()

    def _act(self, client: Client) -> None:
        if not client.settle():
            return
        if not client.partitions and client.version != self.world.version:
            client.producer, client.version = None, self.world.version
        if client.producer is None:
            client.send(self.world.init_later(client.name), lambda response: self._begun(client, response))
        elif client.ending is None and (not client.partitions or self.random.random() < 0.5):
            partition = self.random.randrange(3)
            version = 2 if client.version == 2 else 0
            answer = self.world.add_later(client.producer, partition, transactional_id=client.name, version=version)
            client.send(answer, lambda code: self._added(client, partition, code))
        else:
            if client.ending is None:
                client.ending = (self.random.random() < 0.6, 5 if client.version == 2 else 4)
            self._end(client, *client.ending)

    def _begun(self, client: Client, response: Any) -> None:
        if not response.error_code:
            client.producer = (response.producer_id, response.producer_epoch)

    def _added(self, client: Client, partition: int, code: ErrorCode) -> None:
        if code is ErrorCode.NONE:
            client.partitions.add(partition)
        elif code in FATAL:
            client.producer, client.partitions = None, set()

    def _end(self, client: Client, committed: bool, version: int) -> None:
        producer, partitions = client.producer, frozenset(client.partitions)
        assert producer is not None

        def ended(response: Any) -> None:
            code = ErrorCode(response.error_code)
            if code is ErrorCode.NONE:
                epoch = producer[1] + (version == 5)
                self.answered.setdefault((client.name, producer[0], epoch), (committed, partitions))
                # Before version 2 a client gives its epoch up, so that each transaction here has one of its own.
                client.producer = (response.producer_id, response.producer_epoch) if version == 5 else None
            elif code in FATAL:
                client.producer = None
            else:
                return
            client.partitions, client.ending = set(), None

        answer = self.world.end_later(producer, committed=committed, version=version, transactional_id=client.name)
        client.send(answer, ended)

    def _outcomes(self) -> dict[tuple[int, int], dict[int, set[bool]]]:
        """By producer id and epoch, then partition."""
        found: dict[tuple[int, int], dict[int, set[bool]]] = {}
        for marker in self.world.written:
            by_partition = found.setdefault((marker.producer_id, marker.epoch), {})
            by_partition.setdefault(marker.partition, set()).add(marker.committed)
        return found

    def _check_outcomes(self) -> None:
        for producer, partitions in self._outcomes().items():
            assert len(set().union(*partitions.values())) == 1, f"{producer} has two outcomes: {partitions}"

    def _heal(self) -> None:
        """Everything is reachable: no transaction stays prepared, and what was answered holds everywhere."""
        world = self.world
        world.down, world.log.replicated = set(), True
        for _ in range(3):
            world.replicate()
            world.settle(5_000)
        for client in [*self.clients.values(), *self.zombies]:
            assert client.settle(), f"{client.name} waits for ever"
        for name, metadata in world.shard.transactions.items():
            assert not metadata.state.is_prepared, f"{name} stays {metadata.state.label}"
        assert not world.shard.pending
        assert world.markers.size == 0
        self._check_outcomes()
        outcomes = self._outcomes()
        for (name, *producer), (committed, partitions) in self.answered.items():
            found = outcomes.get((producer[0], producer[1]), {})
            for partition in partitions:
                assert found.get(partition) == {committed}, f"{name} {producer}, partition {partition}: {found}"
        world.pass_ms(TIMEOUT_MS + 2_000)
        world.settle(5_000)
        assert not world.shard.ongoing, "a transaction is open for longer than its timeout"


@pytest.mark.parametrize("first", range(0, 600, 50))
def test_random_histories(first: int) -> None:
    for seed in range(first, first + 50):
        try:
            History(seed).run()
        except AssertionError as failure:
            raise AssertionError(f"seed {seed}: {failure}") from failure
