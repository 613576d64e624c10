"""read_committed consumers of a cluster, and samples of the last stable offset."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kalda.base.ids import TopicPartition
from kalda.cli.verification.loops import Batch
from kalda.cli.verification.recording import now_us
from kalda.client.admin.groups import committed_offsets
from kalda.client.admin.offsets import list_offsets
from kalda.client.cluster_client import ClusterClient
from kalda.client.consumer_fetcher import ConsumerFetcher, Fetched, Slice
from kalda.protocol.messages.fetch import OffsetSpec
from kalda.verify.history import Read, Sample, Seen

_POLL_MS = 200
_MAX_BATCH_BYTES = 16 * 1024
"""Small, so that a consumer stops between two transactions, and within one."""


def batch_of(fetched: Fetched, begun_us: int) -> Batch:
    """What a poll has returned."""
    return Batch(
        TopicPartition(fetched.topic, fetched.partition),
        fetched.start,
        fetched.next_offset,
        tuple(Seen(record.offset, (record.value or b"").decode("utf-8", "replace")) for record in fetched.records()),
        begun_us,
        now_us(),
    )


class CommittedReader:
    """Reads partitions from given offsets on."""

    def __init__(self, cluster: ClusterClient, starts: Mapping[TopicPartition, int]) -> None:
        slices = [Slice(*partition, start) for partition, start in starts.items()]
        self._fetcher = ConsumerFetcher(
            cluster,
            slices,
            read_committed=True,
            max_wait_ms=_POLL_MS,
            partition_max_bytes=_MAX_BATCH_BYTES,
            check_crcs=True,
        )

    def poll(self) -> Batch | None:
        """The next batches of a partition, or None. Raises `ApiError`."""
        begun_us = now_us()
        fetched = self._fetcher.poll(_POLL_MS)
        return None if fetched is None else batch_of(fetched, begun_us)

    def close(self) -> None:
        self._fetcher.close()


class GroupSource:
    """The input of a loop: a `Source` over the offsets of a group without members."""

    def __init__(self, cluster: ClusterClient, group: str, partitions: Collection[TopicPartition]) -> None:
        self._cluster = cluster
        self._group = group
        self._partitions = partitions
        self._reader: CommittedReader | None = None

    def rewind(self) -> dict[TopicPartition, int]:
        """Raises `ApiError`."""
        if self._reader is not None:
            self._reader.close()
        found = committed_offsets(self._cluster, self._group, self._partitions, require_stable=True)
        starts = {partition: found[partition].offset if partition in found else 0 for partition in self._partitions}
        self._reader = CommittedReader(self._cluster, starts)
        return starts

    def poll(self) -> Batch | None:
        """Raises `ApiError`."""
        assert self._reader is not None, "`rewind` comes first"
        return self._reader.poll()


def read_of(reader: str, batch: Batch) -> Read:
    """A read without a transaction."""
    return Read(reader, batch.partition, batch.start, batch.end, batch.begun_us, batch.ended_us, batch.records)


def sample(cluster: ClusterClient, partitions: Collection[TopicPartition]) -> list[Sample]:
    """The last stable offset and then the high watermark of each partition. Raises `ApiError`."""
    at_us, latest = now_us(), dict.fromkeys(partitions, int(OffsetSpec.LATEST))
    stable = list_offsets(cluster, latest, read_committed=True)
    ends = list_offsets(cluster, latest)
    return [Sample(partition, stable[partition].offset, ends[partition].offset, at_us) for partition in partitions]
