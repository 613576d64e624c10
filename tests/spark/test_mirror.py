"""Topics of one cluster in another one: records with all that they have, each once, and the offsets of groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from topics import BASE_MS, World, cluster_of_tests

from kalda import Admin, OffsetAndEpoch, Producer, TopicPartition
from kalda.base.configs.resources import ConfigResourceType
from kalda.client.admin.configs import ConfigResource
from kalda.client.transport.config_files import profiles_path
from kalda.pipeline.mirror import MirrorSettings, mirror
from kalda.pipeline.session import PipelineError, prepare
from kalda.testing import Cluster

pytestmark = pytest.mark.spark
HEADERS = [("h", b"1"), ("h", None)]
FIRST = TopicPartition("mirrored", 0)
COPY = TopicPartition("shop.mirrored", 0)


@pytest.fixture(scope="module")
def world(spark: Any) -> Iterator[World]:
    prepare(spark)
    with cluster_of_tests() as cluster, World(cluster, spark) as world:
        yield world


def produce_with_aborted(world: World, count: int) -> None:
    """So many records in both partitions, each in a transaction, and an aborted one before each."""
    with Producer({"bootstrap.servers": world.servers, "transactional.id": "t"}) as producer:
        producer.init_transactions()
        for n in range(count):
            for is_good in (False, True):
                producer.begin_transaction()
                for partition in (0, 1):
                    value = b"%d" % n if is_good else b"aborted"
                    producer.send("mirrored", value, b"k", partition, BASE_MS + n, HEADERS)
                producer.flush()  # what is aborted before it is sent is in no log
                producer.commit_transaction() if is_good else producer.abort_transaction()


def test_a_mirror(world: World, spark: Any, tmp_path: Path) -> None:
    """The offsets of a group are between two batches, and those of the logs are others: there are aborted records in
    one and markers in both. A batch whose end Spark has not noted is run again, as after a kill."""
    state = tmp_path / "mirror"
    settings = MirrorSettings(("mirrored",), "shop", "other", prefix="shop.")
    world.create("mirrored", 2)
    produce_with_aborted(world, 3)
    world.produce("mirrored", 1, [(BASE_MS, None, None, ())])

    def commit(offset: int) -> None:
        world.admin.alter_group_offsets("readers", {FIRST: OffsetAndEpoch(offset, -1, "")}).check()

    with Cluster() as other, Admin({"bootstrap.servers": other.bootstrap_servers}) as admin:
        profiles_path().write_text(
            f"[shop]\nbootstrap.servers = {world.servers!r}\n[other]\nbootstrap.servers = {other.bootstrap_servers!r}\n"
        )

        def committed() -> int:
            return admin.list_group_offsets("readers").value(COPY).offset

        commit(7)  # behind the record with the value 1
        first = mirror(spark, state, settings)
        behind_one = committed()
        commit(0)
        for file in (state / "checkpoint" / "commits").glob("*0*"):
            file.unlink()
        again = mirror(spark, state, settings)
        unchanged = committed()
        world.admin.create_partitions({"mirrored": 3}).check()
        world.produce("mirrored", 2, [(BASE_MS + 9, b"k", b"new partition", ())])
        last = mirror(spark, state, settings)
        rows = World(other, spark).read(
            subscribe="shop.mirrored", includeHeaders="true", kafka__isolation__level="read_committed"
        )
        resource = ConfigResource(ConfigResourceType.TOPIC, "shop.mirrored")
        configs = admin.describe_configs([resource]).value(resource)
        with pytest.raises(PipelineError, match=r"is the state of another mirror: prefix is 'shop\.', not ''"):
            mirror(spark, state, MirrorSettings(("mirrored",), "shop", "other"))
        with pytest.raises(
            PipelineError, match=r"shop\.mirrored of other has records that this mirror has not written"
        ):
            mirror(spark, tmp_path / "second", settings)
    known = [(row.partition, row.key, row.value, row.timestamp.timestamp() * 1000, row.headers) for row in rows]
    good = [(p, b"k", b"%d" % n, BASE_MS + n, HEADERS) for p in (0, 1) for n in range(3)]
    assert known == [*good, (1, None, None, BASE_MS, None), (2, b"k", b"new partition", BASE_MS + 9, None)]
    assert (first.report.rows, again.report.rows, last.report.rows) == (7, 7, 1)
    assert [each.problems for each in (first, again, last)] == [{}, {}, {}]
    assert [row.value for row in rows if row.partition == 0 and row.offset >= behind_one] == [b"2"]
    assert unchanged == behind_one  # never back
    assert configs["retention.ms"].value == "-1"


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"target": "shop"}, "shop to itself"), ({"target": "other", "groups": "("}, "a regular expression is expected")],
)
def test_settings_that_cannot_be(given: dict[str, str], problem: str) -> None:
    with pytest.raises(PipelineError, match=problem):
        MirrorSettings(("mirrored",), "shop", **given)
