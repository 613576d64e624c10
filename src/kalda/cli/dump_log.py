"""`kalda dump-log`: show the content of the files of a log directory, without a node.

Records of the cluster's internal topics are decoded: the directory's name gives the kind, or --decode. Secrets in
metadata records are not shown, unless --decode none has the bytes of records shown as they are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from kalda.base.errors import CorruptRecord, UnsupportedFormat
from kalda.base.texts import printable, printable_json
from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import KaldaCommand
from kalda.cli.common.output import ProgressLine, counted, is_json, json_option_of
from kalda.cli.records.formats import as_json as bytes_as_json

if TYPE_CHECKING:
    from kalda.records.builder import Record
    from kalda.storage.dump import Meaning, Row

_REDACTED = "[redacted]"
_BY_TOPIC = {
    "__cluster_metadata": "metadata",
    "__remote_log_metadata": "remote-log-metadata",
    "__consumer_offsets": "offsets",
    "__transaction_state": "transactions",
    "__share_group_state": "share",
}
_COORDINATOR_MODULES = {"offsets": "group_records", "transactions": "transaction_records", "share": "share_records"}
_METADATA_MODULES = {"metadata": "metadata_records", "remote-log-metadata": "remote_log_records"}


@click.command("dump-log", cls=KaldaCommand)
@click.argument("paths", metavar="FILE|DIR...", nargs=-1, required=True, type=click.Path(exists=True))
@click.option("--deep", is_flag=True, help="Show the records of each batch too.")
@click.option(
    "--decode",
    type=click.Choice(["auto", "none", *_BY_TOPIC.values()]),
    default="auto",
    show_default=True,
    help="How to decode the records. auto: by the name of their directory.",
)
@click.option("--cluster-metadata-decoder", "decode", flag_value="metadata", help="As --decode metadata.")
@click.option("--offsets-decoder", "decode", flag_value="offsets", help="As --decode offsets.")
@click.option("--transaction-log-decoder", "decode", flag_value="transactions", help="As --decode transactions.")
@click.option("--max-bytes", type=click.IntRange(min=1), metavar="N", help="Read at most N bytes of each log.")
@json_option_of("Print one JSON object a line, for programs.")
def dump_log(paths: tuple[str, ...], deep: bool, decode: str, max_bytes: int | None) -> None:
    """Show the content of segments, indexes, producer snapshots, checkpoints and metadata snapshots.

    Of a directory, all files are shown. Exits with 1 where a file is damaged.

    \b
    Examples:
      kalda dump-log data/orders-0/00000000000000000000.log --deep
      kalda dump-log data/__cluster_metadata-0 --deep --json
      kalda dump-log data/__consumer_offsets-7 --deep
      kalda dump-log backup/00000000000000000000.log --deep --transaction-log-decoder
    """
    from kalda.broker.process.disk import RealDisk
    from kalda.storage.dump import dump

    disk = RealDisk()
    damaged = files = shown = 0
    line = ProgressLine(lambda seconds: f"{seconds:5.0f} s  {counted(files, 'file')}, {counted(shown, 'row')}: {path}")
    for path, is_named in _files(paths):
        files += 1
        try:
            rows = dump(disk, path, records=deep, meaning=_meaning(path, decode), max_bytes=max_bytes)
        except (ValueError, UnsupportedFormat) as error:
            if is_named:
                raise Failure(f"{path}: {error}") from error
            continue
        if not is_json():
            click.echo(f"Dumping {path}")
        try:
            for row in rows:
                damaged += "error" in row
                shown += 1
                if not sys.stdout.isatty():  # else the rows themselves are seen
                    line.step()
                _print_row(path, row)
        except (ValueError, CorruptRecord) as error:
            damaged += 1
            _print_row(path, {"error": str(error)})
    line.clear()
    if damaged:
        raise Failure(
            f"damaged, or of a format that is not known: {counted(damaged, 'place')} in these files; the rows with "
            f"`error` say which"
        )


def _files(paths: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """Each file, and whether it was named itself; the files of a directory are sorted by name."""
    for path in paths:
        if not os.path.isdir(path):
            yield path, True
            continue
        for directory, directories, names in os.walk(path):
            directories.sort()
            yield from ((os.path.join(directory, name), False) for name in sorted(names))


def _print_row(path: str, row: Row) -> None:
    records = row.get("records", ())
    assert isinstance(records, list | tuple)
    if is_json():
        for record in records:
            if _is_redacted(record):
                record["value"] = None  # its bytes
        click.echo(printable_json(_dump_json({"file": path, **{key: _plain(value) for key, value in row.items()}})))
        return
    click.echo(printable("  ".join(f"{key}: {_shown(value)}" for key, value in row.items() if key != "records")))
    for record in records:
        if "meaning" in record:  # the decoded record is shown instead of its bytes
            record = {key: value for key, value in record.items() if key not in ("key", "value")}
        click.echo("| " + printable("  ".join(f"{key}: {_shown(value)}" for key, value in record.items())))


def _is_redacted(record: Row) -> bool:
    """Whether the meaning of a record lacks a secret that its bytes have."""
    meaning = record.get("meaning")
    data = meaning.get("data") if isinstance(meaning, dict) else None
    return isinstance(data, dict) and _REDACTED in data.values()


def _dump_json(document: dict[str, object]) -> str:
    import json

    return json.dumps(document, ensure_ascii=False)


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            return "0x" + value.hex()
        return text if text.isprintable() else repr(text)
    if isinstance(value, dict | list):
        return _dump_json_value(value)
    return str(value)


def _dump_json_value(value: object) -> str:
    import json

    return json.dumps(_plain(value), ensure_ascii=False)


def _plain(value: object) -> object:
    """The value as JSON types."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes_as_json(bytes(value))
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _meaning(path: str, decode: str) -> Meaning | None:
    """The function that decodes the records of the file; None: they are shown as bytes."""
    if decode == "auto":
        directory = os.path.basename(os.path.dirname(os.path.abspath(path)))
        decode = _BY_TOPIC.get(directory.partition(".")[0].rpartition("-")[0], "none")
    if decode in _METADATA_MODULES:
        module = _METADATA_MODULES[decode]
        return lambda record: _read_metadata(module, record)
    if decode in _COORDINATOR_MODULES:
        module = _COORDINATOR_MODULES[decode]
        return lambda record: _read_coordinator(module, record)
    return None


def _read_metadata(module: str, record: Record) -> object:
    from kalda.base.errors import InvalidRequest
    from kalda.protocol.codec import plain_fields
    from kalda.protocol.record_framing import decode_metadata_record

    if record.value is None:
        return None
    try:
        decoded = decode_metadata_record(record.value, module)
    except InvalidRequest as error:
        return {"unreadable": error.message}
    data = plain_fields(decoded.record) | dict.fromkeys(_secret_fields(decoded.record), _REDACTED)
    return {"type": type(decoded.record).__name__, "version": decoded.version, "data": data}


def _secret_fields(record: object) -> tuple[str, ...]:
    """The names of the fields of a metadata record that are not shown."""
    from kalda.base.configs.broker import is_sensitive
    from kalda.base.configs.resources import ConfigResourceType
    from kalda.protocol.messages.metadata_records import ConfigRecord, UserScramCredentialRecord

    if isinstance(record, UserScramCredentialRecord):
        return "salt", "stored_key", "server_key"
    if isinstance(record, ConfigRecord) and record.resource_type == ConfigResourceType.BROKER:
        return ("value",) if is_sensitive(record.name) else ()
    return ()


def _read_coordinator(module: str, record: Record) -> object:
    from kalda.base.errors import InvalidRequest
    from kalda.coordinator.transactions.metadata import TransactionState
    from kalda.protocol.codec import plain_fields
    from kalda.protocol.messages.transaction_records import TransactionLogValue
    from kalda.protocol.record_framing import decode_coordinator_key, decode_coordinator_value

    if record.key is None:
        return None
    try:
        key = decode_coordinator_key(module, record.key)
        decoded: dict[str, object] = {"type": type(key).__name__.removesuffix("Key"), "key": plain_fields(key)}
        if record.value is None:
            return {**decoded, "value": None}
        value = decode_coordinator_value(module, key.RECORD_TYPE, record.value)
    except InvalidRequest as error:
        return {"unreadable": error.message}
    decoded |= {"version": value.version, "value": plain_fields(value.record)}
    if isinstance(value.record, TransactionLogValue):
        status = value.record.transaction_status
        decoded["state"] = TransactionState(status).label if status in set(TransactionState) else f"unknown {status}"
    return decoded
