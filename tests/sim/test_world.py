"""The parts of the simulated world: time, network, processes, power."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kalda.sim.loop import Stuck
from kalda.sim.machine import Machine
from kalda.sim.process import PowerLoss
from kalda.sim.world import Violation, World


@pytest.fixture
def world() -> Iterator[World]:
    with World("test") as made:
        yield made


class Peer(asyncio.BufferedProtocol):
    """Keeps the bytes and events of one end of a connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: list[Exception | None] = []
        self.transport: asyncio.Transport | None = None
        self.room = bytearray(7)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.room

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.room[:nbytes]

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def send(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


def connect(world: World) -> tuple[Machine, Peer, Machine, Peer]:
    """Two machines with a connection."""
    client, server = world.machine("client"), world.machine("server")
    served: list[Peer] = []

    def factory() -> Peer:
        served.append(Peer())
        return served[-1]

    async def serve() -> None:
        await world.loop.create_server(factory, "server", 1)

    async def call() -> Peer:
        return (await world.loop.create_connection(Peer, "server", 1))[1]

    world.loop.run_until_complete(server.start()[0].context().run(world.loop.create_task, serve()))
    caller = world.loop.run_until_complete(client.start()[0].context().run(world.loop.create_task, call()))
    world.loop.run_until_complete(asyncio.sleep(0.1))
    return client, caller, server, served[0]


def wait(world: World, seconds: float) -> None:
    world.loop.run_until_complete(asyncio.sleep(seconds))


def test_time_is_virtual(world: World) -> None:
    wait(world, 86_400)
    assert world.now_s == 86_400


def test_a_wait_without_an_end_is_an_error(world: World) -> None:
    with pytest.raises(Stuck):
        world.loop.run_until_complete(world.loop.create_future())


def test_bytes_keep_their_order(world: World) -> None:
    _, client, _, server = connect(world)
    for number in range(200):
        client.send(b"%d " % number)
    wait(world, 1)
    assert bytes(server.received).split() == [b"%d" % number for number in range(200)]


def test_a_cut_link_delivers_when_the_cut_ends(world: World) -> None:
    _, client, _, server = connect(world)
    world.network.cut.add(("client", "server"))
    client.send(b"hello")
    server.send(b"back")
    wait(world, 10)
    assert (server.received, client.received) == (b"", b"back")
    world.network.cut.clear()
    wait(world, 10)
    assert server.received == b"hello"


def test_a_killed_process_resets_its_connections(world: World) -> None:
    _, client, machine, server = connect(world)
    machine.kill()
    wait(world, 1)
    assert isinstance(client.lost[0], ConnectionResetError)
    assert server.lost == [], "a killed process gets no callback"


def test_a_machine_without_power_does_not_answer_until_it_is_on_again(world: World) -> None:
    _, client, machine, _ = connect(world)
    machine.lose_power()
    client.send(b"hello")
    wait(world, 30)
    assert client.lost == []
    machine.start()
    wait(world, 10)
    assert isinstance(client.lost[0], ConnectionResetError)


def test_connections_are_refused_after_a_kill(world: World) -> None:
    client, _, server, _ = connect(world)
    server.kill()
    wait(world, 0.1)

    async def call() -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.loop.create_connection(Peer, "server", 1)

    assert client.boot is not None
    world.loop.run_until_complete(client.boot.context().run(world.loop.create_task, call()))


def test_a_resumed_process_gets_what_came_while_it_was_paused(world: World) -> None:
    _, client, machine, server = connect(world)
    machine.pause()
    client.send(b"one ")
    wait(world, 5)
    client.send(b"two")
    wait(world, 5)
    assert server.received == b""
    machine.resume()
    wait(world, 0.1)
    assert server.received == b"one two"


def test_a_resumed_process_does_not_run_callbacks_that_are_cancelled_by_earlier_ones(world: World) -> None:
    """As in a real loop that was delayed: the first callback that is due may cancel later ones."""
    machine, taken = world.machine("m"), []
    boot, _ = machine.start()

    def wait_and_cancel() -> None:
        late = world.loop.call_later(2, lambda: taken.append("late"))
        world.loop.call_later(1, late.cancel)
        world.loop.call_later(3, lambda: taken.append("last"))

    boot.context().run(wait_and_cancel)
    machine.pause()
    wait(world, 5)
    assert not taken
    machine.resume()
    wait(world, 0.1)
    assert taken == ["last"]


def test_a_slow_reader_pauses_the_writer(world: World) -> None:
    _, client, _, server = connect(world)
    paused: list[str] = []
    client.pause_writing = lambda: paused.append("paused")  # type: ignore[method-assign]
    client.resume_writing = lambda: paused.append("resumed")  # type: ignore[method-assign]
    assert server.transport is not None
    server.transport.pause_reading()
    client.send(bytes(100_000))
    wait(world, 1)
    assert paused == ["paused"]
    server.transport.resume_reading()
    wait(world, 1)
    assert paused == ["paused", "resumed"]
    assert len(server.received) == 100_000


def test_tasks_end_with_their_process(world: World) -> None:
    machine, go, steps = world.machine("m"), asyncio.Event(), []

    async def walk() -> None:
        while True:
            await go.wait()
            go.clear()
            steps.append(world.now_s)

    for second in (1, 2, 3, 4):
        world.loop.call_at(second, go.set)
    boot, _ = machine.start()
    boot.context().run(lambda: boot.tasks.append(world.loop.create_task(walk())))
    wait(world, 2.5)
    machine.kill()
    wait(world, 5)
    assert steps == [1, 2]


def test_power_is_lost_between_two_operations(world: World) -> None:
    machine = world.machine("m")
    boot, host = machine.start()
    machine.fuse = 3

    def write() -> None:
        for number in range(10):
            host.disk.open(f"/{number}", create=True)

    with pytest.raises(PowerLoss):
        boot.context().run(write)
    assert not machine.up
    assert not boot.alive
    with pytest.raises(PowerLoss):
        boot.context().run(host.disk.list_dir, "/")


def test_an_exception_in_a_process_is_a_violation(world: World) -> None:
    boot, _ = world.machine("m").start()

    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        boot.context().run(world.loop.call_soon, fail)
        await asyncio.Event().wait()

    with pytest.raises(Violation, match="ValueError"):
        world.run(main(), 10)
