"""What Apache Kafka 4.4 has and 4.3 does not: Kalda gives the same answers as 4.4.0."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from apache_kafka import ApacheKafkaNode, kafka_jars
from data_requests import fetch
from lone_node import CLUSTER_ID, LoneNode
from same_answers import Asker, compare

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.brokers import UnregisterControllerRequest
from kalda.protocol.messages.groups import DeleteGroupsRequest, FindCoordinatorRequest
from kalda.protocol.messages.metadata import ApiVersionsRequest
from kalda.protocol.messages.security import (
    AclCreation,
    AclOperation,
    CreateAclsRequest,
    DescribeAclsRequest,
)
from kalda.protocol.messages.streams import StreamsGroupTopologyDescriptionUpdateRequest
from waiting import wait_until

pytestmark = pytest.mark.compat

Both = Callable[[Callable[[Asker], None]], None]
RELEASE = "4.4.0"
SETTINGS: dict[str, object] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
ANY, TOPIC, LITERAL = 1, 2, 3
DENY, ALLOW = 2, 3


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """As the fixture of all, with that release and an authorizer."""
    jars = kafka_jars(RELEASE)
    if isinstance(jars, str):
        pytest.skip(jars)
    home = tmp_path_factory.mktemp("later")
    with ApacheKafkaNode(home / "kafka", jars, SETTINGS) as kafka, LoneNode(home / "kalda", SETTINGS) as kalda:
        for each in (kafka, kalda):
            each.format(release="4.4")
            each.start()
        yield lambda scenario: compare(scenario, kafka.port, kalda.port)


def test_who_is_meant_by_a_client(both: Both) -> None:
    def scenario(asker: Asker) -> None:
        for label, cluster_id, node_id in (
            ("nobody", None, -1),
            ("this", CLUSTER_ID, 1),
            ("this cluster", CLUSTER_ID, -1),
            ("this node", None, 1),
            ("another cluster", "AAAAAAAAAAAAAAAAAAAAAA", 1),
            ("another node", CLUSTER_ID, 2),
            ("both are others", "AAAAAAAAAAAAAAAAAAAAAA", 2),
            ("no cluster", "", 1),
            ("node -2", CLUSTER_ID, -2),
        ):
            request = ApiVersionsRequest(
                client_software_name="n", client_software_version="1", cluster_id=cluster_id, node_id=node_id
            )
            asker.note(label, asker.quiet(request, 5).error_code)
            asker.note(f"{label}, before version 5", asker.quiet(request, 4).error_code)

    both(scenario)


def acl(host: str, name: str = "guarded", permission: int = ALLOW) -> CreateAclsRequest:
    return CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=TOPIC, resource_name=name, resource_pattern_type=LITERAL, principal="User:ANONYMOUS",
                host=host, operation=int(AclOperation.READ), permission_type=permission,
            )
        ]
    )  # fmt: skip


def test_hosts_of_entries_are_ranges(both: Both) -> None:
    def scenario(asker: Asker) -> None:
        topic_id = asker.make("guarded")
        wanted = fetch(("guarded", topic_id, 0, 0))
        asker.ask(wanted, label="without entries")
        for host in ("10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "/8", "10.0.0.0/8/8", "host/8", "::1/129", "10.0.0.0/-1",
                     "1.2.3", "", "10.0.0.0/08", "10.0.0.0/8 "):  # fmt: skip
            asker.ask(acl(host, "other"), label=f"range {host!r}")
        asker.ask(acl("10.0.0.0/8"), label="another network")
        asker.ask(wanted, label="from another network")
        asker.ask(acl("127.255.255.255/8"), label="this network, with bits of a host")
        asker.ask(wanted, label="from this network")
        asker.ask(acl("127.0.0.0/31", permission=DENY), label="two addresses are denied")
        asker.ask(wanted, label="from one of both")
        for host in (None, "127.255.255.255/8", "127.0.0.0/8", "127.0.0.1", "*", "10.0.0.0/8"):
            described = DescribeAclsRequest(
                resource_type_filter=TOPIC, resource_name_filter=None, pattern_type_filter=ANY, principal_filter=None,
                host_filter=host, operation=ANY, permission_type=ANY,
            )  # fmt: skip
            asker.ask(described, label=f"entries of {host}")

    both(scenario)


def test_controllers_that_may_not_be_removed(both: Both) -> None:
    def scenario(asker: Asker) -> None:
        for controller in (1, 2, -1, 2**31 - 1):
            asker.ask(UnregisterControllerRequest(controller_id=controller), label=controller)

    both(scenario)


def test_groups_that_cannot_be_deleted(both: Both) -> None:
    def scenario(asker: Asker) -> None:
        asker.quiet(FindCoordinatorRequest(coordinator_keys=["g"]))
        loading = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

        def are_loaded() -> bool:
            answer = asker.quiet(DeleteGroupsRequest(groups_names=["nosuch", "other", "twice"]))
            return not any(each.error_code in loading for each in answer.results)

        wait_until(are_loaded)
        for version in range(4):
            asker.ask(DeleteGroupsRequest(groups_names=["nosuch", "", "other"]), version)
        asker.ask(DeleteGroupsRequest(groups_names=[]))
        asker.ask(DeleteGroupsRequest(groups_names=["twice", "twice"]))

    both(scenario)


def test_descriptions_of_topologies_are_not_stored(both: Both) -> None:
    def scenario(asker: Asker) -> None:
        asker.quiet(FindCoordinatorRequest(coordinator_keys=["g"]))
        for group in ("g", ""):
            asker.ask(StreamsGroupTopologyDescriptionUpdateRequest(group_id=group, member_id="m", topology_epoch=0))

    both(scenario)
