"""Share consumers, blocking and asyncio, against real nodes: kinds of acknowledgements, a dead leader, many members."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner

import kalda
from kalda import AcknowledgeType, aio
from kalda.cli.commands import cli
from kalda.testing import Cluster
from waiting import wait_until

pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(nodes=3) as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster, fresh: Callable[[str], str]) -> str:
    """Three partitions with 300 records; the group of the same name begins with the first of them."""
    name = fresh("shared")
    cluster.create_topic(name, partitions=3)
    resource = kalda.ConfigResource(kalda.ConfigResourceType.GROUP, name)
    begin = kalda.Alteration("share.auto.offset.reset", kalda.ConfigOperation.SET, "earliest")
    with kalda.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.alter_configs({resource: [begin]}).check()
    fill(cluster, name, 300)
    return name


def fill(cluster: Cluster, topic: str, count: int) -> None:
    with kalda.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=number % 3)


def consumer_of(cluster: Cluster, topic: str, **keys: object) -> kalda.ShareConsumer[bytes, bytes]:
    made: kalda.ShareConsumer[bytes, bytes] = kalda.ShareConsumer(
        {"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic, **keys}
    )
    made.subscribe(topic)
    return made


def first_of(consumer: kalda.ShareConsumer[bytes, bytes]) -> list[kalda.Record[bytes, bytes]]:
    """The first records that a member gets: when it is in the group, and the partitions were initialized."""
    records = consumer.poll(60)
    assert records
    return records


def test_many_members_get_each_record_once(cluster: Cluster, topic: str) -> None:
    members = [consumer_of(cluster, topic, **{"max.poll.records": 20}) for _ in range(5)]
    got: list[tuple[int, int]] = []

    def all_came() -> bool:
        for member in members:
            got.extend((record.partition, record.offset) for record in member.poll(0.05))
        return len(got) >= 300

    wait_until(all_came, "all records came")
    for member in members:
        assert all(error is None for error in member.commit_sync().values())
        member.close()
    assert len(set(got)) == len(got) == 300


def test_what_is_said_of_a_record_decides_who_gets_it_again(cluster: Cluster, topic: str) -> None:
    explicit = {"share.acknowledgement.mode": "explicit", "share.acquire.mode": "record_limit"}
    outcomes: list[tuple[int, kalda.ApiError | None]] = []
    with consumer_of(cluster, topic, **explicit, **{"max.poll.records": 4}) as consumer:
        consumer.set_acknowledgement_commit_callback(
            lambda offsets, error: outcomes.append((sum(map(len, offsets.values())), error))
        )
        accepted, released, rejected, renewed = first_of(consumer)
        consumer.acknowledge(accepted)
        consumer.acknowledge(released, AcknowledgeType.RELEASE)
        consumer.acknowledge(rejected, AcknowledgeType.REJECT)
        consumer.acknowledge(renewed, AcknowledgeType.RENEW)
        assert set(consumer.commit_sync().values()) == {None}
        assert consumer.poll(5) == [renewed]
        consumer.acknowledge(renewed)
        consumer.commit_sync()
        assert outcomes == [(4, None), (1, None)]
        assert consumer.acquisition_lock_timeout_ms == 30_000
    seen: dict[tuple[int, int], int | None] = {}
    with consumer_of(cluster, topic) as other:

        def rest_came() -> bool:
            seen.update({(each.partition, each.offset): each.delivery_count for each in other.poll(0.2)})
            return len(seen) == 297

        wait_until(rest_came, "the others came")
        other.commit_sync()
    assert seen[released.partition, released.offset] == 2
    for gone in (accepted, rejected, renewed):
        assert (gone.partition, gone.offset) not in seen


def test_records_of_a_dead_leader_are_handed_out_by_the_next_one(cluster: Cluster, topic: str) -> None:
    pytest.importorskip("pyarrow")
    seen: set[tuple[int, int]] = set()
    with consumer_of(cluster, topic) as consumer:
        first = first_of(consumer)
        killed = cluster.leader(topic, first[0].partition)
        cluster.kill_node(killed)
        try:

            def all_came() -> bool:
                batch = consumer.poll_arrow(0.2)
                if batch is not None:
                    seen.update(zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True))
                return len(seen | {(each.partition, each.offset) for each in first}) == 300

            wait_until(all_came, "all records came")
        finally:
            cluster.start_node(killed)


def groups(cluster: Cluster, *arguments: str) -> str:
    """The output of `kalda groups`, as JSON."""
    result = CliRunner().invoke(cli, ["groups", *arguments, "--bootstrap-server", cluster.bootstrap_servers])
    assert result.exit_code == 0, result.output
    return result.output


def test_commands_show_a_share_group_and_set_where_it_begins(cluster: Cluster, topic: str) -> None:
    with consumer_of(cluster, topic) as consumer:
        count = len(first_of(consumer))
        consumer.commit_sync()
        with kalda.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            # A partition that the group had not begun when its last member left has no offset.
            wait_until(lambda: len(admin.list_share_group_offsets(topic).check()) == 3, "all partitions have begun")
        (with_member,) = json.loads(groups(cluster, "describe", topic, "--json"))
        assert (with_member["type"], with_member["state"], len(with_member["members"])) == ("share", "Stable", 1)
        assert len(with_member["members"][0]["partitions"]) == 3
        assert "1" in groups(cluster, "describe", topic, "--members")
    described: dict[str, Any] = {}

    def is_counted() -> bool:
        (found,) = json.loads(groups(cluster, "describe", topic, "--json"))
        described.update(found)
        return all(each["lag"] is not None for each in found["offsets"])

    wait_until(is_counted, "the lag of each partition is known")
    assert described["state"] == "Empty"
    assert sum(each["lag"] for each in described["offsets"]) == 300 - count
    assert {each["log_end_offset"] for each in described["offsets"]} == {100}
    groups(cluster, "reset-offsets", topic, "--topic", f"{topic}:1", "--to-offset", "90", "--execute")
    with kalda.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        found = admin.list_share_group_offsets(topic).check()
        assert found.value(kalda.TopicPartition(topic, 1))[::2] == (90, 10)
        groups(cluster, "delete-offsets", topic, "--topic", topic, "--yes")
        assert not admin.list_share_group_offsets(topic).check()
    groups(cluster, "delete", topic, "--yes")


def test_the_asyncio_consumer_shares_with_the_blocking_one(cluster: Cluster, topic: str) -> None:
    async def consume() -> list[bytes | None]:
        values: list[bytes | None] = []
        keys = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic}
        async with aio.ShareConsumer(keys, max_poll_records=50) as consumer:
            consumer.subscribe([topic])
            async for record in consumer:
                values.append(record.value)
                if len(values) == 300:
                    break
            await consumer.commit_sync()
        return values

    assert sorted(asyncio.run(consume())) == sorted(b"%d" % number for number in range(300))  # type: ignore[type-var]
    with consumer_of(cluster, topic) as other:
        assert other.poll(1) == []
