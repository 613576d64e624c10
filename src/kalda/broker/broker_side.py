"""The half of a node with the broker role: the logs, the broker's life, and the services over them.

Coming up: register; catch up with the metadata; recover the logs on threads; apply the first image, which opens every
partition; become unfenced; serve. Going down: hand leadership over; stop serving; close the logs; leave the marker
of a clean stop as the very last thing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.ids import Uuid
from kalda.base.pending import Pending
from kalda.base.scheduling import Timers
from kalda.broker.api_versions import Features
from kalda.broker.controller_channel import ControllerChannel
from kalda.broker.lifecycle import BrokerIdentity, BrokerLifecycle
from kalda.broker.log_keeper import LogKeeper, cleaner_config, make_cleaner, make_log_manager
from kalda.broker.quorum_side import QuorumSide
from kalda.broker.services import Services
from kalda.broker.shell import Host, JobPool, settled
from kalda.metadata.registration_tracker import BrokerRegistrationTracker
from kalda.storage.job import Job
from kalda.storage.log_dir import LogDir

log = logging.getLogger("kalda.broker")
T = TypeVar("T")

_CLOSING_THREADS = 4
"""At least so many logs are synced at a time at the stop: file systems sync several at about the cost of one."""


class BrokerSide:
    """A broker from its first word to the controller until its logs are closed."""

    def __init__(
        self,
        config: ServerConfig,
        host: Host,
        quorum: QuorumSide,
        channel: ControllerChannel,
        timers: Timers,
        jobs: JobPool,
        identity: Callable[[Callable[[], list[Uuid]], int], BrokerIdentity],
        features: Callable[[], Features],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`identity(log_dirs, previous_broker_epoch)` is what the broker will register as."""
        self._config = config
        self._quorum = quorum
        self._jobs = jobs
        self._on_fatal = on_fatal
        self._is_wired = False
        self.logs = make_log_manager(
            config, host, lambda topic: self.services.log_config(topic, quorum.loader.image), self._on_dir_failed
        )
        self._cleaner = make_cleaner(config, self.logs)
        self._keeper = LogKeeper(self.logs, self._cleaner, host.clock, timers, jobs)
        self._load_jobs = self.logs.load_jobs()
        who = identity(self._online_dir_ids, self.logs.previous_broker_epoch)
        self.lifecycle = BrokerLifecycle(
            who,
            channel.send,
            timers,
            lambda: quorum.loader.last_applied_offset,
            on_fatal,
            heartbeat_interval_ms=config["broker.heartbeat.interval.ms"],
            registration_timeout_ms=config["initial.broker.registration.timeout.ms"],
            dir_failure_timeout_ms=config["log.dir.failure.timeout.ms"],
            replayed=quorum.replayed,
        )
        self.services = Services(
            config, who.cluster_id, channel, self.lifecycle, self.logs, host, timers, jobs, features, on_fatal
        )
        self._is_wired = True

    def take_config(self, config: ServerConfig) -> None:
        """Dynamic configs have changed: the cleaner lives by them from now on."""
        self._cleaner.config = cleaner_config(config)

    def _online_dir_ids(self) -> list[Uuid]:
        return [
            directory.directory_id
            for directory in self.logs.dirs
            if directory.online and directory.directory_id is not None
        ]

    # -- coming up

    async def start(self, accept: Callable[[], Awaitable[None]]) -> None:
        """Until clients may be served. `accept` lets them connect, which is as soon as the broker is registered."""
        quorum, lifecycle, logs, services = self._quorum, self.lifecycle, self.logs, self.services
        lifecycle.start()
        loading = [asyncio.ensure_future(self._run_job(job)) for job in self._load_jobs]
        try:
            await settled(lifecycle.milestones.registered)
            await accept()
            await settled(lifecycle.milestones.caught_up)
            await asyncio.gather(*loading)
        finally:
            # Where the start is called off, or one of them fails, nobody else asks what became of the others.
            for each in loading:
                each.cancel()
            await asyncio.gather(*loading, return_exceptions=True)
        log.info("opened %d logs", len(logs))
        logs.futures.settle(lambda tp, topic_id: services.placed(tp, topic_id, quorum.loader.image))
        tracker = BrokerRegistrationTracker(self._config.node_id, lifecycle.resend_registration)
        quorum.loader.install_publishers([services.publisher, tracker])
        self._set_stray_logs_aside()
        services.moves.resume()
        lifecycle.set_ready_to_unfence()
        await settled(lifecycle.milestones.unfenced)
        self._keeper.start()

    def _set_stray_logs_aside(self) -> None:
        """Logs that the metadata does not give to this broker are not served, and not deleted either.

        One that was opened before its directory failed has no replica either, and is where it belongs.
        """
        for known in self.logs:
            if known.offline:
                continue
            topic_partition = known.topic_partition
            if self.services.replicas.find(*topic_partition) is None:
                log.warning("%s is not known to the cluster: its log is set aside", topic_partition)
                self.logs.set_aside(topic_partition)

    async def _run_job(self, job: Job[T]) -> T:
        """Both halves of a job: one on a thread, one here."""
        ran: Pending[None] = Pending()
        self._jobs.run(job.run, lambda _, __: ran.complete(None))
        await settled(ran)
        return job.finish()

    def _on_dir_failed(self, directory: LogDir, error: OSError) -> None:
        """A disk failed: its replicas answer KAFKA_STORAGE_ERROR, the controller is told, the rest goes on. While the
        directories are first looked at there are no replicas, and the registration will not name the directory."""
        log.error("log directory %s is offline: %s", directory.path, error)
        if self._is_wired:
            self.services.replicas.take_offline(list(directory.logs))
        if not any(other.online for other in self.logs.dirs):
            self._on_fatal(f"all log directories have failed, the last is {directory.path}")
        elif self._is_wired and directory.directory_id is not None:
            self.lifecycle.on_directory_failure(directory.directory_id)

    # -- going down

    async def close(self) -> None:
        """Stop what runs by itself, and say no more to the controller."""
        self._keeper.close()
        await self.services.close()
        self.lifecycle.close()

    async def close_logs(self, clean: bool) -> None:
        """Give the directories up; with `clean`, after their logs have been closed and marked as that."""
        if clean:
            await self._close_cleanly()
        for directory in self.logs.dirs:
            if directory.online:
                directory.take_offline()

    async def _close_cleanly(self) -> None:
        """Every log, then the markers: a marker vouches for all that is in its directory."""
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
