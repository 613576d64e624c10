"""Three drivers on one in-memory network that encodes and decodes every message."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import pytest
from raft_world import Replica, World, append, topic

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.scheduling import Pending
from kalda.protocol.apis import api_of, response_class
from kalda.protocol.codec import decode, encode
from kalda.protocol.messages.quorum import AddRaftVoterRequest, AddRaftVoterRequestListener, FetchSnapshotRequest
from kalda.protocol.notation import Request
from kalda.raft.log_state import Diverging, RaftLogState
from kalda.raft.metadata_log import MetadataLogConfig
from kalda.raft.voters import Destination, OffsetAndEpoch, VoterSet


class Network:
    """Delivers after a millisecond. `newest` limits the version of an API, as an older peer does."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.replicas: dict[int, Replica] = {}
        self.newest: dict[int, int] = {}
        self.down: set[int] = set()
        self.chunks_to_damage: set[int] = set()
        """By their order of sending: the chunks of snapshots in which one bit is flipped."""
        self._chunks = 0

    def send_from(self, node_id: int) -> Any:
        def send(destination: Destination, request: Request, timeout_ms: int) -> Pending[Any]:
            pending: Pending[Any] = Pending()
            key = request.API_KEY
            version = min(api_of(key).highest_served(unstable=False), self.newest.get(key, 99))
            try:
                frame = encode(request, version)
            except ValueError as error:
                pending.fail(ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)))
                return pending
            self.world.call_later_ms(
                1, lambda: self.arrive(node_id, destination, type(request), frame, version, pending)
            )
            return pending

        return send

    def arrive(
        self,
        source: int,
        destination: Destination,
        cls: type[Request],
        frame: bytes,
        version: int,
        pending: Pending[Any],
    ) -> None:
        target = destination.port - 9000
        if target not in self.replicas or self.down & {source, target}:
            pending.fail(ApiError(ErrorCode.NETWORK_EXCEPTION))
            return
        reply = self.replicas[target].driver.handle(decode(cls, frame, version), version)

        def respond(response: Any, _: ApiError | None) -> None:
            body = encode(response, version)
            if cls is FetchSnapshotRequest:
                body = self._damaged(body)
            self.world.call_later_ms(
                1, lambda: pending.complete(decode(response_class(cls.API_KEY), memoryview(body), version))
            )

        if isinstance(reply, Pending):
            reply.then(respond)
        else:
            respond(reply, None)

    def _damaged(self, body: bytes) -> bytes:
        self._chunks += 1
        if self._chunks - 1 not in self.chunks_to_damage:
            return body
        at = len(body) - 100
        return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


VOTERS = VoterSet.static("CONTROLLER", [(i, "127.0.0.1", 9000 + i) for i in (1, 2, 3)])


def add(network: Network, tmp_path: Path, node_id: int, **options: Any) -> Replica:
    replica = Replica(
        network.world,
        f"{tmp_path}/{node_id}",
        node_id,
        static_voters=VOTERS,
        send=network.send_from(node_id),
        bootstrap_servers=tuple(("127.0.0.1", 9000 + i) for i in (1, 2, 3) if i != node_id),
        **options,
    )
    network.replicas[node_id] = replica
    return replica


def leader_of(network: Network) -> Replica:
    for _ in range(100):
        network.world.run(100)
        for node_id, replica in network.replicas.items():
            if replica.driver.leader_and_epoch().leader_id == node_id:
                return replica
    raise AssertionError("no leader")


@pytest.mark.parametrize("newest", [{}, {52: 1}, {52: 0, 53: 0, 54: 0, 1: 17, 59: 0}])
def test_three_elect_and_replicate(tmp_path: Path, newest: dict[int, int]) -> None:
    network = Network(World())
    network.newest = newest
    for node_id in (1, 2, 3):
        add(network, tmp_path, node_id).start()
    observer = add(network, tmp_path, 9, can_be_voter=False)
    observer.start()
    leader = leader_of(network)
    epoch = leader.driver.leader_and_epoch().epoch
    append(leader.driver, epoch, [topic("a"), topic("b")])
    append(leader.driver, epoch, [topic("c")])
    network.world.run(2_000)
    for replica in network.replicas.values():
        assert replica.failures == []
        assert replica.listener.records == [topic("a"), topic("b"), topic("c")]
        assert replica.listener.leaders[-1] == (leader.driver.config.local.id, epoch)
    led, observed = (
        {name.name: metric.measure(network.world.mono_ms()) for name, metric in replica.driver.times.sensors()}
        for replica in (leader, observer)
    )
    assert 2 <= led["commit-latency-avg"] <= led["commit-latency-max"] < 100, "a round trip to a follower"
    assert led["election-latency-max"] >= 2, "a round trip for the votes"
    assert led["append-records-rate"] == 3 / 32, "in the two seconds since, and a window that is taken to be over"
    assert observed["fetch-records-rate"] >= 3 / 32
    assert isnan(observed["commit-latency-avg"])


@pytest.mark.parametrize("damaged", [(), (2,), (0, 4, 9)])
def test_a_new_observer_loads_the_snapshot_in_chunks(
    tmp_path: Path, damaged: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """And fetches it again where it arrives damaged."""
    network = Network(World())
    config = MetadataLogConfig(segment_bytes=400, retention_bytes=1)
    for node_id in (1, 2, 3):
        add(network, tmp_path, node_id, config=config).start()
    leader = leader_of(network)
    epoch = leader.driver.leader_and_epoch().epoch
    topics = [topic(f"t{at}") for at in range(100)]
    for record in topics:
        append(leader.driver, epoch, [record])
        network.world.run(5)
    network.world.run(1_000)
    driver = leader.driver
    for count in (50, 90):
        driver.create_snapshot(count + 1, epoch, topics[:count], 7)
    network.world.run(61_000)
    assert driver.machine.log.start_offset == 91
    network.chunks_to_damage = set(damaged)
    observer = add(network, tmp_path, 9, can_be_voter=False, fetch_snapshot_max_bytes=1_000)
    observer.start()
    network.world.run(10_000)
    assert observer.failures == []
    assert sum("is fetched again" in line for line in caplog.messages) == len(damaged)
    assert observer.listener.snapshots == [(91, epoch)]
    assert [*observer.listener.loaded, *observer.listener.records] == topics
    assert sorted(path.name for path in (tmp_path / "9").glob("*.checkpoint*")) == [
        f"00000000000000000091-{epoch:010d}.checkpoint"
    ]


def test_the_other_voters_elect_another_leader(tmp_path: Path) -> None:
    network = Network(World())
    for node_id in (1, 2, 3):
        add(network, tmp_path, node_id).start()
    old = leader_of(network)
    network.down = {old.driver.config.local.id}
    del network.replicas[old.driver.config.local.id]
    new = leader_of(network)
    epoch = new.driver.leader_and_epoch().epoch
    append(new.driver, epoch, [topic("x")])
    network.world.run(1_000)
    assert all(replica.listener.records == [topic("x")] for replica in network.replicas.values())
    with pytest.raises(ApiError):
        append(old.driver, epoch, [topic("y")])


def test_a_follower_stops_where_it_would_truncate_committed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not fetch again and receive the same reply again."""
    network = Network(World())
    for node_id in (1, 2, 3):
        add(network, tmp_path, node_id).start()
    leader = leader_of(network)
    epoch = leader.driver.leader_and_epoch().epoch
    append(leader.driver, epoch, [topic("a")])
    network.world.run(1_000)
    follower = next(replica for replica in network.replicas.values() if replica is not leader)
    assert follower.driver.high_watermark == 2
    monkeypatch.setattr(RaftLogState, "validate_fetch", lambda *_: Diverging(OffsetAndEpoch(0, 0)))
    append(leader.driver, epoch, [topic("b")])
    network.world.run(1_000)
    assert [type(failure) for failure in follower.failures] == [AssertionError]
    assert "would undo what is committed" in str(follower.failures[0])


def test_a_change_of_static_voters_is_refused_in_the_response(tmp_path: Path) -> None:
    network = Network(World())
    for node_id in (1, 2, 3):
        add(network, tmp_path, node_id).start()
    leader = leader_of(network)
    listeners = [AddRaftVoterRequestListener(name="CONTROLLER", host="h", port=1)]
    request = AddRaftVoterRequest(cluster_id="cluster", voter_id=4, voter_directory_id=b"4" * 16, listeners=listeners)
    response: Any = leader.driver.handle(request, 1)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
