"""Requests that are heavy because of what a node holds: state by the ten thousand, and what lists, alters or ends it.

`heavy_requests` yields them in an order in which each finds its state: a part makes it through the client's own APIs,
which is measured as well, and the next ones read and alter it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kalda.base.errors import ApiError
from kalda.protocol.messages import admin, groups, metadata, partitions, security, topics, transactions
from kalda.protocol.notation import Request
from kalda.records.builder import build_batch

WIDE = "wide"
"""A topic of `PARTITIONS` partitions."""
PARTITIONS = 9_999
"""The controller takes at most 10,000 records for a topic, and one of them is its name's."""
GROUP = "heavy"
TRANSACTIONAL_ID = "heavy"
TRANSACTIONAL_IDS = 100_000
PROPERTIES = """\
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
offsets.topic.num.partitions=5
transaction.state.log.num.partitions=5
"""
Ask = Callable[[Sequence[Request]], list[Any]]
"""Sends requests that are not measured, and returns their responses."""
Case = tuple[str, Request]
_BATCH = build_batch([(0, None, b"value", ())])


def heavy_requests(ask: Ask, only: Sequence[str]) -> Iterator[Case]:
    """(name, request) in order; `only`: parts of it, by name."""
    for part in (_topics, _data, _configs, _groups, _transactions, _acls, _quotas, _users, _telemetry, _removals):
        if not only or part.__name__.removeprefix("_") in only or part in (_topics, _removals):
            yield from part(ask)


def _topics(_ask: Ask) -> Iterator[Case]:
    wide = topics.CreatableTopic(name=WIDE, num_partitions=PARTITIONS, replication_factor=1)
    yield f"create a topic of {PARTITIONS}", topics.CreateTopicsRequest(topics=[wide], timeout_ms=60_000)
    many = [topics.CreatableTopic(name=f"n-{n}", num_partitions=1, replication_factor=1) for n in range(4_900)]
    yield "create 4,900 topics", topics.CreateTopicsRequest(topics=many, timeout_ms=60_000)
    yield "metadata of all", metadata.MetadataRequest(topics=None)
    yield "describe all topics", metadata.DescribeTopicPartitionsRequest(topics=[])
    yield "log dirs of all", admin.DescribeLogDirsRequest(topics=None)
    yield "elect all leaders", topics.ElectLeadersRequest(topic_partitions=None, timeout_ms=60_000)
    moves = [topics.ReassignablePartition(partition_index=n, replicas=[1]) for n in range(PARTITIONS)]
    yield (
        "reassign a wide topic",
        topics.AlterPartitionReassignmentsRequest(
            topics=[topics.ReassignableTopic(name=WIDE, partitions=moves)], timeout_ms=60_000
        ),
    )
    yield "list reassignments", topics.ListPartitionReassignmentsRequest(topics=None, timeout_ms=60_000)


def _data(_ask: Ask) -> Iterator[Case]:
    every = range(PARTITIONS)
    rows = [partitions.PartitionProduceData(index=n, records=_BATCH) for n in every]
    yield (
        "produce to all of wide",
        partitions.ProduceRequest(
            acks=-1, timeout_ms=60_000, topic_data=[_topic(partitions.TopicProduceData, rows, "partition_data")]
        ),
    )
    for timestamp in (-1, 1_000, -3):
        asked = [partitions.ListOffsetsPartition(partition_index=n, timestamp=timestamp) for n in every]
        yield (
            f"list offsets by {timestamp}",
            partitions.ListOffsetsRequest(topics=[_topic(partitions.ListOffsetsTopic, asked)]),
        )
    wanted = [partitions.FetchRequestFetchPartition(partition=n, partition_max_bytes=1_000) for n in every]
    for epoch in (-1, 0):
        fetched = [_topic(partitions.FetchRequestFetchTopic, wanted)]
        yield (
            f"fetch all of wide, session {epoch}",
            partitions.FetchRequest(max_wait_ms=0, max_bytes=50_000_000, topics=fetched, session_epoch=epoch),
        )
    epochs = [partitions.OffsetForLeaderPartition(partition=n, leader_epoch=0) for n in every]
    yield (
        "epochs of wide",
        partitions.OffsetForLeaderEpochRequest(topics=[_topic(partitions.OffsetForLeaderTopic, epochs)]),
    )
    cut = [partitions.DeleteRecordsPartition(partition_index=n, offset=1) for n in every]
    yield (
        "delete records of wide",
        partitions.DeleteRecordsRequest(topics=[_topic(partitions.DeleteRecordsTopic, cut)], timeout_ms=60_000),
    )


def _configs(_ask: Ask) -> Iterator[Case]:
    for topic_names in ([f"n-{n}" for n in range(4_900)] + [f"missing-{n}" for n in range(15_100)],):
        yield (
            "describe 20,000 configs",
            admin.DescribeConfigsRequest(
                resources=[admin.DescribeConfigsResource(resource_type=2, resource_name=name) for name in topic_names],
                include_synonyms=True,
                include_documentation=True,
            ),
        )
    change = admin.IncrementalAlterConfigsRequestAlterableConfig(
        name="retention.ms", config_operation=0, value="100000000"
    )
    altered = [
        admin.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name=f"n-{n}", configs=[change]
        )
        for n in range(4_900)
    ]
    yield "alter 4,900 configs", admin.IncrementalAlterConfigsRequest(resources=altered)
    legacy = admin.AlterConfigsRequestAlterableConfig(name="retention.ms", value="200000000")
    whole = [
        admin.AlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name=f"n-{n}", configs=[legacy])
        for n in range(4_900)
    ]
    yield "replace 4,900 configs", admin.AlterConfigsRequest(resources=whole)


def _fill(ask: Ask, key_type: int, requests: Sequence[Request], error_of: Callable[[Any], int]) -> None:
    """Have the topic of the coordinators made, and send the requests until its partitions are loaded."""
    ask([groups.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["any"])])
    while any(error_of(response) for response in ask(requests)):
        time.sleep(1)


def _groups(ask: Ask) -> Iterator[Case]:
    names = [f"g-{n}" for n in range(10_000)]
    one = [groups.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    rows = [_topic(groups.OffsetCommitRequestTopic, one)]
    commits = [groups.OffsetCommitRequest(group_id=name, topics=rows) for name in names]
    _fill(ask, 0, commits, lambda response: response.topics[0].partitions[0].error_code)
    own = [groups.OffsetCommitRequestPartition(partition_index=n, committed_offset=1) for n in range(PARTITIONS)]
    yield (
        "commit 9,999 offsets",
        groups.OffsetCommitRequest(group_id=GROUP, topics=[_topic(groups.OffsetCommitRequestTopic, own)]),
    )
    yield (
        "fetch all offsets",
        groups.OffsetFetchRequest(groups=[groups.OffsetFetchRequestGroup(group_id=GROUP, topics=None)]),
    )
    yield (
        "fetch offsets of 10,000 groups",
        groups.OffsetFetchRequest(
            groups=[groups.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names]
        ),
    )
    yield "list 10,000 groups", groups.ListGroupsRequest()
    yield "describe 10,000 groups", groups.DescribeGroupsRequest(groups=names)
    gone = [groups.OffsetDeleteRequestPartition(partition_index=n) for n in range(PARTITIONS)]
    yield (
        "delete 9,999 offsets",
        groups.OffsetDeleteRequest(group_id=GROUP, topics=[_topic(groups.OffsetDeleteRequestTopic, gone)]),
    )
    yield "delete 10,000 groups", groups.DeleteGroupsRequest(groups_names=names)


def _transactions(ask: Ask) -> Iterator[Case]:
    names = [f"t-{n}" for n in range(TRANSACTIONAL_IDS)]
    begun = [transactions.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000) for name in names]
    _fill(ask, 1, begun, lambda response: response.error_code)
    yield f"list {TRANSACTIONAL_IDS:,} transactions", transactions.ListTransactionsRequest()
    yield (
        f"describe {TRANSACTIONAL_IDS:,} transactions",
        transactions.DescribeTransactionsRequest(transactional_ids=names),
    )
    (wide,) = ask(
        [transactions.InitProducerIdRequest(transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=600_000)]
    )
    added = transactions.AddPartitionsToTxnTopic(name=WIDE, partitions=list(range(PARTITIONS)))
    named = transactions.AddPartitionsToTxnTransaction(
        transactional_id=TRANSACTIONAL_ID,
        producer_id=wide.producer_id,
        producer_epoch=wide.producer_epoch,
        topics=[added],
    )
    yield "add 9,999 partitions", transactions.AddPartitionsToTxnRequest(transactions=[named])
    yield "describe a wide transaction", transactions.DescribeTransactionsRequest(transactional_ids=[TRANSACTIONAL_ID])
    yield (
        "end a wide transaction",
        transactions.EndTxnRequest(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=wide.producer_id,
            producer_epoch=wide.producer_epoch,
            committed=True,
        ),
    )
    yield (
        "producers of wide",
        transactions.DescribeProducersRequest(
            topics=[
                transactions.DescribeProducersRequestTopicRequest(name=WIDE, partition_indexes=list(range(PARTITIONS)))
            ]
        ),
    )


def _acls(ask: Ask) -> Iterator[Case]:
    def made(start: int, count: int) -> Request:
        return security.CreateAclsRequest(
            creations=[
                security.AclCreation(
                    resource_type=2, resource_name=f"n-{n}", resource_pattern_type=3 + n % 2, principal=f"User:u{n}",
                    host="*", operation=3, permission_type=3,
                )
                for n in range(start, start + count)
            ]
        )  # fmt: skip

    ask([made(start, 1_000) for start in range(0, 9_000, 1_000)])
    yield "create 1,000 ACLs beside 9,000", made(9_000, 1_000)
    yield (
        "describe 10,000 ACLs",
        security.DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        ),
    )
    some = [
        security.DeleteAclsFilter(
            resource_type_filter=1, resource_name_filter=f"n-{n}", pattern_type_filter=2, operation=1,
            permission_type=1, principal_filter=None, host_filter=None,
        )
        for n in range(1_000)
    ]  # fmt: skip
    yield "1,000 filters over 10,000 ACLs", security.DeleteAclsRequest(filters=some)
    every = security.DeleteAclsFilter(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, operation=1, permission_type=1,
        principal_filter=None, host_filter=None,
    )  # fmt: skip
    yield "delete all ACLs", security.DeleteAclsRequest(filters=[every])


def _quotas(ask: Ask) -> Iterator[Case]:
    def altered(start: int, count: int, *, remove: bool = False) -> Request:
        op = admin.OpData(key="consumer_byte_rate", value=5e6, remove=remove)
        entries = [
            admin.AlterClientQuotasRequestEntryData(
                entity=[admin.AlterClientQuotasRequestEntityData(entity_type="user", entity_name=f"u-{n}")], ops=[op]
            )
            for n in range(start, start + count)
        ]
        return admin.AlterClientQuotasRequest(entries=entries)

    ask([altered(start, 5_000) for start in range(0, 15_000, 5_000)])
    yield "alter 5,000 quotas beside 15,000", altered(15_000, 5_000)
    yield "describe 20,000 quotas", admin.DescribeClientQuotasRequest(components=[])
    user = admin.ComponentData(entity_type="user", match_type=2, match=None)
    yield "describe 20,000 users' quotas", admin.DescribeClientQuotasRequest(components=[user])
    yield "remove 9,000 quotas", altered(0, 9_000, remove=True)


def _users(_ask: Ask) -> Iterator[Case]:
    added = [
        security.ScramCredentialUpsertion(
            name=f"u-{n}", mechanism=1 + n % 2, iterations=16_384, salt=b"s" * 16,
            salted_password=b"p" * (32 + 32 * (n % 2)),
        )
        for n in range(9_000)
    ]  # fmt: skip
    yield "9,000 SCRAM credentials", security.AlterUserScramCredentialsRequest(upsertions=added)
    yield "describe 9,000 SCRAM users", security.DescribeUserScramCredentialsRequest(users=None)
    removed = [security.ScramCredentialDeletion(name=f"u-{n}", mechanism=1 + n % 2) for n in range(9_000)]
    yield "delete 9,000 SCRAM credentials", security.AlterUserScramCredentialsRequest(deletions=removed)


def _telemetry(ask: Ask) -> Iterator[Case]:
    try:
        (subscribed,) = ask([admin.GetTelemetrySubscriptionsRequest()])
    except ApiError:
        return  # the node has nothing that receives the metrics of clients, and so does not serve the API
    yield (
        "1 MB of telemetry",
        admin.PushTelemetryRequest(
            client_instance_id=subscribed.client_instance_id,
            subscription_id=subscribed.subscription_id,
            metrics=b"\x0a\x00" * 500_000,
        ),
    )


def _removals(_ask: Ask) -> Iterator[Case]:
    names = [f"n-{n}" for n in range(4_900)]
    yield (
        "delete 4,900 topics",
        topics.DeleteTopicsRequest(topics=[topics.DeleteTopicState(name=name) for name in names], timeout_ms=60_000),
    )
    yield (
        f"delete a topic of {PARTITIONS}",
        topics.DeleteTopicsRequest(topics=[topics.DeleteTopicState(name=WIDE)], timeout_ms=60_000),
    )


def _topic(cls: Any, partitions: list[Any], into: str = "partitions") -> Any:
    return cls(**{"topic" if "topic" in cls.declared else "name": WIDE, into: partitions})
