"""Connections that name the cluster and the broker that they are for, and what follows where they led to another one
(KIP-1242)."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_world import Cluster, Member

from kalda.base.errors import ErrorCode
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages.metadata import ApiVersionsResponse


class CheckingCluster(Cluster):
    """Its brokers compare what a connection names with what they are."""

    def __init__(self) -> None:
        super().__init__()
        self.meant: list[tuple[str | None, int]] = []
        self.led_elsewhere: set[int] = set()
        """Brokers to whose addresses another one answers."""
        self.add_topic("t", 2)
        for partition in (0, 1):
            self.append("t", partition, b"a", b"b")

    def answer(self, node: int, version: int, key: ApiKey, request: Any) -> Any:
        if key is ApiKey.API_VERSIONS:
            self.meant.append((request.cluster_id, request.node_id))
            is_this = node not in self.led_elsewhere and request.node_id == node
            if request.cluster_id is not None and not is_this:
                return ApiVersionsResponse(error_code=ErrorCode.REBOOTSTRAP_REQUIRED)
        return super().answer(node, version, key, request)


def received(cluster: CheckingCluster, **settings: Any) -> Member:
    """A member of a group that has received all records."""
    member = Member(cluster, **{"group.id": "g", **settings})
    member.core.subscribe(["t"])
    for _ in range(200):
        member.poll()
        if len(member.got) == 4:
            return member
    raise AssertionError(f"{len(member.got)} of 4 records were received")


def test_a_connection_names_the_broker_that_it_is_for_the_coordinator_too() -> None:
    cluster = CheckingCluster()
    received(cluster)
    assert cluster.meant[0] == (None, -1), "a bootstrap server has no id yet"
    assert {node for named, node in cluster.meant if named is not None} == {0, 1}
    assert {named for named, _ in cluster.meant} == {None, "model"}


def test_a_client_that_was_led_to_another_broker_begins_again_with_the_bootstrap_servers() -> None:
    cluster = CheckingCluster()
    cluster.led_elsewhere = {1}
    cluster.at(5_000, cluster.led_elsewhere.clear)
    received(cluster)
    bootstraps = [meant for meant in cluster.meant if meant == (None, -1)]
    assert len(bootstraps) > 1
    assert len(cluster.meant) < 200, "it waits longer each time"


@pytest.mark.parametrize(
    "settings", [{"metadata.cluster.check.enable": "false"}, {"metadata.recovery.strategy": "none"}]
)
def test_nothing_is_named_where_that_is_turned_off(settings: dict[str, str]) -> None:
    cluster = CheckingCluster()
    cluster.led_elsewhere = {0, 1}
    received(cluster, **settings)
    assert set(cluster.meant) == {(None, -1)}
