"""Which batches of a buffer are appended, and where, when there may be several: in a replica that has fetched them, and
in the leader of a raft quorum. (A client's batch comes alone; `records.validate` checks it.)

These functions read headers, and write only the offsets and epochs that a raft leader stamps. The log writes the
batches.
"""

from __future__ import annotations

from typing import NamedTuple

from kalda.base.disk import Buffer
from kalda.base.errors import CorruptRecord
from kalda.records.batch import BatchHeader, check_crc, iter_batches, stamp
from kalda.storage.segment import MAX_GAP, Placed
from kalda.storage.values import UnexpectedAppendOffset


class Batches(NamedTuple):
    """Whole batches at the front of a buffer, with the offsets that they have in the log."""

    headers: list[BatchHeader]
    placed: list[Placed]
    size_bytes: int
    max_timestamp: int
    """-1 where there are none"""


def stamped_batches(records: bytearray | memoryview, offset: int, leader_epoch: int) -> Batches:
    """All batches, which get the offsets from `offset` on and this epoch; both are written to `records`."""
    headers, placed, end = [], [], 0
    max_timestamp = -1
    for position, header in iter_batches(records):
        stamp(records, position, offset, leader_epoch)
        header = header._replace(base_offset=offset, partition_leader_epoch=leader_epoch)
        offset = header.next_offset
        end = position + header.size_bytes
        headers.append(header)
        placed.append(Placed(offset - 1, header.max_timestamp, header.size_bytes))
        max_timestamp = max(max_timestamp, header.max_timestamp)
    return Batches(headers, placed, end, max_timestamp)


def replicated_batches(records: Buffer, log_end_offset: int, leader_epoch: int, log_name: object) -> Batches:
    """The whole batches at the front of `records`, up to the first one of a later epoch than `leader_epoch`, or of
    offsets so far from the first ones that they do not fit into one segment: it is fetched again.

    Raises `UnexpectedAppendOffset` where the first one begins below `log_end_offset`, `CorruptRecord` for bad bytes.
    """
    headers: list[BatchHeader] = []
    placed: list[Placed] = []
    end, expected, max_timestamp = 0, log_end_offset, -1
    for position, header in iter_batches(records):
        if header.partition_leader_epoch > leader_epoch:
            break
        if headers and header.last_offset - headers[0].base_offset >= MAX_GAP:
            break
        check_crc(records, position, header)
        if header.base_offset < expected or header.last_offset_delta < 0:
            if not headers:
                raise UnexpectedAppendOffset(
                    f"{log_name} ends at {expected}; the first batch from the leader begins at {header.base_offset}",
                    header.base_offset,
                    header.last_offset,
                )
            raise CorruptRecord(f"{log_name}: offset {header.base_offset} follows {expected - 1}")
        expected = header.next_offset
        size = header.size_bytes
        end = position + size
        headers.append(header)
        placed.append(Placed(expected - 1, header.max_timestamp, size))
        if header.max_timestamp > max_timestamp:
            max_timestamp = header.max_timestamp
    return Batches(headers, placed, end, max_timestamp)
