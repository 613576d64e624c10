"""The half of a node with the broker role: the logs, the broker's registration and heartbeats, the services.

Coming up: register; catch up with the metadata; recover the logs on threads; apply the first image, which opens every
partition; start the modules; become unfenced; serve. Going down: hand leadership over; close the modules; stop serving;
close the logs; write the marker of a clean stop as the very last thing.

Not obvious:

- A log directory may fail while the broker is being made, before there are replicas.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kalda.base.background import Background
from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.base.scheduling import Timers
from kalda.base.sensors import Sensors
from kalda.broker.channels.controller_channel import ControllerChannel
from kalda.broker.channels.lifecycle import BrokerIdentity, BrokerLifecycle
from kalda.broker.modules.log_dirs import assigned_directory
from kalda.broker.modules.metadata_cache import MetadataCache
from kalda.broker.modules.module import BrokerContext
from kalda.broker.modules.services import Services
from kalda.broker.process.dynamic_configs import DynamicConfigs
from kalda.broker.process.shell import Host, JobPool, wait_settled
from kalda.broker.quorum.quorum_side import QuorumSide
from kalda.broker.replicas.log_keeper import make_log_manager
from kalda.broker.replicas.opening import OpeningPartitions
from kalda.broker.replicas.publishing_faults import PublishingFaults
from kalda.broker.requests.api_versions import Features
from kalda.broker.requests.quotas import NodeQuotas
from kalda.metadata.registration_tracker import BrokerRegistrationTracker
from kalda.network.server import Server
from kalda.protocol.caller import Authorizer
from kalda.storage.dirs.future_logs import Placed
from kalda.storage.dirs.log_dir import LogDir
from kalda.storage.job import Job

if TYPE_CHECKING:
    from kalda.broker.process.node_security import NodeSecurity

log = logging.getLogger("kalda.broker")
T = TypeVar("T")

_CLOSING_THREADS = 4
"""At least so many logs are synced at a time at the stop: file systems sync several at about the cost of one."""


class BrokerSide:
    """A broker, from before its registration until its logs are closed."""

    def __init__(
        self,
        config: ServerConfig,
        host: Host,
        timers: Timers,
        jobs: JobPool,
        background: Background,
        server: Server,
        quorum: QuorumSide,
        channel: ControllerChannel,
        heartbeats: ControllerChannel,
        sensors: Sensors,
        quotas: NodeQuotas,
        authorizer: Authorizer | None,
        identity: Callable[[Callable[[], list[Uuid]], int], BrokerIdentity],
        features: Callable[[], Features],
        on_fatal: Callable[[str], None],
        security: NodeSecurity | None,
    ) -> None:
        """`heartbeats` is the channel for registrations and heartbeats, `channel` that for all else. The broker is
        registered as `identity(log_dirs, previous_broker_epoch)`; `log_dirs()` are the ids of directories that are
        online. `security`: None for PLAINTEXT. Reads the directories; raises `OSError`."""
        self._config = config
        self._quorum = quorum
        self._jobs = jobs
        self._on_fatal = on_fatal
        self._has_replicas = False
        """Whether `services` and `lifecycle` exist. A directory in which no replica is yet may fail before."""
        self._cache = MetadataCache(timers)
        configs = DynamicConfigs(config)
        self.logs = make_log_manager(
            config, host, lambda topic: configs.log_config(topic, quorum.loader.image), self._on_dir_failed
        )
        self._load_jobs = self.logs.load_jobs()  # `start` runs them while the broker registers and catches up
        who = identity(self._online_dir_ids, self.logs.dirs.previous_broker_epoch)
        self.lifecycle = BrokerLifecycle(
            who,
            heartbeats.send,
            timers,
            lambda: quorum.loader.image,
            lambda: self.services.applied_offset(quorum.loader.last_applied_offset),
            on_fatal,
            heartbeat_interval_ms=config["broker.heartbeat.interval.ms"],
            registration_timeout_ms=config["initial.broker.registration.timeout.ms"],
            dir_failure_timeout_ms=config["log.dir.failure.timeout.ms"],
            replayed=quorum.replayed,
        )
        context = BrokerContext(
            config=config,
            cluster_id=who.cluster_id,
            host=host,
            timers=timers,
            jobs=jobs,
            background=background,
            server=server,
            channel=channel,
            lifecycle=self.lifecycle,
            cache=self._cache,
            logs=self.logs,
            dynamic_configs=configs,
            sensors=sensors,
            quotas=quotas,
            authorizer=authorizer,
            opening=OpeningPartitions(timers, background),
            security=security,
            faults=PublishingFaults(),
            on_fatal=on_fatal,
        )
        self.services = Services(context, features)
        self._has_replicas = True

    def _online_dir_ids(self) -> list[Uuid]:
        return [
            directory.directory_id
            for directory in self.logs.dirs
            if directory.online and directory.directory_id is not None
        ]

    # -- coming up

    async def start(self, accept: Callable[[], Awaitable[None]]) -> None:
        """Return when clients may be served. `accept` is called as soon as the broker is registered: from then on
        connections are accepted, whose requests wait."""
        quorum, lifecycle, logs, services = self._quorum, self.lifecycle, self.logs, self.services
        lifecycle.start()
        loading = [asyncio.ensure_future(self._run_job(job)) for job in self._load_jobs]
        try:
            await wait_settled(lifecycle.milestones.registered)
            await accept()
            await wait_settled(lifecycle.milestones.caught_up)
            await asyncio.gather(*loading)
        finally:
            # Where the start is cancelled, or one of them fails, nothing else awaits the others.
            for each in loading:
                each.cancel()
            await asyncio.gather(*loading, return_exceptions=True)
        log.info("opened %d logs", len(logs))
        assigned = partial(assigned_directory, quorum.loader.image, self._config.node_id)
        logs.futures.settle(assigned)
        tracker = BrokerRegistrationTracker(self._config.node_id, lifecycle.resend_registration)
        quorum.loader.install_publishers([*services.publishers(), tracker])
        self._set_stray_logs_aside(assigned)
        services.start()
        lifecycle.set_ready_to_unfence()
        await wait_settled(lifecycle.milestones.unfenced)
        # The controller has answered before this node has the record: Metadata responses would not list this broker,
        # while those of others do. A client that gets fewer brokers than before drops its requests to the others.
        await wait_settled(self._cache.unfenced(self._config.node_id))

    def _set_stray_logs_aside(self, assigned: Placed) -> None:
        """Set the logs aside that belong to no replica of this broker by the metadata. They are not deleted.

        A log whose directory failed after it was opened has no replica either, and stays where it is. So does the log
        of a replica that could not be opened: the next start would make an empty one in its place.
        """
        why = "belongs to no replica that the cluster has on this broker"
        for left in list(self.logs.unreadable.values()):
            if left.topic_id is not None and assigned(left.topic_partition, left.topic_id) is None:
                self.logs.set_aside(left.topic_partition, why)
        for stray in self.logs:
            topic_partition = stray.topic_partition
            replicas = self.services.replicas
            if stray.offline or replicas.find(*topic_partition) is not None:
                continue
            has_lost_id = stray.topic_id is None and replicas.is_offline(topic_partition)
            if has_lost_id or assigned(topic_partition, stray.topic_id) is not None:
                log.error("%s is not served: its replica could not be opened, and the log stays", topic_partition)
            else:
                self.logs.set_aside(topic_partition, why)

    async def _run_job(self, job: Job[T]) -> T:
        """Run a job on a thread, and finish it on the loop."""
        ran: Pending[None] = Pending()
        self._jobs.run(job.run, lambda _, __: ran.complete(None))
        await wait_settled(ran)
        return job.finish()

    def _on_dir_failed(self, directory: LogDir, error: OSError) -> None:
        """A disk failed: its replicas answer KAFKA_STORAGE_ERROR, and heartbeats report the directory; the broker goes
        on with the other directories."""
        log.error("log directory %s is offline: %s", directory.path, error)
        if self._has_replicas:
            self.services.replicas.take_offline(list(directory.logs))
        if not any(other.online for other in self.logs.dirs):
            self._on_fatal(f"all log directories have failed, the last is {directory.path}")
        elif self._has_replicas and directory.directory_id is not None:
            self.lifecycle.on_directory_failure(directory.directory_id)

    # -- going down

    async def close(self) -> None:
        """Close the modules, and send the controller no more requests."""
        await self.services.close()
        self.lifecycle.close()

    async def close_logs(self, clean: bool) -> None:
        """Release the directories. With `clean`, close their logs before, and write the markers of a clean stop."""
        if clean:
            await self._close_cleanly()
        for directory in self.logs.dirs:
            if directory.online:
                directory.take_offline()

    async def _close_cleanly(self) -> None:
        """Close every log, then write the markers: a marker promises that all logs of its directory are synced."""
        try:
            jobs = self.logs.close_jobs()

            async def close_some() -> None:
                for job in jobs:
                    await self._run_job(job)

            threads = self._config["num.recovery.threads.per.data.dir"] * len(self.logs.dirs)
            await asyncio.gather(*(close_some() for _ in range(max(_CLOSING_THREADS, threads))))
            for job in self.logs.marker_jobs(self.lifecycle.broker_epoch):
                await self._run_job(job)
        except (OSError, ApiError) as error:
            log.error("the logs could not be closed cleanly: %s", error)
