"""Requests of transactional producers, right and wrong: Kalda gives the same answers as Apache Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from same_answers import Asker

from kalda.base.errors import ErrorCode
from kalda.protocol.messages.admin import DescribeConfigsRequest, DescribeConfigsResource
from kalda.protocol.messages.groups import FindCoordinatorRequest
from kalda.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
)

pytestmark = pytest.mark.compat

Both = Callable[[Callable[[Asker], None]], None]
Fresh = Callable[[str], str]
Producer = tuple[int, int]
WAIT_S = 30


class Transactions:
    """The requests of one scenario. Producer ids differ between two clusters, so each is shown by the order in which it
    was first seen."""

    def __init__(self, asker: Asker, transactional_id: str) -> None:
        self.asker = asker
        self.id = transactional_id
        self._seen: list[int] = []
        self._wait_for_coordinator()

    def _wait_for_coordinator(self) -> None:
        request = FindCoordinatorRequest(key_type=1, coordinator_keys=[self.id])
        until = time.monotonic() + WAIT_S
        while self.asker.quiet(request).coordinators[0].error_code or self.state().error_code in (14, 15, 16):
            assert time.monotonic() < until, "there is no coordinator"
            time.sleep(0.05)

    def rank(self, producer_id: int) -> int:
        """-1 for no producer id, else the number of the ids seen before it."""
        if producer_id < 0:
            return -1
        if producer_id not in self._seen:
            self._seen.append(producer_id)
        return self._seen.index(producer_id)

    def state(self) -> Any:
        request = DescribeTransactionsRequest(transactional_ids=[self.id])
        return self.asker.quiet(request).transaction_states[0]

    def note_state(self, label: str) -> None:
        """What DescribeTransactions shows, when no marker is under way."""
        until = time.monotonic() + WAIT_S
        while (found := self.state()).transaction_state.startswith("Prepare"):
            assert time.monotonic() < until, found
        topics = sorted((each.topic, sorted(each.partitions)) for each in found.topics)
        shown = (found.error_code, found.transaction_state, found.transaction_timeout_ms, topics)
        self.asker.note(
            f"{label}: state",
            [*shown, found.transaction_start_time_ms > 0, self.rank(found.producer_id), found.producer_epoch],
        )

    def init(self, label: str, expected: Producer = (-1, -1), version: int = 5, **more: Any) -> Producer:
        request = InitProducerIdRequest(
            transactional_id=more.pop("transactional_id", self.id),
            transaction_timeout_ms=more.pop("timeout_ms", 60_000),
            producer_id=expected[0],
            producer_epoch=expected[1],
            **more,
        )
        until = time.monotonic() + WAIT_S
        while (answer := self.asker.quiet(request, version)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            assert time.monotonic() < until, "there are no producer ids"
            time.sleep(0.05)
        return self._noted(f"InitProducerId v{version} {label}", answer)

    def end(self, label: str, producer: Producer, version: int, *, committed: bool) -> Producer:
        request = EndTxnRequest(
            transactional_id=self.id, producer_id=producer[0], producer_epoch=producer[1], committed=committed
        )
        answer = self.asker.quiet(request, version)
        outcome = "commit" if committed else "abort"
        return self._noted(f"EndTxn v{version} {outcome} {label}", answer)

    def _noted(self, label: str, answer: Any) -> Producer:
        name = ErrorCode(answer.error_code).name
        self.asker.note(label, [name, self.rank(answer.producer_id), answer.producer_epoch])
        return answer.producer_id, answer.producer_epoch

    def add(self, label: str, producer: Producer, topics: dict[str, list[int]], version: int, **more: Any) -> None:
        """The answer is compared whole, by topic and partition."""
        named = [AddPartitionsToTxnTopic(name=name, partitions=numbers) for name, numbers in topics.items()]
        transactional_id = more.pop("transactional_id", self.id)
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer[0],
                v3_and_below_producer_epoch=producer[1],
                v3_and_below_topics=named,
            )
        else:
            request = AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=transactional_id,
                        producer_id=producer[0],
                        producer_epoch=producer[1],
                        topics=named,
                        **more,
                    )
                ]
            )
        answer = self.asker.quiet(request, version)
        results = answer.results_by_topic_v3_and_below
        if version >= 4:
            results = [topic for each in answer.results_by_transaction for topic in each.topic_results]
        shown = sorted(
            (topic.name, each.partition_index, ErrorCode(each.partition_error_code).name)
            for topic in results
            for each in topic.results_by_partition
        )
        self.asker.note(f"AddPartitionsToTxn v{version} {label}", [answer.error_code, *map(list, shown)])

    def add_offsets(self, label: str, producer: Producer, version: int) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.id, producer_id=producer[0], producer_epoch=producer[1], group_id="group"
        )
        answer = self.asker.quiet(request, version)
        self.asker.note(f"AddOffsetsToTxn v{version} {label}", ErrorCode(answer.error_code).name)


def bumped(producer: Producer, by: int = 1) -> Producer:
    return producer[0], producer[1] + by


def test_init_producer_id(both: Both, fresh: Fresh) -> None:
    name = fresh("txn")

    def scenario(asker: Asker) -> None:
        each = Transactions(asker, name)
        for version in range(6):
            each.init("new instance", version=version)
        first = each.init("first")
        each.init("continues", first)
        each.init("continues, repeated", first)
        second = each.init("new instance again")
        each.init("fenced", first)
        each.init("fenced, for old clients", first, 3)
        each.init("another producer id", (second[0] + 100_000, second[1]))
        each.init("an id without an epoch", (second[0], -1))
        each.init("an epoch without an id", (-1, 3))
        each.init("a higher epoch", bumped(second, 5))
        for timeout_ms in (0, -1, 900_000, 900_001, 2**31 - 1):
            each.init(f"timeout {timeout_ms}", timeout_ms=timeout_ms)
        each.init("an empty id", transactional_id="")
        each.init("no id", transactional_id=None)
        each.init("no id, with a producer", second, transactional_id=None)
        each.note_state("at the end")
        unknown = Transactions(asker, f"{name}-unknown")
        unknown.init("of an unknown id, with a producer", (77, 3))

    both(scenario)


def test_a_transaction_of_version_1(both: Both, fresh: Fresh) -> None:
    name, topic = fresh("txn"), fresh("topic")

    def scenario(asker: Asker) -> None:
        asker.make(topic, 3)
        each = Transactions(asker, name)
        each.add("unknown id", (5, 0), {topic: [0]}, 3)
        each.end("unknown id", (5, 0), 4, committed=True)
        each.add_offsets("unknown id", (5, 0), 3)
        producer = each.init("begins")
        for version in range(5):
            each.end("of nothing", producer, version, committed=True)
            each.end("of nothing", producer, version, committed=False)
        for version in range(4):
            each.add("valid", producer, {topic: [0, 2]}, version)
            each.add("some do not exist", producer, {topic: [0, 3], "nope": [0, 1]}, version)
            each.add("twice in one request", producer, {topic: [1, 1]}, version)
            each.add("an internal topic", producer, {topic: [1], "__transaction_state": [0]}, version)
            each.add("of another producer", bumped((producer[0] + 100_000, 0)), {topic: [0]}, version)
            each.add("of a higher epoch", bumped(producer), {topic: [0]}, version)
            each.add("of a lower epoch", bumped(producer, -1), {topic: [0]}, version)
            each.add("empty id", producer, {topic: [0]}, version, transactional_id="")
            each.add("nothing", producer, {}, version)
        for version in range(5):
            each.add_offsets("valid", producer, min(version, 4))
            each.add_offsets("of a higher epoch", bumped(producer), min(version, 4))
        each.note_state("open")
        for version in range(5):
            each.end("of a higher epoch", bumped(producer), version, committed=True)
            each.end("of another producer", (producer[0] + 100_000, 0), version, committed=True)
        each.end("the first time", producer, 4, committed=True)
        each.note_state("committed")
        each.end("again", producer, 4, committed=True)
        each.end("the other outcome", producer, 4, committed=False)
        each.add("next", producer, {topic: [1]}, 3)
        each.note_state("next")
        each.end("the first time", producer, 1, committed=False)
        each.note_state("aborted")
        each.end("again", producer, 1, committed=False)
        each.end("the other outcome", producer, 1, committed=True)
        each.init("after it", producer)
        each.note_state("begun")

    both(scenario)


def test_a_transaction_of_version_2(both: Both, fresh: Fresh) -> None:
    name, topic = fresh("txn"), fresh("topic")

    def scenario(asker: Asker) -> None:
        asker.make(topic, 3)
        each = Transactions(asker, name)
        each.add("unknown id", (5, 0), {topic: [0]}, 5)
        each.add("unknown id, verified", (5, 0), {topic: [0]}, 4, verify_only=True)
        each.end("unknown id", (5, 0), 5, committed=True)
        producer = each.init("begins")
        for committed in (True, False):
            each.end("Empty, retry", bumped(producer, -1), 5, committed=committed)
        each.end("Empty, current", producer, 5, committed=True)
        producer = each.end("Empty, current", producer, 5, committed=False)
        each.note_state("aborted without a partition")
        for version in (4, 5):
            each.add("verified before", producer, {topic: [0]}, version, verify_only=True)
        each.add("valid", producer, {topic: [0, 2]}, 5)
        for version in (4, 5):
            each.add("verified", producer, {topic: [0, 1, 2]}, version, verify_only=True)
            each.add("some do not exist", producer, {topic: [0, 3], "nope": [0]}, version, verify_only=True)
            each.add("verified for another epoch", bumped(producer), {topic: [0]}, version, verify_only=True)
            each.add("verified for another id", (producer[0] + 100_000, 0), {topic: [0]}, version, verify_only=True)
            each.add("empty id", producer, {topic: [0]}, version, transactional_id="", verify_only=True)
        each.note_state("open")
        for step in (-1, 1):
            each.end("Ongoing, another epoch", bumped(producer, step), 5, committed=True)
        following = each.end("Ongoing", producer, 5, committed=True)
        each.note_state("committed")
        _complete(each, producer, following, "CompleteCommit")
        following = each.end("CompleteCommit, current", following, 5, committed=False)
        each.note_state("aborted after a commit")
        _complete(each, bumped(following, -1), following, "CompleteAbort")
        following = each.end("CompleteAbort, current", following, 5, committed=False)
        each.note_state("aborted after an abort")
        each.end("in an old version", following, 4, committed=False)
        each.add("in an old version", following, {topic: [0]}, 3)
        each.end("begun in an old version", following, 5, committed=True)
        each.note_state("at the end")

    both(scenario)


def _complete(each: Transactions, retry: Producer, current: Producer, state: str) -> None:
    """Every request of EndTxn that changes nothing in a complete state."""
    each.end(f"{state}, retry", retry, 5, committed=True)
    each.end(f"{state}, retry", retry, 5, committed=False)
    each.end(f"{state}, current", current, 5, committed=True)
    each.end(f"{state}, higher", bumped(current), 5, committed=True)


def test_an_open_transaction_is_fenced(both: Both, fresh: Fresh) -> None:
    name, topic = fresh("txn"), fresh("topic")

    def scenario(asker: Asker) -> None:
        asker.make(topic, 1)
        each = Transactions(asker, name)
        for expects in (False, True):
            for add_version in (3, 5):
                label = f"after v{add_version}, {'continuing' if expects else 'anew'}"
                producer = each.init(f"before, {label}")
                each.add(label, producer, {topic: [0]}, add_version)
                each.init(label, producer if expects else (-1, -1))
                each.note_state(f"fenced {label}")
                each.end(f"of the fenced one, {label}", producer, 4, committed=True)
                each.end(f"of the fenced one, {label}", producer, 5, committed=True)
                each.end(f"of the fenced one, {label}", producer, 5, committed=False)
                each.init(f"again, {label}", producer if expects else (-1, -1))
                each.note_state(f"begun {label}")

    both(scenario)


def test_strange_names(both: Both, fresh: Fresh) -> None:
    """Transactional ids of 32 KB and with control characters; topics, partitions and groups that cannot be."""
    name, topic = fresh("txn"), fresh("topic")

    def scenario(asker: Asker) -> None:
        asker.make(topic, 2)
        ids = {"of control characters": f"{name}\0\n\x1b[31m\u202e", "of 32 KB": name + "ü" * 16_000}
        for label, transactional_id in ids.items():
            each = Transactions(asker, transactional_id)
            producer = each.init(label)
            each.add(label, producer, {topic: [0]}, 3)
            each.note_state(label)
            each.end(label, producer, 4, committed=True)
        listed = asker.quiet(ListTransactionsRequest()).transaction_states
        asker.note("listed", sorted(each.transactional_id for each in listed if each.transactional_id.startswith(name)))
        each = Transactions(asker, f"{name}-topics")
        producer = each.init("of strange topics")
        each.add("no topics", producer, {"": [0], "a/b": [0], "x" * 300: [1], "..": [0]}, 3)
        each.add("no partitions", producer, {topic: [-1, 2**31 - 1]}, 3)
        each.add("a topic without partitions", producer, {topic: []}, 3)
        each.note_state("of strange topics")
        asker.ask(
            AddOffsetsToTxnRequest(
                transactional_id=each.id, producer_id=producer[0], producer_epoch=producer[1], group_id=""
            )
        )
        each.note_state("of a group without a name")
        asker.ask(InitProducerIdRequest(transactional_id=each.id, transaction_timeout_ms=1_000), 6, "not stable")

    both(scenario)


def test_describe_and_list(both: Both, fresh: Fresh) -> None:
    name, topic = fresh("txn"), fresh("topic")

    def scenario(asker: Asker) -> None:
        asker.make(topic, 2)
        opened, ended, begun = (Transactions(asker, f"{name}-{kind}") for kind in ("open", "ended", "begun"))
        producer = opened.init("open")
        opened.add("open", producer, {topic: [0, 1]}, 3)
        other = ended.init("ended")
        ended.add("ended", other, {topic: [1]}, 3)
        ended.end("ended", other, 4, committed=True)
        ended.note_state("ended")
        begun.init("begun")
        known = {producer[0]: "open", other[0]: "ended"}

        def listed(label: str, version: int = 2, **filters: Any) -> None:
            answer = asker.quiet(ListTransactionsRequest(**filters), version)
            found = sorted(
                [each.transactional_id, each.transaction_state, known.get(each.producer_id, "another")]
                for each in answer.transaction_states
                if each.transactional_id.startswith(name)
            )
            asker.note(
                f"list {label}", [ErrorCode(answer.error_code).name, sorted(answer.unknown_state_filters), found]
            )

        for version in range(3):
            listed("all", version)
            listed("by state", version, state_filters=["Ongoing", "CompleteCommit"])
            listed("by unknown states", version, state_filters=["ongoing", "Nope"])
            listed("by a mix of states", version, state_filters=["Empty", "Nope", "Dead", "PrepareEpochFence"])
            listed("by producer id", version, producer_id_filters=[producer[0], 999_999])
        listed("short", duration_filter=0)
        listed("long", duration_filter=3_600_000)
        listed("negative", duration_filter=-5)
        for pattern in (
            f"{name}.*", ".*-open", name, "", "(", "[", "a**", "(?i).*-OPEN",
            "\\p{L}+.*", "\\pL+\\PL.*", "[\\p{Lu}\\p{Ll}]+-.*", "\\p{Nope}",
            f"{name}-(open|ended)",
            "\\1", "(?=a)", "^.*$", ".*\\d+-\\w+", "\\Q" + name + "\\E-open", "(?P<x>.*)-begun", "[[:alnum:]-]+",
        ):  # fmt: skip
            listed(f"by pattern {pattern.replace(name, 'NAME')}", transactional_id_pattern=pattern)
        asker.ask(DescribeTransactionsRequest(transactional_ids=["", "no-such-id"]), 0, "unknown")
        asker.ask(DescribeTransactionsRequest(transactional_ids=[]), 0, "none")
        opened.end("at last", producer, 4, committed=False)

    both(scenario)


def test_the_topic_of_transactions(both: Both, fresh: Fresh) -> None:
    name = fresh("txn")

    def scenario(asker: Asker) -> None:
        Transactions(asker, name)
        request = DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=2,
                    resource_name="__transaction_state",
                    configuration_keys=[
                        "cleanup.policy", "compression.type", "min.insync.replicas", "segment.bytes",
                        "unclean.leader.election.enable", "max.message.bytes",
                    ],
                )
            ]
        )  # fmt: skip
        asker.ask(request, 4, "of the topic")

    both(scenario)
