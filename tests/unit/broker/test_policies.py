"""The operator's own rules for topics and configs."""

from __future__ import annotations

from typing import Any

import pytest

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.policies import (
    ALTER_CONFIG,
    CREATE_TOPIC,
    AlterConfigRequest,
    NewTopicRequest,
    Policies,
    PolicyViolation,
)
from kalda.broker.process.node import StartError
from kalda.cli.common.command_admin import CommandAdmin
from kalda.client.admin.configs import ConfigResource
from kalda.metadata.configs import topic_resource
from kalda.network.python_classes import ClassFailed
from kalda.testing import Cluster

SEEN: list[Any] = []


class Strict:
    """Allows at most `our.limit` partitions, and no config `min.insync.replicas`."""

    def configure(self, configs: dict[str, str]) -> None:
        SEEN.append("configured")
        self.limit = int(configs["our.limit"])

    def validate(self, request: NewTopicRequest | AlterConfigRequest) -> None:
        SEEN.append(request)
        if isinstance(request, NewTopicRequest):
            if (request.num_partitions or 0) > self.limit:
                raise PolicyViolation(f"{request.topic} has more than {self.limit} partitions")
            if request.topic == "boom":
                raise RuntimeError("a policy with a fault")
        elif "min.insync.replicas" in request.configs:
            raise PolicyViolation("min.insync.replicas is not yours to set")

    def close(self) -> None:
        SEEN.append("closed")


class Unfit:
    """Has no method `validate`."""


class Picky:
    def configure(self, configs: dict[str, str]) -> None:
        raise KeyError("our.limit")

    def validate(self, request: object) -> None:
        raise AssertionError


@pytest.fixture(autouse=True)
def _forget() -> None:
    SEEN.clear()


def made(separator: str = ".", **more: str) -> Policies:
    return Policies({CREATE_TOPIC: f"{__name__}{separator}Strict", "our.limit": "3", **more})


@pytest.mark.parametrize("separator", [".", ":"])
def test_a_policy_allows_or_refuses(separator: str) -> None:
    policies = made(separator)
    policies.check_new_topic(("t", 3, 1, None, {"retention.ms": "1"}))
    with pytest.raises(ApiError, match="more than 3 partitions") as refused:
        policies.check_new_topic(("t", 4, 1, None, {}))
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    with pytest.raises(ApiError) as failed:
        policies.check_new_topic(("boom", 1, 1, None, {}))
    assert failed.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    policies.check_configs(topic_resource("t"), {"min.insync.replicas": "2"})  # the other policy is not set
    policies.close()
    policies.close()
    assert SEEN[0] == "configured"
    assert SEEN[1] == NewTopicRequest("t", 3, 1, None, {"retention.ms": "1"})
    assert SEEN.count("closed") == 1


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("org.example.TopicPolicy", "PYTHONPATH"),
        ("Strict", "package.module.Class"),
        (f"{__name__}.Lax", "has no Lax"),
        (f"{__name__}.Unfit", "validate"),
        (f"{__name__}.SEEN", "not a class"),
        (f"{__name__}.Picky", "cannot be configured"),
    ],
)
@pytest.mark.parametrize("key", [CREATE_TOPIC, ALTER_CONFIG])
def test_a_class_that_cannot_be_a_policy_is_refused(key: str, path: str, message: str) -> None:
    with pytest.raises(ClassFailed, match=message) as refused:
        Policies({key: path})
    assert str(refused.value).startswith(f"{key}={path}")


def test_a_node_applies_its_policies() -> None:
    policy = f"{__name__}:Strict"
    with Cluster(config={CREATE_TOPIC: policy, ALTER_CONFIG: policy, "our.limit": "2"}) as cluster:
        cluster.create_topic("small", 2)
        with pytest.raises(ApiError, match="more than 2 partitions") as refused:
            cluster.create_topic("large", 3)
        assert refused.value.code is ErrorCode.POLICY_VIOLATION
        with (
            CommandAdmin(cluster.bootstrap_servers) as client,
            pytest.raises(ApiError, match="not yours to set") as altered,
        ):
            client.set_configs(ConfigResource(ConfigResourceType.TOPIC, "small"), {"min.insync.replicas": "1"})
        assert altered.value.code is ErrorCode.POLICY_VIOLATION
    assert AlterConfigRequest("TOPIC", "small", {"min.insync.replicas": "1"}) in SEEN
    assert SEEN.count("closed") == 2


def test_a_node_does_not_start_with_a_policy_that_cannot_be_imported() -> None:
    with pytest.raises(StartError, match="PYTHONPATH"), Cluster(config={CREATE_TOPIC: "org.example.TopicPolicy"}):
        pass
