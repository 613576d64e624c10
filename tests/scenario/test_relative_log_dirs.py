"""Log directories that the configuration names relative to the working directory: requests name them absolutely."""

from __future__ import annotations

from pathlib import Path

import pytest

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.broker.process.disk import absolute_dir
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.testing import Cluster
from waiting import wait_until

AT = TopicPartition("t", 0)


def test_directories_are_named_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Apache Kafka: in what DescribeLogDirs answers, and in what AlterReplicaLogDirs takes."""
    monkeypatch.chdir(tmp_path)
    first, second = f"{tmp_path}/a", f"{tmp_path}/./b"
    with Cluster(config={"log.dirs": "a,./b/"}) as cluster, CommandAdmin(cluster.bootstrap_servers) as client:
        cluster.create_topic("t")
        assert {each.path for each in client.describe_log_dirs([1]).value(1)} == {first, second}

        def home() -> str:
            return next(each.path for each in client.describe_log_dirs([1]).value(1) if AT in each.partitions)

        other = second if home() == first else first
        with pytest.raises(ApiError) as refused:
            client.alter_replica_log_dirs(1, {AT: Path(other).name}).check()
        assert refused.value.code is ErrorCode.LOG_DIR_NOT_FOUND
        client.alter_replica_log_dirs(1, {AT: other}).check()
        wait_until(lambda: home() == other)
        client.set_configs(ConfigResource(ConfigResourceType.BROKER, "1"), {"cordoned.log.dirs": "./b/"})
        wait_until(lambda: any(each.is_cordoned for each in client.describe_log_dirs([1]).value(1)))
        assert [each.path for each in client.describe_log_dirs([1]).value(1) if each.is_cordoned] == [second]


@pytest.mark.parametrize(
    ("configured", "named"),
    [
        ("a", "{cwd}/a"),
        ("./a/", "{cwd}/./a"),
        ("../a", "{cwd}/../a"),
        ("/x//y/", "/x/y"),
        ("/x/../y", "/x/../y"),
        ("/", "/"),
    ],
)
def test_paths_are_those_of_java(configured: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `new File(configured).getAbsolutePath()` of Java gives."""
    monkeypatch.chdir(tmp_path)
    assert absolute_dir(configured) == named.format(cwd=tmp_path)
