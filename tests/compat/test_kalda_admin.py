"""Kalda's admin clients against a real node: batches, an error for each item, and calls that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lone_node import LoneNode

import kalda
from kalda import aio
from kalda.base.configs.resources import ConfigOperation, ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.client.admin.configs import Alteration, ConfigResource
from kalda.client.admin.topics import NewTopic
from kalda.clientcore.producing.producer_errors import FatalTransactionError
from kalda.protocol.messages.partitions import OffsetSpec

pytestmark = pytest.mark.compat


@pytest.fixture
def admin(node: LoneNode) -> Iterator[kalda.Admin]:
    with kalda.Admin({"bootstrap.servers": f"127.0.0.1:{node.port}", "default.api.timeout.ms": 30_000}) as made:
        yield made


def code_of(outcome: Any) -> ErrorCode:
    assert isinstance(outcome, ApiError), outcome
    return outcome.code


def test_topics_in_a_batch_each_with_its_outcome(admin: kalda.Admin, fresh: Callable[[str], str]) -> None:
    one, two = fresh("one"), fresh("two")
    created = admin.create_topics([NewTopic(one, 3, 1), NewTopic(two, 1, 1), NewTopic("bad/name", 1, 1)])
    assert created.value(one).partitions == 3
    assert code_of(created["bad/name"]) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert set(created.succeeded) == {one, two}
    with pytest.raises(ApiError, match="bad/name"):
        created.check()
    admin.create_partitions({two: 4, "missing-topic": 2}).value(two)
    assert {one, two} <= set(admin.list_topics())
    described = admin.describe_topics([one, two, "missing-topic"])
    assert len(described.value(two).partitions) == 4
    assert code_of(described["missing-topic"]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    deleted = admin.delete_topics([one, "missing-topic"])
    assert deleted[one] is None
    assert code_of(deleted["missing-topic"]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_records_offsets_and_groups(node: LoneNode, admin: kalda.Admin, fresh: Callable[[str], str]) -> None:
    topic, group = fresh("records"), fresh("group")
    admin.create_topics([NewTopic(topic, 2, 1)]).check()
    server = f"127.0.0.1:{node.port}"
    with kalda.Producer({"bootstrap.servers": server}) as producer:
        for number in range(10):
            producer.send(topic, b"%d" % number, partition=number % 2)
    partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    assert [ends.value(partition).offset for partition in partitions] == [5, 5]
    assert admin.delete_records({(topic, 0): 2}) == {partitions[0]: 2}
    admin.alter_group_offsets(group, {(topic, 0): 3, (topic, 1): 4}).check()
    assert {p: each.offset for p, each in admin.list_group_offsets(group).succeeded.items()} == {
        partitions[0]: 3,
        partitions[1]: 4,
    }
    admin.delete_group_offsets(group, [(topic, 1)]).check()
    settings = {"bootstrap.servers": server, "group.id": group}
    with kalda.Consumer(settings) as consumer:
        consumer.subscribe([topic])
        assert consumer.poll(20)
        described = admin.describe_groups([group, "no such group"])
        assert len(described.value(group).members) == 1
        assert code_of(described["no such group"]) is ErrorCode.GROUP_ID_NOT_FOUND
        assert group in admin.list_groups()
        assert code_of(admin.delete_groups([group])[group]) is ErrorCode.NON_EMPTY_GROUP
    admin.delete_groups([group]).check()
    assert admin.describe_producers(partitions).succeeded.keys() == set(partitions)


def test_configs_and_the_cluster(admin: kalda.Admin, fresh: Callable[[str], str]) -> None:
    topic = fresh("configs")
    admin.create_topics([NewTopic(topic, 1, 1)]).check()
    resource, missing = (ConfigResource(ConfigResourceType.TOPIC, name) for name in (topic, "missing-topic"))
    change = Alteration("retention.ms", ConfigOperation.SET, "5000")
    altered = admin.alter_configs({resource: [change], missing: [change]})
    assert altered[resource] is None
    assert code_of(altered[missing]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster = admin.describe_cluster()
    broker = ConfigResource(ConfigResourceType.BROKER, str(cluster.nodes[0].node_id))
    configs = admin.describe_configs([resource, broker]).check()
    assert configs.value(resource)["retention.ms"].value == "5000"
    assert "log.dirs" in configs.value(broker)
    assert admin.describe_quorum().leader_id == cluster.nodes[0].node_id
    assert "metadata.version" in {feature.name for feature in admin.describe_features().features}
    dirs = admin.describe_log_dirs([cluster.nodes[0].node_id, 77])
    assert code_of(dirs[77]) is ErrorCode.BROKER_NOT_AVAILABLE
    assert TopicPartition(topic, 0) in dirs.value(cluster.nodes[0].node_id)[0].partitions
    assert admin.list_reassignments() == {}
    assert admin.elect_leaders([(topic, 0)]).errors.keys() == {TopicPartition(topic, 0)}


def test_transactions_are_ended_from_outside(node: LoneNode, admin: kalda.Admin, fresh: Callable[[str], str]) -> None:
    topic = fresh("hanging")
    admin.create_topics([NewTopic(topic, 1, 1)]).check()
    partition = TopicPartition(topic, 0)
    server = {"bootstrap.servers": f"127.0.0.1:{node.port}"}
    with kalda.Producer({**server, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result(30)
        (active,) = admin.describe_producers([partition]).value(partition)
        assert active.start_offset == 0
        fenced = admin.fence_producers([topic]).value(topic)
        assert (fenced.producer_id, fenced.producer_epoch > active.producer_epoch) == (active.producer_id, True)
        with pytest.raises(FatalTransactionError):
            producer.commit_transaction()
    with kalda.Producer({**server, "transactional.id": topic}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        offset = producer.send(topic, b"open too").result(30).offset
        (active,) = [each for each in admin.describe_producers([partition]).value(partition) if each.start_offset >= 0]
        assert active.start_offset == offset
        admin.abort_transaction(partition, active.producer_id, active.producer_epoch)
        assert [each.start_offset for each in admin.describe_producers([partition]).value(partition)] == [-1]
        with pytest.raises(ApiError, match="topic missing: it does not exist"):
            admin.abort_transaction(("missing", 0), 1, 0, timeout=5)


def test_what_a_cluster_does_not_serve_is_a_clear_error(admin: kalda.Admin) -> None:
    with pytest.raises(ApiError, match=r"UNSUPPORTED_VERSION|SECURITY_DISABLED"):
        admin.describe_acls()
    with pytest.raises(ApiError) as refused:
        admin.create_delegation_token()
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "the connection has no principal"


def test_no_cluster_ends_at_the_timeout() -> None:
    with (
        kalda.Admin({"bootstrap.servers": "127.0.0.1:1", "default.api.timeout.ms": 500}) as admin,
        pytest.raises(ApiError, match="in time"),
    ):
        admin.list_topics()


def test_asyncio(node: LoneNode, fresh: Callable[[str], str]) -> None:
    topic = fresh("aio-admin")

    async def run() -> None:
        async with aio.Admin({"bootstrap.servers": f"127.0.0.1:{node.port}"}) as admin:
            (await admin.create_topics([NewTopic(topic, 1, 1)])).check()
            topics, cluster = await asyncio.gather(admin.list_topics(), admin.describe_cluster())
            assert topic in topics
            assert cluster.nodes
            assert (await admin.delete_topics([topic]))[topic] is None

    asyncio.run(run())
