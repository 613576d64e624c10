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
from functools import partial
from typing import TypeVar

from kalda.base.errors import ApiError
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending
from kalda.broker.channels.lifecycle import BrokerIdentity, BrokerLifecycle
from kalda.broker.channels.node_channels import ControllerChannel
from kalda.broker.handlers.log_dirs import assigned_directory
from kalda.broker.handlers.services import Services
from kalda.broker.metadata_cache import MetadataCache
from kalda.broker.module import BrokerContext
from kalda.broker.process.closing import Part
from kalda.broker.process.dynamic_configs import DynamicConfigs
from kalda.broker.process.listeners import NodeListeners
from kalda.broker.process.node_parts import NodeParts
from kalda.broker.process.publishers import publishers_of_broker
from kalda.broker.process.shell import wait_settled
from kalda.broker.quorum.quorum_side import QuorumSide
from kalda.broker.replicas.log_keeper import make_log_manager
from kalda.broker.replicas.opening import OpeningPartitions
from kalda.broker.replicas.publishing_faults import PublishingFaults
from kalda.metadata.publisher import BrokerRegistrationTracker
from kalda.protocol.messages.brokers import BrokerRegistrationRequestFeature, BrokerRegistrationRequestListener
from kalda.storage.dirs.future_logs import Placed
from kalda.storage.dirs.log_dirs import LogDir
from kalda.storage.job import Job

log = logging.getLogger("kalda.broker")
T = TypeVar("T")

PROTOCOL_IDS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}
_MIN_HEARTBEAT_SILENCE_MS = 1_000
_MIN_HEARTBEAT_TIMEOUT_MS = 2_000
"""However short the session is: a controller with a slow disk takes long to commit a registration, and would be sent
another one before the first is committed, and another after that."""
_CLOSING_THREADS = 4
"""At least so many logs are synced at a time at the stop: file systems sync several at about the cost of one."""


class BrokerSide:
    """A broker, from before its registration until its logs are closed."""

    def __init__(
        self, parts: NodeParts, listeners: NodeListeners, quorum: QuorumSide, channel: ControllerChannel
    ) -> None:
        """`channel` is for all requests to the active controller but registrations and heartbeats. Reads the
        directories; raises `OSError`, and `ValueError` for properties."""
        self._parts = parts
        self._listeners = listeners
        self._quorum = quorum
        self._has_replicas = False
        """Whether `services` and `lifecycle` exist. A directory in which no replica is yet may fail before."""
        self._heartbeats = heartbeats = _heartbeat_channel(parts, quorum, channel)
        parts.closing.add(Part.CHANNELS, lambda _: heartbeats.close())
        config, host = parts.config, parts.host
        cache, configs = MetadataCache(parts.timers), DynamicConfigs(config)
        self.logs = make_log_manager(
            config, host, lambda topic: configs.log_config(topic, quorum.loader.image), self._on_dir_failed
        )
        self._load_jobs = self.logs.load_jobs()  # `start` runs them while the broker registers and catches up
        self.lifecycle = BrokerLifecycle(
            self._identity(),
            heartbeats.send,
            parts.timers,
            lambda: quorum.loader.image,
            lambda: self.services.partitions.applied_offset(quorum.loader.last_applied_offset),
            parts.on_fatal,
            heartbeat_interval_ms=config["broker.heartbeat.interval.ms"],
            registration_timeout_ms=config["initial.broker.registration.timeout.ms"],
            dir_failure_timeout_ms=config["log.dir.failure.timeout.ms"],
            replayed=quorum.replayed,
        )
        context = BrokerContext(
            config=config,
            cluster_id=parts.cluster_id,
            host=host,
            timers=parts.timers,
            jobs=parts.jobs,
            background=parts.background,
            server=listeners.server,
            channel=channel,
            lifecycle=self.lifecycle,
            cache=cache,
            logs=self.logs,
            dynamic_configs=configs,
            sensors=parts.sensors,
            quotas=parts.quotas,
            authorizer=parts.authorizer,
            opening=OpeningPartitions(parts.timers, parts.background),
            security=parts.security,
            faults=PublishingFaults(),
            on_fatal=parts.on_fatal,
        )
        self.services = Services(context, lambda: quorum.features(parts.supported))
        self._has_replicas = True
        parts.sensors.gauge("kafka.server:type=KafkaServer", "BrokerState", read=lambda: self.lifecycle.state)
        parts.closing.add(Part.MODULES, lambda _: self.close())
        parts.closing.add(Part.LOGS, lambda ending: self.close_logs(ending.is_clean))

    def _identity(self) -> BrokerIdentity:
        parts, address = self._parts, self._listeners.address
        return BrokerIdentity(
            broker_id=parts.config.node_id,
            cluster_id=parts.cluster_id,
            incarnation_id=parts.incarnation_id,
            listeners=[
                BrokerRegistrationRequestListener(
                    name=endpoint.listener,
                    host=address(endpoint)[0],
                    port=address(endpoint)[1],
                    security_protocol=PROTOCOL_IDS[endpoint.security_protocol],
                )
                for endpoint in parts.config.advertised_listeners
            ],
            features=[
                BrokerRegistrationRequestFeature(
                    name=name, min_supported_version=levels.min, max_supported_version=levels.max
                )
                for name, levels in parts.supported.items()
            ],
            rack=parts.config.rack,
            log_dirs=self._online_dir_ids,
            previous_broker_epoch=self.logs.dirs.previous_broker_epoch,
        )

    def _online_dir_ids(self) -> list[Uuid]:
        return [
            directory.directory_id
            for directory in self.logs.dirs
            if directory.online and directory.directory_id is not None
        ]

    # -- coming up

    def on_metadata(self) -> None:
        """The loader has applied records, or the quorum has another leader."""
        self._heartbeats.on_controller_change()
        self.lifecycle.on_metadata_offset()

    async def start(self) -> None:
        """Return when clients are served. Connections are accepted as soon as the broker is registered; their requests
        wait."""
        parts, quorum, lifecycle, logs, services = self._parts, self._quorum, self.lifecycle, self.logs, self.services
        node_id = parts.config.node_id
        parts.watchdog.watch(services.pipeline)
        lifecycle.start()
        loading = [asyncio.ensure_future(self._run_job(job)) for job in self._load_jobs]
        try:
            await wait_settled(lifecycle.milestones.registered)
            await self._listeners.accept_clients()
            await wait_settled(lifecycle.milestones.caught_up)
            await asyncio.gather(*loading)
        finally:
            # Where the start is cancelled, or one of them fails, nothing else awaits the others.
            for each in loading:
                each.cancel()
            await asyncio.gather(*loading, return_exceptions=True)
        log.info("opened %d logs", len(logs))
        assigned = partial(assigned_directory, quorum.loader.image, node_id)
        logs.futures.settle(assigned)
        tracker = BrokerRegistrationTracker(node_id, lifecycle.resend_registration)
        quorum.loader.install_publishers(publishers_of_broker(services, tracker))
        self._set_stray_logs_aside(assigned)
        services.start()
        lifecycle.set_ready_to_unfence()
        await wait_settled(lifecycle.milestones.unfenced)
        # The controller has answered before this node has the record: Metadata responses would not list this broker,
        # while those of others do. A client that gets fewer brokers than before drops its requests to the others.
        await wait_settled(services.cache.unfenced(node_id))
        on_frame = parts.on_frame(services.pipeline)
        for endpoint in parts.config.broker_listeners:
            self._listeners.open(endpoint.listener, on_frame)

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
        self._parts.jobs.run(job.run, lambda _, __: ran.complete(None))
        await wait_settled(ran)
        return job.finish()

    def _on_dir_failed(self, directory: LogDir, error: OSError) -> None:
        """A disk failed: its replicas answer KAFKA_STORAGE_ERROR, and heartbeats report the directory; the broker goes
        on with the other directories."""
        log.error("log directory %s is offline: %s", directory.path, error)
        if self._has_replicas:
            self.services.replicas.take_offline(list(directory.logs))
        if not any(other.online for other in self.logs.dirs):
            self._parts.on_fatal(f"all log directories have failed, the last is {directory.path}")
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

            threads = self._parts.config["num.recovery.threads.per.data.dir"] * len(self.logs.dirs)
            await asyncio.gather(*(close_some() for _ in range(max(_CLOSING_THREADS, threads))))
            for job in self.logs.marker_jobs(self.lifecycle.broker_epoch):
                await self._run_job(job)
        except (OSError, ApiError) as error:
            log.error("the logs could not be closed cleanly: %s", error)


def _heartbeat_channel(parts: NodeParts, quorum: QuorumSide, others: ControllerChannel) -> ControllerChannel:
    """For registrations and heartbeats; `others` is the channel for all other requests. A request fails within half a
    session, as in Kafka. After a third of the session it is sent over a new connection, which leaves time for its
    response."""
    session_ms = parts.config["broker.session.timeout.ms"]
    silence_ms = max(_MIN_HEARTBEAT_SILENCE_MS, session_ms // 3)
    return ControllerChannel(
        quorum.leader_address,
        f"broker-{parts.config.node_id}-heartbeat",
        max(_MIN_HEARTBEAT_TIMEOUT_MS, session_ms // 2),
        parts.to_controllers(),
        silence_ms,
        partial(others.drop_silent_connection, silence_ms),
    )
