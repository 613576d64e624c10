"""Random walks of Kalda's own members of consumer groups (KIP-848) against the coordinator, over a network that loses
requests and answers, and delivers requests after the client has given them up.

A member sends its fields as the client does, only what has changed. However the messages of a storm were lost and
reordered, every partition is read soon after it, without any member that joins anew: nothing else would ever mend a
member that waits for an assignment which the coordinator believes to be delivered.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from consumer_members import state
from group_walk import TOPICS, GroupWalk
from groups_world import Context, World

from kalda.assignors.server_assignors import load_assignors
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Pending
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.consumer_metrics import ConsumerMetrics, CoordinatorMetrics
from kalda.clientcore.consuming.subscription import Subscription
from kalda.clientcore.groups.consumer_membership import ConsumerMembership
from kalda.clientcore.groups.membership import MembershipConfig

POLL_MS = 20_000


class Sent:
    """A request of a client, and what waits for its answer. None waits where the client has given it up."""

    def __init__(self, request: Any, on_done: Callable[[Any, ApiError | None], None]) -> None:
        self.request = request
        self.on_done: Callable[[Any, ApiError | None], None] | None = on_done
        self.outcome: Any = None
        """The coordinator's answer, or a pending one; None where the request has not arrived."""

    def give_up(self) -> None:
        on_done, self.on_done = self.on_done, None
        if on_done is not None:
            on_done(None, ApiError(ErrorCode.NETWORK_EXCEPTION))

    def answer(self) -> bool:
        """Deliver the answer, where there is one."""
        outcome = self.outcome
        if isinstance(outcome, Pending):
            if not outcome.done:
                return False
            outcome = outcome.value
        on_done, self.on_done = self.on_done, None
        if outcome is not None and on_done is not None:
            on_done(outcome, None)
        return outcome is not None


class Client:
    """One consumer's membership; its requests go to the walk's network."""

    def __init__(self, walk: Walk, member_id: str, topics: Sequence[str], instance: str | None, regex: str | None):
        self.walk = walk
        self.subscription = Subscription()
        if regex is not None:
            self.subscription.subscribe_server_pattern(regex)
        else:
            self.subscription.subscribe(topics)
        self.metadata = SimpleNamespace(topic_names={}, want=lambda topic, now_ms: None)
        self.coordinator_error = None
        self.unknown: set[Uuid] = set()
        self.committing: Operation | None = None
        config = MembershipConfig("g", instance, max_poll_interval_ms=POLL_MS)
        metrics = CoordinatorMetrics(ConsumerMetrics(member_id, self.subscription), self.subscription, is_classic=False)
        self.member = ConsumerMembership(
            config,
            member_id,
            self.subscription,
            self,
            self._commit,
            self.unknown.update,
            metrics,  # type: ignore[arg-type]
        )

    # What the membership asks of `Requests`.

    @property
    def now_ms(self) -> int:
        return self.walk.world.now

    def coordinator(self) -> int:
        return 0

    def retry_at_ms(self, failures: int = 1) -> int:
        return self.now_ms + min(100 << failures, 1_000)

    def on_coordinator_error(self, error: ApiError) -> None:
        """It is found again at once."""

    def send(self, node_id: int, request: Any, on_done: Any) -> None:
        self.walk.sent.append(Sent(request, on_done))

    def _commit(self, partitions: list[TopicPartition]) -> Operation | None:
        if self.walk.random.random() < 0.5:
            return None
        self.committing = Operation("the commit", self.now_ms + 10_000)
        return self.committing

    # What the application does.

    def poll(self) -> None:
        self.member.run(is_polling=True)
        if self.member.callback is not None and (self.walk.is_calm or self.walk.random.random() < 0.7):
            self.member.on_callback_done()
            self.member.run(is_polling=True)

    def work(self) -> None:
        """The commit ends, and names of topics are found."""
        if self.committing is not None:
            self.committing.succeed()
        names = self.walk.world.topics
        for topic_id in list(self.unknown):
            if (name := names.name_of(topic_id)) is not None:
                self.member.names_by_id[topic_id] = name
                self.unknown.discard(topic_id)


class Walk(GroupWalk):
    def __init__(self, seed: int) -> None:
        self.random = pick = random.Random(seed)
        self.is_calm = False
        self.world = world = World(consumers={"group.consumer.assignment.interval.ms": pick.choice([0, 1_000])})
        world.assignors.clear()
        world.assignors.update(load_assignors("group.consumer.assignors", ["uniform", "range"]))
        for name in TOPICS:
            world.topics.add(name, pick.randint(1, 5))
        self.background: deque[Any] = deque()
        self.clients: list[Client] = []
        self.made = 0
        self.sent: list[Sent] = []
        self.late: list[Sent] = []
        """Given up by their clients, and still on their way."""
        self.on_elected()

    def step(self) -> None:
        pick = self.random
        pick.choices(
            [self.join, self.poll, self.deliver, self.lose, self.arrive_late, self.replicate, self.leave, self.die,
             self.topic, self.move, self.work],
            [2, 20, 20, 3, 3, 6, 1, 1, 1, 0.5, 10],
        )[0]()  # fmt: skip
        self.world.pass_time(pick.choice([0, 10, 100, 1_000, 3_000]))

    # -- what happens

    def join(self) -> None:
        if len(self.clients) >= 5:
            return
        self.made += 1
        instance = None if self.random.random() < 0.7 else f"i{self.made}"
        regex = "[tuv]" if self.random.random() < 0.2 else None
        self.clients.append(Client(self, f"m{self.made}", TOPICS, instance, regex))

    def poll(self) -> None:
        if self.clients:
            client = self.random.choice(self.clients)
            client.poll()
            if self.random.random() < 0.5:
                client.work()

    def _arrive(self, sent: Sent) -> None:
        sent.outcome = self.world.coordinator.consumer_group_heartbeat(Context(1), sent.request, self.world.now)

    def deliver(self) -> None:
        """A request arrives, or an answer."""
        if not self.sent:
            return
        sent = self.random.choice(self.sent)
        if sent.outcome is None:
            self._arrive(sent)
        elif sent.answer():
            self.sent.remove(sent)

    def lose(self) -> None:
        """The client gives a request up. Its answer is lost, or it, or it will yet arrive."""
        if not self.sent:
            return
        sent = self.sent.pop(self.random.randrange(len(self.sent)))
        if sent.outcome is None and self.random.random() < 0.7:
            self.late.append(sent)
        sent.give_up()

    def arrive_late(self) -> None:
        if self.late:
            self._arrive(self.late.pop(self.random.randrange(len(self.late))))

    def replicate(self) -> None:
        self.world.log.replicated = self.random.random() < 0.7
        self.world.replicate()

    def leave(self) -> None:
        if self.clients:
            client = self.clients.pop(self.random.randrange(len(self.clients)))
            client.member.begin_leave(None, "the walk")

    def die(self) -> None:
        if self.clients:
            self.clients.pop(self.random.randrange(len(self.clients)))

    def topic(self) -> None:
        name, created = self.change_topic(removal=0.4)
        self.made += 1
        self.world.coordinator.on_topics_changed([name], self.made, created=created)

    def move(self) -> None:
        """Another coordinator, which has all that was written."""
        self.background.clear()
        for sent in list(self.sent):
            if sent.outcome is not None:
                self.sent.remove(sent)
                sent.give_up()
        self.world.replicate()
        self.world.elect()
        self.world.coordinator.on_topics_changed(list(self.world.topics.ids), self.made, created=True)
        self.on_elected()

    # -- the end of the storm

    def settle(self) -> None:
        """Nothing is lost any more. The time is enough for dead members to be removed, and for those who are to give
        partitions back to be fenced."""
        self.is_calm = True
        while self.late:
            self.arrive_late()
        self.world.log.replicated = True
        self.world.replicate()
        for _ in range(150):
            for client in self.clients:
                client.work()
                client.poll()
            for sent in list(self.sent):
                if sent.outcome is None:
                    self._arrive(sent)
                if sent.answer():
                    self.sent.remove(sent)
            while self.background:
                self.work()
            self.world.pass_time(1_000)
        if not self.clients:
            return
        assert state(self.world) == "Stable"
        owned = [partition for client in self.clients for partition in client.subscription.partitions]
        assert sorted(owned) == self.all_partitions()
        for client in self.clients:
            assert client.member.error is None
            assert not any(each.is_revoking or each.is_new for each in client.subscription.partitions.values())


@pytest.mark.parametrize("seed", [*range(8), 320, 944, 1140, 2289])
def test_every_partition_is_read_after_a_storm(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every second seed, assignments are computed in the background, as those of large groups. In the last four, a
    request that its client had given up was answered with an assignment."""
    if seed % 2:
        monkeypatch.setattr("kalda.coordinator.groups.consumer_protocol._SMALL", 0)
    walk = Walk(seed)
    for _ in range(200):
        walk.step()
    walk.settle()
