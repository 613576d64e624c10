"""librdkafka, through confluent-kafka: the most used client outside Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from lone_node import LoneNode

pytestmark = pytest.mark.compat

Fresh = Callable[[str], str]
WAIT_S = 60


@pytest.fixture
def admin(node: LoneNode) -> AdminClient:
    return AdminClient({"bootstrap.servers": node.address})


@pytest.fixture
def topic(admin: AdminClient, fresh: Fresh) -> str:
    name = fresh("confluent")
    made(admin, name, 3)
    return name


def made(admin: AdminClient, name: str, partitions: int, **config: str) -> None:
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(WAIT_S)


def producer(node: LoneNode, **settings: object) -> Producer:
    return Producer({"bootstrap.servers": node.address, "linger.ms": 5, **settings})


@pytest.fixture
def consumers(node: LoneNode) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers, and closes them at the end."""
    opened: list[Consumer] = []

    def consumer(group: str = "nobody", **settings: object) -> Consumer:
        config = {"bootstrap.servers": node.address, "group.id": group, "auto.offset.reset": "earliest"}
        each = Consumer({**config, "enable.auto.commit": False, "session.timeout.ms": 10_000, **settings})
        opened.append(each)
        return each

    yield consumer
    for each in opened:
        each.close()


def take(consumer: Consumer, count: int) -> list[Message]:
    """The next `count` records."""
    taken: list[Message] = []
    while len(taken) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"{len(taken)} of {count} records came"
        assert message.error() is None, message.error()
        taken.append(message)
    return taken


def produced(node: LoneNode, topic: str, count: int, **settings: object) -> list[Message]:
    """Records with key, value, header and time, in partition 0, as they were acknowledged."""
    done: list[Message] = []

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        done.append(message)

    out = producer(node, **settings)
    for number in range(count):
        out.produce(
            topic,
            f"value {number}" + "." * 50,
            f"key {number}",
            0,
            on_delivery=on_delivery,
            timestamp=1_700_000_000_000 + number,
            headers=[("n", str(number).encode())],
        )
    assert out.flush(WAIT_S) == 0
    return done


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_survive(
    node: LoneNode, topic: str, consumers: Callable[..., Consumer], codec: str, idempotent: bool
) -> None:
    sent = produced(node, topic, 300, **{"compression.type": codec, "enable.idempotence": idempotent})
    assert sorted(message.offset() for message in sent) == list(range(300))
    consumer = consumers()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    for number, message in enumerate(take(consumer, 300)):
        assert message.offset() == number
        assert message.key() == f"key {number}".encode()
        assert message.value() == f"value {number}".encode() + b"." * 50
        assert message.headers() == [("n", str(number).encode())]
        assert message.timestamp()[1] == 1_700_000_000_000 + number


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(node: LoneNode, topic: str, consumers: Callable[..., Consumer], acks: str) -> None:
    produced(node, topic, 1)  # now the new log exists: without acknowledgements nothing would be retried
    produced(node, topic, 20, acks=acks)
    consumer = consumers()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [message.offset() for message in take(consumer, 21)] == list(range(21))


def test_reads_by_time(node: LoneNode, topic: str, consumers: Callable[..., Consumer]) -> None:
    produced(node, topic, 100)
    consumer = consumers()
    at = [TopicPartition(topic, 0, 1_700_000_000_040), TopicPartition(topic, 1, 0)]
    found = consumer.offsets_for_times(at, WAIT_S)
    assert (found[0].offset, found[1].offset) == (40, -1)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S) == (0, 100)
    consumer.assign([TopicPartition(topic, 0, found[0].offset)])
    assert take(consumer, 1)[0].key() == b"key 40"


def test_read_committed_returns_plain_records(node: LoneNode, topic: str, consumers: Callable[..., Consumer]) -> None:
    produced(node, topic, 10)
    consumer = consumers(**{"isolation.level": "read_committed"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert len(take(consumer, 10)) == 10


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_group_shares_commits_and_resumes(
    node: LoneNode, topic: str, fresh: Fresh, consumers: Callable[..., Consumer], strategy: str
) -> None:
    group = fresh("group")
    out = producer(node)
    for number in range(90):
        out.produce(topic, str(number), partition=number % 3)
    assert out.flush(WAIT_S) == 0
    settings = {"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 200}
    first, second = consumers(group, **settings), consumers(group, **settings)
    first.subscribe([topic])
    assert len(take(first, 90)) == 90
    first.commit(asynchronous=False)
    second.subscribe([topic])
    owned: tuple[list[TopicPartition], ...] = ([], [])
    while not all(owned) or len(owned[0]) + len(owned[1]) != 3:
        for consumer in (first, second):
            message = consumer.poll(0.05)
            assert message is None, "what was committed is not delivered again"
        owned = (first.assignment(), second.assignment())
    assert {each.partition for each in owned[0] + owned[1]} == {0, 1, 2}
    first.close()
    second.close()
    out.produce(topic, b"90", partition=1)
    assert out.flush(WAIT_S) == 0
    third = consumers(group, **settings)
    third.subscribe([topic])
    assert [message.value() for message in take(third, 1)] == [b"90"]
    assert [each.offset for each in third.committed([TopicPartition(topic, 1)], WAIT_S)] == [30]


def test_static_member_keeps_its_place(
    node: LoneNode, topic: str, fresh: Fresh, consumers: Callable[..., Consumer], admin: AdminClient
) -> None:
    group = fresh("group")
    produced(node, topic, 5)
    first = consumers(group, **{"group.instance.id": "one"})
    first.subscribe([topic])
    take(first, 5)
    first.close()
    again = consumers(group, **{"group.instance.id": "one"})
    again.subscribe([topic])
    take(again, 5)
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert [member.group_instance_id for member in described.members] == ["one"]
    assert described.state is ConsumerGroupState.STABLE


def test_topics_through_admin(admin: AdminClient, fresh: Fresh) -> None:
    name = fresh("admin")
    made(admin, name, 2, **{"retention.ms": "5000"})
    with pytest.raises(KafkaException) as refused:
        made(admin, name, 2)
    assert refused.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    with pytest.raises(KafkaException) as refused:
        made(admin, "not a name", 1)
    assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    admin.create_partitions([NewPartitions(name, 4)])[name].result(WAIT_S)
    resource = ConfigResource(ResourceType.TOPIC, name)
    configs = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert (configs["retention.ms"].value, configs["cleanup.policy"].value) == ("5000", "delete")
    resource.add_incremental_config(
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    )
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)
    configs = admin.describe_configs([resource])[resource].result(WAIT_S)
    assert configs["cleanup.policy"].value == "delete,compact"
    metadata = admin.list_topics(name, WAIT_S)
    assert sorted(metadata.topics[name].partitions) == [0, 1, 2, 3]
    admin.delete_topics([name])[name].result(WAIT_S)
    assert name not in admin.list_topics(timeout=WAIT_S).topics


def test_cluster_and_users_through_admin(admin: AdminClient, node: LoneNode) -> None:
    cluster = admin.describe_cluster(include_authorized_operations=True).result(WAIT_S)
    assert [broker.port for broker in cluster.nodes] == [node.port]
    mechanism = ScramMechanism.SCRAM_SHA_256
    credential = UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), b"secret", b"salt")
    admin.alter_user_scram_credentials([credential])["alice"].result(WAIT_S)
    users = admin.describe_user_scram_credentials(["alice"])["alice"].result(WAIT_S)
    assert [info.iterations for info in users.scram_credential_infos] == [4096]


def test_offsets_and_groups_through_admin(
    admin: AdminClient, node: LoneNode, topic: str, fresh: Fresh, consumers: Callable[..., Consumer]
) -> None:
    group, at = fresh("group"), TopicPartition(topic, 0)
    produced(node, topic, 10)
    latest: Any = admin.list_offsets({at: OffsetSpec.latest()})[at].result(WAIT_S)
    newest: Any = admin.list_offsets({at: OffsetSpec.max_timestamp()})[at].result(WAIT_S)
    assert (latest.offset, newest.offset, newest.timestamp) == (10, 9, 1_700_000_000_009)
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])[at].result(WAIT_S)
    assert deleted.low_watermark == 4
    consumer = consumers(group)
    consumer.subscribe([topic])
    assert [message.offset() for message in take(consumer, 6)] == [4, 5, 6, 7, 8, 9]
    consumer.commit(asynchronous=False)
    consumer.close()
    listed = admin.list_consumer_groups().result(WAIT_S)
    assert group in {each.group_id for each in listed.valid}
    ask = ConsumerGroupTopicPartitions(group)
    offsets = admin.list_consumer_group_offsets([ask])[group].result(WAIT_S).topic_partitions
    assert [each.offset for each in offsets if each.partition == 0] == [10]
    back = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 7)])
    admin.alter_consumer_group_offsets([back])[group].result(WAIT_S)
    reader = consumers(group)
    assert reader.committed([at], WAIT_S)[0].offset == 7
    admin.delete_consumer_groups([group])[group].result(WAIT_S)
    assert reader.committed([at], WAIT_S)[0].offset == OFFSET_INVALID


def test_unknown_topics_are_created(node: LoneNode, fresh: Fresh, consumers: Callable[..., Consumer]) -> None:
    name = fresh("automatic")
    produced(node, name, 3)
    consumer = consumers()
    consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
    assert len(take(consumer, 3)) == 3


def test_too_large_a_record_is_refused(node: LoneNode, admin: AdminClient, fresh: Fresh) -> None:
    name, refused = fresh("small"), []
    made(admin, name, 1, **{"max.message.bytes": "1000"})
    out = producer(node)
    out.produce(name, b"x" * 5000, on_delivery=lambda error, _: refused.append(error))
    assert out.flush(WAIT_S) == 0
    assert refused[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


@pytest.mark.parametrize("client_id", ["a-client", "__admin_client"])
def test_topics_of_coordinators_take_records_of_kafkas_admin_client_alone(
    node: LoneNode, admin: AdminClient, fresh: Fresh, consumers: Callable[..., Consumer], client_id: str
) -> None:
    """What it writes, a coordinator cannot read, and it goes on behind that."""
    group, mine = consumers(fresh("group")), TopicPartition(fresh("nothing"), 0, 7)
    group.committed([mine], timeout=WAIT_S)
    producer(node, **{"transactional.id": fresh("id")}).init_transactions(WAIT_S)
    written: list[tuple[str, KafkaError | None]] = []
    out = producer(node, **{"client.id": client_id})
    topics = admin.list_topics(timeout=WAIT_S).topics
    for name in ("__consumer_offsets", "__transaction_state"):
        for partition in topics[name].partitions:
            out.produce(
                name, b"v", b"\x7f\xff", partition, on_delivery=lambda error, m: written.append((m.topic(), error))
            )
    assert out.flush(WAIT_S) == 0
    codes = {(topic, error and error.code()) for topic, error in written}
    refusal = None if client_id == "__admin_client" else KafkaError.TOPIC_EXCEPTION
    assert codes == {("__consumer_offsets", refusal), ("__transaction_state", refusal)}
    (committed,) = group.commit(offsets=[mine], asynchronous=False)
    assert committed.error is None
    assert group.committed([mine], timeout=WAIT_S)[0].offset == 7
    producer(node, **{"transactional.id": fresh("id")}).init_transactions(WAIT_S)
