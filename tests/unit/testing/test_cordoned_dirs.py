"""Brokers whose log directories are cordoned, in a running cluster (KIP-1066)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.client.admin.topics import NewTopic
from kalda.testing import Cluster

DEADLINE_S = 60.0
SECOND = ConfigResource(ConfigResourceType.BROKER, "2")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """The second broker has two log directories; its properties cordon both."""
    dirs = f"{tmp_path}/left,{tmp_path}/right"
    with Cluster(nodes=2, node_configs={2: {"log.dirs": dirs, "cordoned.log.dirs": "*"}}) as running:
        yield running


def cordoned(client: CommandAdmin) -> list[str]:
    return [Path(each.path).name for each in client.describe_log_dirs([2]).value(2) if each.is_cordoned]


def create_in_time(client: CommandAdmin, topic: NewTopic) -> None:
    """Create the topic, and retry: the controller gets the state of a broker's directories with its next heartbeat."""
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        with suppress(ApiError):
            client.create_topics([topic]).check()
            return
        time.sleep(0.02)
    raise AssertionError(f"{topic.name} cannot be created")


def test_cordoned_directories_get_no_new_replicas(cluster: Cluster, tmp_path: Path) -> None:
    with CommandAdmin(cluster.bootstrap_servers) as client:
        assert cordoned(client) == ["left", "right"]
        client.create_topics([NewTopic("single", 4, 1)]).check()
        assert {partition.replicas for partition in client.topic("single").partitions} == {(1,)}
        with pytest.raises(ApiError) as refused:
            client.create_topics([NewTopic("both", 6, 2)]).check()
        assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR

        client.set_configs(SECOND, {"cordoned.log.dirs": f"{tmp_path}/left"})
        create_in_time(client, NewTopic("both", 6, 2))
        assert cordoned(client) == ["left"]
        places = {Path(each.path).name: each.partitions for each in client.describe_log_dirs([2]).value(2)}
        until = time.monotonic() + DEADLINE_S
        while len(places["right"]) < 6:
            assert time.monotonic() < until, places
            time.sleep(0.02)
            places = {Path(each.path).name: each.partitions for each in client.describe_log_dirs([2]).value(2)}
        assert not places["left"]

        with pytest.raises(ApiError) as refused:
            client.set_configs(SECOND, {"cordoned.log.dirs": "/elsewhere"})
        assert refused.value.code is ErrorCode.INVALID_REQUEST
