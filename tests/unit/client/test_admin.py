"""The blocking admin client: closing, forks, signals, threads, brokers that answer with garbage; delegation tokens."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scripted_broker import ScriptedBroker

import kalda.aio
from kalda import Admin, Consumer
from kalda.base.configs.admin import admin_config
from kalda.base.errors import ApiError, ErrorCode
from kalda.client.admin.access import Token
from kalda.client.admin.admin_driven import AdminDriven
from kalda.client.admin.offsets import OffsetSpec
from kalda.clientcore.administration import PAUSE, Plan
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.protocol.apis import ApiKey
from kalda.protocol.messages import security
from kalda.protocol.messages.partitions import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

TIMEOUT_S = 60


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker() as made:
        made.topics = {"t": [1]}
        yield made


def admin(broker: ScriptedBroker, **keys: object) -> Admin:
    return Admin({"bootstrap.servers": broker.address}, **keys)


def test_use_after_close_raises_and_closing_twice_does_nothing(broker: ScriptedBroker) -> None:
    made = admin(broker)
    assert list(made.list_topics()) == ["t"]
    made.close()
    made.close()
    with pytest.raises(ApiError, match="the admin client is closed"):
        made.list_topics()


def test_close_ends_a_call_of_another_thread(broker: ScriptedBroker) -> None:
    asked, answered = threading.Event(), threading.Event()
    metadata = broker.answers[ApiKey.METADATA]

    def answer(request: Any, version: int) -> Any:
        if request.topics is None:
            asked.set()
            answered.wait(TIMEOUT_S)
        return metadata(request, version)

    broker.answers[ApiKey.METADATA] = answer
    made = admin(broker)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(made.list_topics)
        assert asked.wait(TIMEOUT_S)
        made.close()
        assert isinstance(call.exception(TIMEOUT_S), ApiError)
        answered.set()


def test_metadata_that_lists_a_dead_broker_is_not_fetched_without_a_pause(broker: ScriptedBroker) -> None:
    """For as long as a broker's session lasts, each response names it as before."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen: connections are refused
        broker.nodes[2] = held.getsockname()[1]
        keys: dict[str, object] = {"default.api.timeout.ms": 2_000, "retry.backoff.ms": 100}
        with admin(broker, **keys) as made:
            assert isinstance(made.describe_log_dirs([2])[2], ApiError)
    assert len(broker.requests(ApiKey.METADATA)) <= 30


def test_threads_share_a_client(broker: ScriptedBroker) -> None:
    with admin(broker) as made, ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: list(made.list_topics()), range(40)))
    assert found == [["t"]] * 40


def test_a_forked_child_cannot_use_its_parents_client(broker: ScriptedBroker) -> None:
    with admin(broker) as made:
        made.list_topics()
        child = os.fork()
        if child == 0:
            try:
                made.list_topics()
            except RuntimeError as error:
                made.close()
                os._exit(7 if "parent" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert list(made.list_topics()) == ["t"]


def test_ctrl_c_ends_a_wait_and_the_interpreter_ends_without_close(broker: ScriptedBroker) -> None:
    released = threading.Event()
    metadata = broker.answers[ApiKey.METADATA]
    waits = [True]

    def answer(request: Any, version: int) -> Any:
        if request.topics is None and waits:
            waits.clear()
            released.wait(TIMEOUT_S)
            return None
        return metadata(request, version)

    broker.answers[ApiKey.METADATA] = answer
    program = (
        "import kalda, os, signal, threading\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
        f"admin = kalda.Admin(bootstrap_servers='{broker.address}', request_timeout_ms=1000)\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try: admin.list_topics()\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "print(list(admin.list_topics()))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    released.set()
    assert run.stdout == "interrupted\n['t']\n"


def test_a_client_that_is_dropped_ends_its_thread(broker: ScriptedBroker) -> None:
    made = admin(broker)
    made.list_topics()
    thread, collected = made._io, weakref.ref(made)
    del made
    gc.collect()
    assert collected() is None
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 100, b"\x7f\xff\xff\xff", b"\0\0\0\4\xff\xff\xff\xff", b"HTTP/1.1 400 Bad Request\r\n"]
)
def test_garbage_instead_of_answers_ends_in_a_clear_error(broker: ScriptedBroker, garbage: bytes) -> None:
    def reply(_frame: bytes, peer: Any) -> bool:
        peer.sendall(garbage)
        return True

    broker.reply = reply  # type: ignore[method-assign]
    with admin(broker) as made, pytest.raises(ApiError, match="listing topics was not done in time"):
        made.list_topics(timeout=0.5)


def test_a_client_that_reaches_no_broker_says_why() -> None:
    with socket.socket() as bound:  # and not listening: connections are refused
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        words = f"was not done in time: .*{address}.*refused"
        config: dict[str, object] = {"bootstrap.servers": address, "default.api.timeout.ms": 300}
        with Admin(config | {"request.timeout.ms": 200}) as made, pytest.raises(ApiError, match=words):
            made.list_topics()
        with Consumer(config) as consumer, pytest.raises(ApiError, match=words):
            consumer.partitions_for("t")


class Offsets(ScriptedBroker):
    """Leads some partitions, whose end offsets are their numbers."""

    def __init__(self, node_id: int) -> None:
        super().__init__(node_id)
        self.answers[ApiKey.LIST_OFFSETS] = self._list_offsets

    def _list_offsets(self, request: Any, _version: int) -> ListOffsetsResponse:
        (topic,) = request.topics
        found = [
            ListOffsetsPartitionResponse(partition_index=each.partition_index, offset=each.partition_index)
            for each in topic.partitions
        ]
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name=topic.name, partitions=found)])


@pytest.fixture
def pair() -> Iterator[tuple[Offsets, Offsets]]:
    """Two brokers that lead every other one of 40 partitions."""
    with Offsets(1) as first, Offsets(2) as second:
        for each in (first, second):
            each.nodes = {1: first.port, 2: second.port}
            each.topics = {"t": [1, 2] * 20}
        yield first, second


ALL = {("t", number): OffsetSpec.LATEST for number in range(40)}


def test_offsets_are_listed_in_one_request_to_each_leader(pair: tuple[Offsets, Offsets]) -> None:
    with admin(pair[0]) as made:
        found = made.list_offsets(ALL)
    assert [each.offset for each in found.check().succeeded.values()] == list(range(40))
    assert [len(each.requests(ApiKey.LIST_OFFSETS)) for each in pair] == [1, 1]


def test_offsets_are_listed_in_one_request_to_each_leader_by_asyncio(pair: tuple[Offsets, Offsets]) -> None:
    async def listed() -> list[int]:
        async with kalda.aio.Admin(bootstrap_servers=pair[0].address) as made:
            found = await made.list_offsets(ALL)
            return [each.offset for each in found.check().succeeded.values()]

    assert asyncio.run(listed()) == list(range(40))
    assert [len(each.requests(ApiKey.LIST_OFFSETS)) for each in pair] == [1, 1]


@pytest.mark.parametrize("is_listed", [True, False])
def test_a_leader_that_is_unreachable_is_replaced(pair: tuple[Offsets, Offsets], is_listed: bool) -> None:
    first, second = pair
    metadata = first.answers[ApiKey.METADATA]
    answers = 0

    def answer(request: Any, version: int) -> Any:
        nonlocal answers
        answers += any(topic.name == "t" for topic in request.topics)
        if answers == 2:  # the second broker has been tried
            first.topics = {"t": [1] * 40}
            first.nodes = {**first.nodes, 2: second.port} if is_listed else {1: first.port}
        return metadata(request, version)

    first.answers[ApiKey.METADATA] = answer
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # it refuses connections
        first.nodes = {1: first.port, 2: unused.getsockname()[1]}
        # However late this process is, node 2 is not connected to again before the metadata is looked at.
        with admin(first, reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000) as made:
            found = made.list_offsets(ALL)
    assert [each.offset for each in found.check().succeeded.values()] == list(range(40))
    assert not second.received


def test_delegation_tokens(broker: ScriptedBroker) -> None:
    principal = {"principal_type": "User", "principal_name": "alice"}
    requester = {"token_requester_principal_type": "User", "token_requester_principal_name": "bob"}
    renewer = security.DescribedDelegationTokenRenewer(principal_type="User", principal_name="carol")
    token = Token("id", "User:alice", "User:bob", ("User:carol",), 1, 2, 3, b"secret")
    broker.answers |= {
        ApiKey.CREATE_DELEGATION_TOKEN: lambda _request, _version: security.CreateDelegationTokenResponse(
            token_id="id", issue_timestamp_ms=1, expiry_timestamp_ms=2, max_timestamp_ms=3, hmac=b"secret",
            **principal, **requester,
        ),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: lambda _request, _version: security.DescribeDelegationTokenResponse(
            tokens=[
                security.DescribedDelegationToken(
                    token_id="id", issue_timestamp=1, expiry_timestamp=2, max_timestamp=3, hmac=b"secret",
                    renewers=[renewer], **principal, **requester,
                )
            ]
        ),
        ApiKey.RENEW_DELEGATION_TOKEN: lambda _request, _version: security.RenewDelegationTokenResponse(
            expiry_timestamp_ms=9
        ),
        ApiKey.EXPIRE_DELEGATION_TOKEN: lambda _request, _version: security.ExpireDelegationTokenResponse(
            error_code=ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        ),
    }  # fmt: skip
    with admin(broker) as made:
        assert made.create_delegation_token(owner="User:alice", renewers=["User:carol"], max_lifetime_ms=2) == token
        assert made.describe_delegation_tokens(["User:alice"]) == [token]
        assert made.renew_delegation_token(b"secret", period_ms=5) == 9
        with pytest.raises(ApiError) as refused:
            made.expire_delegation_token(b"secret")
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    (created,) = broker.requests(ApiKey.CREATE_DELEGATION_TOKEN)
    assert (created.owner_principal_type, created.owner_principal_name) == ("User", "alice")
    assert [(each.principal_type, each.principal_name) for each in created.renewers] == [("User", "carol")]
    assert [each.renew_period_ms for each in broker.requests(ApiKey.RENEW_DELEGATION_TOKEN)] == [5]


def test_a_pause_that_has_ended_since_the_last_turn_is_due_now() -> None:
    def plan() -> Plan[bool]:
        while not (yield PAUSE):
            pass
        return True

    driven = AdminDriven(admin_config({"bootstrap.servers": "localhost:1"}, {}), lambda: 0.5, 0)
    operation = Operation("pausing", 500)
    driven.submit(plan(), operation)
    driven.run(0)
    for now_ms in (100, 101, 150):
        assert driven.deadline_ms(now_ms) == now_ms
    driven.run(600)
    assert operation.result
