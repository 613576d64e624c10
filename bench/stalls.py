"""How long other clients wait while a node answers the worst request of each API.

A node in a process of its own, two connections: one sends a request that names very many things, the other sends
ApiVersions all the time. Printed is the longest time that the second waited, beside the time of the whole answer.

    python bench/stalls.py [--items 200000] [--only Produce]
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from harness.nodes import Node
from harness.systems import KALDA

from kalda.network.blocking import BlockingConnection
from kalda.network.calls import Call, choose_version, frame_request
from kalda.protocol.messages import admin, configs, fetch, groups, metadata, offsets, produce, topics, transactions
from kalda.protocol.notation import Request

TOPIC = "t"
PARTITIONS = 100
Make = Callable[[int], Request]


def _produce(count: int) -> Request:
    data = [produce.PartitionProduceData(index=index) for index in range(count)]
    return produce.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[_named(produce.TopicProduceData, data)])


def _named(cls: Any, partitions: list[Any], **values: Any) -> Any:
    values["topic" if "topic" in cls.declared else "name"] = TOPIC
    values["partition_data" if "partition_data" in cls.declared else "partitions"] = partitions
    return cls(**values)


def _fetch(count: int) -> Request:
    asked = [fetch.FetchRequestFetchPartition(partition=index, partition_max_bytes=1000) for index in range(count)]
    return fetch.FetchRequest(
        max_wait_ms=0, max_bytes=1000, topics=[_named(fetch.FetchRequestFetchTopic, asked)], session_epoch=-1
    )


def _list_offsets(count: int) -> Request:
    asked = [fetch.ListOffsetsPartition(partition_index=index % PARTITIONS, timestamp=-1) for index in range(count)]
    return fetch.ListOffsetsRequest(topics=[_named(fetch.ListOffsetsTopic, asked)])


def _epochs(count: int) -> Request:
    asked = [fetch.OffsetForLeaderPartition(partition=index % PARTITIONS, leader_epoch=0) for index in range(count)]
    return fetch.OffsetForLeaderEpochRequest(topics=[_named(fetch.OffsetForLeaderTopic, asked)])


def _delete_records(count: int) -> Request:
    asked = [fetch.DeleteRecordsPartition(partition_index=index % PARTITIONS, offset=0) for index in range(count)]
    return fetch.DeleteRecordsRequest(topics=[_named(fetch.DeleteRecordsTopic, asked)], timeout_ms=1000)


def _commit(count: int) -> Request:
    asked = [offsets.OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(count)]
    return offsets.OffsetCommitRequest(group_id="g", topics=[_named(offsets.OffsetCommitRequestTopic, asked)])


def _offset_fetch(count: int) -> Request:
    asked = offsets.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(count)))
    return offsets.OffsetFetchRequest(groups=[offsets.OffsetFetchRequestGroup(group_id="g", topics=[asked])])


def _offset_delete(count: int) -> Request:
    asked = [offsets.OffsetDeleteRequestPartition(partition_index=index) for index in range(count)]
    return offsets.OffsetDeleteRequest(group_id="g", topics=[_named(offsets.OffsetDeleteRequestTopic, asked)])


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


def _describe_configs(count: int) -> Request:
    asked = [configs.DescribeConfigsResource(resource_type=2, resource_name=f"missing-{n}") for n in range(count)]
    return configs.DescribeConfigsRequest(resources=asked, include_synonyms=True, include_documentation=True)


def _alter_configs(count: int) -> Request:
    change = configs.IncrementalAlterConfigsRequestAlterableConfig(
        name="retention.ms", config_operation=0, value="1000"
    )
    asked = [
        configs.IncrementalAlterConfigsRequestAlterConfigsResource(
            resource_type=2, resource_name=f"missing-{n}", configs=[change]
        )
        for n in range(count)
    ]
    return configs.IncrementalAlterConfigsRequest(resources=asked, validate_only=True)


def _log_dirs(count: int) -> Request:
    asked = admin.DescribableLogDirTopic(topic=TOPIC, partitions=list(range(count)))
    return admin.DescribeLogDirsRequest(topics=[asked])


WORST: dict[str, Make] = {
    "Produce": _produce,
    "Fetch": _fetch,
    "ListOffsets": _list_offsets,
    "OffsetForLeaderEpoch": _epochs,
    "DeleteRecords": _delete_records,
    "OffsetCommit": _commit,
    "OffsetFetch": _offset_fetch,
    "OffsetDelete": _offset_delete,
    "Metadata": _metadata,
    "DescribeTopicPartitions": _describe_partitions,
    "DescribeProducers": _producers,
    "DescribeLogDirs": _log_dirs,
    "DescribeGroups": lambda count: groups.DescribeGroupsRequest(groups=[f"g-{n}" for n in range(count)]),
    "DeleteGroups": lambda count: groups.DeleteGroupsRequest(groups_names=[f"g-{n}" for n in range(count)]),
    "FindCoordinator": lambda count: groups.FindCoordinatorRequest(coordinator_keys=[f"g-{n}" for n in range(count)]),
    "DeleteTopics": lambda count: topics.DeleteTopicsRequest(
        topics=[topics.DeleteTopicState(name=f"missing-{n}") for n in range(count)], timeout_ms=10_000
    ),
    "CreateTopics": _create_topics,
    "DescribeConfigs": _describe_configs,
    "IncrementalAlterConfigs": _alter_configs,
}


class _Pings(threading.Thread):
    """Sends small requests until it is stopped, and keeps the longest wait."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self.count = 0
        self.stopped = False
        self._connection = BlockingConnection("127.0.0.1", port)

    def run(self) -> None:
        with self._connection as connection:
            while not self.stopped:
                began = time.perf_counter()
                connection.negotiate()
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
                self.count += 1


def measure(port: int, request: Request) -> tuple[float, float, str]:
    """Seconds until the answer came, the longest wait of the other client, and what the answer was."""
    with BlockingConnection("127.0.0.1", port, timeout_ms=120_000) as connection:
        # Encoded before the other client begins: both are in this process, and so share its interpreter.
        version = choose_version(request, None, connection.versions)
        frame = b"".join(frame_request(Call(request.API_KEY, version, 1), request, "stalls"))
        pings = _Pings(port)
        pings.start()
        began = time.perf_counter()
        outcome = "closed"
        with contextlib.suppress(OSError):
            connection._socket.settimeout(120)
            connection._socket.sendall(frame)
            outcome = f"{len(connection._read_frame()) / 1e6:.1f} MB"
        took = time.perf_counter() - began
        pings.stopped = True
        pings.join()
    return took, pings.longest_s, outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="*", default=[3_900, 50_000, 200_000, 990_000])
    parser.add_argument("--only", nargs="*", default=list(WORST))
    options = parser.parse_args()
    node = Node(KALDA)
    try:
        node.start()
        node.create_topics([TOPIC], PARTITIONS)
        print(f"{'request':<28}{'items':>9}{'answer, s':>12}{'longest wait, ms':>18}  answer")
        for name in options.only:
            for items in options.items:
                took, longest, outcome = measure(node.port, WORST[name](items))
                print(f"{name:<28}{items:>9}{took:>12.2f}{longest * 1000:>18.0f}  {outcome}", flush=True)
    finally:
        node.close()


if __name__ == "__main__":
    main()
