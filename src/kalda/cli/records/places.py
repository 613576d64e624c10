"""Where reading begins and ends, as `--from` and `--until` give it.

beginning, earliest         the first record
latest, end                 the end that the partition has now
42, offset:42               an offset
-100                        100 records before the end, in each partition
-1h, -1d12h, -PT1H          so long ago
2026-01-31T12:00:00Z        a time, UTC without a zone; also timestamp:MS, and s@MS as in kcat
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import click

from kalda.base.configs.definition import parse_duration_ms
from kalda.base.ids import TopicPartition
from kalda.cli.common.session import MAX_INT64
from kalda.cli.common.times import parse_time_ms

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

_SPAN = re.compile(r"(?:\d+(?:ms|[smhdw]))+")
_LONGEST = 100
"""Characters of a place. Python refuses to read numbers of some thousand digits."""
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


class PlaceKind(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    LAST = "last"
    TIME = "time"


class ReadPlace(NamedTuple):
    """`number` is an offset, a number of records, or ms since 1970."""

    kind: PlaceKind
    number: int = 0
    ago_ms: int | None = None
    """Of a time that was given as so long ago."""


def parse_place(option: str, text: str, now_ms: int) -> ReadPlace:
    """The place that an option names. Raises `click.UsageError`."""
    if len(text) > _LONGEST:
        raise click.UsageError(f"{option} has {len(text)} characters: no offset and no time is that long")
    if text in ("beginning", "earliest", "start"):
        return ReadPlace(PlaceKind.BEGINNING)
    if text in ("latest", "end"):
        return ReadPlace(PlaceKind.END)
    if text.startswith("-"):
        return _before(option, text, now_ms)
    kind, colon, rest = text.partition(":")
    offset = rest if colon and kind == "offset" else text
    if offset.isdecimal():
        if int(offset) > MAX_INT64:
            raise click.UsageError(f"{option} {text}: an offset is at most {MAX_INT64}")
        return ReadPlace(PlaceKind.OFFSET, int(offset))
    if colon and kind == "timestamp":
        text = rest
    return ReadPlace(PlaceKind.TIME, parse_time_ms(option, text.removeprefix("s@").removeprefix("e@")))


def _before(option: str, text: str, now_ms: int) -> ReadPlace:
    distance = text[1:]
    if distance.isdecimal():
        return ReadPlace(PlaceKind.LAST, min(int(distance), MAX_INT64))
    ago_ms: int | None
    if _SPAN.fullmatch(distance):
        ago_ms = sum(int(count) * _UNIT_MS[unit] for count, unit in re.findall(r"(\d+)(ms|[smhdw])", distance))
    else:
        ago_ms = parse_duration_ms(distance)
    if ago_ms is None:
        raise click.UsageError(f"{option} {text}: a number of records (-100) or a time ago (-1h, -2d12h) is expected")
    return ReadPlace(PlaceKind.TIME, max(0, now_ms - ago_ms), ago_ms)


def offsets_of(
    admin: CommandAdmin, partitions: Collection[TopicPartition], place: ReadPlace, *, read_committed: bool = False
) -> dict[TopicPartition, int]:
    """The offset of the place in each partition; the end where all records are older. With `read_committed`, none is
    behind the last stable offset: what is behind it cannot be read yet. Raises `ApiError`."""
    from kalda.protocol.messages.partitions import OffsetSpec

    match place.kind:
        case PlaceKind.OFFSET:
            return dict.fromkeys(partitions, place.number)
        case PlaceKind.BEGINNING:
            return admin.offsets_at(partitions, OffsetSpec.EARLIEST)
        case PlaceKind.TIME:
            return admin.offsets_at(partitions, place.number, read_committed=read_committed)
        case PlaceKind.END | PlaceKind.LAST:
            latest = dict.fromkeys(partitions, int(OffsetSpec.LATEST))
            found = admin.list_offsets(latest, read_committed=read_committed).check()
            ends = {partition: at.offset for partition, at in found.succeeded.items()}
    if place.kind is PlaceKind.END:
        return ends
    first = admin.offsets_at(partitions, OffsetSpec.EARLIEST)
    return {partition: max(first[partition], end - place.number) for partition, end in ends.items()}
