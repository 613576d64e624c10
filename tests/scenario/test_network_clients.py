"""Clients over loopback sockets: pipelined requests, versions, timeouts, peers that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from harness.blocking import BlockingConnection
from network_world import HandClock, run, until

from kalda.base.errors import ApiError, ErrorCode
from kalda.network.client.client import Reach, RpcClient, RpcConnection, RpcPolicy
from kalda.network.server.connection import Answer, Connection
from kalda.network.server.server import Server
from kalda.protocol.apis import ApiKey, request_class
from kalda.protocol.codec import decode
from kalda.protocol.framing import decode_request_header, encode_response
from kalda.protocol.messages.metadata import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)


class Node:
    """Answers ApiVersions up to version `newest`, and Metadata. `silent`: it does not answer. `skew` is added to the
    correlation ids of its answers."""

    def __init__(self) -> None:
        self.newest = 5
        self.silent = False
        self.skew = 0
        self.parked: list[Callable[[], None]] = []
        self.seen: list[tuple[int, int]] = []

    def handle(self, connection: Connection, request: memoryview) -> Answer:
        header = decode_request_header(request)
        self.seen.append((header.api_key, header.api_version))
        if self.silent:
            return None
        if header.api_key == ApiKey.API_VERSIONS:
            keys = [
                ApiVersion(api_key=18, min_version=0, max_version=self.newest),
                ApiVersion(api_key=3, min_version=0, max_version=12),
            ]
            if header.api_version > self.newest:
                error = ApiVersionsResponse(error_code=35, api_keys=keys[:1])
                return encode_response(header.correlation_id, error, 0)
            return encode_response(header.correlation_id, ApiVersionsResponse(api_keys=keys), header.api_version)
        message = decode(request_class(header.api_key), request, header.api_version, header.body_at)
        assert isinstance(message, MetadataRequest)
        answer = MetadataResponse(cluster_id=(message.topics or [MetadataRequestTopic(name="none")])[0].name)
        return encode_response(header.correlation_id + self.skew, answer, header.api_version)


def metadata(name: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name)])


async def with_node(node: Node, scenario: Callable[[Server, int], Awaitable[None]]) -> None:
    server = Server(HandClock())
    listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, node.handle)
    await scenario(server, listener.port)
    await server.stop()


def test_client_pipelines_and_matches_answers() -> None:
    async def scenario(server: Server, port: int) -> None:
        connection = await RpcConnection.connect("127.0.0.1", port, negotiate=True)
        assert connection.versions == {18: (0, 5), 3: (0, 12)}
        answers = await asyncio.gather(*(connection.request(metadata(f"topic-{n}")) for n in range(50)))
        assert [answer.cluster_id for answer in answers] == [f"topic-{n}" for n in range(50)]
        assert connection.in_flight == 0
        connection.close()
        with pytest.raises(ApiError):
            await connection.request(metadata("late"))

    node = Node()
    run(lambda: with_node(node, scenario))  # type: ignore[arg-type, return-value]
    assert set(node.seen[1:]) == {(3, 12)}


def test_client_falls_back_to_an_old_peer() -> None:
    async def scenario(server: Server, port: int) -> None:
        connection = await RpcConnection.connect("127.0.0.1", port, negotiate=True)
        assert connection.versions == {18: (0, 2), 3: (0, 12)}
        with pytest.raises(ApiError) as caught:
            await connection.request(request_class(ApiKey.DESCRIBE_CLUSTER)())
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        connection.close()

    node = Node()
    node.newest = 2
    run(lambda: with_node(node, scenario))  # type: ignore[arg-type, return-value]
    assert node.seen == [(18, 5), (18, 2)]


def test_a_request_that_the_peers_version_cannot_carry_fails_alone() -> None:
    """It is not sent."""

    async def scenario(server: Server, port: int) -> None:
        connection = await RpcConnection.connect("127.0.0.1", port)
        request = MetadataRequest(topics=[], include_topic_authorized_operations=True)
        with pytest.raises(ApiError) as caught:
            await connection.request(request, 7)
        assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert (await connection.request(metadata("topic"), 9)).cluster_id == "topic"
        connection.close()

    node = Node()
    run(lambda: with_node(node, scenario))  # type: ignore[arg-type, return-value]
    assert node.seen == [(3, 9)]


def test_client_timeout_closes_and_fails_all() -> None:
    async def scenario(server: Server, port: int) -> None:
        connection = await RpcConnection.connect("127.0.0.1", port, RpcPolicy(timeout_ms=60_000))
        waiting = connection.send(metadata("first"), 9)
        with pytest.raises(ApiError) as caught:
            await connection.request(metadata("second"), 9, timeout_ms=10)
        assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
        with pytest.raises(ApiError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        assert connection.closed.is_set()

    node = Node()
    node.silent = True
    run(lambda: with_node(node, scenario))  # type: ignore[arg-type, return-value]


def test_client_refuses_an_answer_out_of_order() -> None:
    async def scenario(server: Server, port: int) -> None:
        connection = await RpcConnection.connect("127.0.0.1", port)
        with pytest.raises(ApiError) as caught:
            await connection.request(metadata("topic"), 9)
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION

    node = Node()
    node.skew = 1
    run(lambda: with_node(node, scenario))  # type: ignore[arg-type, return-value]


def test_requests_in_flight_fail_when_the_peer_closes_the_connection() -> None:
    async def scenario(server: Server, port: int) -> None:
        connection = await RpcConnection.connect("127.0.0.1", port)
        waiting = connection.send(metadata("topic"), 9)
        await until(lambda: any(peer.requests for peer in server.connections.values()))
        for peer in list(server.connections.values()):
            peer.abort()
        with pytest.raises(ApiError) as caught:
            await waiting
        assert caught.value.code is ErrorCode.NETWORK_EXCEPTION

    node = Node()
    node.silent = True
    run(lambda: with_node(node, scenario))  # type: ignore[arg-type, return-value]


def test_rpc_client_reconnects_with_backoff() -> None:
    async def scenario() -> None:
        server = Server(HandClock())
        node = Node()
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, node.handle)
        port = listener.port
        client = RpcClient("127.0.0.1", port, RpcPolicy(backoff_ms=1, backoff_max_ms=4), Reach(lambda: 0.5))
        answers = await asyncio.gather(*(client.request(metadata(f"t{n}")) for n in range(5)))
        assert [answer.cluster_id for answer in answers] == [f"t{n}" for n in range(5)]
        assert len(server.connections) == 1
        await server.stop()
        for _ in range(3):
            with pytest.raises(ApiError) as caught:
                await client.request(metadata("closed"))
            assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
        again = Server(HandClock())
        await again.listen("PLAINTEXT", "127.0.0.1", port, node.handle)
        assert (await client.request(metadata("back"))).cluster_id == "back"
        client.close()
        with pytest.raises(ApiError):
            await client.request(metadata("closed"))
        await again.stop()

    run(scenario)


def test_blocking_client() -> None:
    async def scenario(server: Server, port: int) -> None:
        def talk() -> list[str]:
            with BlockingConnection("127.0.0.1", port) as connection:
                return [connection.request(metadata(name)).cluster_id for name in ("one", "two")]

        def time_out() -> ErrorCode:
            with (
                pytest.raises(ApiError) as caught,
                BlockingConnection("127.0.0.1", port, timeout_ms=10) as connection,
            ):
                connection.request(metadata("never"))
            return caught.value.code

        assert await asyncio.to_thread(talk) == ["one", "two"]
        node.silent = True
        assert await asyncio.to_thread(time_out) is ErrorCode.REQUEST_TIMED_OUT

    node = Node()
    run(lambda: with_node(node, scenario))  # type: ignore[arg-type, return-value]


def test_a_request_that_cannot_be_encoded_is_an_api_error_and_is_not_sent() -> None:
    async def scenario(server: Server, port: int) -> None:
        def talk() -> None:
            with BlockingConnection("127.0.0.1", port) as connection:
                with pytest.raises(ApiError, match="cannot be encoded") as caught:
                    connection.send(metadata("\udcff"))
                assert caught.value.code is ErrorCode.INVALID_REQUEST
                assert connection.request(metadata("one")).cluster_id == "one"

        await asyncio.to_thread(talk)

    run(lambda: with_node(Node(), scenario))  # type: ignore[arg-type, return-value]


def test_a_blocking_client_cannot_connect_to_an_invalid_host_name() -> None:
    with pytest.raises(ApiError, match=r"cannot connect to ü\.\.:9092"):
        BlockingConnection("ü..", 9092)
