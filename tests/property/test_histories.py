"""Histories of a toy cluster that is right pass; each anomaly that is put into one is found, by its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_transactions import INPUTS, OUTPUTS, lines_of, toy_history

from kalda.verify.history import FinalLog, History, OffsetSample, Outcome, Read, Seen, Transaction, read_history
from kalda.verify.rules import Rule, judge

SEEDS = st.integers(0, 2**32)


@given(SEEDS)
@settings(max_examples=60)
def test_a_right_cluster_passes(seed: int) -> None:
    verdict = judge(toy_history(seed))
    assert verdict.is_sound, "\n".join(map(str, verdict.findings))


@given(SEEDS)
@settings(max_examples=20)
def test_a_history_is_read_as_it_was_written(seed: int) -> None:
    history = toy_history(seed, 120)
    assert read_history(lines_of(history)) == history


def of_outcome(history: History, outcome: Outcome, count: int = 1) -> list[Transaction]:
    """Transactions with this outcome and at least `count` records."""
    return [t for t in history.transactions.values() if t.outcome is outcome and len(t.appends) >= count]


def without_visible(history: History, values: set[str]) -> None:
    for partition, log in history.logs.items():
        visible = tuple(record for record in log.visible if record.value not in values)
        history.logs[partition] = replace(log, visible=visible)


def change_log(history: History, partition: object, change: Callable[[FinalLog], FinalLog]) -> None:
    key = next(each for each in history.logs if each == partition)
    history.logs[key] = change(history.logs[key])


def lose(history: History, random: Random) -> set[Rule]:
    victim = random.choice(of_outcome(history, Outcome.COMMITTED))
    without_visible(history, {append.value for append in victim.appends})
    return {Rule.LOST}


def tear(history: History, random: Random) -> set[Rule]:
    victim = random.choice(of_outcome(history, Outcome.COMMITTED, 2))
    without_visible(history, {random.choice(victim.appends).value})
    return {Rule.TORN}


def show_aborted(history: History, random: Random) -> set[Rule]:
    append = random.choice(random.choice(of_outcome(history, Outcome.ABORTED)).appends)
    log = history.logs[append.partition]
    shown = next(record for record in log.records if record.value == append.value)
    history.logs[append.partition] = replace(log, visible=tuple(sorted((*log.visible, shown))))
    return {Rule.ABORTED_VISIBLE}


def read_aborted(history: History, random: Random) -> set[Rule]:
    append = random.choice(random.choice(of_outcome(history, Outcome.ABORTED)).appends)
    offset = next(r.offset for r in history.logs[append.partition].records if r.value == append.value)
    records = (Seen(offset, append.value),)
    history.add(Read("bad", append.partition, offset, offset + 1, history.samples[-1].at_us, 10**9, records))
    return {Rule.G1A}


def read_early(history: History, random: Random) -> set[Rule]:
    victim = random.choice([t for t in of_outcome(history, Outcome.COMMITTED) if t.appends])
    append = random.choice(victim.appends)
    offset = next(r.offset for r in history.logs[append.partition].visible if r.value == append.value)
    assert victim.commit_sent_us is not None
    at_us = victim.commit_sent_us - 1
    history.add(Read("bad", append.partition, offset, offset + 1, at_us, at_us, (Seen(offset, append.value),)))
    return {Rule.G1B}


def skip(history: History, random: Random) -> set[Rule]:
    victims = [index for index, read in enumerate(history.reads) if read.records and not read.transaction]
    index = random.choice(victims)
    read = history.reads[index]
    skipped = random.choice(read.records)
    history.reads[index] = replace(read, records=tuple(r for r in read.records if r != skipped))
    return {Rule.G1B, Rule.SKIPPED}


def double(history: History, random: Random) -> set[Rule]:
    partition = random.choice([p for p, log in history.logs.items() if log.visible])
    log = history.logs[partition]
    again = Seen(log.end, random.choice(log.visible).value)
    history.logs[partition] = replace(
        log,
        end=log.end + 1,
        last_stable_offset=log.end + 1,
        records=(*log.records, again),
        visible=(*log.visible, again),
    )
    return {Rule.DUPLICATE}


def invent(history: History, random: Random) -> set[Rule]:
    partition = random.choice(OUTPUTS)
    log = history.logs[partition]
    history.logs[partition] = replace(log, visible=(*log.visible, Seen(log.end, "from nowhere")))
    return {Rule.UNKNOWN_RECORD}


def swap(history: History, random: Random) -> set[Rule]:
    """Two records of one producer change places."""
    pairs = []
    for partition, log in history.logs.items():
        by_producer: dict[str, list[Seen]] = {}
        for record in log.visible:
            by_producer.setdefault(record.value.partition("/")[0], []).append(record)
        pairs += [(partition, found) for found in by_producer.values() if len(found) > 1]
    partition, found = random.choice(pairs)
    (one, first), (two, second) = found[0], found[1]
    changed = {one: Seen(one, second), two: Seen(two, first)}
    log = history.logs[partition]
    visible = tuple(changed.get(record.offset, record) for record in log.visible)
    history.logs[partition] = replace(log, visible=visible, records=visible)
    return {Rule.ORDER}


def circle(history: History, random: Random) -> set[Rule]:
    """Two committed transactions have each read the other's record."""
    victims = random.sample([t for t in of_outcome(history, Outcome.COMMITTED) if t.appends], 2)
    for reader, writer in (victims, victims[::-1]):
        append = writer.appends[0]
        offset = next(r.offset for r in history.logs[append.partition].visible if r.value == append.value)
        records = (Seen(offset, append.value),)
        history.add(Read("bad", append.partition, offset, offset + 1, 10**9, 10**9, records, reader.name))
    return {Rule.G1C}


def read_beyond_own(history: History, random: Random) -> set[Rule]:
    """A committed transaction has read beyond its own record: the last stable offset did not hold the read back."""
    victims = [t for t in of_outcome(history, Outcome.COMMITTED) if t.appends]
    for victim in random.sample(victims, len(victims)):
        append = victim.appends[0]
        visible = history.logs[append.partition].visible
        at = next(index for index, record in enumerate(visible) if record.value == append.value)
        others = [r for r in visible[at:] if not r.value.startswith(f"{victim.name}#")]
        if others:
            start = others[0].offset
            read = Read("bad", append.partition, start, start + 1, 10**9, 10**9, (others[0],), victim.name)
            history.add(read)
            return {Rule.G1C}
    raise AssertionError("no transaction fits")


def consume_twice(history: History, random: Random) -> set[Rule]:
    victim = random.choice([t for t in of_outcome(history, Outcome.COMMITTED) if t.consumed and t.appends])
    twin = replace(victim, transactional_id="twin", appends=())
    history.add(twin)
    return {Rule.LOST_UPDATE}


def lose_output(history: History, random: Random) -> set[Rule]:
    """A transaction whose client got no answer has committed its offsets, but not its records."""
    victim = random.choice([t for t in of_outcome(history, Outcome.COMMITTED) if t.consumed and t.appends])
    without_visible(history, {append.value for append in victim.appends})
    history.add(replace(victim, outcome=Outcome.UNKNOWN))
    return {Rule.INPUT_LOST}


def forget_offset(history: History, random: Random) -> set[Rule]:
    at = random.choice([i for i, each in enumerate(history.offsets) if each.offset])
    history.offsets[at] = replace(history.offsets[at], offset=0)
    return {Rule.GROUP_OFFSET}


def move_back(history: History, random: Random) -> set[Rule]:
    last = history.samples[-1]
    history.add(OffsetSample(last.partition, last.last_stable_offset - 1, last.high_watermark, last.at_us + 1))
    return {Rule.LSO_BACKWARDS}


def stick(history: History, random: Random) -> set[Rule]:
    victim = random.choice(INPUTS)
    history.samples = [each for each in history.samples if each.partition != victim]
    history.add(OffsetSample(victim, 0, 5, history.faults[0].ended_us + 2_000_000))
    return {Rule.LSO_STUCK}


ANOMALIES = [
    lose, tear, show_aborted, read_aborted, read_early, skip, double, invent, swap, circle, read_beyond_own,
    consume_twice, lose_output, forget_offset, move_back, stick,
]  # fmt: skip


@pytest.mark.parametrize("anomaly", ANOMALIES, ids=lambda anomaly: anomaly.__name__)
@given(SEEDS)
@settings(max_examples=8)
def test_each_anomaly_is_found(anomaly: Callable[[History, Random], set[Rule]], seed: int) -> None:
    history = toy_history(seed, 600)
    expected = anomaly(history, Random(seed))
    found = judge(history)
    assert expected & set(found.violations), found.violations
    finding = next(each for each in found.findings if each.rule in expected)
    assert finding.text
    assert finding.rule.meaning
