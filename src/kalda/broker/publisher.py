"""The publisher between the image and the logs: applies each update of the metadata to this broker.

Each update, in this order: changed topic configs are applied to their logs; partitions that this broker no longer has
are deleted, new ones are opened, and led or followed; coordinators are called with the partitions that are elected or
resigned. The first update opens all logs, so it runs when they have been recovered. Before an update, the metadata
cache has the new image and dynamic configs of this broker have taken effect.

An update may have thousands of partitions: it is applied in turns, with other requests served in between. New logs are
made by jobs, since the file system may block. Updates are applied one after the other. A partition that is deleted is
not served from the beginning of its update on; one that is not opened yet answers NOT_LEADER_OR_FOLLOWER, and clients
retry.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Protocol

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import DIRECTORY_LOST, DIRECTORY_UNASSIGNED, TopicPartition, Uuid
from kalda.base.scheduling import Jobs, Timer, Timers
from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage
from kalda.metadata.partition import PartitionRegistration
from kalda.metadata.topics import LocalChanges, LocalPartition
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.config import LogConfig
from kalda.storage.job import Job
from kalda.storage.log import Log
from kalda.storage.log_manager import LogManager, NewLog

log = logging.getLogger("kalda.publisher")

_PARTITIONS_A_TURN = 32
_TURN_MS = 10
_CONFIGS_A_PARTITION = 8
"""Logs whose config is updated in one step: that takes as long as to open one log."""


class Coordinators(Protocol):
    """What is called with the partitions that this broker begins or ceases to lead, of every topic."""

    def on_elected(self, partition: Partition) -> None:
        """This broker leads the partition from now on, in a new epoch."""
        ...

    def on_resigned(self, topic_partition: TopicPartition) -> None:
        """This broker follows the partition, or has no replica of it any more."""
        ...

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Topics were deleted, by name and id."""
        ...


class BrokerPublisher:
    """Applies the image's changes to one broker."""

    name = "BrokerMetadataPublisher"

    def __init__(
        self,
        broker_id: int,
        replicas: ReplicaManager,
        logs: LogManager,
        log_config: Callable[[str, MetadataImage], LogConfig],
        coordinators: Coordinators,
        now_ms: Callable[[], int],
        on_placed: Callable[[Uuid, int, Uuid], None],
        timers: Timers,
        jobs: Jobs,
    ) -> None:
        """`log_config(topic, image)` is a topic's effective config; `on_placed(topic_id, partition, directory)` is
        called for a log in another directory than the metadata has."""
        self._broker_id = broker_id
        self._replicas = replicas
        self._logs = logs
        self._log_config = log_config
        self._coordinators = coordinators
        self._now_ms = now_ms
        self._on_placed = on_placed
        self._timers = timers
        self._jobs = jobs
        self._busy = False
        """Whether a job of the update at the head of `_updates` runs; the next step waits for it."""
        self._updates: deque[Iterator[Job[None] | None]] = deque()
        """Those not applied whole, in order; each is an iterator over its steps."""
        self._turn: Timer | None = None
        """For the next turn; None while no update waits for one."""
        self._started = False
        """Whether the first update has been applied."""
        self._closed = False

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: object) -> None:
        """Begin to apply one delta; the first is applied whole."""
        if self._closed:
            return
        changes = None if delta.topics is None else delta.topics.local_changes(self._broker_id)
        if changes is not None:
            # At once: requests for a new topic of the same name must not reach the partitions of the old one.
            self._stop_serving(changes.deletes)
        self._updates.append(self._steps(delta, changes, image))
        if not self._started:
            try:
                while self._updates:
                    self._take_turn()
            finally:
                self._started = True
        elif self._turn is None and not self._busy:
            self._take_turn()
            self._schedule()

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """Nothing here depends on who the controller is."""

    def close(self) -> None:
        """Stop applying updates: the logs are about to be closed."""
        self._closed = True
        self._updates.clear()
        if self._turn is not None:
            self._turn.cancel()

    def _schedule(self) -> None:
        has_next = self._updates and not self._busy and not self._closed
        self._turn = self._timers.call_later_ms(0, self._go_on) if has_next else None

    def _go_on(self) -> None:
        try:
            self._take_turn()
        except Exception:
            log.exception("an update of the metadata could not be applied whole")
        finally:
            self._schedule()

    def _take_turn(self) -> None:
        """Take steps of the waiting updates, for a bounded time. An update of which a step fails is dropped."""
        until_ms = self._now_ms() + _TURN_MS
        for _ in range(_PARTITIONS_A_TURN):
            if not self._updates or (self._started and self._now_ms() > until_ms):
                return
            update = self._updates[0]
            try:
                job = next(update)
                if job is None:
                    continue
                if self._started:
                    self._run(job)
                    return
                job.complete()
            except StopIteration:
                self._updates.popleft()
            except BaseException:
                self._updates.popleft()
                raise

    def _run(self, job: Job[None]) -> None:
        self._busy = True

        def finish(_: None, error: BaseException | None) -> None:
            self._busy = False
            try:
                job.finish()
            except Exception:
                log.exception("%s failed", job.description)
            if not self._closed:
                self._go_on()

        self._jobs.run(job.run, finish)

    def _steps(
        self, delta: MetadataDelta, changes: LocalChanges | None, image: MetadataImage
    ) -> Iterator[Job[None] | None]:
        """Apply one delta, a partition a step; a job that a step yields is to be finished before the next step."""
        if delta.configs is not None:
            yield from self._update_log_configs(delta, image)
        if delta.topics is not None and changes is not None:
            self._stop_serving(changes.deletes)  # partitions that the update before this one has opened since
            for topic_partition in changes.deletes:
                self._logs.delete_log(topic_partition)
                yield None
            yield from self._open(changes, image)
            deleted = {topic.name: topic_id for topic_id, topic in delta.topics.deleted.items()}
            if deleted:
                self._coordinators.on_topics_deleted(deleted)

    def _update_log_configs(self, delta: MetadataDelta, image: MetadataImage) -> Iterator[None]:
        """A topic's own configs change its logs; the cluster's defaults change all logs."""
        assert delta.configs is not None
        changed = delta.configs.changes
        topics = {resource.name for resource in changed if resource.type == ConfigResourceType.TOPIC}
        if any(resource.type == ConfigResourceType.BROKER for resource in changed):
            topics = {partition.topic_partition.topic for partition in self._replicas}
        for count, partition in enumerate([each for each in self._replicas if each.topic_partition.topic in topics], 1):
            partition.log.update_config(self._log_config(partition.topic_partition.topic, image))
            partition.on_config()
            if count % _CONFIGS_A_PARTITION == 0:
                yield

    def _stop_serving(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Remove the replicas of partitions that are to be deleted."""
        for topic_partition in topic_partitions:
            self._coordinators.on_resigned(topic_partition)
            self._replicas.remove(topic_partition)

    def _open(self, changes: LocalChanges, image: MetadataImage) -> Iterator[Job[None] | None]:
        partitions = chain(changes.leaders.items(), changes.followers.items())
        while some := list(islice(partitions, _PARTITIONS_A_TURN)):
            made = [
                self._new_log(tp, local, image)
                for tp, local in some
                if self._logs.get(tp) is None and not self._may_be_offline(tp, local.topic_id, local.registration)
            ]
            if made:
                yield self._logs.make_logs_job(made)
            yield from self._apply_some(dict(some), changes, image)

    def _new_log(self, topic_partition: TopicPartition, local: LocalPartition, image: MetadataImage) -> NewLog:
        return NewLog(
            topic_partition,
            local.topic_id,
            self._log_config(topic_partition.topic, image),
            self._place(local.registration),
        )

    def _apply_some(
        self, some: Mapping[TopicPartition, LocalPartition], changes: LocalChanges, image: MetadataImage
    ) -> Iterator[None]:
        for topic_partition, local in some.items():
            if topic_partition in changes.followers:
                self._coordinators.on_resigned(topic_partition)
                self._apply(topic_partition, local, image)
                yield
                continue
            partition = self._apply(topic_partition, local, image)
            if partition is not None and topic_partition in changes.elected_leaders:
                self._coordinators.on_elected(partition)
            yield

    def _apply(self, topic_partition: TopicPartition, local: LocalPartition, image: MetadataImage) -> Partition | None:
        registration: PartitionRegistration = local.registration
        known = self._replicas.find(*topic_partition)
        if known is not None and known.topic_id != local.topic_id:
            # The topic was deleted and another one of its name created, in one delta.
            self._stop_serving([topic_partition])
            self._logs.delete_log(topic_partition)
        try:
            self._replicas.apply(
                topic_partition,
                local.topic_id,
                registration,
                lambda: self._open_log(topic_partition, local.topic_id, registration, image),
            )
            is_moving = topic_partition in self._logs.futures
            if known is not None and not is_moving and registration.directory(self._broker_id) == DIRECTORY_UNASSIGNED:
                # The replica was moved to another broker and back in one delta: its log never left, but the metadata
                # has no directory for it.
                self._report_directory(topic_partition, local.topic_id, registration)
        except ApiError as error:
            log.error("cannot open %s: %s", topic_partition, error)
        return self._replicas.find(*topic_partition)

    def _open_log(
        self, topic_partition: TopicPartition, topic_id: Uuid, registration: PartitionRegistration, image: MetadataImage
    ) -> Log:
        existing = self._logs.get(topic_partition)
        if existing is not None and existing.topic_id not in (None, topic_id):
            log.warning("%s is the log of a former topic of that name: it is set aside", topic_partition)
            self._logs.set_aside(topic_partition)
        if self._may_be_offline(topic_partition, topic_id, registration):
            # The metadata has the replica online: report it as lost, so that another broker is elected.
            if registration.directory(self._broker_id) != DIRECTORY_LOST:
                self._on_placed(topic_id, topic_partition.partition, DIRECTORY_LOST)
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} may be in a log directory that is offline"
            )
        opened = self._logs.get_or_create_log(
            topic_partition,
            topic_id,
            self._log_config(topic_partition.topic, image),
            self._place(registration),
        )
        self._report_directory(topic_partition, topic_id, registration)
        return opened

    def _may_be_offline(
        self, topic_partition: TopicPartition, topic_id: Uuid, registration: PartitionRegistration
    ) -> bool:
        """Whether the log, with acknowledged records, may be in an offline directory that the metadata does not name:
        because it names that of an unfinished copy (KIP-113), or none yet."""
        if self._logs.dirs.all_online or self._logs.get(topic_partition) is not None:
            return False
        if self._logs.futures.is_alone(topic_partition, topic_id):
            return True
        directory = registration.directory(self._broker_id)
        # In an update after the first, a replica without a directory is new.
        is_unreported = directory == DIRECTORY_LOST or (directory == DIRECTORY_UNASSIGNED and not self._started)
        return is_unreported and (self._broker_id in registration.isr or self._broker_id in registration.elr)

    def _place(self, registration: PartitionRegistration) -> Uuid | None:
        """In which directory a log is made: the one that the metadata names. Where this broker no longer has it, as its
        disk was replaced or removed, in any; but not while the cluster relies on the records that were there."""
        directory = registration.directory(self._broker_id)
        relied_on = (*registration.isr, *registration.elr, *registration.last_known_elr)
        if self._broker_id in relied_on or not self._logs.dirs.all_online:
            return directory
        return directory if any(each.directory_id == directory for each in self._logs.dirs) else DIRECTORY_UNASSIGNED

    def _report_directory(
        self, topic_partition: TopicPartition, topic_id: Uuid, registration: PartitionRegistration
    ) -> None:
        """Report the log's directory to the controller, if the metadata has another (KIP-858)."""
        home = self._logs.dir_of(topic_partition)
        if home is not None and home.directory_id not in (None, registration.directory(self._broker_id)):
            self._on_placed(topic_id, topic_partition.partition, home.directory_id)
