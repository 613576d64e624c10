"""Consumer groups of KIP-848 on a Kalda node, with real members: librdkafka's and Kalda's, some of them killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from consuming_members import Members
from lone_node import LoneNode

import kalda
from kalda.protocol.messages.groups import ConsumerGroupDescribeRequest
from waiting import wait_until

pytestmark = pytest.mark.compat

FAST = {
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.min.heartbeat.interval.ms": 200,
    "group.consumer.session.timeout.ms": 3_000,
    "group.consumer.min.session.timeout.ms": 3_000,
    "group.consumer.assignment.interval.ms": 100,
}
PARTITIONS = 6


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneNode]:
    with LoneNode(tmp_path_factory.mktemp("groups") / "kalda", FAST) as lone:
        lone.format()
        lone.start()
        yield lone
        strange = [line for line in lone.lines if "Traceback" in line or "CRITICAL" in line]
        assert not strange, "\n".join(lone.lines[-200:])


class Group:
    """A topic, its group, and an admin's view of it."""

    def __init__(self, node: LoneNode, name: str) -> None:
        self.servers, self.name = node.address, name
        self.admin = self.new_admin()
        self.admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        self.producer = confluent_kafka.Producer({"bootstrap.servers": node.address, "linger.ms": 5, "log_level": 0})
        self.sent = 0

    def new_admin(self) -> AdminClient:
        """Another client: one whose node has died may wait for a connection for half a minute."""
        return AdminClient({"bootstrap.servers": self.servers, "log_level": 0})

    def send(self, count: int) -> None:
        """Records whose values are numbers, round the partitions."""
        for _ in range(count):
            self.producer.produce(self.name, str(self.sent).encode(), partition=self.sent % PARTITIONS)
            self.sent += 1
        self.producer.flush(30)

    def epoch(self, node: LoneNode) -> int:
        """The group epoch, which each rebalance raises."""
        with node.client() as client:
            (group,) = client.request(ConsumerGroupDescribeRequest(group_ids=[self.name])).groups
        return int(group.group_epoch)

    def member(self, client_id: str, **settings: Any) -> confluent_kafka.Consumer:
        """A member by librdkafka."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": self.name,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "client.id": client_id,
                "log_level": 0,
                **settings,
            }
        )
        consumer.subscribe([self.name])
        return consumer

    def described(self) -> tuple[ConsumerGroupState, dict[str, list[int]]]:
        """State, and partitions by member id. No state, or Dead, while there is no group yet."""
        try:
            group = self.admin.describe_consumer_groups([self.name])[self.name].result(30)
        except confluent_kafka.KafkaException as error:
            if error.args[0].name() not in ("NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "GROUP_ID_NOT_FOUND"):
                raise
            return ConsumerGroupState.UNKNOWN, {}
        assert group.type is ConsumerGroupType.CONSUMER or group.state is ConsumerGroupState.DEAD
        members = {m.member_id: sorted(p.partition for p in m.assignment.topic_partitions) for m in group.members}
        return group.state, members


def consume(consumer: confluent_kafka.Consumer, seen: set[str]) -> None:
    """Poll once, and add the values."""
    for message in consumer.consume(500, 0.05):
        assert message.error() is None, message.error()
        seen.add(message.value().decode())


def test_members_of_both_clients_share_a_group_and_lose_nothing_when_one_is_killed(node: LoneNode) -> None:
    group = Group(node, "shared")
    group.send(300)
    seen: set[str] = set()
    others = Members(node.address, group.name, group.name, "consumer")
    others.start()
    first = group.member("librdkafka")
    try:

        def balanced(sizes: list[int]) -> bool:
            consume(first, seen)
            group.send(20)
            state, members = group.described()
            return state is ConsumerGroupState.STABLE and sorted(map(len, members.values())) == sizes

        wait_until(lambda: balanced([3, 3]))
        others.start()
        wait_until(lambda: balanced([2, 2, 2]))
        others.kill(others.processes[0])
        wait_until(lambda: balanced([3, 3]))
        group.admin.create_partitions([NewPartitions(group.name, PARTITIONS + 2)])[group.name].result(30)
        wait_until(lambda: balanced([4, 4]))
        group.send(100)
        wanted = {str(number) for number in range(group.sent)}

        def all_seen() -> bool:
            consume(first, seen)
            return wanted <= seen | others.seen

        wait_until(all_seen)
    finally:
        first.close()
        others.stop()


def test_a_static_member_returns_without_a_rebalance(node: LoneNode) -> None:
    group = Group(node, "static")
    group.send(60)
    seen: set[str] = set()
    one, two = group.member("one", **{"group.instance.id": "one"}), group.member("two")

    def stable() -> bool:
        consume(one, seen), consume(two, seen)
        state, members = group.described()
        return state is ConsumerGroupState.STABLE and sorted(map(len, members.values())) == [3, 3]

    wait_until(stable)
    (_, before), epoch = group.described(), group.epoch(node)
    one.close()
    one = group.member("one", **{"group.instance.id": "one"})
    wait_until(stable)
    _, after = group.described()
    assert sorted(after.values()) == sorted(before.values())
    assert len(after.keys() & before.keys()) == 1, "the static member has another id"
    assert group.epoch(node) == epoch
    one.close(), two.close()


def test_kaldas_consumer_commits_in_its_epoch_and_leaves_an_empty_group(node: LoneNode) -> None:
    group = Group(node, "committed")
    group.send(120)
    settings = {"bootstrap.servers": node.address, "group.id": group.name, "group.protocol": "consumer"}
    seen: list[bytes] = []
    with kalda.Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False}) as consumer:
        consumer.subscribe([group.name])

        def all_seen() -> bool:
            seen.extend(record.value for record in consumer.poll(0.2))
            return len(seen) == group.sent

        wait_until(all_seen)
        consumer.commit()
    assert group.described() == (ConsumerGroupState.EMPTY, {})
    request = confluent_kafka.ConsumerGroupTopicPartitions(group.name)
    (result,) = group.admin.list_consumer_group_offsets([request]).values()
    assert sum(each.offset for each in result.result(30).topic_partitions) == group.sent
    group.admin.delete_consumer_groups([group.name])[group.name].result(30)


def test_groups_survive_the_node(tmp_path_factory: pytest.TempPathFactory) -> None:
    with LoneNode(tmp_path_factory.mktemp("restarted") / "kalda", FAST) as lone:
        lone.format()
        lone.start()
        group = Group(lone, "restarted")
        group.send(60)
        seen: set[str] = set()
        member = group.member("one")

        def all_seen() -> bool:
            consume(member, seen)
            return len(seen) == group.sent

        wait_until(all_seen)
        before = group.described()
        lone.kill()
        lone.start()
        group.send(60)
        wait_until(all_seen)
        group.admin = group.new_admin()
        assert group.described() == before, "the member goes on in its place"
        member.close()
