"""A history as JSON lines: one operation a line, in any order.

The first line names the format. A partition is `topic-partition`; a record is `[offset, value]`. The last line may be
cut off, since the process that wrote it may have been killed; any other malformed line is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from kalda.base.ids import TopicPartition
from kalda.verify.history import (
    Append,
    Consumed,
    Fault,
    FinalLog,
    FinalOffset,
    History,
    OffsetSample,
    Operation,
    Outcome,
    Read,
    Seen,
    Settings,
    Transaction,
)

FORMAT = {"op": "format", "name": "kalda-history", "version": 1}
FIRST_LINE = json.dumps(FORMAT)


class MalformedHistory(ValueError):
    """A line that is no operation."""


def write_operation(operation: Operation) -> str:
    """One line, without a newline."""
    match operation:
        case Transaction():
            document = _write_transaction(operation)
        case Read():
            document = {
                "op": "read",
                "reader": operation.reader,
                "partition": str(operation.partition),
                "start": operation.start,
                "end": operation.end,
                "begun_us": operation.begun_us,
                "ended_us": operation.ended_us,
                "records": operation.records,
                **({"transaction": operation.transaction} if operation.transaction else {}),
            }
        case OffsetSample():
            document = {
                "op": "sample",
                "partition": str(operation.partition),
                "last_stable_offset": operation.last_stable_offset,
                "high_watermark": operation.high_watermark,
                "at_us": operation.at_us,
            }
        case Fault():
            document = {
                "op": "fault",
                "what": operation.what,
                "begun_us": operation.begun_us,
                "ended_us": operation.ended_us,
            }
        case FinalLog():
            document = {
                "op": "log",
                "partition": str(operation.partition),
                "start": operation.start,
                "end": operation.end,
                "last_stable_offset": operation.last_stable_offset,
                "records": operation.records,
                "visible": [record.offset for record in operation.visible],
            }
            known = dict(operation.records)
            different = [record for record in operation.visible if known.get(record.offset) != record.value]
            if different:
                document["different"] = different
        case FinalOffset():
            document = {
                "op": "offset",
                "group": operation.group,
                "partition": str(operation.partition),
                "offset": operation.offset,
            }
        case Settings():
            document = {
                "op": "settings",
                "transaction_timeout_ms": operation.transaction_timeout_ms,
                "slack_ms": operation.slack_ms,
            }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _write_transaction(transaction: Transaction) -> dict[str, Any]:
    document: dict[str, Any] = {
        "op": "transaction",
        "transactional_id": transaction.transactional_id,
        "incarnation": transaction.incarnation,
        "number": transaction.number,
        "outcome": transaction.outcome.value,
        "begun_us": transaction.begun_us,
        "commit_sent_us": transaction.commit_sent_us,
        "ended_us": transaction.ended_us,
        "appends": [
            [str(each.partition), each.value, each.offset, *([] if each.source is None else [each.source])]
            for each in transaction.appends
        ],
    }
    if transaction.consumed:
        document["consumed"] = [[c.group, str(c.partition), c.start, c.end] for c in transaction.consumed]
    return document


def read_operation(document: dict[str, Any]) -> Operation:
    """The operation of one decoded line. Raises `KeyError`, `TypeError` or `ValueError` where it is malformed."""
    match document["op"]:
        case "transaction":
            return _read_transaction(document)
        case "read":
            return Read(
                _text(document["reader"]),
                _partition(document["partition"]),
                _number(document["start"]),
                _number(document["end"]),
                _number(document["begun_us"]),
                _number(document["ended_us"]),
                _records(document["records"]),
                _text(document.get("transaction", "")),
            )
        case "sample":
            return OffsetSample(
                _partition(document["partition"]),
                _number(document["last_stable_offset"]),
                _number(document["high_watermark"]),
                _number(document["at_us"]),
            )
        case "fault":
            return Fault(_text(document["what"]), _number(document["begun_us"]), _number(document["ended_us"]))
        case "log":
            return _read_log(document)
        case "offset":
            return FinalOffset(_text(document["group"]), _partition(document["partition"]), _number(document["offset"]))
        case "settings":
            return Settings(_number(document["transaction_timeout_ms"]), _number(document["slack_ms"]))
        case other:
            raise ValueError(f"unknown operation {other!r}")


def _read_transaction(document: dict[str, Any]) -> Transaction:
    sent, ended = document["commit_sent_us"], document["ended_us"]
    return Transaction(
        _text(document["transactional_id"]),
        _number(document["incarnation"]),
        _number(document["number"]),
        Outcome(document["outcome"]),
        _number(document["begun_us"]),
        None if sent is None else _number(sent),
        None if ended is None else _number(ended),
        tuple(_append(*each) for each in document["appends"]),
        tuple(
            Consumed(_text(group), _partition(at), _number(start), _number(end))
            for group, at, start, end in document.get("consumed", ())
        ),
    )


def _append(partition: object, value: object, offset: object, source: object = None) -> Append:
    return Append(
        _partition(partition),
        _text(value),
        None if offset is None else _number(offset),
        None if source is None else _text(source),
    )


def _read_log(document: dict[str, Any]) -> FinalLog:
    records = _records(document["records"])
    values = dict(records) | dict(_records(document.get("different", ())))
    return FinalLog(
        _partition(document["partition"]),
        _number(document["start"]),
        _number(document["end"]),
        _number(document["last_stable_offset"]),
        records,
        tuple(Seen(offset, values[offset]) for offset in map(_number, document["visible"])),
    )


def _partition(value: object) -> TopicPartition:
    topic, _, partition = _text(value).rpartition("-")
    return TopicPartition(topic, int(partition))


def _records(pairs: Iterable[list[Any]]) -> tuple[Seen, ...]:
    return tuple(Seen(_number(offset), _text(value)) for offset, value in pairs)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not an integer")
    return value


def read_history(lines: Iterable[str]) -> History:
    """The history of these lines. Raises `MalformedHistory`, with the number of the line."""
    history = History()
    malformed: MalformedHistory | None = None
    is_first = True
    for number, line in enumerate(lines, 1):
        if malformed is not None:
            raise malformed
        try:
            document = json.loads(line)
            if not is_first:
                history.add(read_operation(document))
            elif document != FORMAT:
                raise MalformedHistory(f"line 1: {FIRST_LINE} is expected; this is not a history of kalda verify")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, MalformedHistory):
                raise
            malformed = MalformedHistory(f"line {number}: {error}: {line[:80].strip()}")
            if is_first:
                raise malformed from error
        is_first = False
    if is_first:
        raise MalformedHistory("it is empty")
    return history
