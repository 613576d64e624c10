"""A metadata log of a million records, as a large cluster or an old one leaves it: written to a file in seconds.

Nearly all records of `few` are repeated changes of a few hundred topics. Nearly all records of `many` are part of the
final state: topics of three partitions. Their replicas are on brokers that are registered, fenced and never start, so
that a node that replays the log has no partition logs to open.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.ids import Uuid
from kalda.broker.process.disk import RealDisk
from kalda.metadata.features import LATEST_PRODUCTION, default_levels
from kalda.metadata.formatter import METADATA_DIR, BootstrapMetadata
from kalda.metadata.loader import MetadataLoader
from kalda.protocol.messages.metadata_records import (
    BrokerEndpoint,
    ConfigRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from kalda.protocol.notation import RecordBody
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft.snapshots import decode_all, encode_batch, write_snapshot
from kalda.raft.voters import OffsetAndEpoch, VoterSet

GHOSTS = tuple(range(101, 113))
"""Brokers that have the replicas, and never run."""
EPOCH = 1
SEGMENT = f"{0:020d}.log"
_REPLICAS = 3
_PER_TOPIC = 3
_FEW_TOPICS = 300
_T0 = 1_760_000_000_000

Batch = list[RecordBody]


class LogWriter:
    """Numbers batches and writes them to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.records = 0
        self.bytes = 0

    def write(self, batch: Batch) -> None:
        version = LATEST_PRODUCTION.partition_record_version
        versions = {
            PartitionRecord: version,
            PartitionChangeRecord: version,
            RegisterBrokerRecord: LATEST_PRODUCTION.register_broker_record_version,
        }
        versioned = [VersionedRecord(record, versions.get(type(record), 0)) for record in batch]
        data = encode_batch(versioned, self.records, EPOCH, _T0 + self.records)
        self._file.write(data)
        self.records += len(batch)
        self.bytes += len(data)


def write_log(data_directory: Path, state: str, records: int) -> LogWriter:
    """The first segment of `records` in the directory of a formatted node; `state` is of `STATES`."""
    rng = random.Random(7)
    directory = data_directory / METADATA_DIR
    directory.mkdir(parents=True, exist_ok=True)
    levels = default_levels(LATEST_PRODUCTION)
    bootstrap = BootstrapMetadata.from_levels(LATEST_PRODUCTION, levels, "bench")
    with open(directory / SEGMENT, "wb") as file:
        writer = LogWriter(file)
        writer.write([record for record, _ in bootstrap.records])
        writer.write([_broker(broker_id) for broker_id in GHOSTS])
        for batch in STATES[state](rng):
            if writer.records >= records:
                break
            writer.write(batch[: records - writer.records])
    return writer


def write_snapshot_of(log_directory: Path, directory: Path) -> int:
    """Write a snapshot of such a log into a directory; returns the number of its records."""
    directory.mkdir(parents=True)
    loader = MetadataLoader(0, lambda: None)
    data = (log_directory / SEGMENT).read_bytes()
    batches = decode_all(memoryview(data))
    while some := list(islice(batches, 1_000)):
        loader.on_commit(some)
    image = loader.image
    contents = image.write()
    write_snapshot(
        RealDisk(),
        str(directory),
        OffsetAndEpoch(image.provenance.snapshot_offset, image.epoch),
        contents,
        last_contained_timestamp_ms=image.provenance.last_contained_log_time_ms,
        kraft_version=0,
        voters=VoterSet(),
        now_ms=_T0,
    )
    return len(contents)


def _broker(broker_id: int) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id,
        incarnation_id=_uuid(1, broker_id),
        broker_epoch=broker_id,
        end_points=[BrokerEndpoint(name="PLAINTEXT", host="192.0.2.1", port=9092, security_protocol=0)],
        rack=None,
        fenced=True,
        log_dirs=[_uuid(2, broker_id)],
    )


def _uuid(kind: int, number: int) -> Uuid:
    return Uuid(kind.to_bytes(8, "big") + (number * 2654435761 % 2**64).to_bytes(8, "big"))


def _topic(rng: random.Random, number: int) -> Batch:
    topic_id = _uuid(3, number)
    batch: Batch = [TopicRecord(name=f"team-{number % 97}.events-{number}", topic_id=topic_id)]
    for partition_id in range(_PER_TOPIC):
        replicas = rng.sample(GHOSTS, _REPLICAS)
        batch.append(
            PartitionRecord(
                partition_id=partition_id,
                topic_id=topic_id,
                replicas=replicas,
                isr=replicas,
                leader=replicas[0],
                leader_epoch=0,
                partition_epoch=0,
                directories=[_uuid(2, replica) for replica in replicas],
            )
        )
    return batch


def _config(number: int, value: int) -> ConfigRecord:
    name = f"team-{number % 97}.events-{number}"
    return ConfigRecord(
        resource_type=ConfigResourceType.TOPIC, resource_name=name, name="retention.ms", value=str(3_600_000 + value)
    )


def _few(rng: random.Random) -> Iterator[Batch]:
    """Records of replicas that leave the ISR and return, leaders that move, and some configs."""
    replicas: dict[tuple[int, int], list[int]] = {}
    for number in range(_FEW_TOPICS):
        batch = _topic(rng, number)
        for record in batch[1:]:
            assert isinstance(record, PartitionRecord)
            replicas[number, record.partition_id] = record.replicas
        yield batch
    places = list(replicas)
    while True:
        kind = rng.random()
        if kind < 0.02:
            yield [NoOpRecord()]
        elif kind < 0.2:
            yield [_config(rng.randrange(_FEW_TOPICS), rng.randrange(1000))]
        else:
            yield [_change(rng, at, replicas[at]) for at in rng.sample(places, rng.choice((1, 1, 2, 5, 30, 100)))]


def _change(rng: random.Random, at: tuple[int, int], replicas: list[int]) -> PartitionChangeRecord:
    number, partition_id = at
    record = PartitionChangeRecord(partition_id=partition_id, topic_id=_uuid(3, number))
    record.isr = rng.sample(replicas, rng.choice((2, 3)))
    if rng.random() < 0.4:
        record.leader = record.isr[0]
    return record


def _many(rng: random.Random) -> Iterator[Batch]:
    """Records of topics, about forty a request; every twentieth has a config of its own."""
    for first in count(0, 40):
        batch: Batch = []
        for number in range(first, first + 40):
            batch += _topic(rng, number)
            if number % 20 == 0:
                batch.append(_config(number, 0))
        yield batch


STATES: dict[str, Callable[[random.Random], Iterator[Batch]]] = {"few": _few, "many": _many}
