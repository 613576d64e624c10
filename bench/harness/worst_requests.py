"""The worst request of each API: what a client can send that makes a node work longest, for a number of items.

`WORST` has requests that name things that exist, or miss in the costly way. An API that is not in it has a request made
of its schema: `wide` has the items in its first list of structs, `deep` in the deepest list of its first item. Numbers
are -1 and names unknown there, so that nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kalda.protocol.apis import ApiKey, request_class
from kalda.protocol.messages import admin, groups, metadata, partitions, security, topics, transactions
from kalda.protocol.notation import Request, Struct
from kalda.protocol.schema import WireField, WireStruct, is_flexible, wire_struct

TOPIC = "t"
"""Exists."""
PARTITIONS = 100
Make = Callable[[int], Request]


def _named(cls: Any, partitions: list[Any], **values: Any) -> Any:
    values["topic" if "topic" in cls.declared else "name"] = TOPIC
    values["partition_data" if "partition_data" in cls.declared else "partitions"] = partitions
    return cls(**values)


def _produce(count: int) -> Request:
    data = [partitions.PartitionProduceData(index=index) for index in range(count)]
    return partitions.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[_named(partitions.TopicProduceData, data)])


def _fetch(count: int) -> Request:
    asked = [partitions.FetchRequestFetchPartition(partition=index, partition_max_bytes=1000) for index in range(count)]
    return partitions.FetchRequest(
        max_wait_ms=0, max_bytes=1000, topics=[_named(partitions.FetchRequestFetchTopic, asked)], session_epoch=-1
    )


def _list_offsets(count: int) -> Request:
    asked = [
        partitions.ListOffsetsPartition(partition_index=index % PARTITIONS, timestamp=-1) for index in range(count)
    ]
    return partitions.ListOffsetsRequest(topics=[_named(partitions.ListOffsetsTopic, asked)])


def _create_acls(count: int) -> Request:
    return security.CreateAclsRequest(
        creations=[
            security.AclCreation(
                resource_type=2, resource_name=f"{TOPIC}-{each}", principal="User:a", host="*", operation=3,
                permission_type=3,
            )
            for each in range(count)
        ]
    )  # fmt: skip


def _delete_acls(count: int) -> Request:
    return security.DeleteAclsRequest(
        filters=[
            security.DeleteAclsFilter(
                resource_type_filter=1, resource_name_filter=str(each), pattern_type_filter=2, operation=1,
                permission_type=1,
            )
            for each in range(count)
        ]
    )  # fmt: skip


def _epochs(count: int) -> Request:
    asked = [
        partitions.OffsetForLeaderPartition(partition=index % PARTITIONS, leader_epoch=0) for index in range(count)
    ]
    return partitions.OffsetForLeaderEpochRequest(topics=[_named(partitions.OffsetForLeaderTopic, asked)])


def _delete_records(count: int) -> Request:
    asked = [partitions.DeleteRecordsPartition(partition_index=index % PARTITIONS, offset=0) for index in range(count)]
    return partitions.DeleteRecordsRequest(topics=[_named(partitions.DeleteRecordsTopic, asked)], timeout_ms=1000)


def _commit(count: int) -> Request:
    asked = [groups.OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(count)]
    return groups.OffsetCommitRequest(group_id="g", topics=[_named(groups.OffsetCommitRequestTopic, asked)])


def _offset_fetch(count: int) -> Request:
    asked = groups.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(count)))
    return groups.OffsetFetchRequest(groups=[groups.OffsetFetchRequestGroup(group_id="g", topics=[asked])])


def _offset_delete(count: int) -> Request:
    asked = [groups.OffsetDeleteRequestPartition(partition_index=index) for index in range(count)]
    return groups.OffsetDeleteRequest(group_id="g", topics=[_named(groups.OffsetDeleteRequestTopic, asked)])


def _transaction(count: int) -> Request:
    added = transactions.AddPartitionsToTxnTopic(name=TOPIC, partitions=list(range(count)))
    named = transactions.AddPartitionsToTxnTransaction(transactional_id="t", producer_id=1, topics=[added])
    return transactions.AddPartitionsToTxnRequest(transactions=[named])


def _markers(count: int) -> Request:
    named = transactions.WritableTxnMarkerTopic(
        name=TOPIC, partition_indexes=[index % PARTITIONS for index in range(count)]
    )
    marker = transactions.WritableTxnMarker(producer_id=1, transaction_result=True, topics=[named])
    return transactions.WriteTxnMarkersRequest(markers=[marker])


def _transactional_commit(count: int) -> Request:
    asked = [
        transactions.TxnOffsetCommitRequestPartition(partition_index=index, committed_offset=1)
        for index in range(count)
    ]
    return transactions.TxnOffsetCommitRequest(
        transactional_id="t",
        group_id="g",
        producer_id=1,
        topics=[_named(transactions.TxnOffsetCommitRequestTopic, asked)],
    )


def _describe_transactions(count: int) -> Request:
    return transactions.DescribeTransactionsRequest(transactional_ids=[f"t-{n}" for n in range(count)])


def _metadata(count: int) -> Request:
    asked = [metadata.MetadataRequestTopic(name=f"missing-{index}") for index in range(count)]
    return metadata.MetadataRequest(topics=asked, allow_auto_topic_creation=False)


def _describe_partitions(count: int) -> Request:
    asked = [metadata.DescribeTopicPartitionsRequestTopicRequest(name=f"missing-{index}") for index in range(count)]
    return metadata.DescribeTopicPartitionsRequest(topics=asked)


def _producers(count: int) -> Request:
    asked = transactions.DescribeProducersRequestTopicRequest(
        name=TOPIC, partition_indexes=[index % PARTITIONS for index in range(count)]
    )
    return transactions.DescribeProducersRequest(topics=[asked])


def _create_topics(count: int) -> Request:
    asked = [topics.CreatableTopic(name=f"n-{index}", num_partitions=1, replication_factor=1) for index in range(count)]
    return topics.CreateTopicsRequest(topics=asked, timeout_ms=10_000, validate_only=True)


def _create_partitions(count: int) -> Request:
    asked = [topics.CreatePartitionsTopic(name=f"missing-{index}", count=2, assignments=None) for index in range(count)]
    return topics.CreatePartitionsRequest(topics=asked, timeout_ms=10_000, validate_only=True)


def _delete_topics(count: int) -> Request:
    asked = [topics.DeleteTopicState(name=f"missing-{index}") for index in range(count)]
    return topics.DeleteTopicsRequest(topics=asked, timeout_ms=10_000)


def _elect(count: int) -> Request:
    asked = topics.ElectLeadersRequestTopicPartitions(
        topic=TOPIC, partitions=[index % PARTITIONS for index in range(count)]
    )
    return topics.ElectLeadersRequest(topic_partitions=[asked], timeout_ms=10_000)


def _reassign(count: int) -> Request:
    moves = [topics.ReassignablePartition(partition_index=index % PARTITIONS, replicas=[1]) for index in range(count)]
    return topics.AlterPartitionReassignmentsRequest(
        topics=[topics.ReassignableTopic(name=TOPIC, partitions=moves)], timeout_ms=10_000
    )


def _describe_configs(count: int) -> Request:
    """A tenth of them exist, one behind the other, and their configs are described with synonyms and documentation."""
    asked = [
        admin.DescribeConfigsResource(resource_type=2, resource_name=TOPIC if n < count // 10 else f"missing-{n}")
        for n in range(count)
    ]
    return admin.DescribeConfigsRequest(resources=asked, include_synonyms=True, include_documentation=True)


def _incremental_alter_configs(count: int) -> Request:
    """A tenth of them are the broker itself, whose configs it checks before it forwards them."""
    own = admin.IncrementalAlterConfigsRequestAlterableConfig(name="log.cleaner.threads", config_operation=0, value="1")
    change = admin.IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", config_operation=0, value="1000")
    asked = [
        admin.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2 if n % 10 else 4,
            resource_name=f"missing-{n}" if n % 10 else "1",
            configs=[change if n % 10 else own],
        )
        for n in range(count)
    ]
    return admin.IncrementalAlterConfigsRequest(resources=asked, validate_only=True)


def _alter_configs(count: int) -> Request:
    change = admin.AlterConfigsRequestAlterableConfig(name="retention.ms", value="1000")
    asked = [
        admin.AlterConfigsRequestAlterConfigsResource(resource_type=2, resource_name=f"missing-{n}", configs=[change])
        for n in range(count)
    ]
    return admin.AlterConfigsRequest(resources=asked, validate_only=True)


def _client_quotas(count: int) -> Request:
    op = admin.OpData(key="consumer_byte_rate", value=5.0)
    entries = [
        admin.AlterClientQuotasRequestEntryData(
            entity=[admin.AlterClientQuotasRequestEntityData(entity_type="user", entity_name=f"u-{n}")], ops=[op]
        )
        for n in range(count)
    ]
    return admin.AlterClientQuotasRequest(entries=entries, validate_only=True)


def _log_dirs(count: int) -> Request:
    asked = admin.DescribableLogDirTopic(topic=TOPIC, partitions=list(range(count)))
    return admin.DescribeLogDirsRequest(topics=[asked])


def _join(count: int) -> Request:
    protocols = [groups.JoinGroupRequestProtocol(name=f"p-{n}", metadata=b"m") for n in range(count)]
    return groups.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=1, protocol_type="consumer", protocols=protocols
    )


WORST: Mapping[ApiKey, Make] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.CREATE_ACLS: _create_acls,
    ApiKey.DELETE_ACLS: _delete_acls,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _epochs,
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.OFFSET_DELETE: _offset_delete,
    ApiKey.ADD_PARTITIONS_TO_TXN: _transaction,
    ApiKey.WRITE_TXN_MARKERS: _markers,
    ApiKey.TXN_OFFSET_COMMIT: _transactional_commit,
    ApiKey.DESCRIBE_TRANSACTIONS: _describe_transactions,
    ApiKey.METADATA: _metadata,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_partitions,
    ApiKey.DESCRIBE_PRODUCERS: _producers,
    ApiKey.DESCRIBE_LOG_DIRS: _log_dirs,
    ApiKey.DESCRIBE_GROUPS: lambda count: groups.DescribeGroupsRequest(groups=[f"g-{n}" for n in range(count)]),
    ApiKey.DELETE_GROUPS: lambda count: groups.DeleteGroupsRequest(groups_names=[f"g-{n}" for n in range(count)]),
    ApiKey.FIND_COORDINATOR: lambda count: groups.FindCoordinatorRequest(
        coordinator_keys=[f"g-{n}" for n in range(count)]
    ),
    ApiKey.JOIN_GROUP: _join,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.DELETE_TOPICS: _delete_topics,
    ApiKey.ELECT_LEADERS: _elect,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassign,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _incremental_alter_configs,
    ApiKey.ALTER_CONFIGS: _alter_configs,
    ApiKey.ALTER_CLIENT_QUOTAS: _client_quotas,
}


def worst_makers(key: ApiKey, version: int) -> list[Make]:
    """What makes the worst requests of an API with a number of items."""
    if key in WORST:
        return [WORST[key]]

    def wide(count: int) -> Request:
        return _of_schema(key, version, count, 1)

    def deep(count: int) -> Request:
        return _of_schema(key, version, 1, count)

    return [wide] if wide(2) == deep(2) else [wide, deep]


def worst_requests(key: ApiKey, version: int, count: int) -> list[Request]:
    """The worst requests of an API with so many items."""
    return [make(count) for make in worst_makers(key, version)]


def _of_schema(key: ApiKey, version: int, count: int, inner: int) -> Request:
    cls = request_class(key)
    request = _filled(wire_struct(cls, version, is_flexible(cls, version)), version, count, inner, 0)
    assert isinstance(request, Request)
    return request


def _filled(layout: WireStruct, version: int, count: int, inner: int, number: int) -> Struct:
    """The first list has `count` items, and the first one below it that has none below `inner` items; all others have
    one."""
    values: dict[str, Any] = {}
    for field in layout.fields + layout.tagged:
        if field.is_list:
            is_leaf = field.struct is None or not _has_lists(field.struct, version, layout.flexible)
            size = max(count, inner) if is_leaf else count
            values[field.name] = [_value(field, version, layout.flexible, inner, each) for each in range(size)]
            count = 1
            if is_leaf:
                inner = 1
        elif field.struct is None and not field.nullable and field.kind in ("String", "Bytes"):
            values[field.name] = _value(field, version, layout.flexible, 1, number)
        elif field.kind in ("Int8", "Int16", "Int32", "Int64"):
            values[field.name] = -1
    return layout.cls(**values)


def _has_lists(cls: type[Struct], version: int, flexible: bool) -> bool:
    layout = wire_struct(cls, version, flexible)
    return any(field.is_list for field in layout.fields + layout.tagged)


def _value(field: WireField, version: int, flexible: bool, inner: int, number: int) -> Any:
    if field.struct is not None:
        return _filled(wire_struct(field.struct, version, flexible), version, 1, inner, number)
    match field.kind:
        case "String":
            return f"name-{number}"
        case "Bytes" | "Records":
            return b"bytes"
        case "Uuid":
            return number.to_bytes(16, "big")
        case "Bool":
            return False
        case "Float64":
            return 1.0
        case "Int8":
            return number % 100
    return number
