"""`kalda perf`: rates and latencies of producers and consumers, printed as Kafka's perf tools print them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import click

from kalda.base.errors import ApiError, ErrorCode
from kalda.cli.common.completing import complete_topic
from kalda.cli.common.failures import Failure
from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import ProgressLine, counted, is_json, print_json
from kalda.cli.common.session import json_option, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.consumer.consumer import Consumer
    from kalda.client.producer.producer import Producer
    from kalda.clientcore.producing.producer_batch import RecordMetadata

_WINDOW_S = 5.0
_MAX_RECORD_BYTES = 100_000_000
_POLL_RECORDS = 10_000
_SAMPLED_EVERY = 64
_BATCH_BYTES = 16_384
"""The default of batch.size."""
_RECORD_OVERHEAD = 10
_SLOW_PER_S = 20_000
"""Records a second up to which every one is measured."""
_PAIRS = 20
"""Of a part of the records sent with measurements, and the same by `send` alone."""
_MB = 1024 * 1024
_E2E_TIMEOUT_S = 60.0


@click.group(cls=Noun)
def perf() -> None:
    """Measure producers and consumers on a cluster."""


class _Latencies:
    """Of sampled records, in ms, since the beginning and since the last window."""

    def __init__(self) -> None:
        self.all_ms: list[float] = []
        self.error: Exception | None = None
        self._window_at = 0

    def window(self) -> list[float]:
        """Those since the last call."""
        found = self.all_ms[self._window_at :]
        self._window_at += len(found)
        return found

    def callback(self) -> Callable[[RecordMetadata, Exception | None], None]:
        """For a record that is sent now."""
        began_s = time.perf_counter()

        def delivered(_: RecordMetadata, error: Exception | None) -> None:
            if error is None:
                self.all_ms.append((time.perf_counter() - began_s) * 1_000)
            else:
                self.error = error

        return delivered


def sampled_every(record_size: int, throughput: float) -> int:
    """Of how many records one has its latency measured. A measurement costs more than a `send`: measured for each, it
    would be most of what is measured. Every batch has one at least, so that no failed one is missed."""
    if 0 < throughput <= _SLOW_PER_S:
        return 1
    return max(1, min(_SAMPLED_EVERY, _BATCH_BYTES // 2 // (record_size + _RECORD_OVERHEAD)))


class _Sending:
    """A run of `kalda perf produce`."""

    def __init__(self, producer: Producer, topic: str, value: bytes, throughput: float) -> None:
        self.latencies = _Latencies()
        self.sent = 0
        self._producer, self._topic, self._value = producer, topic, value
        self._throughput = throughput
        self._every = sampled_every(len(value), throughput)
        self._began_s = time.perf_counter()

    def run(self, count: int, after_each: Callable[[float], None]) -> None:
        """Send `count` records. `after_each` is called with the time after each measured record. Raises the error of a
        record that was not written."""
        send, topic, value = self._producer.send, self._topic, self._value
        until = self.sent + count
        while self.sent < until:
            chunk = min(self._every, until - self.sent)
            send(topic, value, on_delivery=self.latencies.callback())
            for _ in range(chunk - 1):
                send(topic, value)
            self.sent += chunk
            now_s = time.perf_counter()
            if self._throughput > 0 and now_s - self._began_s < self.sent / self._throughput:
                time.sleep(self.sent / self._throughput - (now_s - self._began_s))
            after_each(now_s)
            self.check()

    def check(self) -> None:
        """Raises the error of a record that was not written."""
        if self.latencies.error is not None:
            raise self.latencies.error


def percentile(ordered: Sequence[float], share: float) -> int:
    """As Kafka's tools: the value at that share of the sorted values, in whole ms."""
    return int(ordered[min(len(ordered) - 1, int(share * len(ordered)))]) if ordered else 0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def window_line(records: int, latencies_ms: Sequence[float], size: int, seconds: float) -> str:
    """A line of kafka-producer-perf-test while it runs."""
    rate = records / seconds
    return (
        f"{counted(records, 'record')} sent, {rate:.1f} records/sec ({rate * size / _MB:.2f} MB/sec), "
        f"{_mean(latencies_ms):.1f} ms avg latency, {max(latencies_ms, default=0.0):.1f} ms max latency."
    )


def total_line(records: int, latencies_ms: Sequence[float], size: int, seconds: float) -> str:
    """The last line of kafka-producer-perf-test."""
    ordered, rate = sorted(latencies_ms), records / seconds
    tails = ", ".join(
        f"{percentile(ordered, share)} ms {name}"
        for share, name in ((0.5, "50th"), (0.95, "95th"), (0.99, "99th"), (0.999, "99.9th"))
    )
    return (
        f"{counted(records, 'record')} sent, {rate:.1f} records/sec ({rate * size / _MB:.2f} MB/sec), "
        f"{_mean(ordered):.2f} ms avg latency, {ordered[-1] if ordered else 0.0:.2f} ms max latency, {tails}."
    )


@perf.command("produce")
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-n", "--num-records", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="How many records."
)
@click.option(
    "-s",
    "--record-size",
    type=click.IntRange(1, _MAX_RECORD_BYTES),
    default=100,
    show_default=True,
    help="Bytes of a value.",
)
@click.option(
    "--throughput", type=float, default=-1.0, show_default=True, metavar="N",
    help="At most N records a second; -1: as many as possible.",
)  # fmt: skip
@click.option(
    "--compare", is_flag=True,
    help="Send as many records again by a loop of `send` alone, in turns with these, and print the ratio of the rates.",
)  # fmt: skip
@json_option
@with_cluster
def produce_command(
    admin: CommandAdmin,
    topic: str,
    num_records: int,
    record_size: int,
    throughput: float,
    compare: bool,
) -> None:
    """Send records of random bytes to TOPIC. Keys of the producer are given by -X.

    The latency is that of a sample: of one record in 64, or more of large ones, and of all with --throughput.

    \b
    Examples:
      kalda perf produce orders --num-records 1000000 --record-size 100
      kalda perf produce orders --throughput 5000 -X acks=1 -X linger.ms=0
    """
    from kalda.base.configs.producer import PRODUCER
    from kalda.client.producer.producer import Producer
    from kalda.client.transport.config_files import keys_of

    if compare and throughput > 0:
        raise click.UsageError("--compare measures the highest rate: leave out --throughput")
    admin.topic(topic)
    with Producer(keys_of(PRODUCER, admin.config)) as producer:
        sending = _Sending(producer, topic, os.urandom(record_size), throughput)
        windows = _Windows(sending, record_size, is_shown=not is_json())
        compared = _compare(sending, producer, topic, record_size, num_records) if compare else None
        if compared is None:
            sending.run(num_records, windows.step)
            producer.flush()
        seconds = windows.seconds if compared is None else compared.measured_s
    sending.check()
    latencies_ms = sending.latencies.all_ms
    if is_json():
        ordered = sorted(latencies_ms)
        print_json(
            {
                "records": num_records,
                "seconds": seconds,
                "records_per_s": num_records / seconds,
                "mb_per_s": num_records * record_size / _MB / seconds,
                "avg_ms": _mean(ordered),
                "max_ms": ordered[-1],
                **{f"p{name}_ms": percentile(ordered, share) for name, share in _SHARES},
                **({} if compared is None else compared._asdict()),
            }
        )
        return
    click.echo(total_line(num_records, latencies_ms, record_size, seconds))
    if compared is not None:
        click.echo(compared.line(num_records))


class _Windows:
    """The lines of a run, one every `_WINDOW_S`."""

    def __init__(self, sending: _Sending, size: int, *, is_shown: bool) -> None:
        self._sending, self._size, self._is_shown = sending, size, is_shown
        self._began_s = self._window_s = time.perf_counter()
        self._window_sent = 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began_s

    def step(self, now_s: float) -> None:
        if now_s - self._window_s < _WINDOW_S:
            return
        if self._is_shown:
            latencies_ms = self._sending.latencies.window()
            records = self._sending.sent - self._window_sent
            click.echo(window_line(records, latencies_ms, self._size, now_s - self._window_s))
        self._window_s, self._window_sent = now_s, self._sending.sent


class Comparison(NamedTuple):
    """The same records sent by this command, and by a loop of `send` alone. CPU is that of the process, in seconds.
    The ratio of the rates is the median of pairs of parts, sent one after the other: what else the machine does in some
    of them does not move it."""

    measured_s: float
    measured_cpu_s: float
    bare_s: float
    bare_cpu_s: float
    ratio: float

    def line(self, records: int) -> str:
        """The ratios, with the CPU time of a record in both."""
        return (
            f"a loop of send alone: {records / self.bare_s:.1f} records/sec. This command: "
            f"{self.ratio:.2f} of that rate, {self.measured_cpu_s / records * 1e6:.2f} us of CPU a "
            f"record where the loop takes {self.bare_cpu_s / records * 1e6:.2f} us"
        )


def _compare(sending: _Sending, producer: Producer, topic: str, size: int, count: int) -> Comparison:
    """Both in turns, in parts, so that what else the machine does slows both."""
    value = os.urandom(size)
    spent: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for pair in range(_PAIRS):
        part = count * (pair + 1) // _PAIRS - count * pair // _PAIRS
        for is_measured in (True, False) if pair % 2 == 0 else (False, True):  # neither has the better turn always
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            if is_measured:
                sending.run(part, lambda _: None)
            else:
                for _ in range(part):
                    producer.send(topic, value)
            producer.flush()
            spent[is_measured].append((time.perf_counter() - began_s, time.process_time() - began_cpu_s))
    ratio = median(bare[0] / measured[0] for measured, bare in zip(spent[True], spent[False], strict=True))
    sums = [sum(column) for side in (True, False) for column in zip(*spent[side], strict=True)]
    return Comparison(sums[0], sums[1], sums[2], sums[3], ratio)


_SHARES = (("50", 0.5), ("95", 0.95), ("99", 0.99), ("99.9", 0.999))


CONSUMED_COLUMNS = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, rebalance.time.ms, "
    "fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)
"""The header of kafka-consumer-perf-test."""


class ConsumedAmount(NamedTuple):
    """What a consumer has read. Times are seconds since 1970 and durations in seconds."""

    started_s: float
    ended_s: float
    size_bytes: int
    records: int
    joining_s: float

    def line(self) -> str:
        """The row of kafka-consumer-perf-test."""
        megabytes, seconds = self.size_bytes / _MB, max(self.ended_s - self.started_s, 1e-9)
        fetching_s = max(seconds - self.joining_s, 1e-9)
        return (
            f"{_moment(self.started_s)}, {_moment(self.ended_s)}, {megabytes:.4f}, {megabytes / seconds:.4f}, "
            f"{self.records}, {self.records / seconds:.4f}, {self.joining_s * 1_000:.0f}, {fetching_s * 1_000:.0f}, "
            f"{megabytes / fetching_s:.4f}, {self.records / fetching_s:.4f}"
        )


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S:") + f"{int(seconds * 1_000) % 1_000:03d}"


@perf.command("consume")
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-n", "--num-records", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="How many records."
)
@click.option("-g", "--group", "group_id", metavar="NAME", help="Read as a member. [default: all partitions, no group]")
@click.option(
    "--timeout-ms", type=click.IntRange(min=1), default=10_000, show_default=True, metavar="MS",
    help="Stop when no record came for MS.",
)  # fmt: skip
@json_option
@with_cluster
def consume_command(admin: CommandAdmin, topic: str, num_records: int, group_id: str | None, timeout_ms: int) -> None:
    """Read TOPIC from its beginning. Keys of the consumer are given by -X.

    \b
    Examples:
      kalda perf consume orders --num-records 1000000
      kalda perf consume orders --group perf -X fetch.min.bytes=100000
    """
    from kalda.base.configs.consumer import CONSUMER
    from kalda.client.consumer.consumer import Consumer
    from kalda.client.transport.config_files import keys_of

    partitions = admin.partitions(topic)
    keys: dict[str, object] = {"auto.offset.reset": "earliest", **keys_of(CONSUMER, admin.config)}
    if group_id is not None:
        keys["group.id"] = group_id
    with Consumer(keys) as consumer:
        if group_id is None:
            consumer.assign(partitions)
        else:
            consumer.subscribe([topic])
        consumed = _consume(consumer, num_records, timeout_ms / 1_000)
    if is_json():
        print_json(consumed._asdict())
    else:
        click.echo(CONSUMED_COLUMNS)
        click.echo(consumed.line())
    if consumed.records < num_records:
        click.echo(
            f"kalda: read {consumed.records} of {counted(num_records, 'record')}: none came for {timeout_ms} ms",
            err=True,
        )


def _consume(consumer: Consumer, count: int, timeout_s: float) -> ConsumedAmount:
    """Read until there are `count` records, or none has come for `timeout_s`."""
    started_s, began_s = time.time(), time.perf_counter()
    last_s = ended_s = began_s
    assigned_s: float | None = None
    records = size_bytes = 0
    line = ProgressLine(
        lambda seconds: f"{records:,} of {counted(count, 'record', form=',')}, {records / seconds:,.0f} records/sec"
    )
    while records < count:
        line.step()
        polled = consumer.poll(0.1, min(_POLL_RECORDS, count - records))
        now_s = time.perf_counter()
        if assigned_s is None and consumer.assignment():
            assigned_s = now_s
        if polled:
            records += len(polled)
            size_bytes += sum(max(0, each.serialized_key_size) + max(0, each.serialized_value_size) for each in polled)
            last_s = ended_s = now_s
        elif now_s - last_s >= timeout_s:
            break
    line.clear()
    joining_s = 0.0 if assigned_s is None or not consumer.subscription() else assigned_s - began_s
    return ConsumedAmount(started_s, started_s + ended_s - began_s, size_bytes, records, joining_s)


@perf.command("e2e")
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "-n", "--num-records", type=click.IntRange(min=1), default=10_000, show_default=True, help="How many records."
)
@click.option(
    "-s",
    "--record-size",
    type=click.IntRange(1, _MAX_RECORD_BYTES),
    default=100,
    show_default=True,
    help="Bytes of a value.",
)
@json_option
@with_cluster
def e2e_command(admin: CommandAdmin, topic: str, num_records: int, record_size: int) -> None:
    """The time from sending a record until a consumer has it, one record after the other.

    \b
    Examples:
      kalda perf e2e orders --num-records 10000
      kalda perf e2e orders -X acks=1
    """
    from kalda.base.configs.consumer import CONSUMER
    from kalda.base.configs.producer import PRODUCER
    from kalda.client.consumer.consumer import Consumer
    from kalda.client.producer.producer import Producer
    from kalda.client.transport.config_files import keys_of

    partitions = admin.partitions(topic)
    latencies_ms: list[float] = []
    with (
        Consumer({"fetch.max.wait.ms": 100, **keys_of(CONSUMER, admin.config)}) as consumer,
        Producer({"linger.ms": 0, **keys_of(PRODUCER, admin.config)}) as producer,
    ):
        consumer.assign(partitions)
        consumer.seek_to_end()
        for partition in partitions:
            consumer.position(partition)
        for number in range(num_records):
            value = os.urandom(record_size)
            began_s = time.perf_counter()
            producer.send(topic, value).result(_E2E_TIMEOUT_S)
            _receive(consumer, value)
            latencies_ms.append((time.perf_counter() - began_s) * 1_000)
            if not is_json() and number % 1_000 == 0:
                click.echo(f"{number}\t{latencies_ms[-1]:.6f}")
    ordered = sorted(latencies_ms)
    tails = {name: percentile(ordered, share) for name, share in _SHARES if name != "95"}
    if is_json():
        print_json({"avg_ms": _mean(ordered), **{f"p{name}_ms": value for name, value in tails.items()}})
    else:
        click.echo(f"Avg latency: {_mean(ordered):.4f} ms")
        click.echo("Percentiles: " + ", ".join(f"{name}th = {value}" for name, value in tails.items()))


def _receive(consumer: Consumer, value: bytes) -> None:
    """Raises `Failure` for another record, and `ApiError` where none comes."""
    records = consumer.poll(_E2E_TIMEOUT_S, 1)
    if not records:
        raise ApiError(ErrorCode.REQUEST_TIMED_OUT, f"the record was not received within {_E2E_TIMEOUT_S:.0f} s")
    if records[0].value != value:
        raise Failure("another record was received: a topic that no other program writes to is needed")
