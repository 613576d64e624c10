"""The rest of the cluster, as a broker's replicas see it: who may join an ISR, whom to copy from, whom to tell.

Carries out what the replication floor decides: proposals go to the controller, fetch requests to leaders, each fetcher
in a task of its own over a connection of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kalda.base.clock import Clock
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Timer, Timers
from kalda.broker.controller_channel import ControllerChannel
from kalda.broker.metadata_cache import MetadataCache
from kalda.network.client import RpcClient
from kalda.protocol.notation import Request
from kalda.replication.alter_partition import AlterPartitionQueue
from kalda.replication.followers import IsrOutcome, IsrProposal
from kalda.replication.partition import Partition
from kalda.replication.replica_fetcher import FetcherConfig, ReplicaFetcher
from kalda.replication.replica_fetchers import ReplicaFetchers
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.log import Log
from kalda.storage.opening import opening_job

log = logging.getLogger("kalda.peers")

_CONNECT_BACKOFF_MS = 20
_INTERRUPTION_DELAY_S = 0.005


class BrokerPeers:
    """What one broker's partitions know of the cluster (`kalda.replication.followers.ReplicationPeers`)."""

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
        self._cache = cache
        self._clock = clock
        self._timers = timers
        self._timer: Timer | None = None
        self._isr_changes = AlterPartitionQueue(config.node_id, broker_epoch, channel.send, timers)

    def now_ms(self) -> int:
        """A clock that never goes back."""
        return self._clock.mono_ms()

    def eligible_epoch(self, broker_id: int) -> int | None:
        """The broker epoch of one that may join an ISR (KIP-841)."""
        broker = self._cache.image.cluster.brokers.get(broker_id)
        return None if broker is None or broker.fenced or broker.in_controlled_shutdown else broker.epoch

    def propose(
        self,
        topic_partition: TopicPartition,
        topic_id: Uuid,
        proposal: IsrProposal,
        answered: Callable[[IsrOutcome], None],
    ) -> None:
        """Have the controller decide on an ISR."""
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
    """Carries out the requests of all fetchers of a broker (`kalda.replication.replica_manager.Following`)."""

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        cache: MetadataCache,
        broker_epoch: Callable[[], int],
        clock: Clock,
        jobs: Jobs,
        random: Callable[[], float],
        on_fatal: Callable[[str], None],
        is_refused: Callable[[str, int], Awaitable[bool]] | None = None,
    ) -> None:
        """`on_fatal` is told of what no fetcher may meet: its partitions would never be copied again. `is_refused(host,
        port)` probes an address; without it no leader is ever found to be missing."""
        self._on_fatal = on_fatal
        self._is_refused = is_refused
        self._broker_id = config.node_id
        self._listener = config.inter_broker_listener_name
        self._timeout_ms: int = config["replica.socket.timeout.ms"]
        self._connect_timeout_ms: int = config["socket.connection.setup.timeout.ms"]
        self._cache = cache
        self._clock = clock
        self._jobs = jobs
        self._random = random
        self._tasks: set[asyncio.Task[None]] = set()
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
        )

    def resize(self, fetchers_a_leader: int) -> None:
        """Have so many fetchers for each leader."""
        self._fetchers.resize(fetchers_a_leader)

    def follow(self, partition: Partition) -> None:
        """Copy a partition from its leader."""
        self._fetchers.follow(partition)

    def stop(self, partition: Partition) -> None:
        """Copy it no longer."""
        self._fetchers.stop(partition)

    def _start(self, fetcher: ReplicaFetcher) -> None:
        task = asyncio.get_running_loop().create_task(self._run(fetcher))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.critical("a fetcher has failed", exc_info=failure)
            self._on_fatal(f"a replica fetcher failed: {failure!r}")

    async def _run(self, fetcher: ReplicaFetcher) -> None:
        line = _Line(fetcher, self._address_of, self._client)
        try:
            while True:
                line.awake.clear()
                now_ms = self._clock.mono_ms()
                request = fetcher.next_request(now_ms)
                if request is None:
                    await _wait(line.awake, fetcher.deadline_ms(now_ms), now_ms)
                    continue
                try:
                    response = await line.ask(request, self._timeout_ms)
                except ApiError as error:
                    if line.interrupted:
                        fetcher.on_interrupted()
                    else:
                        if error.code is ErrorCode.NETWORK_EXCEPTION:
                            await self._look_for(fetcher.leader_id)
                        fetcher.on_failure(error, self._clock.mono_ms())
                except ValueError as error:
                    # What must be said cannot be said in the version that the leader speaks.
                    fetcher.on_failure(ApiError(ErrorCode.UNSUPPORTED_VERSION, str(error)), self._clock.mono_ms())
                else:
                    if cold := fetcher.cold_logs(response):
                        await self._open(cold)
                    fetcher.on_response(response, self._clock.mono_ms())
        finally:
            line.close()

    async def _open(self, logs: list[Log]) -> None:
        job = opening_job(logs)
        opened = asyncio.Event()
        self._jobs.run(job.run, lambda _, error: opened.set())
        await opened.wait()
        job.finish()

    async def _look_for(self, broker_id: int) -> None:
        """The connection broke: if nobody listens there any more, clients need not be sent there either."""
        broker = self._cache.image.cluster.brokers.get(broker_id)
        if self._is_refused is None or broker is None or broker.fenced or self._cache.is_missing(broker_id):
            return
        with contextlib.suppress(ApiError):
            if await self._is_refused(*self._address_of(broker_id)):
                self._cache.miss(broker_id, broker.epoch)

    def _address_of(self, broker_id: int) -> tuple[str, int]:
        broker = self._cache.image.cluster.brokers.get(broker_id)
        endpoint = None if broker is None else broker.listeners.get(self._listener)
        if endpoint is None:
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} has no known listener {self._listener}")
        return endpoint.host, endpoint.port

    def _client(self, address: tuple[str, int]) -> RpcClient:
        return RpcClient(
            *address,
            rng=self._random,
            client_id=f"broker-{self._broker_id}-fetcher",
            connect_timeout_ms=self._connect_timeout_ms,
            backoff_ms=_CONNECT_BACKOFF_MS,
            backoff_max_ms=_CONNECT_BACKOFF_MS,
        )

    async def close(self) -> None:
        """Fetch nothing any more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Line:
    """One fetcher's connection to its leader.

    A fetch may wait at the leader for half a second. A partition that comes to be led there meanwhile, because its
    leader died, must not wait that long: nothing written to it is committed before. So the waiting fetch is given up,
    by its connection, as answers keep the order of requests.
    """

    def __init__(
        self,
        fetcher: ReplicaFetcher,
        address_of: Callable[[int], tuple[str, int]],
        client_of: Callable[[tuple[str, int]], RpcClient],
    ) -> None:
        self.awake = asyncio.Event()
        self.interrupted = False
        self._leader_id = fetcher.leader_id
        self._address_of = address_of
        self._client_of = client_of
        self._client: RpcClient | None = None
        self._address: tuple[str, int] | None = None
        self._asked = 0
        self._asking = False
        fetcher.wake = self.awake.set
        fetcher.on_added = self._interrupt_soon

    async def ask(self, request: Request, timeout_ms: int) -> Any:
        """The leader's answer. Raises `ApiError`; after an interruption, `interrupted` is true."""
        self.interrupted = False
        address = self._address_of(self._leader_id)
        if self._client is None or address != self._address:
            self.close()
            self._client, self._address = self._client_of(address), address
        self._asked += 1
        self._asking = True
        try:
            return await self._client.request(request, timeout_ms=timeout_ms)
        finally:
            self._asking = False

    def _interrupt_soon(self) -> None:
        """Several partitions that come together interrupt once."""
        asyncio.get_running_loop().call_later(_INTERRUPTION_DELAY_S, self._interrupt, self._asked)

    def _interrupt(self, asked: int) -> None:
        if self._asking and asked == self._asked:
            self.interrupted = True
            self.close()

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None


async def _wait(awake: asyncio.Event, deadline_ms: int | None, now_ms: int) -> None:
    """Until woken, or until the deadline."""
    if deadline_ms is None:
        await awake.wait()
        return
    try:
        async with asyncio.timeout(max(1, deadline_ms - now_ms) / 1000):
            await awake.wait()
    except TimeoutError:
        pass
