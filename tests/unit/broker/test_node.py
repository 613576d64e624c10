"""What a node logs of its properties, and how a start that is cancelled ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kalda.base.configs.server import ServerConfig
from kalda.base.ids import uuid_to_text
from kalda.broker.channels.lifecycle import Milestones
from kalda.broker.process.disk import RealDisk
from kalda.broker.process.node import Node
from kalda.broker.process.node_parts import DirLocks, _warn_of_properties
from kalda.broker.process.shell import ThreadJobs
from kalda.broker.requests.node_authorizer import STANDARD
from kalda.metadata.image import EMPTY, MetadataDelta
from kalda.network.client.client import RpcConnection
from kalda.protocol.messages.quorum import DescribeQuorumRequest
from kalda.storage.dirs.log_manager import LogManager
from kalda.storage.log.log import Log
from kalda.testing import layout

MINIMAL = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.voters": "1@localhost:9093",
    "listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
    "controller.listener.names": "CONTROLLER",
    "log.dirs": "/nowhere",
}


def warnings(caplog: pytest.LogCaptureFixture, **more: str) -> list[str]:
    _warn_of_properties(ServerConfig({**MINIMAL, **{key.replace("_", "."): value for key, value in more.items()}}))
    return [record.getMessage() for record in caplog.records]


def test_usual_properties_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog) == []


def test_an_unknown_property_is_named(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, my_own_key="1") == ["property my.own.key is not known"]


def test_a_property_that_is_set_to_its_default_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings(caplog, num_io_threads="8", queued_max_requests="500") == []


def test_properties_without_effect_for_one_reason_share_a_line(caplog: pytest.LogCaptureFixture) -> None:
    more = {
        "num_io_threads": "16",
        "log_preallocate": "true",
        "queued_max_requests": "9",
    }
    lines = warnings(caplog, **more)
    assert [line.partition(":")[0] for line in lines] == [
        "num.io.threads, queued.max.requests",
        "log.preallocate",
    ]


def test_the_directories_stay_locked_until_the_last_recovery_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start is cancelled in the middle of a recovery: until its thread ends, no other process may lock the directory.
    No task or future is left of which the loop would log an error."""
    (place,) = places = layout.lay_out([1], tmp_path)
    config, disk = layout.config_of(place, places, {}), RealDisk()
    layout.format_place(place, places, config, uuid_to_text(layout.new_id()), disk)
    disk.make_dirs(f"{place.directory}/t-0")
    entered, may_end, closing = threading.Event(), threading.Event(), threading.Event()
    open_log, close_jobs, release = LogManager._open, ThreadJobs.close, DirLocks.release
    done: list[str] = []
    complaints: list[str] = []

    def slow_open(self: LogManager, *arguments: Any) -> Log:
        entered.set()
        assert may_end.wait(60)
        done.append("recovered")
        return open_log(self, *arguments)

    def close(self: ThreadJobs) -> None:
        closing.set()
        close_jobs(self)

    monkeypatch.setattr(LogManager, "_open", slow_open)

    def release_locks(self: DirLocks) -> None:
        done.append("unlocked")
        release(self)

    monkeypatch.setattr(ThreadJobs, "close", close)
    monkeypatch.setattr(DirLocks, "release", release_locks)

    async def start_and_cancel() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
        node = Node(config)
        starting = asyncio.ensure_future(node.start())
        assert await asyncio.to_thread(entered.wait, 60)
        starting.cancel()
        await asyncio.wait((starting,))
        await node.stop()

    thread = threading.Thread(target=lambda: asyncio.run(start_and_cancel()))
    thread.start()
    assert closing.wait(60)
    may_end.set()
    thread.join(60)
    assert done == ["recovered", "unlocked"]
    gc.collect()
    assert complaints == []


def test_a_second_signal_ends_the_wait_for_a_handover() -> None:
    """Also one that comes before the first has been acted upon, and a failure of the node."""
    waited: list[str] = []

    class Lifecycle:
        def __init__(self) -> None:
            self.milestones = Milestones()
            self.begun = asyncio.Event()

        def begin_controlled_shutdown(self) -> None:
            self.begun.set()

        def close(self) -> None:
            self.milestones.may_shut_down.complete(None)

    async def scenario(node: Node, hurry: Callable[[], None], *, early: bool = False) -> None:
        lifecycle = Lifecycle()
        if early:
            hurry()
        handover = asyncio.ensure_future(node._hand_over(lifecycle))  # type: ignore[arg-type]
        await lifecycle.begun.wait()
        if not early:
            assert not handover.done()
            hurry()
        await asyncio.wait_for(handover, 60)
        waited.append("ended")

    for early in (False, True):
        node = Node(ServerConfig(MINIMAL))
        asyncio.run(scenario(node, node.skip_handover, early=early))
    node = Node(ServerConfig(MINIMAL))
    asyncio.run(scenario(node, partial(node._fatal, "all disks have failed")))
    assert waited == ["ended"] * 3


@pytest.mark.parametrize("early", [{}, {"early.start.listeners": ""}])
def test_early_listeners_answer_before_the_authorizer_is_ready(tmp_path: Path, early: dict[str, str]) -> None:
    """One of two voters starts alone, so it loads no access control entries. By default the listeners of controllers
    answer, as the other voter could not be elected otherwise; a listener that is not early lets its requests wait."""
    places = layout.lay_out([1, 2], tmp_path)
    place = places[0]
    keys = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS", **early}
    config = layout.config_of(place, places, keys)
    layout.format_place(place, places, config, uuid_to_text(layout.new_id()), RealDisk())

    async def until(condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110 - a starting node has no event for it
            await asyncio.sleep(0.005)

    async def start_and_ask() -> None:
        node = Node(config)
        starting = asyncio.ensure_future(node.start())
        async with asyncio.timeout(60):
            await until(lambda: node.running)
            authorizer, gate = node.running.parts.node_authorizer, node.running.listeners.gates["CONTROLLER"]
            assert authorizer is not None
            connection = await RpcConnection.connect(layout.HOST, place.controller_port)
            answer = asyncio.ensure_future(connection.request(DescribeQuorumRequest(topics=[])))
            if early:
                await until(lambda: gate._waiting)
                assert not answer.done()
                authorizer.on_metadata_update(MetadataDelta(EMPTY), EMPTY, Any)
            await answer
            assert authorizer.is_loaded is bool(early)
            connection.close()
        starting.cancel()
        await asyncio.wait((starting,))
        await node.stop()

    asyncio.run(start_and_ask())
