"""What a broker's replicas need of other nodes: eligible members of an ISR, decisions on ISRs, fetches from leaders.

Carries out what the replication floor decides: `BrokerPeers` sends proposed ISRs to the controller,
`ReplicaFetcherManager` sends fetch requests to leaders, each fetcher in a task of its own over a connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Clock, Jobs, Timer, Timers
from kalda.broker.channels.node_channels import ControllerChannel
from kalda.broker.metadata_cache import MetadataCache
from kalda.network.client.client import Reach, RpcClient, RpcPolicy
from kalda.protocol.framing import ConnectionRefused
from kalda.protocol.notation import Request
from kalda.replication.controller_requests import AlterPartitionQueue
from kalda.replication.followers import IsrOutcome, IsrProposal
from kalda.replication.partition import Partition
from kalda.replication.replica_fetcher import FetcherConfig, ReplicaFetcher, ReplicaFetchers
from kalda.replication.replica_manager import ReplicaManager, ReplicaThrottle
from kalda.storage.log.deletion import start_truncations
from kalda.storage.log.log import Log
from kalda.storage.log.snapshot_jobs import open_logs

log = logging.getLogger("kalda.peers")

_CONNECT_BACKOFF_MS = 20
_INTERRUPTION_DELAY_S = 0.005
"""Partitions that are added to a fetcher within this time interrupt its waiting fetch once."""


class BrokerPeers:
    """The cluster for the partitions that one broker leads (`kalda.replication.followers.ReplicationPeers`)."""

    def __init__(
        self,
        config: ServerConfig,
        cache: MetadataCache,
        channel: ControllerChannel,
        broker_epoch: Callable[[], int],
        clock: Clock,
        timers: Timers,
    ) -> None:
        self.lag_max_ms: int = config["replica.lag.time.max.ms"]
        """A follower that has not caught up for so long leaves the ISR."""
        self._cache = cache
        self._clock = clock
        self._timers = timers
        self._timer: Timer | None = None
        """For the next check of all followers; None until `start_shrinking_isrs`."""
        self._isr_changes = AlterPartitionQueue(config.node_id, broker_epoch, channel.send, timers)

    def now_ms(self) -> int:
        """Milliseconds of a clock that never goes back."""
        return self._clock.mono_ms()

    def eligible_epoch(self, broker_id: int) -> int | None:
        """The epoch of a broker that may join an ISR; None where it may not, because it is unknown, fenced or shutting
        down (KIP-841)."""
        broker = self._cache.image.cluster.brokers.get(broker_id)
        return None if broker is None or broker.fenced or broker.in_controlled_shutdown else broker.epoch

    def propose(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        proposal: IsrProposal,
        answered: Callable[[IsrOutcome], None],
    ) -> None:
        """Send a proposed ISR to the controller; `answered` is called with its decision."""
        log.info("%s: the ISR should be %s, in leader epoch %d", topic_partition, proposal.isr, proposal.leader_epoch)
        self._isr_changes.propose(topic_id, topic_partition.partition, proposal, answered)

    def start_shrinking_isrs(self, replicas: ReplicaManager) -> None:
        """Twice in each `replica.lag.time.max.ms`, propose ISRs without the followers that do not keep pace."""
        interval_ms = max(1, self.lag_max_ms // 2)

        def shrink() -> None:
            self._timer = self._timers.call_later_ms(interval_ms, shrink)
            replicas.shrink_isrs()

        self._timer = self._timers.call_later_ms(interval_ms, shrink)

    def close(self) -> None:
        """Propose nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._isr_changes.close()


class ReplicaFetcherManager:
    """Runs all fetchers of a broker (`kalda.replication.replica_manager.Following`).

    The replica manager says which partitions are fetched. `ReplicaFetchers` assigns them to fetchers. Each
    `ReplicaFetcher` decides what it sends, and when.
    """

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        cache: MetadataCache,
        broker_epoch: Callable[[], int],
        clock: Clock,
        jobs: Jobs,
        reach: Reach,
        on_fatal: Callable[[str], None],
        throttle: ReplicaThrottle | None = None,
    ) -> None:
        """`on_fatal` is called with the reason where the task of a fetcher fails: its partitions would not be fetched
        any more, and nothing else would notice."""
        self._on_fatal = on_fatal
        self._reach = reach
        self._policy = RpcPolicy(
            client_id=f"broker-{config.node_id}-fetcher",
            timeout_ms=config["replica.socket.timeout.ms"],
            connect_timeout_ms=config["socket.connection.setup.timeout.ms"],
            backoff_ms=_CONNECT_BACKOFF_MS,
            backoff_max_ms=_CONNECT_BACKOFF_MS,
            probes=True,
        )
        self._listener = config.inter_broker_listener_name
        self._cache = cache
        self._clock = clock
        self._jobs = jobs
        self._tasks: set[asyncio.Task[None]] = set()
        """One for each fetcher, from its first partition until `close`."""
        self._fetchers = ReplicaFetchers(
            FetcherConfig(
                config.node_id,
                cluster_id,
                backoff_ms=config["replica.fetch.backoff.ms"],
                wait_max_ms=config["replica.fetch.wait.max.ms"],
                min_bytes=config["replica.fetch.min.bytes"],
                partition_max_bytes=config["replica.fetch.max.bytes"],
                response_max_bytes=config["replica.fetch.response.max.bytes"],
                fetchers_a_leader=config["num.replica.fetchers"],
            ),
            broker_epoch,
            self._start,
            throttle,
        )

    @property
    def max_lag(self) -> int:
        """By how many offsets the partition that is furthest behind is behind its leader."""
        return self._fetchers.max_lag

    @property
    def failed(self) -> int:
        """How many partitions cannot be followed at present, or while their disk is offline."""
        return self._fetchers.failed

    def lags(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """Each partition that is followed: its fetcher and its lag."""
        return self._fetchers.lags()

    def resize(self, fetchers_a_leader: int) -> None:
        """Use so many fetchers for each leader."""
        self._fetchers.resize(fetchers_a_leader)

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from its leader, from now on."""
        self._fetchers.follow(partition)

    def stop(self, partition: Partition) -> None:
        """Fetch it no longer."""
        self._fetchers.stop(partition)

    def _start(self, fetcher: ReplicaFetcher) -> None:
        fetcher.start_truncations = partial(start_truncations, self._jobs)
        task = asyncio.get_running_loop().create_task(self._run(fetcher))
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.critical("a fetcher has failed", exc_info=failure)
            self._on_fatal(f"a replica fetcher failed: {failure!r}")

    async def _run(self, fetcher: ReplicaFetcher) -> None:
        leader = _LeaderConnection(fetcher, self._address_of, self._client)
        try:
            while True:
                leader.wake.clear()
                now_ms = self._clock.mono_ms()
                request = fetcher.next_request(now_ms)
                if request is None:
                    await _wait_for(leader.wake, fetcher.deadline_ms(now_ms), now_ms)
                    continue
                try:
                    response = await leader.request(request)
                except ApiError as error:
                    if leader.was_interrupted:
                        fetcher.on_interrupted()
                    else:
                        if isinstance(error, ConnectionRefused):
                            self._mark_missing(fetcher.leader_id)
                        fetcher.on_failure(error, self._clock.mono_ms())
                else:
                    if cold := fetcher.cold_logs(response):
                        await self._open(cold)
                    fetcher.on_response(response, self._clock.mono_ms())
        finally:
            leader.close()

    async def _open(self, logs: list[Log]) -> None:
        """Open the files of logs on a thread."""
        opened = asyncio.Event()
        open_logs(self._jobs, logs).then(lambda _, error: opened.set())
        await opened.wait()

    def _mark_missing(self, broker_id: int) -> None:
        """No process listens at the leader's address: clients are not sent there any more."""
        broker = self._cache.image.cluster.brokers.get(broker_id)
        if broker is not None and not broker.fenced:
            self._cache.mark_missing(broker_id, broker.epoch)

    def _address_of(self, broker_id: int) -> tuple[str, int]:
        broker = self._cache.image.cluster.brokers.get(broker_id)
        endpoint = None if broker is None else broker.listeners.get(self._listener)
        if endpoint is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} has no known listener {self._listener}")
        return endpoint.host, endpoint.port

    def _client(self, address: tuple[str, int]) -> RpcClient:
        return RpcClient(*address, self._policy, self._reach)

    async def close(self) -> None:
        """Cancel all fetchers."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _LeaderConnection:
    """One fetcher's connection to its leader.

    The leader may hold a fetch for `replica.fetch.wait.max.ms`. A partition that comes to be led there meanwhile must
    not wait that long: until it is fetched, no record written to it is committed. So the waiting fetch is interrupted.
    As responses keep the order of requests, that takes a new connection.
    """

    def __init__(
        self,
        fetcher: ReplicaFetcher,
        address_of: Callable[[int], tuple[str, int]],
        client_of: Callable[[tuple[str, int]], RpcClient],
    ) -> None:
        """`address_of(broker_id)` raises `ApiError` where the broker has no address; `client_of(address)` makes a
        client."""
        self.wake = asyncio.Event()
        """Set by the fetcher when it may have a request before the deadline that it named."""
        self.was_interrupted = False
        """Whether the last request failed because it was interrupted."""
        self._leader_id = fetcher.leader_id
        self._address_of = address_of
        self._client_of = client_of
        self._client: RpcClient | None = None
        self._address: tuple[str, int] | None = None
        """Of `_client`, or of the one before."""
        self._last_request = 0
        """The number of the last request. An interruption is for one request, and is dropped when another is sent."""
        self._is_waiting = False
        """Whether that request waits for its response."""
        fetcher.wake = self.wake.set
        fetcher.on_added = self._interrupt_soon

    async def request(self, request: Request) -> Any:
        """Return the leader's response. Raises `ApiError`, and sets `was_interrupted`."""
        self.was_interrupted = False
        address = self._address_of(self._leader_id)
        if self._client is None or address != self._address:
            self.close()
            self._client, self._address = self._client_of(address), address
        self._last_request += 1
        self._is_waiting = True
        try:
            return await self._client.request(request)
        finally:
            self._is_waiting = False

    def _interrupt_soon(self) -> None:
        """Interrupt the request under way, because a partition was added. Several that are added together interrupt it
        once."""
        asyncio.get_running_loop().call_later(_INTERRUPTION_DELAY_S, self._interrupt, self._last_request)

    def _interrupt(self, request: int) -> None:
        if self._is_waiting and request == self._last_request:
            self.was_interrupted = True
            self.close()

    def close(self) -> None:
        """Close the connection, if there is one. The next request makes a new one."""
        if self._client is not None:
            self._client.close()
            self._client = None


async def _wait_for(wake: asyncio.Event, deadline_ms: int | None, now_ms: int) -> None:
    """Return when `wake` is set, or at the deadline; None: there is no deadline."""
    if deadline_ms is None:
        await wake.wait()
        return
    try:
        async with asyncio.timeout(max(1, deadline_ms - now_ms) / 1000):
            await wake.wait()
    except TimeoutError:
        pass
