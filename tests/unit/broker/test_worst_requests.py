"""The worst request of every API that a node with both roles announces, while a second client asks: beside any request
that is not refused, another client's round trip waits for 150 ms at most, and the memory of a node stays bounded.

The node runs on a loop whose every callback is metered: work is counted in calls of functions, Python's and built-in
ones, which is the same on a fast machine and on a slow one. Some 5,000,000 calls take a second. Memory is counted in
objects that are alive between two callbacks; buffers are bounded by the sizes of frames and answers.
"""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.broker.process.node import Node
from kalda.broker.requests.rows import MAX_ELEMENTS, MAX_ELEMENTS_BETWEEN_NODES
from kalda.controller.answers import MAX_RECORDS_PER_USER_OPERATION
from kalda.network.client.client import RpcConnection
from kalda.protocol.apis import API, ApiKey, Listener
from kalda.protocol.framing import Call, frame_request
from kalda.protocol.messages import admin, groups, partitions, security, share, streams
from kalda.protocol.messages.metadata import ApiVersionsRequest
from kalda.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from kalda.protocol.notation import Request, Struct
from kalda.records.builder import build_batch
from kalda.testing import layout

sys.path.append(str(Path(__file__).parents[3] / "bench"))

from harness.worst_requests import PARTITIONS, TOPIC, worst_makers, worst_requests

BETWEEN_NODES = frozenset(
    (
        ApiKey.FETCH,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.WRITE_TXN_MARKERS,
        ApiKey.ALTER_PARTITION,
        ApiKey.ASSIGN_REPLICAS_TO_DIRS,
    )
)
OPERATIONS = frozenset(
    (
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
    )
)
"""Those that name more than a batch of the metadata log may have are refused."""
MAX_CALLS_A_TURN = 750_000
"""150 ms."""
MAX_OBJECTS_AN_ELEMENT = 30
"""Alive between two turns, with the response."""
OTHER_OBJECTS = 20_000
MAX_CALLS_A_PARTITION = 65
"""Of one topic, all in one turn; most are of `len` and the like, so 10,000 partitions take some 40 ms."""
A_WHOLE_BATCH = MAX_RECORDS_PER_USER_OPERATION
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ENDS_THE_NODE = frozenset((ApiKey.UNREGISTER_BROKER,))
IN_ENVELOPES = frozenset(key for key, api in API.items() if api.forwarded and Listener.BROKER in api.listeners)
"""A broker sends the frame of such a request unchanged to the controller's listener, here that of the same node."""
PING = ApiVersionsRequest(client_software_name="second", client_software_version="1")


class Meter:
    """Counts calls of functions in each callback of a loop. A profiler whose clock is a counter makes no statistics
    that anyone reads, and costs little."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.most = 0
        """In one callback, within the `with` block."""
        self.objects = 0
        """Memory blocks that are in use at the end of a callback, at most, beyond those at the block's begin."""
        self._objects_before = 0
        count = itertools.count().__next__
        self._profile = cProfile.Profile(timer=count, timeunit=1)
        run = asyncio.Handle._run

        def metered(handle: asyncio.Handle) -> None:
            before = count()
            run(handle)
            self.objects = max(self.objects, sys.getallocatedblocks() - self._objects_before)
            self.most = max(self.most, (count() - before) // 2)  # a call and its return are two ticks

        patch.setattr(asyncio.Handle, "_run", metered)

    def __enter__(self) -> Meter:
        self.most = self.objects = 0
        self._objects_before = sys.getallocatedblocks()
        self._profile.enable()
        return self

    def __exit__(self, *_: object) -> None:
        self._profile.disable()


@asynccontextmanager
async def a_node(directory: Path, **properties: str) -> AsyncIterator[Node]:
    """A lone node with both roles, and a topic. `properties`: those whose names have an underscore for each dot."""
    from kalda.broker.process.disk import RealDisk

    places = layout.lay_out([1], directory)
    others = {name.replace("_", "."): value for name, value in properties.items()}
    config = layout.config_of(places[0], places, {"broker.session.timeout.ms": 600_000, **others})
    layout.format_place(places[0], places, config, "worst-requests-test-22", RealDisk())
    node = Node(config)
    try:
        await node.start()
        client = await RpcConnection.connect("127.0.0.1", node.port("PLAINTEXT"))
        topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
        await client.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        client.close()
        yield node
    finally:
        await node.stop(clean=False)


async def answered(port: int, frame: bytes, answer: bytearray | None = None) -> bool:
    """Whether the request is answered; otherwise its connection is closed. The answer is not decoded here: that is no
    work of the node. It is added to `answer`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(frame)
    head = await reader.read(4)
    left = int.from_bytes(head, "big")
    while head and left > 0:
        some = await reader.read(left)
        left -= len(some) or left
        if answer is not None:
            answer += some
    writer.close()
    return bool(head)


def framed(request: Request, version: int) -> bytes:
    return b"".join(frame_request(Call(request.API_KEY, version, 1), request, "first"))


async def pinged(connection: RpcConnection, while_running: Awaitable[Any]) -> int:
    """How often a second client is answered meanwhile."""
    task = asyncio.ensure_future(while_running)
    pings = 0
    while not task.done():
        await connection.request(PING, 4)
        pings += 1
    await task
    return pings


async def announced(port: int) -> dict[ApiKey, int]:
    """The highest version of each API."""
    connection = await RpcConnection.connect("127.0.0.1", port)
    answer = await connection.request(PING, 4)
    connection.close()
    keys = {each.api_key: each.max_version for each in answer.api_keys}
    return {ApiKey(key): min(version, API[ApiKey(key)].highest) for key, version in keys.items()}


@pytest.mark.parametrize("listener", ["PLAINTEXT", "CONTROLLER"])
def test_no_request_holds_the_loop_or_much_memory(
    listener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[str] = []

    async def scenario(meter: Meter) -> None:
        async with a_node(tmp_path) as node:
            port = node.port(listener)
            second = await RpcConnection.connect("127.0.0.1", port)
            for key, version in (await announced(port)).items():
                if key in ENDS_THE_NODE or (listener == "CONTROLLER" and key in IN_ENVELOPES):
                    continue
                await answered(port, framed(worst_requests(key, version, 1)[0], version))  # generates the codecs
                for request, size in largest_requests(key, version):
                    frame = framed(request, version)
                    await asyncio.sleep(0)
                    with meter:
                        pings = await pinged(second, answered(port, frame))
                    assert pings > 0
                    if meter.most > MAX_CALLS_A_TURN:
                        held.append(f"{key.name} with {size} elements: {meter.most} calls in a turn")
                    if meter.objects > MAX_OBJECTS_AN_ELEMENT * size + OTHER_OBJECTS:
                        held.append(f"{key.name} with {size} elements: {meter.objects} objects at a time")
            assert await answered(port, framed(PING, 4))
            assert not node.failed
            second.close()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(bounded(lambda: scenario(Meter(monkeypatch))))
    assert not held, "\n".join(held)


def test_one_topic_of_very_many_partitions_does_not_hold_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records are one batch: decided, encoded, applied and published whole, then deleted so."""
    held: list[str] = []

    async def scenario(meter: Meter) -> None:
        async with a_node(tmp_path) as node:
            client = await RpcConnection.connect("127.0.0.1", node.port("PLAINTEXT"))
            name, count = "large", MAX_RECORDS_PER_USER_OPERATION - 1
            created = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
            for request in (
                CreateTopicsRequest(topics=[created], timeout_ms=60_000),
                DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=60_000),
            ):
                with meter:
                    answer = await client.request(request)
                assert "error_code=0" in repr(answer)
                if meter.most > MAX_CALLS_A_PARTITION * count:
                    held.append(f"{type(request).__name__}: {meter.most} calls in a turn")
            client.close()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(bounded(lambda: scenario(Meter(monkeypatch))))
    assert not held, "\n".join(held)


def test_operations_that_write_a_whole_batch_do_not_hold_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are decided in steps, and their records written, applied and published in one turn each."""
    held: list[str] = []

    async def scenario(meter: Meter) -> None:
        async with a_node(tmp_path, authorizer_class_name=AUTHORIZER, super_users="User:ANONYMOUS") as node:
            port = node.port("PLAINTEXT")
            second = await RpcConnection.connect("127.0.0.1", port)
            for request in whole_batches():
                version = min(API[ApiKey(request.API_KEY)].highest, (await announced(port))[request.API_KEY])
                answer = bytearray()
                with meter:
                    pings = await pinged(second, answered(port, framed(request, version), answer))
                assert pings > 0
                response = Call(request.API_KEY, version, 1).read_answer(memoryview(answer))
                assert repr(response).count("error_code=0") >= A_WHOLE_BATCH // 2
                if meter.most > MAX_CALLS_A_TURN:
                    held.append(f"{type(request).__name__}: {meter.most} calls in a turn")
            second.close()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(bounded(lambda: scenario(Meter(monkeypatch))))
    assert not held, "\n".join(held)


def whole_batches() -> list[Request]:
    """Requests that write as many records as one may, or that name as much as one may."""
    names = [f"t{number}" for number in range(A_WHOLE_BATCH // 2)]
    users = [f"u{number}" for number in range(A_WHOLE_BATCH)]
    change = admin.IncrementalAlterConfigsRequestAlterableConfig(name="retention.ms", config_operation=0, value="7")
    new = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    creation = {"resource_type": 2, "resource_pattern_type": 3, "host": "*", "operation": 3, "permission_type": 3}
    salted = {"mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p" * 32}
    every = security.DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1,
        resource_name_filter=None, principal_filter=None, host_filter=None,
    )  # fmt: skip
    return [
        security.CreateAclsRequest(
            creations=[security.AclCreation(resource_name="t", principal=f"User:{user}", **creation) for user in users]
        ),
        security.DeleteAclsRequest(filters=[every] * 10),
        security.AlterUserScramCredentialsRequest(
            deletions=[], upsertions=[security.ScramCredentialUpsertion(name=user, **salted) for user in users]
        ),
        CreateTopicsRequest(topics=new, timeout_ms=60_000),
        admin.IncrementalAlterConfigsRequest(
            resources=[
                admin.IncrementalAlterConfigsRequestAlterConfigsResource(
                    resource_type=2, resource_name=name, configs=[change]
                )
                for name in names
            ]
        ),
        CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=name, count=3, assignments=None) for name in names], timeout_ms=60_000
        ),
        DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in names], timeout_ms=60_000),
    ]


def elements_of(value: Any) -> int:
    """Elements of all lists in a message."""
    if isinstance(value, list):
        return len(value) + sum(elements_of(each) for each in value)
    names = type(value).declared if isinstance(value, Struct) else ()
    return sum(elements_of(getattr(value, name)) for name in names)


def largest_requests(key: ApiKey, version: int) -> Iterator[tuple[Request, int]]:
    """The worst requests with nearly as many elements as one may have, and how many they have."""
    bounds = [MAX_ELEMENTS_BETWEEN_NODES if key in BETWEEN_NODES else MAX_ELEMENTS]
    bounds += [MAX_RECORDS_PER_USER_OPERATION] * (key in OPERATIONS)
    for make in worst_makers(key, version):
        an_item = max(1.0, elements_of(make(1_000)) / 1_000)
        for bound in bounds:
            request = make(int(0.97 * bound / an_item))
            size = elements_of(request)
            assert size <= bound
            yield request, size


def test_members_of_groups_do_not_hold_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share group with dead letters, whose member has all records that it may have and says something else of each,
    of some that it never had, and renews all; a streams group with very many subtopologies."""
    held: list[str] = []

    async def scenario(meter: Meter) -> None:
        async with a_node(tmp_path, group_streams_initial_rebalance_delay_ms="0") as node:
            second = await RpcConnection.connect("127.0.0.1", node.port("PLAINTEXT"))
            client = await RpcConnection.connect("127.0.0.1", node.port("PLAINTEXT"))

            async def asked(what: str, request: Request, version: int | None = None) -> Any:
                with meter:
                    task = asyncio.ensure_future(client.request(request, version))
                    assert await pinged(second, task) > 0
                if meter.most > MAX_CALLS_A_TURN:
                    held.append(f"{what}: {meter.most} calls in a turn")
                return task.result()

            topic_id = await with_records(client)
            batches = [(offset, offset, [1 + offset % 3]) for offset in range(LOCKS)]
            never = [(LOCKS + offset, LOCKS + offset, [1]) for offset in range(MAX_ELEMENTS * 2 // 5)]
            await joined_share_group(client)
            first = await asked("the first fetch", share_fetch(topic_id, 0))
            acquired = first.responses[0].partitions[0].acquired_records
            assert sum(each.last_offset - each.first_offset + 1 for each in acquired) == LOCKS
            renewed = await asked("renewals", acknowledgement(topic_id, 1, [(*each[:2], [4]) for each in batches]))
            assert not renewed.responses[0].partitions[0].error_code
            refused = await asked("what was never acquired", acknowledgement(topic_id, 2, never))
            assert refused.responses[0].partitions[0].error_code
            taken = await asked("acknowledgements with dead letters", share_fetch(topic_id, 3, batches))
            assert not taken.responses[0].partitions[0].acknowledge_error_code
            named = [
                share.ShareFetchRequestFetchPartition(partition_index=number) for number in range(MAX_ELEMENTS - 10)
            ]
            await asked("a session of very many partitions", share_fetch(topic_id, 4, named=named))
            others = [share.ShareFetchRequestFetchPartition(partition_index=-number) for number in range(1, 100)]
            too_many = await asked("a session of too many", share_fetch(topic_id, 5, named=others))
            assert too_many.error_code == ErrorCode.INVALID_REQUEST
            heartbeat = streams.StreamsGroupHeartbeatRequest(
                group_id="app", member_id="m", topology=very_many_subtopologies(), process_id="p",
                rebalance_timeout_ms=60_000, active_tasks=[], standby_tasks=[], warmup_tasks=[],
            )  # fmt: skip
            told = await asked("a topology", heartbeat)
            assert (told.error_code, told.member_epoch > 0) == (0, True)
            again = streams.StreamsGroupHeartbeatRequest(group_id="app", member_id="m")
            tasks = told.active_tasks
            while not tasks:
                again.member_epoch = told.member_epoch
                told = await asked("a heartbeat", again)
                assert not told.error_code, told
                tasks = told.active_tasks
            assert len(tasks) == len(very_many_subtopologies().subtopologies)
            client.close()
            second.close()

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(bounded(lambda: scenario(Meter(monkeypatch))))
    assert not held, "\n".join(held)


LOCKS = 2_000
"""share.partition.max.record.locks"""
DEAD_LETTERS = "dlq.all"


async def with_records(client: RpcConnection) -> Uuid:
    """The id of a topic with as many records as a group may have in flight; and a topic for dead letters."""
    config = CreatableTopicConfig(name="errors.deadletterqueue.group.enable", value="true")
    made = await client.request(
        CreateTopicsRequest(
            topics=[
                CreatableTopic(name="one", num_partitions=1, replication_factor=1),
                CreatableTopic(name=DEAD_LETTERS, num_partitions=1, replication_factor=1, configs=[config]),
            ],
            timeout_ms=10_000,
        )
    )
    topic_id: Uuid = made.topics[0].topic_id
    records = build_batch([(1, None, b"v", ()) for _ in range(LOCKS)])
    data = partitions.PartitionProduceData(index=0, records=records)
    request = partitions.ProduceRequest(
        acks=1, timeout_ms=1_000, topic_data=[partitions.TopicProduceData(topic_id=topic_id, partition_data=[data])]
    )
    while True:
        written = await client.request(request)
        if not written.responses[0].partition_responses[0].error_code:
            break  # the partition is led
    change = admin.IncrementalAlterConfigsRequestAlterableConfig
    altered = admin.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=32, resource_name="g", configs=[
            change(name="share.auto.offset.reset", value="earliest"),
            change(name="errors.deadletterqueue.topic.name", value=DEAD_LETTERS),
        ],
    )  # fmt: skip
    await client.request(admin.IncrementalAlterConfigsRequest(resources=[altered]))
    return topic_id


async def joined_share_group(client: RpcConnection) -> None:
    """The member has the topic."""
    for group_id in ("g", "app"):
        find = groups.FindCoordinatorRequest(key_type=0, coordinator_keys=[group_id])
        while (await client.request(find)).coordinators[0].error_code:
            pass  # the topic of coordinators is being made
    beat = share.ShareGroupHeartbeatRequest(group_id="g", member_id="m", subscribed_topic_names=["one"])
    while True:
        told = await client.request(beat)
        if told.assignment is not None and told.assignment.topic_partitions:
            return
        if not told.error_code:
            beat = share.ShareGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=told.member_epoch)


Batches = list[tuple[int, int, list[int]]]


def share_fetch(
    topic_id: Uuid, epoch: int, batches: Batches | None = None, named: list[Any] | None = None
) -> share.ShareFetchRequest:
    made = [
        share.ShareFetchRequestAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, types in batches or ()
    ]
    one = share.ShareFetchRequestFetchPartition(partition_index=0, acknowledgement_batches=made)
    topic = share.ShareFetchRequestFetchTopic(topic_id=topic_id, partitions=named or [one])
    return share.ShareFetchRequest(
        group_id="g", member_id="m", share_session_epoch=epoch, max_wait_ms=10, min_bytes=1, max_bytes=1 << 20,
        max_records=LOCKS, batch_size=1, topics=[topic],
    )  # fmt: skip


def acknowledgement(topic_id: Uuid, epoch: int, batches: Batches) -> share.ShareAcknowledgeRequest:
    made = [
        share.ShareAcknowledgeRequestAcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=types)
        for first, last, types in batches
    ]
    one = share.AcknowledgePartition(partition_index=0, acknowledgement_batches=made)
    return share.ShareAcknowledgeRequest(
        group_id="g", member_id="m", share_session_epoch=epoch, is_renew_ack=batches[0][2] == [4],
        topics=[share.AcknowledgeTopic(topic_id=topic_id, partitions=[one])],
    )  # fmt: skip


def very_many_subtopologies() -> streams.StreamsGroupHeartbeatRequestTopology:
    """As many as a request may name, each of one task."""
    each = streams.StreamsGroupHeartbeatRequestSubtopology
    count = MAX_ELEMENTS // 2 - 10
    return streams.StreamsGroupHeartbeatRequestTopology(
        subtopologies=[each(subtopology_id=str(number), source_topics=["one"]) for number in range(count)]
    )


async def bounded(scenario: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(1_800):
        await scenario()


def test_every_announced_api_has_a_worst_request(tmp_path: Path) -> None:
    """A request without a list is bounded by the size of a frame. Any other is filled up to the bound."""

    async def scenario() -> None:
        async with a_node(tmp_path) as node:
            for listener in ("PLAINTEXT", "CONTROLLER"):
                for key, version in (await announced(node.port(listener))).items():
                    for request in worst_requests(key, version, 50):
                        lists = [name for name in type(request).declared if isinstance(getattr(request, name), list)]
                        assert not lists or repr(request).count(", ") >= 49, f"{key.name} names too little"
                        assert key == request.API_KEY

    asyncio.run(bounded(scenario))
