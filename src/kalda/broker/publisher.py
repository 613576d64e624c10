"""Turns metadata into what this broker does: the publisher between the image and the logs.

In each update, in this order: the new image becomes visible; topic configs reach their logs; partitions that left go,
those that came are opened and led or followed; coordinators win or lose their partitions. The first update also
brings up the logs, so it runs when they have been recovered.

An update may bring thousands of partitions: it goes on in turns, with everybody else's requests in between. New logs
are made by jobs, as the file system may keep whoever asks it waiting. Updates stay in order. What has left is not
served from the beginning of its update on; what has not been opened yet answers NOT_LEADER_OR_FOLLOWER, and clients try
again.
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
from kalda.base.topic_names import OFFSETS_TOPIC
from kalda.broker.metadata_cache import MetadataCache
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
"""So many logs get a new config in the time that one is opened."""


class Coordinators(Protocol):
    """Who is told of partitions of internal topics."""

    def on_elected(self, partition: Partition) -> None:
        """This broker leads a partition of `__consumer_offsets` from now on."""
        ...

    def on_resigned(self, index: int) -> None:
        """It no longer does."""
        ...

    def on_topics_deleted(self, topics: Mapping[str, Uuid]) -> None:
        """Topics are gone, by name and id."""
        ...


class BrokerPublisher:
    """Keeps one broker in step with the image."""

    name = "BrokerMetadataPublisher"

    def __init__(
        self,
        broker_id: int,
        cache: MetadataCache,
        replicas: ReplicaManager,
        logs: LogManager,
        log_config: Callable[[str, MetadataImage], LogConfig],
        on_configs: Callable[[MetadataDelta, MetadataImage], None],
        coordinators: Coordinators,
        now_ms: Callable[[], int],
        on_placed: Callable[[Uuid, int, Uuid], None],
        timers: Timers,
        jobs: Jobs,
    ) -> None:
        """`log_config(topic, image)` is a topic's effective config; `on_configs` applies changed broker configs, and
        those that changed features give a meaning to; `on_placed(topic_id, partition, directory)` is told of a log in
        a directory that the metadata does not name."""
        self._broker_id = broker_id
        self._cache = cache
        self._replicas = replicas
        self._logs = logs
        self._log_config = log_config
        self._on_configs = on_configs
        self._coordinators = coordinators
        self._now_ms = now_ms
        self._on_placed = on_placed
        self._timers = timers
        self._jobs = jobs
        self._busy = False
        """A job of the first update runs: it goes on when that is finished."""
        self._updates: deque[Iterator[Job[None] | None]] = deque()
        self._turn: Timer | None = None
        self._started = False
        self._closed = False

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: object) -> None:
        """Begin to apply one delta; the first is applied whole."""
        if self._closed:
            return
        self._cache.set_image(image)
        changes = None if delta.topics is None else delta.topics.local_changes(self._broker_id)
        if changes is not None:
            # At once: a topic of the same name may be there already, and what is meant for it must not go to the old.
            self._leave(changes.deletes)
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
        """Apply nothing more: the logs are about to be closed."""
        self._closed = True
        self._updates.clear()
        if self._turn is not None:
            self._turn.cancel()

    def _schedule(self) -> None:
        wanted = self._updates and not self._busy and not self._closed
        self._turn = self._timers.call_later_ms(0, self._go_on) if wanted else None

    def _go_on(self) -> None:
        try:
            self._take_turn()
        except Exception:
            log.exception("an update of the metadata could not be applied whole")
        finally:
            self._schedule()

    def _take_turn(self) -> None:
        """Some steps of the updates at hand, for a bounded time. One that fails is given up."""
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
        """Apply one delta, a partition a step; a job is to be done before the next step."""
        if delta.configs is not None or delta.features is not None:
            self._on_configs(delta, image)
        if delta.configs is not None:
            yield from self._update_log_configs(delta, image)
        if delta.topics is not None and changes is not None:
            self._leave(changes.deletes)  # what an update before this one has opened meanwhile
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

    def _leave(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Serve no more what is to be deleted."""
        for topic_partition in topic_partitions:
            self._resign(topic_partition)
            self._replicas.remove(topic_partition)

    def _resign(self, topic_partition: TopicPartition) -> None:
        if topic_partition.topic == OFFSETS_TOPIC:
            self._coordinators.on_resigned(topic_partition.partition)

    def _open(self, changes: LocalChanges, image: MetadataImage) -> Iterator[Job[None] | None]:
        partitions = chain(changes.leaders.items(), changes.followers.items())
        while some := list(islice(partitions, _PARTITIONS_A_TURN)):
            made = [
                self._new_log(tp, local, image)
                for tp, local in some
                if self._logs.get(tp) is None and not self._may_be_away(tp, local.topic_id, local.registration)
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
                self._resign(topic_partition)
                self._apply(topic_partition, local, image)
                yield
                continue
            partition = self._apply(topic_partition, local, image)
            if (
                partition is not None
                and topic_partition.topic == OFFSETS_TOPIC
                and topic_partition in changes.elected_leaders
            ):
                self._coordinators.on_elected(partition)
            yield

    def _apply(self, topic_partition: TopicPartition, local: LocalPartition, image: MetadataImage) -> Partition | None:
        registration: PartitionRegistration = local.registration
        known = self._replicas.find(*topic_partition)
        if known is not None and known.topic_id != local.topic_id:
            # Deleted, and made again under its old name, in one delta.
            self._leave([topic_partition])
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
                # The replica went to another broker and came back, both in one delta: it never left, but to the
                # cluster it is new.
                self._tell_directory(topic_partition, local.topic_id, registration)
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
        if self._may_be_away(topic_partition, topic_id, registration):
            # The metadata does not say so: somebody else has to lead.
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
        self._tell_directory(topic_partition, topic_id, registration)
        return opened

    def _may_be_away(
        self, topic_partition: TopicPartition, topic_id: Uuid, registration: PartitionRegistration
    ) -> bool:
        """Whether the log, with what was acknowledged, may be in a directory that is offline, although the metadata
        does not name that one: it then names the directory of a copy that a move has not finished, or none as yet."""
        if self._logs.dirs.all_online or self._logs.get(topic_partition) is not None:
            return False
        if self._logs.futures.is_alone(topic_partition, topic_id):
            return True
        directory = registration.directory(self._broker_id)
        # Of an update after the first, what has no directory yet is new.
        untold = directory == DIRECTORY_LOST or (directory == DIRECTORY_UNASSIGNED and not self._started)
        return untold and (self._broker_id in registration.isr or self._broker_id in registration.elr)

    def _place(self, registration: PartitionRegistration) -> Uuid | None:
        """In which directory a log is made. Where the one that the metadata names is none of this broker's any more, as
        its disk was replaced or taken out, any will do; but not while the cluster counts on what was there."""
        directory = registration.directory(self._broker_id)
        counted_on = (*registration.isr, *registration.elr, *registration.last_known_elr)
        if self._broker_id in counted_on or not self._logs.dirs.all_online:
            return directory
        return directory if any(each.directory_id == directory for each in self._logs.dirs) else DIRECTORY_UNASSIGNED

    def _tell_directory(
        self, topic_partition: TopicPartition, topic_id: Uuid, registration: PartitionRegistration
    ) -> None:
        """Have the cluster know in which directory the log is (KIP-858)."""
        home = self._logs.dir_of(topic_partition)
        if home is not None and home.directory_id not in (None, registration.directory(self._broker_id)):
            self._on_placed(topic_id, topic_partition.partition, home.directory_id)
