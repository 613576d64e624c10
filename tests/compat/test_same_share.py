"""Members of share groups that send what they may not: the same errors as Apache Kafka's.

What was never acquired is acknowledged, epochs are replayed, members are forged, batches overlap, leave gaps and go
backward. What a request does to the records of other members shows in what is fetched afterwards.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from apache_kafka import ApacheKafkaNode, release_of
from data_requests import batch, produce
from lone_node import LoneNode
from same_answers import Asker, compare

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.protocol.messages.admin import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)
from kalda.protocol.messages.groups import FindCoordinatorRequest
from kalda.protocol.messages.share import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
    ShareAcknowledgeRequestAcknowledgementBatch,
    ShareFetchRequest,
    ShareFetchRequestAcknowledgementBatch,
    ShareFetchRequestFetchPartition,
    ShareFetchRequestFetchTopic,
    ShareGroupHeartbeatRequest,
)

pytestmark = pytest.mark.compat

Both = Callable[[Callable[[Asker], None]], None]
Fresh = Callable[[str], str]
Batch = tuple[int, int, Sequence[int]]
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
_GROUP_RESOURCE = 32
_SET = 0
_READY_S = 30


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, jars: Path) -> Iterator[Both]:
    """As the fixture of all, but no other test has changed features or the groups' coordinators."""
    home = tmp_path_factory.mktemp("share")
    with ApacheKafkaNode(home / "kafka", jars) as kafka, LoneNode(home / "kalda") as kalda:
        kafka.format()
        kalda.format(release=release_of(jars))
        for each in (kafka, kalda):
            each.start()
        yield lambda scenario: compare(scenario, kafka.port, kalda.port)


class Sharer:
    """One member of a share group, by raw requests."""

    def __init__(self, asker: Asker, group: str, topic_id: Uuid, name: str) -> None:
        self.asker, self.group, self.topic_id = asker, group, topic_id
        self.member = base64.urlsafe_b64encode(name.encode().ljust(16, b"-")).decode().rstrip("=")
        self.epoch = 0

    def join(self, topic: str) -> None:
        until = time.monotonic() + _READY_S
        epoch = 0
        while time.monotonic() < until:
            answer = self.asker.quiet(
                ShareGroupHeartbeatRequest(
                    group_id=self.group, member_id=self.member, member_epoch=epoch, subscribed_topic_names=[topic]
                )
            )
            if not answer.error_code:
                epoch = answer.member_epoch
            if answer.assignment is not None and answer.assignment.topic_partitions:
                return
            time.sleep(0.2)
        raise AssertionError("no assignment")

    def fetch(
        self, epoch: int, *batches: Batch, records: int = 500, wait_ms: int = 0, **more: Any
    ) -> ShareFetchRequest:
        acknowledged = [ShareFetchRequestAcknowledgementBatch(first_offset=first, last_offset=last,
                        acknowledge_types=list(types)) for first, last, types in batches]  # fmt: skip
        partition = ShareFetchRequestFetchPartition(partition_index=0, acknowledgement_batches=acknowledged)
        settings: dict[str, Any] = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": epoch, "max_wait_ms": wait_ms,
            "min_bytes": 1, "max_records": records, "batch_size": records,
            "topics": [ShareFetchRequestFetchTopic(topic_id=self.topic_id, partitions=[partition])],
        }  # fmt: skip
        return ShareFetchRequest(**{**settings, **more})

    def acknowledge(self, epoch: int, *batches: Batch, **more: Any) -> ShareAcknowledgeRequest:
        acknowledged = [ShareAcknowledgeRequestAcknowledgementBatch(first_offset=first, last_offset=last,
                        acknowledge_types=list(types)) for first, last, types in batches]  # fmt: skip
        partition = AcknowledgePartition(partition_index=0, acknowledgement_batches=acknowledged)
        settings: dict[str, Any] = {
            "group_id": self.group, "member_id": self.member, "share_session_epoch": epoch,
            "topics": [AcknowledgeTopic(topic_id=self.topic_id, partitions=[partition])],
        }  # fmt: skip
        return ShareAcknowledgeRequest(**{**settings, **more})

    def begin(self, records: int = 500) -> list[tuple[int, int, int]]:
        """A new session, until records are acquired."""
        until = time.monotonic() + _READY_S
        self.epoch = 0
        acquired: list[tuple[int, int, int]] = []
        while time.monotonic() < until and not acquired:
            answer = self.asker.quiet(self.fetch(self.epoch, records=records, wait_ms=200))
            assert not answer.error_code, answer
            self.epoch += 1
            acquired = acquired_of(answer)
        return acquired

    def acquired(self, count: int) -> list[tuple[int, int, int]]:
        """What a new session acquires, until it has so many records."""
        found = self.begin()
        until = time.monotonic() + _READY_S
        while sum(last - first + 1 for first, last, _ in found) < count and time.monotonic() < until:
            found += acquired_of(self.asker.quiet(self.fetch(self.next(), wait_ms=200)))
        return sorted(found)

    def next(self) -> int:
        """The epoch of the next request that is valid."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        return epoch


def acquired_of(answer: Any) -> list[tuple[int, int, int]]:
    """Ranges of offsets, with their counts of deliveries."""
    return [
        (each.first_offset, each.last_offset, each.delivery_count)
        for topic in answer.responses
        for partition in topic.partitions
        for each in partition.acquired_records
    ]


def begun(asker: Asker, name: str, batches: Sequence[int]) -> tuple[Sharer, Sharer]:
    """Two members of a new group of that name, and a topic with batches of so many records each."""
    topic_id = asker.make(name)
    asker.quiet(FindCoordinatorRequest(key_type=0, coordinator_keys=[name]))
    resource = IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=_GROUP_RESOURCE, resource_name=name,
        configs=[IncrementalAlterConfigsRequestAlterableConfig(
            name="share.auto.offset.reset", config_operation=_SET, value="earliest")],
    )  # fmt: skip
    asker.quiet(IncrementalAlterConfigsRequest(resources=[resource]))
    for count in batches:
        asker.quiet(produce(name, topic_id, (0, batch(count))))
    one, other = Sharer(asker, name, topic_id, "one"), Sharer(asker, name, topic_id, "other")
    one.join(name)
    return one, other


def test_acknowledgements_of_what_was_never_acquired(both: Both, fresh: Fresh) -> None:
    name = fresh("same-share")

    def scenario(asker: Asker) -> None:
        one, other = begun(asker, name, [5, 5, 5, 5])
        asker.note("acquired", one.begin(records=10))
        for label, wrong in WRONG.items():
            asker.ask(one.acknowledge(one.next(), *wrong), label=label)
        unknown = Uuid(bytes(range(16)))
        asker.ask(one.acknowledge(one.next()), label="nothing")
        asker.ask(_of(one.acknowledge(one.next()), unknown, 0), label="nothing of an unknown topic")
        asker.ask(_of(one.acknowledge(one.next()), one.topic_id, 7), label="nothing of an unknown partition")
        asker.ask(one.acknowledge(one.next(), topics=[]), label="no topic")
        asker.note("left for another", other.begin(records=10))
        asker.ask(other.acknowledge(other.next(), (0, 4, [ACCEPT])), label="another's")
        asker.ask(other.acknowledge(other.next(), (0, 14, [ACCEPT])), label="another's and own")
        asker.ask(other.acknowledge(other.next(), (10, 14, [ACCEPT])), label="own")
        asker.ask(other.acknowledge(other.next(), (10, 14, [ACCEPT])), label="own, again")
        asker.ask(one.acknowledge(one.next(), (0, 4, [ACCEPT, RELEASE, REJECT, ACCEPT, 0])), label="each")
        asker.ask(one.acknowledge(one.next(), (0, 0, [ACCEPT])), label="accepted before")
        asker.ask(one.acknowledge(one.next(), (1, 1, [ACCEPT])), label="released before")
        asker.ask(one.acknowledge(one.next(), (2, 2, [RELEASE])), label="rejected before")
        asker.ask(one.acknowledge(one.next(), (4, 4, [ACCEPT])), label="gap before")
        asker.ask(one.acknowledge(one.next(), (5, 6, [ACCEPT]), (7, 9, [RELEASE])), label="the second batch")
        asker.ask(one.fetch(one.next()), label="what was released")

    both(scenario)


WRONG: dict[str, list[Batch]] = {
    "beyond what is acquired": [(10, 14, [ACCEPT])],
    "beyond the log": [(100, 200, [ACCEPT])],
    "partly": [(5, 12, [ACCEPT])],
    "a part, and a part beyond": [(0, 2, [ACCEPT]), (12, 13, [ACCEPT])],
    "backward": [(4, 0, [ACCEPT])],
    "batches backward": [(5, 6, [ACCEPT]), (0, 1, [ACCEPT])],
    "overlapping": [(0, 3, [ACCEPT]), (2, 4, [ACCEPT])],
    "twice": [(0, 3, [ACCEPT]), (0, 3, [ACCEPT])],
    "touching": [(8, 9, [ACCEPT]), (9, 9, [ACCEPT])],
    "negative": [(-5, 1, [ACCEPT])],
    "both negative": [(-5, -1, [ACCEPT])],
    "no type": [(0, 1, [])],
    "too few types": [(0, 3, [ACCEPT, ACCEPT])],
    "too many types": [(0, 1, [ACCEPT, ACCEPT, ACCEPT])],
    "an unknown type": [(0, 1, [9])],
    "a negative type": [(0, 1, [-1])],
    "a renewal that is not announced": [(0, 1, [RENEW])],
    "half of them unknown": [(0, 1, [ACCEPT, 7])],
    "the largest range": [(0, 2**63 - 1, [ACCEPT])],
    "the last offsets": [(2**63 - 2, 2**63 - 1, [ACCEPT])],
}


def test_epochs_and_members(both: Both, fresh: Fresh) -> None:
    name = fresh("same-share")

    def scenario(asker: Asker) -> None:
        one, other = begun(asker, name, [5, 5])
        asker.ask(one.acknowledge(0, (0, 1, [ACCEPT])), label="before a session")
        asker.ask(one.acknowledge(1, (0, 1, [ACCEPT])), label="before a session, epoch 1")
        asker.ask(one.acknowledge(-1, (0, 1, [ACCEPT])), label="before a session, the last")
        asker.ask(one.fetch(3), label="fetch before a session")
        asker.ask(one.fetch(-1), label="the last fetch before a session")
        asker.ask(one.fetch(0, (0, 1, [ACCEPT])), label="the first with an acknowledgement")
        asker.note("acquired", one.begin(records=5))
        for epoch in (one.epoch - 1, one.epoch + 1, 2**31 - 1, -2, 0):
            asker.ask(one.acknowledge(epoch, (0, 1, [ACCEPT])), label=f"epoch {epoch - one.epoch}")
        for epoch in (one.epoch - 1, one.epoch + 1, 2**31 - 1, -2):
            asker.ask(one.fetch(epoch, (0, 1, [ACCEPT])), label=f"fetch with epoch {epoch - one.epoch}")
        asker.ask(one.acknowledge(one.epoch, (0, 1, [ACCEPT]), member_id="forged"), label="a forged member")
        asker.ask(one.acknowledge(one.epoch, (0, 1, [ACCEPT]), member_id=other.member), label="another member")
        asker.ask(one.acknowledge(one.epoch, (0, 1, [ACCEPT]), member_id=""), label="no member")
        asker.ask(one.acknowledge(one.epoch, (0, 1, [ACCEPT]), member_id=None), label="null member")
        asker.ask(one.acknowledge(one.epoch, (0, 1, [ACCEPT]), group_id="nosuch"), label="another group")
        asker.ask(one.acknowledge(one.epoch, (0, 1, [ACCEPT]), group_id=None), label="null group")
        asker.ask(one.fetch(one.epoch, member_id="x" * 100), label="a long member")
        asker.ask(one.fetch(0, member_id="m" * 37), label="a long member begins")
        asker.ask(one.fetch(one.epoch, (0, 1, [ACCEPT]), member_id="forged"), label="fetch of a forged member")
        asker.ask(one.fetch(one.epoch, group_id="nosuch"), label="fetch of another group")
        asker.ask(one.fetch(one.epoch, group_id=None), label="fetch of a null group")
        asker.ask(one.acknowledge(one.epoch, (0, 1, [ACCEPT])), label="it was not counted")
        one.next()
        unknown = Uuid(bytes(range(16)))
        asker.ask(_of(one.acknowledge(one.next(), (2, 2, [ACCEPT])), unknown, 0), label="an unknown topic")
        asker.ask(_of(one.acknowledge(one.next(), (2, 2, [ACCEPT])), one.topic_id, 7), label="an unknown partition")
        asker.ask(one.acknowledge(-1, (2, 3, [ACCEPT])), label="the last")
        asker.ask(one.acknowledge(one.next(), (4, 4, [ACCEPT])), label="after the last")
        asker.note("released with the session", other.acquired(6))

    both(scenario)


def _of(request: ShareAcknowledgeRequest, topic_id: Uuid, partition: int) -> ShareAcknowledgeRequest:
    (topic,) = request.topics
    topic.topic_id = topic_id
    topic.partitions[0].partition_index = partition
    return request


def test_renewals(both: Both, fresh: Fresh) -> None:
    name = fresh("same-share")

    def scenario(asker: Asker) -> None:
        one, other = begun(asker, name, [5, 5, 5])
        asker.note("acquired", one.begin(records=5))
        asker.note("by another", other.begin(records=5))
        renewed = {"is_renew_ack": True}
        asker.ask(one.acknowledge(one.next(), (0, 4, [RENEW]), **renewed), label="its own")
        asker.ask(one.acknowledge(one.next(), (5, 9, [RENEW]), **renewed), label="another's")
        asker.ask(one.acknowledge(one.next(), (10, 14, [RENEW]), **renewed), label="nobody's")
        asker.ask(one.acknowledge(one.next(), (3, 6, [RENEW]), **renewed), label="its own and another's")
        asker.ask(one.acknowledge(one.next(), (0, 1, [RENEW, ACCEPT]), **renewed), label="and accepts")
        asker.ask(one.acknowledge(one.next(), (1, 1, [RENEW]), **renewed), label="what it has accepted")
        asker.ask(one.acknowledge(one.next(), (2, 2, [ACCEPT]), **renewed), label="accepts only")
        asker.ask(one.fetch(one.next(), (3, 4, [RENEW]), **renewed), label="fetches too")
        nothing = {"max_bytes": 0, "min_bytes": 0, "records": 0, "wait_ms": 0, "batch_size": 0}
        asker.ask(one.fetch(one.next(), (3, 4, [RENEW]), **renewed, **nothing), label="fetches nothing")
        asker.ask(one.fetch(one.next(), (8, 9, [RENEW]), **renewed, **nothing), label="another's, fetches nothing")
        asker.ask(one.fetch(one.next(), share_acquire_mode=5), label="an unknown mode")

    both(scenario)


HEARTBEATS: dict[str, dict[str, Any]] = {
    "no group": {"group_id": ""},
    "a blank group": {"group_id": " "},
    "no member": {"member_id": ""},
    "a blank member": {"member_id": " "},
    "a long member": {"member_id": "m" * 100},
    "a blank rack": {"rack_id": " "},
    "no topics at first": {"subscribed_topic_names": None},
    "an empty list at first": {"subscribed_topic_names": []},
    "a name without characters": {"subscribed_topic_names": [""]},
    "an invalid name": {"subscribed_topic_names": ["?"]},
    "epoch -2": {"member_epoch": -2},
    "leaves unknown": {"member_epoch": -1},
    "a forged epoch": {"member_epoch": 5},
    "the largest epoch": {"member_epoch": 2**31 - 1},
}


def test_heartbeats(both: Both, fresh: Fresh) -> None:
    name = fresh("same-share")

    def scenario(asker: Asker) -> None:
        one, _ = begun(asker, name, [1])
        valid = {"group_id": name, "member_id": "forged", "member_epoch": 0, "subscribed_topic_names": [name]}
        for label, wrong in HEARTBEATS.items():
            asker.note(label, asker.quiet(ShareGroupHeartbeatRequest(**{**valid, **wrong})).error_code)
        own = {**valid, "member_id": one.member}
        for epoch in (-2, 900, 2**31 - 1):
            asker.ask(ShareGroupHeartbeatRequest(**{**own, "member_epoch": epoch}), label=f"own with epoch {epoch}")
        asker.ask(ShareGroupHeartbeatRequest(**{**own, "member_epoch": -1}), label="leaves")
        asker.ask(ShareGroupHeartbeatRequest(**{**own, "member_epoch": -1}), label="leaves again")

    both(scenario)


def test_a_long_list_of_acknowledgements(both: Both, fresh: Fresh) -> None:
    name = fresh("same-share")

    def scenario(asker: Asker) -> None:
        one, _ = begun(asker, name, [1000])
        asker.note("acquired", one.begin(records=1000))
        singles = [(offset, offset, [ACCEPT]) for offset in range(0, 1000, 2)]
        asker.ask(one.acknowledge(one.next(), *singles, (5_000, 5_000, [ACCEPT])), label="every second, and one beyond")
        asker.ask(one.acknowledge(one.next(), *singles), label="every second")
        asker.ask(one.acknowledge(one.next(), (0, 999, [RELEASE])), label="all of them")
        asker.ask(one.acknowledge(one.next(), *[(offset, offset, [RELEASE]) for offset in range(1, 1000, 2)]))
        asker.ask(one.acknowledge(one.next(), *[(0, 0, [ACCEPT])] * 9_000), label="the same one 9,000 times")
        answer = asker.ask(one.fetch(one.next()), label="what was released")
        assert answer.error_code == ErrorCode.NONE

    both(scenario)
