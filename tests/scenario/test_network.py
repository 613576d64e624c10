"""A server over loopback sockets: limits, garbage, order, stopping."""

from __future__ import annotations

import asyncio
import logging
import socket
from unittest.mock import patch

import pytest
from network_world import HandClock, ask, dial, echo, frame, run, until

from kalda.base.scheduling import Pending
from kalda.base.stats import MetricConfig
from kalda.network.free_ports import free_ports
from kalda.network.server.connection import Answer, Buffer, Connection
from kalda.network.server.limits import Limits, NodeLimits
from kalda.network.server.server import Peers, Server


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def admitted_count(server: Server) -> int:
    return sum(admission.count for admission in server._admissions.values())


def waiting_count(server: Server) -> int:
    """Connections that are accepted and wait to be admitted."""
    return sum(map(len, server._waiting.values()))


def test_pipelined_requests_and_a_stop() -> None:
    async def scenario() -> None:
        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        reader, writer = await dial(listener.port)
        writer.write(b"".join(frame(b"request %04d" % n) for n in range(1000)))
        for n in range(1000):
            assert await reader.readexactly(4) == b"\x00\x00\x00\x0f"
            assert await reader.readexactly(15) == b"re:request %04d" % n
        [connection] = server.connections.values()
        assert (connection.requests, connection.peer_host) == (1000, "127.0.0.1")
        await server.stop()
        assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await dial(listener.port)

    run(scenario)


@pytest.mark.parametrize("wildcard", ["", "::"])
def test_a_wildcard_listens_to_both_families(wildcard: str) -> None:
    async def scenario() -> None:
        server = Server(HandClock())
        [port] = free_ports(1)
        await server.listen("PLAINTEXT", wildcard, port, echo)
        for host in ("127.0.0.1", "::1") if has_ipv6() else ("127.0.0.1",):
            assert await ask(await asyncio.open_connection(host, port), b"12345678") == b"re:12345678"
        await server.stop()

    run(scenario)


def test_the_error_for_an_unknown_host_names_the_host() -> None:
    async def scenario() -> None:
        server = Server(HandClock())
        with pytest.raises(OSError, match=r"listener OUTSIDE: host nowhere\.invalid: "):
            await server.listen("OUTSIDE", "nowhere.invalid", 0, echo)

    run(scenario)


def test_the_error_for_a_port_in_use_names_the_listener() -> None:
    async def scenario() -> None:
        server = Server(HandClock())
        with pytest.raises(OSError, match="listener OUTSIDE: port out of range: 99999"):
            await server.listen("OUTSIDE", "127.0.0.1", 99_999, echo)
        taken = await server.listen("INSIDE", "127.0.0.1", 0, echo)
        with pytest.raises(OSError, match=r"listener OUTSIDE: .*address already in use"):
            await server.listen("OUTSIDE", "127.0.0.1", taken.port, echo)
        cannot_bind = OSError("could not bind on any address")
        with (
            patch.object(asyncio.get_running_loop(), "create_server", side_effect=cannot_bind),
            pytest.raises(OSError, match=r"Errno \d+\] listener OUTSIDE: could not bind"),
        ):
            await server.listen("OUTSIDE", "192.0.2.1", 9092, echo)
        await server.stop()

    run(scenario)


def test_stop_waits_for_pending_answers_and_no_longer() -> None:
    async def scenario() -> None:
        parked: list[Pending[list[Buffer]]] = []

        def park(connection: Connection, request: memoryview) -> Answer:
            parked.append(Pending())
            return parked[-1]

        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, park)
        patient, hopeless = await dial(listener.port), await dial(listener.port)
        patient[1].write(frame(b"12345678"))
        await until(lambda: len(parked) == 1)
        hopeless[1].write(frame(b"12345678"))
        await until(lambda: len(parked) == 2)
        stopping = asyncio.create_task(server.stop(deadline_ms=200))
        asyncio.get_running_loop().call_soon(parked[0].complete, [b"at last"])  # after the stop has begun
        assert await patient[0].read() == frame(b"at last")
        await stopping
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await hopeless[0].readexactly(1)
        assert server.connections == {}

    run(scenario)


def test_garbage_closes_only_its_sender(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        good = await dial(listener.port)
        assert await ask(good, b"12345678") == b"re:12345678"
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00"):
            reader, writer = await dial(listener.port)
            writer.write(garbage)
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                await reader.readexactly(1)
        assert await ask(good, b"87654321") == b"re:87654321"
        await server.stop()

    with caplog.at_level(logging.WARNING, "kalda.network"):
        run(scenario)
    assert len(caplog.records) == 4
    assert "HTTP" in caplog.records[0].getMessage()
    assert "TLS" in caplog.records[1].getMessage()


def test_a_slow_reader_does_not_slow_others() -> None:
    async def scenario() -> None:
        answer = bytes(1_000_000)
        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, lambda connection, request: [answer])
        slow, quick = await dial(listener.port), await dial(listener.port)
        slow[1].transport.pause_reading()  # type: ignore[attr-defined]
        slow[1].write(frame(b"12345678") * 1000)
        assert len(await ask(quick, b"12345678")) == 1_000_000
        await until(lambda: all(connection.requests for connection in server.connections.values()))
        assert len(await ask(quick, b"12345678")) == 1_000_000
        served = max(connection.requests for connection in server.connections.values())
        assert served < 20, "a peer that reads nothing is served no more than the buffers hold"
        slow[1].transport.abort()
        await server.stop()

    run(scenario)


def test_connections_beyond_the_maximum_wait() -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(max_connections=2))
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        first, second = await dial(listener.port), await dial(listener.port)
        await ask(first, b"12345678")
        await ask(second, b"12345678")
        third = await dial(listener.port)
        third[1].write(frame(b"I waited"))
        await until(lambda: waiting_count(server) == 1)
        first[1].close()
        assert await third[0].readexactly(15) == frame(b"re:I waited")
        assert admitted_count(server) == 2
        await server.stop()

    run(scenario)


def test_a_broker_connects_to_a_full_node() -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(max_connections=1))
        clients = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        brokers = await server.listen("REPLICATION", "127.0.0.1", 0, echo, peers=Peers.BROKERS)
        client = await dial(clients.port)
        await ask(client, b"12345678")
        broker = await dial(brokers.port)
        assert await ask(broker, b"12345678") == b"re:12345678"
        assert await client[0].read() == b""
        await server.stop()

    run(scenario)


def test_a_broker_does_not_wait_behind_clients_that_wait() -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(max_connections=1))
        clients = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo, Limits(backlog=2))
        brokers = await server.listen("REPLICATION", "127.0.0.1", 0, echo, Limits(backlog=2), peers=Peers.BROKERS)
        client = await dial(clients.port)
        await ask(client, b"12345678")
        held = [await dial(clients.port) for _ in range(2)]
        await until(lambda: waiting_count(server) == len(held))
        broker = await dial(brokers.port)
        assert await ask(broker, b"12345678") == b"re:12345678"
        assert await client[0].read() == b""
        assert waiting_count(server) == len(held)
        await server.stop()

    run(scenario)


def test_an_address_beyond_its_maximum_is_refused() -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(max_connections_per_ip=1))
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        first = await dial(listener.port)
        await ask(first, b"12345678")
        second = await dial(listener.port)
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await second[0].readexactly(1)
        assert await ask(first, b"12345678") == b"re:12345678"
        first[1].close()
        await until(lambda: not server.connections)
        assert await ask(await dial(listener.port), b"12345678") == b"re:12345678"
        await server.stop()

    run(scenario)


def test_a_short_wait_does_not_last_as_long_as_one_that_began_before() -> None:
    async def scenario() -> None:
        clock = HandClock()
        server = Server(clock, NodeLimits(max_creation_rate=100, rate_config=MetricConfig(20, 11)))
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo, Limits(backlog=200))
        server._retry_in(3_600_000)  # as for a listener whose rate allows no connection for an hour
        held = [await dial(listener.port) for _ in range(23)]
        await until(lambda: waiting_count(server) == 3)
        clock.now += 1_000
        await until(lambda: admitted_count(server) == len(held))
        await server.stop()

    run(scenario)


def test_listeners_take_turns_for_slots_that_they_share() -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(max_connections=1))
        first = await server.listen("FIRST", "127.0.0.1", 0, echo, Limits(backlog=10))
        second = await server.listen("SECOND", "127.0.0.1", 0, echo, Limits(backlog=10))
        held = await dial(first.port)
        await ask(held, b"12345678")
        waiting = {"FIRST": [await dial(first.port) for _ in range(4)], "SECOND": [await dial(second.port)]}
        await until(lambda: waiting_count(server) == 5)
        admitted = []
        while len(admitted) < 3:
            known = {connection for connection in server.connections.values() if connection.admitted}
            held[1].close()
            await until(lambda: any(c.admitted for c in server.connections.values() if c not in known))  # noqa: B023
            [now] = [c for c in server.connections.values() if c.admitted and c not in known]
            admitted.append(now.listener_name)
            held = waiting[now.listener_name].pop(0)
        assert "SECOND" in admitted
        await server.stop()

    run(scenario)


def test_creation_rate_delays() -> None:
    async def scenario() -> None:
        clock = HandClock()
        limits = NodeLimits(max_creation_rate=100, rate_config=MetricConfig(20, 11))
        server = Server(clock, limits)
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo, Limits(backlog=200))
        held = [await dial(listener.port) for _ in range(23)]
        await until(lambda: waiting_count(server) == 3)
        clock.now += 10
        await until(lambda: waiting_count(server) == 2)
        clock.now += 1_000
        await until(lambda: waiting_count(server) == 0)
        assert admitted_count(server) == len(held)
        await server.stop()

    run(scenario)


def test_a_reduced_maximum_closes_the_least_recently_active_connections() -> None:
    async def scenario() -> None:
        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        held = [await dial(listener.port) for _ in range(3)]
        for streams in held:
            await ask(streams, b"12345678")
        server.update_limits(NodeLimits(max_connections=1))
        await until(lambda: len(server.connections) == 1)
        assert await ask(held[2], b"12345678") == b"re:12345678"
        await server.stop()

    run(scenario)


def test_a_connection_of_an_address_over_its_rate_is_closed_after_a_while() -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(rate_config=MetricConfig(20, 11)))
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        server.set_ip_rate("127.0.0.1", 10)
        first, second, third = [await dial(listener.port) for _ in range(3)]
        for streams in (first, second):
            assert await ask(streams, b"12345678") == b"re:12345678"
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            await ask(third, b"12345678")
        await until(lambda: len(server.connections) == 2)
        assert admitted_count(server) == 2
        server.set_ip_rate("127.0.0.1", None)
        assert await ask(await dial(listener.port), b"12345678") == b"re:12345678"
        await server.stop()

    run(scenario)


def test_the_sweep_closes_idle_connections() -> None:
    async def scenario() -> None:
        clock = HandClock()
        server = Server(clock)
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo, Limits(idle_ms=600_000, slow_frame_ms=500))
        idle, busy = await dial(listener.port), await dial(listener.port)
        await ask(idle, b"12345678")
        await ask(busy, b"12345678")
        server._sweep()
        clock.now += 599_999
        await ask(busy, b"12345678")
        server._sweep()
        clock.now += 1
        server._sweep()
        assert await idle[0].read() == b""
        assert await ask(busy, b"12345678") == b"re:12345678"
        await server.stop()

    run(scenario)


@pytest.mark.parametrize("limited", [102_400, -1])
def test_the_send_buffer_of_a_followers_connection_is_enlarged_unless_the_system_sizes_it(limited: int) -> None:
    def size_of(connection: Connection) -> int:
        assert connection._transport is not None
        return int(connection._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF))

    async def scenario() -> None:
        sizes: list[tuple[int, int]] = []

        def fetch(connection: Connection, frame: memoryview) -> Answer:
            before = size_of(connection)
            connection.send_to_follower()
            sizes.append((before, size_of(connection)))
            return [b"records!"]

        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, fetch, Limits(send_buffer_bytes=limited))
        _, writer = await dial(listener.port)
        writer.write(frame(b"a fetch of a follower"))
        await until(lambda: bool(sizes))
        before, after = sizes[0]
        assert after == before if limited < 0 else after > before >= limited
        writer.close()
        await server.stop()

    run(scenario)


def test_a_peer_that_closes_while_nothing_is_read_is_noticed() -> None:
    async def scenario() -> None:
        abandoned = asyncio.Event()
        parked: Pending[list[Buffer]] = Pending()
        parked.on_abandoned = abandoned.set

        def park(connection: Connection, frame: memoryview) -> Answer:
            connection.answer_alone()
            return parked

        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, park, Limits(idle_ms=500, closing_ms=0))
        _, writer = await dial(listener.port)
        writer.write(frame(b"a fetch that waits for ever") + frame(b"which is never read"))
        await until(lambda: any(connection.unanswered for connection in server.connections.values()))
        writer.close()
        await abandoned.wait()
        await until(lambda: not server.connections)
        await server.stop()

    run(scenario)


def test_a_listener_that_does_not_accept_yet_binds_its_port_and_refuses() -> None:
    async def test() -> None:
        server = Server(HandClock())
        listener = await server.listen("L", "127.0.0.1", 0, echo, accepts=False)
        try:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", listener.port)
            await listener.accept()
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"\0\0\0\x0chello, world")
            assert await reader.readexactly(4 + 3 + 12) == b"\0\0\0\x0fre:hello, world"
            writer.close()
        finally:
            await server.stop()

    run(test)


def test_connections_leave_descriptors_to_files() -> None:
    """The system gives out the lowest free descriptor: that of a new connection shows how many are open. Another broker
    still gets in, at the cost of a client."""

    async def scenario() -> None:
        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        inner = await server.listen("INNER", "127.0.0.1", 0, echo, peers=Peers.BROKERS)
        first = await dial(listener.port)
        assert await ask(first, b"12345678") == b"re:12345678"
        server.update_limits(NodeLimits(descriptors=1))
        refused = await dial(listener.port)
        assert await refused[0].read() == b""
        assert await ask(first, b"12345678") == b"re:12345678"
        broker = await dial(inner.port)
        assert await ask(broker, b"12345678") == b"re:12345678"
        assert await first[0].read() == b""
        server.update_limits(NodeLimits())
        assert await ask(await dial(listener.port), b"12345678") == b"re:12345678"
        await server.stop()

    run(scenario)


@pytest.mark.parametrize("failing", ["sweep", "close"])
def test_the_sweep_goes_on_when_it_fails_for_one_connection(failing: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        clock = HandClock()
        server = Server(clock)
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo, Limits(idle_ms=500))
        first, second = await dial(listener.port), await dial(listener.port)
        await until(lambda: len(server.connections) == 2)
        broken = next(iter(server.connections.values()))

        def fail(*_: object) -> None:
            raise RuntimeError("broken")

        with patch.object(Connection, failing, lambda self, *args: fail() if self is broken else real(self, *args)):
            for streams in (second, None):
                streams = streams or await dial(listener.port)
                assert await ask(streams, b"12345678") == b"re:12345678"
                await until(lambda: not any(each.active for each in server.connections.values() if each is not broken))
                clock.now += 1_000
                assert await streams[0].read() == b""
        first[1].close()
        await server.stop(0)

    real = getattr(Connection, failing)
    run(scenario)
    assert "the sweep failed for 127.0.0.1" in caplog.text


def test_a_connection_that_cannot_be_admitted_does_not_keep_others_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(max_connections=1))
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        first = await dial(listener.port)
        assert await ask(first, b"12345678") == b"re:12345678"
        second, third = await dial(listener.port), await dial(listener.port)
        await until(lambda: waiting_count(server) == 2)
        broken = list(server.connections.values())[1]
        with patch.object(Connection, "admit", lambda self: 1 / 0 if self is broken else real(self)):
            first[1].close()
            assert await second[0].read() == b""
            assert await ask(third, b"12345678") == b"re:12345678"
        assert admitted_count(server) == 1
        broken_again = await dial(listener.port)
        third[1].close()
        assert await ask(broken_again, b"12345678") == b"re:12345678"
        await server.stop()

    real = Connection.admit
    run(scenario)
    assert "admission failed for 127.0.0.1" in caplog.text


def test_a_connection_that_ends_over_budget_is_not_held() -> None:
    async def scenario() -> None:
        pending: list[Pending[list[Buffer]]] = []

        def park(connection: Connection, frame: memoryview) -> Answer:
            pending.append(Pending())
            return pending[-1]

        server = Server(HandClock(), NodeLimits(queued_max_request_bytes=10))
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, park)
        streams = [await dial(listener.port) for _ in range(2)]
        for _, writer in streams:
            writer.write(frame(b"1234567890"))
        await until(lambda: len(pending) == 2)
        await until(lambda: len(server.memory._answers) == 2)
        next(iter(server.connections.values())).abort()
        await until(lambda: len(server.connections) == 1)
        assert set(server.memory._answers) <= set(server.connections.values())
        await server.stop(0)

    run(scenario)


def test_silent_connections_give_their_descriptors_to_others() -> None:
    """A flood of connections that send nothing keeps no client out: one that is refused finds room when it connects
    again. Connections with requests stay."""

    async def scenario() -> None:
        server = Server(HandClock())
        listener = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo)
        first, silent = await dial(listener.port), await dial(listener.port)
        assert await ask(first, b"12345678") == b"re:12345678"
        await until(lambda: admitted_count(server) == 2)
        server.update_limits(NodeLimits(descriptors=1))
        refused = await dial(listener.port)
        assert await refused[0].read() == b""
        assert await silent[0].read() == b""
        refused = await dial(listener.port)
        assert await refused[0].read() == b""
        assert await ask(first, b"12345678") == b"re:12345678"
        await server.stop()

    run(scenario)


def test_connections_of_controllers_are_counted_apart() -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(max_connections=1, max_connections_per_ip=1))
        clients = await server.listen("PLAINTEXT", "127.0.0.1", 0, echo, peers=Peers.BROKERS)
        nodes = await server.listen("CONTROLLER", "127.0.0.1", 0, echo, peers=Peers.CONTROLLERS)
        client, node = await dial(clients.port), await dial(nodes.port)
        for streams in (node, client):
            assert await ask(streams, b"12345678") == b"re:12345678"
        waiting = [await dial(listener.port) for listener in (clients, nodes)]
        await until(lambda: waiting_count(server) == len(waiting))
        client[1].close()
        assert await ask(waiting[0], b"12345678") == b"re:12345678"
        assert waiting_count(server) == 1
        await server.stop()

    run(scenario)


def test_a_protected_listener_has_its_own_memory_for_requests() -> None:
    """A client whose requests use up the memory of its listener keeps no other broker waiting."""

    async def scenario() -> None:
        limits = NodeLimits(queued_max_request_bytes=100_000)
        server = Server(HandClock(), limits)
        outside = await server.listen("OUTSIDE", "127.0.0.1", 0, echo)
        inside = await server.listen("INSIDE", "127.0.0.1", 0, echo, peers=Peers.BROKERS)
        for listener, others in ((outside, inside), (inside, outside)):
            streams = [await dial(listener.port) for _ in range(3)]
            for _, writer in streams:
                writer.write((200_000).to_bytes(4, "big") + bytes(150_000))
            await until(lambda: listener.memory.is_used_up)  # noqa: B023 - awaited at once
            assert not others.memory.used_bytes
            assert await ask(await dial(others.port), bytes(200_000)) == b"re:" + bytes(200_000)
            for _, writer in streams:
                writer.write(bytes(50_000))
            for reader, writer in streams:
                assert await reader.readexactly(4 + 3 + 200_000)
                writer.close()
            assert not listener.memory.used_bytes
        assert not any(memory.arriving_bytes for memory in server._memories())
        server.update_limits(NodeLimits())
        assert {inside.memory.limit_bytes, outside.memory.limit_bytes} == {-1}
        await server.stop(0)

    run(scenario)


@pytest.mark.parametrize("limit_bytes", [6_000_000, 30_000_000])
def test_answers_that_nobody_reads_are_bounded_in_all(limit_bytes: int) -> None:
    async def scenario() -> None:
        server = Server(HandClock(), NodeLimits(max_unread_bytes=limit_bytes))
        listener = await server.listen(
            "PLAINTEXT", "127.0.0.1", 0, lambda _, frame: [bytes(10_000_000) if frame[0] else b"small"]
        )
        streams = [await dial(listener.port) for _ in range(3)]
        for _, writer in streams[:2]:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(frame(b"\1 large answer"))
        assert await ask(streams[2], b"\0 small answer") == b"small"
        await until(lambda: sum(each.requests for each in server.connections.values()) == 3)
        if limit_bytes < 10_000_000:
            await until(lambda: len(server.connections) == 1)
        else:
            await until(lambda: server.answers.unread_bytes > 10_000_000)
        assert await ask(streams[2], b"\0 small answer") == b"small"
        assert len(server.connections) == (1 if limit_bytes < 10_000_000 else 3)
        for _, writer in streams:
            writer.close()
        await server.stop(0)

    run(scenario)
