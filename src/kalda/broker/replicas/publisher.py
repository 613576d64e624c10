"""The publisher between the image and the logs: applies each update of the metadata to this broker.

Each update, in this order: changed topic configs are applied to their logs; partitions that this broker no longer has
are deleted, new ones are opened, and led or followed; coordinators are called with the partitions that are elected or
resigned. The first update opens all logs, so it runs when they have been recovered. Before an update, the metadata
cache has the new image and dynamic configs of this broker have taken effect.

An update may have thousands of partitions: it is applied in the background of the loop. New logs are made by jobs,
since the file system may block. Updates are applied one after the other. A partition that is deleted is
not served from the beginning of its update on. Requests for one that this broker is to lead, and that is not open yet,
wait a while for it (`kalda.broker.replicas.opening`).

A log that cannot be made for want of a file descriptor is tried again every ten seconds.

An update is a sequence of steps, each for one partition or so. An unexpected exception in a step is contained, except
in the first update, where it is raised (`kalda.broker.replicas.publishing_faults`). An exception between the steps
stops the node: the rest of the update could not be applied.

Not obvious:

- Faults are contained within a step of an update of metadata. An exception between two steps stops the node.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from typing import NamedTuple, Never, TypeVar

from kalda.base.background import Steps, run_to_end
from kalda.base.configs.resources import ConfigResourceType
from kalda.base.disk import NoHandleLeft
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import DIRECTORY_LOST, DIRECTORY_UNASSIGNED, TopicPartition, Uuid, uuid_to_text
from kalda.base.scheduling import Pending, Timer
from kalda.broker.module import BrokerContext, Module
from kalda.broker.replicas.coordinators import Coordinators
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage
from kalda.metadata.topics import LocalChanges, LocalPartition, PartitionRegistration
from kalda.replication.partition import Partition
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.dirs.log_manager import NewLog
from kalda.storage.job import Job
from kalda.storage.log.log import Log

log = logging.getLogger("kalda.publisher")
R = TypeVar("R")

_LOGS_A_JOB = 32
_OPEN_AGAIN_MS = 10_000


class Step(NamedTuple):
    """A part of an update that is applied, or fails, on its own."""

    section: str
    """What it does, for the log: completes the sentence "cannot ..."."""
    take: Callable[[], Job[None] | None]
    """Applies it; the job, if there is one, must be finished before the next step."""


class Update(NamedTuple):
    """An image that is being applied."""

    offset: int
    """Of the image."""
    steps: Iterator[Step]


class BrokerPublisher(Module):
    """Applies the image's changes to one broker.

    Rests on the replicas; on the coordinators, to which it hands their partitions; on the directory assignments, to
    which it reports where logs are.
    """

    name = "BrokerMetadataPublisher"

    def __init__(
        self,
        context: BrokerContext,
        replicas: ReplicaManager,
        coordinators: Coordinators,
        on_placed: Callable[[Uuid, int, Uuid], None],
    ) -> None:
        """`on_placed(topic_id, partition, directory)` is called for a log in another directory than the metadata
        has."""
        self._broker_id = context.config.node_id
        self._replicas = replicas
        self._logs = context.logs
        self._log_config = context.dynamic_configs.log_config
        self._coordinators = coordinators
        self._on_placed = on_placed
        self._timers = context.timers
        self._jobs = context.jobs
        self._background = context.background
        self._opening = context.opening
        self._faults = context.faults
        self._on_fatal = context.on_fatal
        self._updates: deque[Update] = deque()
        """Those not applied whole, in order."""
        self._applied_offset = -1
        """The offset of the last image that was applied whole."""
        self._applying: Pending[None] | None = None
        """Settles at the end of what is applied now: all updates that wait, or those before the next job and that job.
        None while there is nothing to apply."""
        self._image = EMPTY
        """The newest that this publisher was called with."""
        self._unopened: dict[TopicPartition, None] = {}
        """Partitions whose log could not be made for want of a descriptor."""
        self._opening_again: Timer | None = None
        """For the next attempt to open them; None while there are none."""
        self._started = False
        """Whether the first update has been applied."""
        self._closed = False

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: object) -> None:
        """Begin to apply one delta; the first is applied whole."""
        if self._closed:
            return
        self._image = image
        changes = None if delta.topics is None else delta.topics.local_changes(self._broker_id)
        if changes is not None:
            # At once: requests for a new topic of the same name must not reach the partitions of the old one.
            self._stop_serving(changes.deletes)
            self._note_opening(changes)
        self._updates.append(Update(image.offset, self._steps(delta, changes, image)))
        if not self._started:
            try:
                run_to_end(self._apply_updates())
            finally:
                self._started = True
        else:
            self._go_on()

    def applied_offset(self, published: int) -> int:
        """The offset of the newest image of which all is applied: its partitions are open. `published` is the offset of
        the last image that this publisher was called with, or, before the first, that the node has loaded."""
        return self._applied_offset if self._updates or self._closed else published

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """Nothing here depends on who the controller is."""

    def close(self) -> None:
        """Stop applying updates: the logs are about to be closed."""
        self._closed = True
        self._updates.clear()
        if self._applying is not None:
            self._applying.abandon()
        if self._opening_again is not None:
            self._opening_again.cancel()

    def _go_on(self) -> None:
        """Apply the updates that wait."""
        if self._applying is None and self._updates:
            self._applying = self._background.run(self._apply_updates())
            self._applying.then(self._on_applied)

    def _on_applied(self, _: None, error: ApiError | None) -> None:
        self._applying = None
        if self._closed:
            return
        if error is None:
            self._go_on()
            return
        cause = error.__cause__ or error
        log.error("an update of the metadata cannot be applied whole", exc_info=cause)
        self._on_fatal(f"an update of the metadata cannot be applied whole: {cause!r}")

    def _apply_updates(self) -> Steps[Pending[None] | None]:
        """Take the steps of the waiting updates, to the end or to the first that is a job. Returns what settles when
        the job is finished."""
        while self._updates:
            offset, steps = self._updates[0]
            step = next(steps, None)
            if step is None:
                self._updates.popleft()
                self._applied_offset = offset
                continue
            job = self._contain(step.section, step.take)
            if job is not None:
                if self._started:
                    return self._run(job)
                job.complete()
            yield
        return None

    def _contain(self, section: str, apply: Callable[[], R]) -> R | None:
        """The result of `apply`; None where it raised. In the first update, raise what it raises."""
        return self._faults.contain(section, apply) if self._started else apply()

    def _run(self, job: Job[None]) -> Pending[None]:
        finished: Pending[None] = Pending()

        def finish(_: None, error: BaseException | None) -> None:
            self._contain(job.description, job.finish)
            finished.complete(None)

        self._jobs.run(job.run, finish)
        return finished

    def _steps(self, delta: MetadataDelta, changes: LocalChanges | None, image: MetadataImage) -> Iterator[Step]:
        """How one delta is applied."""
        if delta.configs is not None:
            yield from self._update_log_configs(delta, image)
        if delta.topics is not None and changes is not None:
            self._stop_serving(changes.deletes)  # partitions that the update before this one has opened since
            for topic_partition in changes.deletes:
                yield Step(f"delete the log of {topic_partition}", partial(self._logs.delete_log, topic_partition))
            yield from self._open(changes, image)
            deleted = {topic.name: topic_id for topic_id, topic in delta.topics.deleted.items()}
            if deleted:
                yield Step(
                    "report deleted topics to coordinators", partial(self._coordinators.on_topics_deleted, deleted)
                )

    def _update_log_configs(self, delta: MetadataDelta, image: MetadataImage) -> Iterator[Step]:
        """A topic's own configs change its logs; the cluster's defaults change all logs."""
        assert delta.configs is not None
        changed = delta.configs.changes
        topics = {resource.name for resource in changed if resource.type == ConfigResourceType.TOPIC}
        if any(resource.type == ConfigResourceType.BROKER for resource in changed):
            topics = {partition.topic_partition.topic for partition in self._replicas}
        for each in [each for each in self._replicas if each.topic_partition.topic in topics]:
            section = f"update the config of {each.topic_partition}"
            yield Step(section, partial(self._update_log_config, each, image))

    def _update_log_config(self, partition: Partition, image: MetadataImage) -> None:
        partition.log.update_config(self._log_config(partition.topic_partition.topic, image))
        partition.on_config()

    def _stop_serving(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Remove the replicas of partitions that are to be deleted."""
        for topic_partition in topic_partitions:
            self._resign(topic_partition)
            self._contain_one("stop serving", self._replicas.remove, topic_partition)

    def _resign(self, topic_partition: TopicPartition) -> None:
        self._contain_one("resign as coordinator of", self._coordinators.on_resigned, topic_partition)

    def _contain_one(
        self, section: str, apply: Callable[[TopicPartition], object], topic_partition: TopicPartition
    ) -> None:
        """`_contain`, of one of thousands of partitions that are changed in one go."""
        try:
            apply(topic_partition)
        except Exception as error:
            if not self._started:
                raise
            self._faults.add(f"{section} {topic_partition}", error)

    def _note_opening(self, changes: LocalChanges) -> None:
        """Requests for partitions that this broker is to lead wait from now on, until they are open."""
        if not self._started:
            return  # no client is served yet
        for topic_partition in chain(changes.deletes, changes.followers):
            self._opening.remove(topic_partition)
        for topic_partition in changes.elected_leaders:
            known = self._replicas.find(*topic_partition)
            if known is None or not known.is_leader:
                self._opening.add(topic_partition)

    def _open(self, changes: LocalChanges, image: MetadataImage) -> Iterator[Step]:
        partitions = chain(changes.leaders.items(), changes.followers.items())
        while some := dict(islice(partitions, _LOGS_A_JOB)):
            yield Step("make logs", partial(self._make_logs, some, image))
            for topic_partition, local in some.items():
                yield Step(
                    f"open {topic_partition}", partial(self._open_partition, topic_partition, local, changes, image)
                )

    def _make_logs(self, some: Mapping[TopicPartition, LocalPartition], image: MetadataImage) -> Job[None] | None:
        """The job that makes the logs of new partitions; None where there are none."""
        made = []
        for topic_partition, local in some.items():
            if self._logs.get(topic_partition) is None and not self._may_be_offline(
                topic_partition, local.topic_id, local.registration
            ):
                new = self._contain(
                    f"make the log of {topic_partition}", partial(self._new_log, topic_partition, local, image)
                )
                if new is not None:
                    made.append(new)
        return self._logs.make_logs_job(made) if made else None

    def _new_log(self, topic_partition: TopicPartition, local: LocalPartition, image: MetadataImage) -> NewLog:
        return NewLog(
            topic_partition,
            local.topic_id,
            self._log_config(topic_partition.topic, image),
            self._place(local.registration),
        )

    def _open_partition(
        self, topic_partition: TopicPartition, local: LocalPartition, changes: LocalChanges, image: MetadataImage
    ) -> None:
        """Open a partition, and lead or follow it."""
        try:
            if topic_partition in changes.followers:
                self._resign(topic_partition)
                self._apply(topic_partition, local, image)
                return
            opened = self._apply(topic_partition, local, image)
            if opened is not None and topic_partition in changes.elected_leaders:
                self._contain(f"coordinate {topic_partition}", partial(self._coordinators.on_elected, opened))
        finally:
            self._opening.remove(topic_partition)

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
        unreadable = self._logs.unreadable.get(topic_partition)
        if unreadable is not None:
            if unreadable.topic_id in (None, topic_id):
                self._report_lost(topic_partition, topic_id, registration)
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, unreadable.why)
            self._logs.set_aside(topic_partition, "is the log of a former topic of that name")
        existing = self._logs.get(topic_partition)
        if existing is not None and existing.topic_id != topic_id:
            if existing.topic_id is None and self._had_synced_records(existing) and self._is_relied_on(registration):
                self._keep_unserved(existing, topic_id, registration)
            # A log without a topic id may be that of any former topic of that name. If none of its records was synced
            # it has never had one, since the id is synced before (`Log.assign_topic_id`).
            why = "has no topic id" if existing.topic_id is None else "is the log of a former topic of that name"
            self._logs.set_aside(topic_partition, why)
        if self._may_be_offline(topic_partition, topic_id, registration):
            # The metadata has the replica online: report it as lost, so that another broker is elected.
            self._report_lost(topic_partition, topic_id, registration)
            raise ApiError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{topic_partition} may be in a log directory that is offline"
            )
        config = self._log_config(topic_partition.topic, image)
        try:
            opened = self._logs.get_or_create_log(topic_partition, topic_id, config, self._place(registration))
        except ApiError as error:
            if isinstance(error.__cause__, NoHandleLeft):
                self._open_later(topic_partition)
            raise
        self._report_directory(topic_partition, topic_id, registration)
        return opened

    def _report_lost(
        self, topic_partition: TopicPartition, topic_id: Uuid, registration: PartitionRegistration
    ) -> None:
        """The replica is offline: another broker is to be elected."""
        if registration.directory(self._broker_id) != DIRECTORY_LOST:
            self._on_placed(topic_id, topic_partition.partition, DIRECTORY_LOST)

    def _had_synced_records(self, log_: Log) -> bool:
        """Whether records of a log that the start has found were synced. A checkpoint names a recovery point that is
        below the end of the log."""
        home = self._logs.dir_of(log_.topic_partition)
        was_clean = home is not None and home.had_clean_shutdown
        return log_.recovery_point > 0 or (was_clean and log_.log_end_offset > log_.log_start_offset)

    def _keep_unserved(self, existing: Log, topic_id: Uuid, registration: PartitionRegistration) -> Never:
        """A log has records that were synced, and its topic id was lost since. The cluster may need them: they are
        neither served, as they may be a former topic's, nor replaced by an empty log that would count as in sync."""
        topic_partition = existing.topic_partition
        log.error(
            "%s has records, and its partition.metadata is missing or damaged: the replica is offline, and its files "
            "in %s stay as they are. If they belong to topic id %s, write 'version: 0' and 'topic_id: %s' into that "
            "file; otherwise move the directory away. Then restart this node",
            topic_partition,
            existing.directory,
            uuid_to_text(topic_id),
            uuid_to_text(topic_id),
        )
        self._report_lost(topic_partition, topic_id, registration)
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log of {topic_partition} has lost its topic id")

    def _open_later(self, topic_partition: TopicPartition) -> None:
        self._unopened[topic_partition] = None
        if self._opening_again is None:
            log.warning(
                "the log of %s cannot be made, as no file descriptor is left: it, and others that fail so, are tried "
                "again in %d s",
                topic_partition,
                _OPEN_AGAIN_MS // 1000,
            )
            self._opening_again = self._timers.call_later_ms(_OPEN_AGAIN_MS, self._open_again)

    def _open_again(self) -> None:
        """Open, after the updates that wait, what the newest image still gives to this broker."""
        self._opening_again = None
        changes = LocalChanges()
        for topic_partition in self._unopened:
            if self._replicas.find(*topic_partition) is None:
                self._image.topics.collect_local(topic_partition, self._broker_id, changes)
        self._unopened.clear()
        self._note_opening(changes)
        self._updates.append(Update(self._image.offset, self._open(changes, self._image)))
        self._go_on()

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
        if self._is_relied_on(registration) or not self._logs.dirs.all_online:
            return directory
        return directory if any(each.directory_id == directory for each in self._logs.dirs) else DIRECTORY_UNASSIGNED

    def _is_relied_on(self, registration: PartitionRegistration) -> bool:
        """Whether the cluster may count on this replica to have all committed records."""
        return self._broker_id in (*registration.isr, *registration.elr, *registration.last_known_elr)

    def _report_directory(
        self, topic_partition: TopicPartition, topic_id: Uuid, registration: PartitionRegistration
    ) -> None:
        """Report the log's directory to the controller, if the metadata has another (KIP-858)."""
        home = self._logs.dir_of(topic_partition)
        if home is not None and home.directory_id not in (None, registration.directory(self._broker_id)):
            self._on_placed(topic_id, topic_partition.partition, home.directory_id)
