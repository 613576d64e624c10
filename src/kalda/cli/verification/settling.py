"""After the workload: partitions until they are stable, then the final logs and the group's offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.command_admin import CommandAdmin
from kalda.cli.verification.observers import consumer_of, sample, seen
from kalda.protocol.messages.fetch import OffsetSpec
from kalda.verify.history import FinalLog, FinalOffset, Operation, Sample, Seen

_PAUSE_S = 0.3
_MAX_PASSES = 3
"""So often the final logs are read while late records arrive."""
_STALLED_S = 30.0
"""For how long a log may return nothing while it is read to its end."""


def wait_until_stable(
    admin: CommandAdmin,
    partitions: Collection[TopicPartition],
    record: Callable[[Operation], None],
    timeout_s: float,
) -> list[Sample]:
    """Sample until every last stable offset has reached its high watermark, or the time has passed; the last samples.

    Raises `ApiError` where the cluster has not answered at all."""
    until_s = time.monotonic() + timeout_s
    last: list[Sample] = []
    while True:
        failure: ApiError | None = None
        try:
            last = sample(admin, partitions)
        except ApiError as error:
            failure = error
        for each in last if failure is None else ():
            record(each)
        if last and failure is None and all(each.last_stable_offset >= each.high_watermark for each in last):
            return last
        if time.monotonic() >= until_s:
            if failure is not None and not last:
                raise failure
            return last
        time.sleep(_PAUSE_S)


def settled_logs(
    admin: CommandAdmin,
    partitions: Collection[TopicPartition],
    record: Callable[[Operation], None],
    timeout_s: float,
) -> list[FinalLog]:
    """The final logs, when the partitions are stable or the time has passed. A record that arrives after that, from a
    broker that was paused, may have begun another transaction: it gets its time too. Raises `ApiError`."""
    for _ in range(_MAX_PASSES):
        samples = wait_until_stable(admin, partitions, record, timeout_s)
        logs = final_logs(admin, partitions)
        if all(log.last_stable_offset >= log.end for log in logs):
            break
        if any(each.last_stable_offset < each.high_watermark for each in samples):
            break
    return logs


def final_logs(admin: CommandAdmin, partitions: Collection[TopicPartition]) -> list[FinalLog]:
    """Every partition, read to its high watermark and, as read_committed, to its last stable offset. Raises
    `ApiError`."""
    starts = admin.offsets_at(partitions, OffsetSpec.EARLIEST)
    stable = admin.offsets_at(partitions, OffsetSpec.LATEST, read_committed=True)
    ends = admin.offsets_at(partitions, OffsetSpec.LATEST)
    return [
        FinalLog(
            partition,
            starts[partition],
            ends[partition],
            stable[partition],
            _read(admin, partition, starts[partition], ends[partition], False),
            _read(admin, partition, starts[partition], stable[partition], True),
        )
        for partition in partitions
    ]


def _read(
    admin: CommandAdmin, partition: TopicPartition, start: int, end: int, read_committed: bool
) -> tuple[Seen, ...]:
    found: list[Seen] = []
    if end > start:
        with consumer_of(admin.config, read_committed=read_committed) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, start)
            until_s = time.monotonic() + _STALLED_S
            while (position := consumer.position(partition)) < end:
                found += (each for each in seen(consumer.poll()) if each.offset < end)
                if consumer.position(partition) > position:
                    until_s = time.monotonic() + _STALLED_S
                elif time.monotonic() >= until_s:
                    why = f"{partition} could not be read on from offset {position} for {_STALLED_S:.0f} s"
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, why)
    return tuple(found)


def has_records(admin: CommandAdmin, partition: TopicPartition, start: int, end: int) -> bool:
    """Whether a read_committed consumer gets any record of [start, end). Raises `ApiError`."""
    return bool(_read(admin, partition, start, end, True))


def final_offsets(admin: CommandAdmin, group: str, partitions: Collection[TopicPartition]) -> list[FinalOffset]:
    """The group's committed offsets. Raises `ApiError`."""
    found = admin.list_group_offsets(group, partitions, require_stable=True).check()
    return [FinalOffset(group, partition, each.offset) for partition, each in found.succeeded.items()]
