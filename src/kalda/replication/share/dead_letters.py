"""What a share partition hands to its group's dead letter topic (KIP-1191). That a record is given up is decided in
`share_partition.py` (`ShareSettings.given_up`, `after_release`), and `DeadLetterWriter` of the broker writes it.

A record that a member rejects, or that comes back after as many deliveries as the group allows, becomes a dead letter
where the group names a topic for these. It is archived when its dead letter is written, and not before: see
`DeadLetterQueue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol

from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.base.scheduling import Pending
from kalda.base.share_states import SharePartitionKey
from kalda.protocol.notation import Buffer
from kalda.records.batch import iter_batches
from kalda.records.builder import read_records
from kalda.replication.replica_manager import ReplicaManager
from kalda.storage.values import FetchInfo


class Cause(Enum):
    """Why a record is not delivered again. The value is what its dead letter says, in Apache Kafka's words."""

    REJECTED = "Offset rejected by client."
    DELIVERED_TOO_OFTEN = "Offset delivery count exceeded the threshold."


class DeadRecords(NamedTuple):
    """The records from `first_offset` to `last_offset`, both included, of a share partition."""

    first_offset: int
    last_offset: int
    delivery_count: int
    cause: Cause


class DeadLetterQueue(Protocol):
    """Where the dead letters of all groups are written."""

    def write(self, key: SharePartitionKey, records: DeadRecords, is_wanted: Callable[[], bool]) -> Pending[None]:
        """Settles when all are in the dead letter topic of the group and acknowledged by the in-sync replicas there, or
        when the group names no such topic any more. What fails is tried again while `is_wanted()`; only after that the
        answer fails. Records may be written twice, where an answer is lost or the leader of the share partition
        changes."""
        ...


# Keys and values of records that a share group gives up, read for their dead letters where the partition is led.

_MAX_BYTES = 1 << 20
"""Of the log, in one read; a batch that is larger is read whole."""

SourceRecords = Mapping[int, tuple[bytes | None, bytes | None]]
"""Key and value by offset."""


class Sources(NamedTuple):
    """What one read has found."""

    records: SourceRecords
    last_offset: int
    """How far it came; what follows is found by another read."""


def read_sources(replicas: ReplicaManager, topic: str, number: int, first: int, last: int) -> Pending[Sources]:
    """The records from offset `first` on, at most up to `last`, in one read of the log. Records that compaction or
    retention has removed are not among them. Fails where the partition is not led here, the log does not have the
    offset, or what is read is damaged."""
    found: Pending[Sources] = Pending()
    try:
        partition = replicas.get(topic, number)
        partition.check_leader(-1)
        read = partition.read(first, _MAX_BYTES, partition.readable_end(False), True)
    except ApiError as error:
        found.fail(error)
        return found
    if isinstance(read, FetchInfo):
        return _decode_later(replicas, read, first, last)

    def on_read(results: list[FetchInfo | ApiError]) -> Pending[Sources]:
        (info,) = results
        if isinstance(info, ApiError):
            raise info
        return _decode_later(replicas, info, first, last)

    return replicas.read_later([read]).and_then(on_read)


def _decode_later(replicas: ReplicaManager, read: FetchInfo, first: int, last: int) -> Pending[Sources]:
    """Decode on another thread: a batch may be large, and compressed."""
    decoded: Pending[Sources] = Pending()

    def finish(sources: Sources | None, error: BaseException | None) -> None:
        if sources is not None:
            decoded.complete(sources)
        elif isinstance(error, Exception):
            decoded.fail(as_api_error(error))
        else:
            decoded.fail(ApiError(ErrorCode.UNKNOWN_SERVER_ERROR))

    records = read.records
    replicas.jobs.run(partial(_decode, records, first, last), finish)
    return decoded


def _decode(buffer: Buffer, first: int, last: int) -> Sources:
    records: dict[int, tuple[bytes | None, bytes | None]] = {}
    reached = last
    for at, header in iter_batches(buffer):
        reached = header.last_offset
        if header.base_offset > last:
            break
        if header.last_offset < first or header.is_control:
            continue
        for record in read_records(buffer, at, header):
            if first <= record.offset <= last:
                records[record.offset] = record.key, record.value
    return Sources(records, max(first, min(reached, last)))
