"""Topics of one cluster as topics of another one: the same partitions, keys, values, headers and timestamps, each
record once, and the offsets of consumer groups as those of the copy.

One streaming query reads the topics and writes each batch in transactions (`kalda.spark.exactly_once`), so a mirror
that is killed at any moment continues where it was. A partition of the source is read by one task and written to the
partition of the same number, so the order of its records is kept. Only committed records are copied.

A group's offsets are written to the other cluster while the group has no members there, and never to a smaller one:
consumers that have moved keep what they commit.

Offsets of a copy are others: markers of transactions, compacted and expired records take offsets in one log and not in
the other. So a mirror notes boundaries, an offset of the source and that of the copy behind the same record, at the end
of each batch. Between two boundaries records are counted, in both logs. What is too far from a boundary is translated
to it: a group may then get records again, and misses none.

Not obvious:

- A copy has the topic's configs but `message.timestamp.type`: with LogAppendTime, timestamps would be those of copying.
- The first boundary of a partition is noted before its first record is written. A batch that is run again may have
  been written in part, and finds that boundary.
- A transaction has ended before its markers are in the logs: a boundary is read when no transaction is open there.
"""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import random
from typing import TYPE_CHECKING, Final, NamedTuple

from kalda.base.configs.admin import ADMIN
from kalda.base.configs.consumer import CONSUMER
from kalda.base.configs.definition import InvalidConfig
from kalda.base.configs.resources import ConfigResourceType, ConfigSource
from kalda.base.errors import ApiError, ErrorCode, KafkaError
from kalda.base.ids import TopicPartition
from kalda.client.admin.admin_client import Admin
from kalda.client.admin.configs import ConfigResource
from kalda.client.admin.topics import NewTopic
from kalda.client.consumer.consumer import Consumer
from kalda.client.transport.config_files import read_profile
from kalda.clientcore.connections.errors import Backoff
from kalda.clientcore.connections.metadata import Topic
from kalda.clientcore.consuming.subscription import OffsetAndEpoch
from kalda.pipeline.engine.query import POLL_S, Checkpoint, QueryProgress, StopEvent, stop_signals
from kalda.pipeline.engine.runs import FlowReport, FlowState, Restarts
from kalda.pipeline.files import locked, read_state, replace_text
from kalda.pipeline.session import PipelineError, refuse_ended
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.spark import offset_ranges
from kalda.spark.options import CONNECTION
from kalda.spark.sink_options import EXACTLY_ONCE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_FORMAT: Final = "kalda"
_STATE: Final = "mirror.json"
_EVERY: Final = "1 second"
_SYNC_S: Final = 10.0
"""Between two translations of the groups' offsets."""
_TIMEOUT_S: Final = 30.0
_MARKERS_S: Final = 0.1
"""Between two looks whether a transaction's markers are there."""
_BACKOFF: Final = Backoff(1_000, 60_000, random)
_ATTEMPTS: Final = 5
_SHARE: Final = "share"
"""Groups of this type have no committed offsets."""
_OWN_GROUPS: Final = "kalda-spark-"
"""The groups in which exactly-once writes keep their batches."""
_NOT_COPIED: Final = ("message.timestamp.type", "leader.replication.throttled.replicas",
                      "follower.replication.throttled.replicas")  # fmt: skip
_COLUMNS: Final = ("topic", "partition", "timestamp", "key", "value", "headers")
MAX_BOUNDARIES: Final = 200
"""Of a partition. Where there are more, every second one of the older half is left out."""
MAX_COUNTED: Final = 100_000
"""Offsets between a boundary and the one to be translated."""


class Boundary(NamedTuple):
    """Records before `source` are those before `copy`."""

    source: int
    copy: int


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """What is copied. `source` and `target` are names of profiles. Raises `PipelineError`."""

    topics: tuple[str, ...]
    source: str
    target: str
    prefix: str = ""
    """Before the names of the copies."""
    groups: str | None = ".*"
    """Which consumer groups, as a regular expression; None: none."""
    follow: bool = False
    rows_a_batch: int = 500_000

    def __post_init__(self) -> None:
        if self.source == self.target and not self.prefix:
            raise PipelineError(f"{self.source} to itself: name another cluster, or a prefix of the copies")
        try:
            re.compile(self.groups or "")
        except re.error as error:
            raise PipelineError(f"groups {self.groups!r}: {error}; a regular expression is expected") from error


@dataclass(slots=True)
class MirrorResult:
    """What a mirror has done."""

    report: FlowReport
    groups: dict[str, int] = field(default_factory=dict)
    """Partitions whose offsets were translated, by group."""
    problems: dict[str, str] = field(default_factory=dict)
    """Why a group's offsets were not, by group; of all groups, by an empty name."""
    signal: int | None = None
    """What has ended the mirror; None where it has ended by itself."""


def mirror(
    spark: SparkSession,
    directory: Path,
    settings: MirrorSettings,
    show: Callable[[FlowReport], None] = lambda _: None,
) -> MirrorResult:
    """Copy up to the topics' present ends, or with `follow` until stopped. `directory` has the mirror's state. A query
    that has failed is in the result's report. Raises `PipelineError` where it cannot begin."""
    directory = directory.absolute()
    refusal = f"{directory}: another mirror is running there; wait for its end"
    with locked(directory / "mirror.lock", refusal, spark), Mirror(directory, settings) as made:
        made.prepare()
        result = MirrorResult(FlowReport(directory.name, settings.target, "mirror"))
        with stop_signals() as stopped:
            made.run(spark, stopped, result, show)
        if settings.groups is not None:
            made.sync_groups(result)
        result.signal = stopped.signal
        return result


class Mirror:
    """The clients of both clusters, and the boundaries of the copies. A context manager that closes the clients."""

    def __init__(self, directory: Path, settings: MirrorSettings) -> None:
        self._directory = directory
        self._settings = settings
        self._profiles = [_profile(name) for name in (settings.source, settings.target)]
        self._file = directory / _STATE
        self._boundaries: dict[TopicPartition, list[Boundary]] = {}
        self._translations: dict[tuple[TopicPartition, int], int | None] = {}
        """Of the last synchronization: of offsets that are copied."""
        self._synced_s = 0.0
        self._error: Exception | None = None
        """What the writing of a batch has raised; Spark has only its text."""
        self._stack = ExitStack()

    def __enter__(self) -> Mirror:
        with _cluster_errors():
            admins = [
                self._stack.enter_context(Admin({key: value for key, value in keys.items() if key in ADMIN}))
                for keys in self._profiles
            ]
        self._from, self._to = admins
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- topics

    def prepare(self) -> None:
        """Make the copies that do not exist, with as many partitions. Raises `PipelineError` where that is not
        possible, or the directory belongs to another mirror."""
        settings = self._settings
        with _cluster_errors():
            found = self._from.describe_topics(settings.topics)
            found.check()
            counts = {name: len(topic.partitions) for name, topic in found.succeeded.items()}
            there = self._to.list_topics()
            copies = {name: there[self._copy(name)] for name in counts if self._copy(name) in there}
            self._take_state(copies)
            self._make_topics(counts, copies)

    def _make_topics(self, counts: Mapping[str, int], copies: Mapping[str, Topic]) -> None:
        new = [name for name in counts if name not in copies]
        resources = {name: ConfigResource(ConfigResourceType.TOPIC, name) for name in new}
        configs = self._from.describe_configs(list(resources.values())).succeeded if new else {}
        topics = []
        for name, resource in resources.items():
            given = {
                key: str(entry.value)
                for key, entry in configs.get(resource, {}).items()
                if entry.source is ConfigSource.DYNAMIC_TOPIC_CONFIG and entry.value is not None
                and key not in _NOT_COPIED
            }  # fmt: skip
            topics.append(NewTopic(self._copy(name), counts[name], configs=given))
        if topics:
            self._to.create_topics(topics).check()
        fewer = {self._copy(name): counts[name] for name, copy in copies.items() if len(copy.partitions) < counts[name]}
        if fewer:
            self._to.create_partitions(fewer).check()

    def _copy(self, topic: str) -> str:
        return self._settings.prefix + topic

    def _take_state(self, copies: Mapping[str, Topic]) -> None:
        settings = self._settings
        given = {"source": settings.source, "target": settings.target, "prefix": settings.prefix}
        self._given = {**given, "topics": sorted(settings.topics)}
        known = read_state(self._file, {**dict.fromkeys(given, str), "topics": list, "boundaries": dict})
        if known is None:
            self._refuse_records_of_others(copies)
            self._save()
            return
        changed = [f"{name} is {known[name]!r}, not {value!r}" for name, value in self._given.items()
                   if known[name] != value]  # fmt: skip
        if changed:
            raise PipelineError(f"{self._directory} is the state of another mirror: {'; '.join(changed)}")
        for topic, partitions in known["boundaries"].items():
            for number, pairs in partitions.items():
                self._boundaries[TopicPartition(topic, int(number))] = [Boundary(*pair) for pair in pairs]

    def _refuse_records_of_others(self, copies: Mapping[str, Topic]) -> None:
        """A mirror that begins would write records that another one has written a second time."""
        partitions = [
            TopicPartition(self._copy(name), each.partition)
            for name, copy in copies.items()
            for each in copy.partitions
        ]
        starts, ends = (
            self._to.list_offsets(dict.fromkeys(partitions, spec)) for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
        )
        starts.check()
        ends.check()
        for each in partitions:
            if ends.value(each).offset > starts.value(each).offset:
                raise PipelineError(
                    f"{each.topic} of {self._settings.target} has records that this mirror has not written, and "
                    f"{self._directory} has no state: name the directory of the mirror that has, or another --prefix"
                )

    def _save(self) -> None:
        boundaries: dict[str, dict[str, list[Boundary]]] = {}
        for (topic, partition), pairs in self._boundaries.items():
            boundaries.setdefault(topic, {})[str(partition)] = pairs
        replace_text(self._file, json.dumps({**self._given, "boundaries": boundaries}))

    # -- records

    def run(
        self, spark: SparkSession, stopped: StopEvent, result: MirrorResult, show: Callable[[FlowReport], None]
    ) -> None:
        """Until the query has ended, or has failed too often."""
        report, progress = result.report, QueryProgress()
        restarts = Restarts(_BACKOFF, None if self._settings.follow else _ATTEMPTS)
        report.state = FlowState.RUNNING
        while not report.state.is_final:
            try:
                query = self._start(spark)
                try:
                    while query.isActive and not stopped.wait(POLL_S):
                        self._count(query, progress, report)
                        show(report)
                        if self._settings.groups is not None and time.monotonic() - self._synced_s >= _SYNC_S:
                            self.sync_groups(result)
                finally:
                    query.stop()
                self._count(query, progress, report)
                error = query.exception()
                if error is not None and not stopped.is_set():
                    raise self._error or error
                report.state = FlowState.STOPPED if stopped.is_set() else FlowState.DONE
            except Exception as error:
                refuse_ended(spark)
                pause_s = restarts.failed(error, report)
                show(report)
                if pause_s is not None:
                    report.state = FlowState.STOPPED if stopped.wait(pause_s) else FlowState.RUNNING
        show(report)

    def _count(self, query: StreamingQuery, progress: QueryProgress, report: FlowReport) -> None:
        if not progress.follow(query):
            return
        if progress.batches > report.batches:
            report.error = None
        report.rows, report.batches, report.lag = progress.rows, progress.batches, progress.lag

    def _start(self, spark: SparkSession) -> StreamingQuery:
        settings = self._settings
        options = {
            CONNECTION: settings.source,
            "subscribe": ",".join(settings.topics),
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "kafka.isolation.level": "read_committed",
            "maxOffsetsPerTrigger": str(settings.rows_a_batch),
        }
        rows = spark.readStream.format(_FORMAT).options(**options).load().select(*_COLUMNS)
        checkpoint = self._directory / "checkpoint"
        writer = rows.writeStream.option("checkpointLocation", str(checkpoint)).queryName(self._directory.name)
        if settings.follow:
            writer = writer.trigger(processingTime=_EVERY)
        else:
            writer = writer.trigger(availableNow=True)
        self._error = None

        def write(frame: DataFrame, number: int) -> None:
            try:
                self._write(frame, number, str(Checkpoint(checkpoint).query_id))
            except Exception as error:
                self._error = error
                raise

        return writer.foreachBatch(write).start()

    def _write(self, frame: DataFrame, number: int, query_id: str) -> None:
        from pyspark.sql import functions as f

        ends = {TopicPartition(each.topic, each.partition): each for each in offset_ranges(frame)}
        self._grow(ends)
        new = [partition for partition in ends if partition not in self._boundaries]
        for partition, copy in self._ends(new).items():
            self._boundaries[partition] = [Boundary(ends[partition].start, copy)]
        if new:
            self._save()
        options = {
            CONNECTION: self._settings.target,
            EXACTLY_ONCE: "true",
            f"{EXACTLY_ONCE}.name": f"mirror-{query_id}",
            f"{EXACTLY_ONCE}.batch": str(number),
        }
        named = frame.withColumn("topic", f.concat(f.lit(self._settings.prefix), f.col("topic")))
        named.write.format(_FORMAT).mode("append").options(**options).save()
        for partition, copy in self._ends(ends).items():
            pairs = with_boundary(self._boundaries[partition], Boundary(ends[partition].end, copy))
            self._boundaries[partition] = pairs
        self._save()

    def _grow(self, partitions: Iterable[TopicPartition]) -> None:
        """Give the copies the partitions that their topics have got."""
        counts: dict[str, int] = {}
        for topic, partition in partitions:
            counts[topic] = max(counts.get(topic, 0), partition + 1)
        found = self._to.describe_topics([self._copy(topic) for topic in counts])
        found.check()
        wanted = {
            self._copy(topic): count
            for topic, count in counts.items()
            if len(found.value(self._copy(topic)).partitions) < count
        }
        if wanted:
            self._to.create_partitions(wanted).check()

    def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of the copies of these partitions, when no transaction is open there; one that others leave open
        makes them smaller, after a while."""
        copies = {TopicPartition(self._copy(each.topic), each.partition): each for each in partitions}
        if not copies:
            return {}
        until_s = time.monotonic() + _TIMEOUT_S
        while True:
            ends, stable = (
                self._to.list_offsets(dict.fromkeys(copies, OffsetSpec.LATEST), read_committed=committed)
                for committed in (False, True)
            )
            ends.check()
            stable.check()
            found = {each: stable.value(copy).offset for copy, each in copies.items()}
            is_stable = all(ends.value(copy).offset <= found[each] for copy, each in copies.items())
            if is_stable or time.monotonic() > until_s:
                return found
            time.sleep(_MARKERS_S)

    # -- groups

    def sync_groups(self, result: MirrorResult) -> None:
        """Translate the offsets of the groups. What cannot be done is a problem of the result: records are copied."""
        result.problems.clear()
        try:
            matches = re.compile(str(self._settings.groups)).fullmatch
            names = [
                name
                for name, group in self._from.list_groups().items()
                if matches(name) and not name.startswith(_OWN_GROUPS) and group.type.lower() != _SHARE
            ]
        except (ApiError, TimeoutError) as error:
            result.problems[""] = str(error)
            names = []
        known: dict[tuple[TopicPartition, int], int | None] = {}
        for name in names:
            try:
                count = self._sync(name, known)
            except (KafkaError, TimeoutError) as error:
                result.problems[name] = str(error)
            else:
                if count:
                    result.groups[name] = result.groups.get(name, 0) + count
        self._translations = known
        self._synced_s = time.monotonic()

    def _sync(self, group: str, translations: dict[tuple[TopicPartition, int], int | None]) -> int:
        partitions = list(self._boundaries)
        known = self._from.list_group_offsets(group, partitions).succeeded
        copies = {each: TopicPartition(self._copy(each.topic), each.partition) for each in known}
        there = self._to.list_group_offsets(group, list(copies.values())).succeeded if copies else {}
        new: dict[TopicPartition, OffsetAndEpoch] = {}
        for partition, at in known.items():
            copy = copies[partition]
            before = there[copy].offset if copy in there else -1
            is_copied = at.offset <= self._boundaries[partition][-1].source
            place = (partition, at.offset)
            offset = self._translations.get(place) if is_copied else None
            if offset is None:
                offset = self._translated(partition, copy, at.offset)
            if is_copied:
                translations[place] = offset
            if offset is not None and offset > before:
                new[copy] = OffsetAndEpoch(offset, -1, at.metadata)
        if not new:
            return 0
        found = self._to.alter_group_offsets(group, new)
        others = [error for error in found.errors.values() if error.code not in _HAS_MEMBERS]
        if others:
            raise others[0]
        return len(found.succeeded)

    def _translated(self, partition: TopicPartition, copy: TopicPartition, offset: int) -> int | None:
        source, target = self._profiles
        return translated(
            self._boundaries[partition],
            offset,
            lambda start, end: len(_read(source, partition, start, lambda found, at: at >= end, end)),
            lambda start, count: [start, *_read(target, copy, start, lambda found, at: len(found) >= count)][-1],
        )


def with_boundary(boundaries: list[Boundary], new: Boundary) -> list[Boundary]:
    """One more, behind the others; of no news, the same ones."""
    if boundaries and new.source <= boundaries[-1].source:
        return boundaries
    found = [*boundaries, new]
    if len(found) > MAX_BOUNDARIES:
        half = len(found) // 2
        found = found[:half:2] + found[half:]
    return found


def translated(
    boundaries: list[Boundary], offset: int, count: Callable[[int, int], int], behind: Callable[[int, int], int]
) -> int | None:
    """The copy's offset; None where the copy begins later. `count`: how many records the source has from one offset up
    to another. `behind`: the copy's offset behind so many records from an offset on."""
    at = bisect_right(boundaries, offset, key=lambda each: each.source) - 1
    if at < 0:
        return None
    nearest = boundaries[at]
    is_copied = at + 1 < len(boundaries)
    if offset == nearest.source or not is_copied or offset - nearest.source > MAX_COUNTED:
        return nearest.copy
    records = count(nearest.source, offset)
    return behind(nearest.copy, records) if records else nearest.copy


_HAS_MEMBERS: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP, ErrorCode.ILLEGAL_GENERATION)


def _read(
    profile: Mapping[str, str],
    partition: TopicPartition,
    start: int,
    is_done: Callable[[list[int], int], bool],
    end: int | None = None,
) -> list[int]:
    """The offsets behind the committed records from an offset on, before `end`, until it is done. Raises
    `TimeoutError`."""
    keys = {key: value for key, value in profile.items() if key in CONSUMER}
    found: list[int] = []
    own = {"enable.auto.commit": "false", "isolation.level": "read_committed", "auto.offset.reset": "none"}
    with Consumer({**keys, **own}) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, start)
        while not is_done(found, consumer.position(partition)):
            before = consumer.position(partition)
            records = consumer.poll(_TIMEOUT_S)
            if not records and consumer.position(partition) == before:
                raise TimeoutError(f"no record of {partition} from offset {before} on within {_TIMEOUT_S:.0f} s")
            for record in records:
                if (end is None or record.offset < end) and not is_done(found, record.offset):
                    found.append(record.offset + 1)
    return found


def _profile(name: str) -> dict[str, str]:
    try:
        return read_profile(name)
    except InvalidConfig as error:
        raise PipelineError(str(error)) from error


@contextmanager
def _cluster_errors() -> Iterator[None]:
    """Errors of the clusters as `PipelineError`."""
    try:
        yield
    except (ApiError, TimeoutError) as error:
        raise PipelineError(f"the clusters: {error}") from error
