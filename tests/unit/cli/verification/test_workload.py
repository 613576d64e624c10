"""Writers and loops on a toy cluster: what they record, and what is judged of it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from toy_cluster import ToyCluster, ToyProducer, ToySource

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.verification.clients import Ledger, LedgerWriter, Loop
from kalda.clientcore.consuming.positions import GroupMetadata
from kalda.clientcore.producing.producer_errors import AbortableTransactionError, ProducerFencedError
from kalda.verify.history import Append, History, Operation, Outcome, Transaction
from kalda.verify.rules import Rule, Verdict, judge

INPUTS = [TopicPartition("in", index) for index in range(3)]
OUTPUTS = {partition: TopicPartition("out", partition.partition) for partition in INPUTS}
GROUP = "g"
MEMBER = GroupMetadata(GROUP, 1, "member")
LATE = ApiError(ErrorCode.REQUEST_TIMED_OUT, "no answer")
FENCED = ProducerFencedError(ErrorCode.PRODUCER_FENCED, "fenced")
ABORTABLE = AbortableTransactionError(ErrorCode.TRANSACTION_ABORTABLE, "abort it")


class Workload:
    """A writer and a loop."""

    def __init__(self, seed: int = 0) -> None:
        self.cluster = ToyCluster()
        self.recorded: list[Operation] = []
        self.producer, self.loop_producer = ToyProducer(self.cluster), ToyProducer(self.cluster)
        self.writer = LedgerWriter(self.ledger("writer-0", self.producer), Random(seed), INPUTS)
        self.loop = self.new_loop(0)

    def ledger(self, name: str, producer: ToyProducer, incarnation: int = 0) -> Ledger:
        return Ledger(producer, self.recorded.append, self.cluster.clock, name, incarnation)

    def new_loop(self, incarnation: int) -> Loop:
        ledger = self.ledger("loop-0", self.loop_producer, incarnation)
        self.source = ToySource(self.cluster, INPUTS)
        return Loop(ledger, self.source, self.recorded.append, Random(incarnation), GROUP, OUTPUTS)

    def verdict(self) -> Verdict:
        history = History()
        for operation in [*self.recorded, *self.cluster.final(GROUP)]:
            history.add(operation)
        return judge(history)

    def last(self) -> Transaction:
        return [each for each in self.recorded if isinstance(each, Transaction)][-1]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_on_a_right_cluster_is_sound(seed: int) -> None:
    workload = Workload(seed)
    for _ in range(60):
        workload.writer.step()
        workload.loop.step()
    while workload.source.positions != {p: len(log) for p, log in workload.cluster.logs.items() if p in INPUTS}:
        workload.loop.step()
    verdict = workload.verdict()
    assert verdict.is_sound, verdict.findings
    assert verdict.outcomes[Outcome.COMMITTED] > 60
    assert verdict.outcomes[Outcome.ABORTED] > 5
    assert verdict.records_read > 0


def test_a_cluster_that_tears_transactions_is_not_sound() -> None:
    workload = Workload()
    workload.producer.loses_a_partition = True
    for _ in range(20):
        workload.writer.step()
    assert set(workload.verdict().violations) == {Rule.TORN}


def test_what_is_recorded_before_a_commit_is_requested() -> None:
    workload = Workload(1)
    committed = next(each for each in (workload.writer.step() for _ in range(20)) if each.outcome is Outcome.COMMITTED)
    begun, asked, ended = [
        each for each in workload.recorded if isinstance(each, Transaction) and each.name == committed.name
    ]
    assert (begun.commit_sent_us, begun.outcome) == (None, Outcome.UNKNOWN)
    assert all(append.offset is None for append in begun.appends)
    assert asked.commit_sent_us is not None
    assert (asked.outcome, asked.ended_us) == (Outcome.UNKNOWN, None)
    assert all(append.offset is not None for append in asked.appends)
    assert ended == committed


def step_until_commit(workload: Workload) -> Transaction:
    """Steps until one that would commit; with a failure in the way, what was recorded last."""
    for _ in range(20):
        ended = workload.writer.step()
        if ended.outcome is Outcome.COMMITTED:
            return ended
    raise AssertionError("no transaction was committed")


def test_a_commit_without_an_answer_is_requested_again() -> None:
    workload = Workload()
    workload.producer.failures["commit"] = [LATE, LATE]
    assert step_until_commit(workload).outcome is Outcome.COMMITTED


def test_a_commit_that_gets_no_answer_ends_the_incarnation() -> None:
    workload = Workload()
    workload.producer.failures["commit"] = [LATE] * 3
    with pytest.raises(ApiError):
        step_until_commit(workload)
    assert (workload.last().outcome, workload.last().ended_us) == (Outcome.UNKNOWN, None)
    assert workload.last().commit_sent_us is not None
    assert workload.verdict().is_sound, "all of its records are visible, or none"


@pytest.mark.parametrize("call", ["flush", "commit"])
def test_an_abortable_error_aborts(call: str) -> None:
    workload = Workload()
    workload.producer.failures[call] = [ABORTABLE]
    for _ in range(20):
        workload.writer.step()
    assert not workload.producer.failures[call]
    assert workload.verdict().is_sound


def run_steps(workload: Workload, count: int) -> None:
    for _ in range(count):
        workload.writer.step()


@pytest.mark.parametrize("call", ["begin", "flush", "abort"])
def test_a_fenced_producer_has_not_committed(call: str) -> None:
    workload = Workload()
    workload.producer.failures[call] = [FENCED]
    with pytest.raises(ProducerFencedError):
        run_steps(workload, 50)
    assert (workload.last().outcome, workload.last().commit_sent_us) == (Outcome.UNKNOWN, None)


def test_a_loop_reads_again_what_it_has_aborted() -> None:
    workload = Workload()
    for _ in range(10):
        workload.writer.step()
    workload.loop_producer.failures["send_offsets"] = [ABORTABLE]
    ended = [workload.loop.step() for _ in range(40)]
    assert Outcome.ABORTED in {each.outcome for each in ended if each is not None}
    assert workload.verdict().is_sound


def test_a_new_incarnation_of_a_loop_goes_on_at_the_committed_offsets() -> None:
    workload = Workload()
    for _ in range(10):
        workload.writer.step()
    workload.loop_producer.failures["flush"] = [FENCED]
    with pytest.raises(ProducerFencedError):
        workload.loop.step()
    workload.cluster.offsets.setdefault(INPUTS[0], 0)
    successor = workload.new_loop(1)
    for _ in range(40):
        successor.step()
    assert workload.verdict().is_sound


def test_a_loop_that_forgets_its_offsets_is_found() -> None:
    workload = Workload()
    for _ in range(10):
        workload.writer.step()
    for incarnation in range(2):
        loop = workload.new_loop(incarnation)
        for _ in range(10):
            loop.step()
        if not incarnation:
            workload.cluster.offsets.clear()
    assert {Rule.LOST_UPDATE, Rule.INPUT_TWICE} <= set(workload.verdict().violations)


def member_of(workload: Workload, number: int, producer: ToyProducer) -> tuple[Loop, ToySource]:
    ledger, source = workload.ledger(f"member-{number}", producer), ToySource(workload.cluster, INPUTS[:1], MEMBER)
    return Loop(ledger, source, workload.recorded.append, Random(2), GROUP, OUTPUTS), source


def written_input(workload: Workload) -> None:
    workload.cluster.logs.pop(INPUTS[0], None)
    ledger = workload.ledger("writer-9", workload.producer)
    transaction = replace(ledger.next_transaction(), appends=(Append(INPUTS[0], "input"),))
    ledger.run(transaction, lambda: None, commits=True)


@pytest.mark.parametrize("fences", [True, False])
def test_a_member_whose_partitions_belong_to_another(fences: bool) -> None:
    """Two members have read the same input. Where the group refuses the offsets of the one that it has removed, its
    transaction is aborted; where it does not, the input is processed twice, which is found."""
    workload = Workload()
    written_input(workload)
    removed_producer = ToyProducer(workload.cluster)
    removed, source = member_of(workload, 0, removed_producer)
    successor, _ = member_of(workload, 1, ToyProducer(workload.cluster))
    done = successor.step()
    assert done is not None
    assert done.outcome is Outcome.COMMITTED
    if fences:
        removed_producer.failures["send_offsets"] = [ABORTABLE]
    ended = removed.step()
    assert ended is not None
    assert ended.outcome is (Outcome.ABORTED if fences else Outcome.COMMITTED)
    assert source.rewinds == int(fences)
    found = set(workload.verdict().violations)
    assert found == (set() if fences else {Rule.INPUT_TWICE, Rule.LOST_UPDATE})
    assert removed.step() is None


def test_an_input_of_two_groups_has_an_output_of_each() -> None:
    workload = Workload()
    written_input(workload)
    for group, number in ((GROUP, 0), ("other", 1)):
        producer = ToyProducer(workload.cluster)
        source = ToySource(workload.cluster, INPUTS[:1], MEMBER)
        outputs = {each: TopicPartition(f"out-{number}", 0) for each in INPUTS}
        ledger = workload.ledger(f"member-{number}", producer)
        loop = Loop(ledger, source, workload.recorded.append, Random(2), group, outputs)
        assert loop.step() is not None
        workload.cluster.offsets.clear()
    assert Rule.INPUT_TWICE not in workload.verdict().violations
