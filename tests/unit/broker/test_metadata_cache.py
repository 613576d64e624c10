"""What Metadata responses contain while a broker dies."""

from __future__ import annotations

from by_hand import HandTime

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.broker.metadata_cache import LISTED_MS, MISSING_MS, MetadataCache
from kalda.metadata.image import EMPTY, MetadataDelta
from kalda.metadata.publisher import Provenance
from kalda.protocol.messages.metadata_records import (
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

TOPIC_ID = Uuid(bytes(15) + b"\x07")
LISTENER = "PLAINTEXT"
KEY = (12, LISTENER, b"all")


class World:
    """Brokers 1 and 2, of which 1 leads the only partition."""

    def __init__(self) -> None:
        self.timers = HandTime()
        self.cache = MetadataCache(self.timers)
        self.image = EMPTY
        self.update(
            *(
                RegisterBrokerRecord(
                    broker_id=broker_id,
                    broker_epoch=broker_id,
                    incarnation_id=Uuid(bytes([broker_id]) * 16),
                    end_points=[BrokerEndpoint(name=LISTENER, host="h", port=9092)],
                    fenced=False,
                )
                for broker_id in (1, 2)
            ),
            TopicRecord(name="t", topic_id=TOPIC_ID),
            PartitionRecord(partition_id=0, topic_id=TOPIC_ID, replicas=[1, 2], isr=[1, 2], leader=1),
        )

    def update(self, *records: object) -> None:
        delta = MetadataDelta(self.image)
        for record in records:
            delta.replay(record)  # type: ignore[arg-type]
        self.image = delta.apply(Provenance(self.image.offset + 1, 1, 0))
        self.cache.set_image(self.image)

    def fence(self) -> None:
        """Broker 1 is fenced, and 2 leads."""
        self.update(
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1),
            PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[2], leader=2),
        )

    @property
    def listed(self) -> list[int]:
        return [entry.node_id for entry in self.cache.broker_entries(LISTENER)]

    @property
    def leader(self) -> tuple[int, int]:
        topic = self.cache.topic("t")
        assert topic is not None
        (entry,) = self.cache.partition_entries(topic, LISTENER, 12)
        return entry.leader_id, entry.error_code


def test_partitions_that_are_reassigned_are_counted_at_their_leader() -> None:
    world = World()
    assert world.cache.reassigning(1) == 0
    world.update(PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, removing_replicas=[2]))
    assert [world.cache.reassigning(broker_id) for broker_id in (1, 2)] == [1, 0]


def test_a_fenced_broker_leads_nothing_but_is_listed_for_a_while() -> None:
    world = World()
    world.fence()
    assert world.leader == (2, ErrorCode.NONE)
    assert world.listed == [1, 2]
    world.cache.keep(KEY, [b"with both"])
    world.timers.advance(LISTED_MS)
    assert world.listed == [2]
    assert world.cache.kept(KEY) is None


def test_a_broker_that_is_fenced_again_is_listed_for_the_whole_time_once_more() -> None:
    world = World()
    world.fence()
    world.timers.advance(LISTED_MS - 1)
    world.update(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=-1))
    world.fence()
    world.timers.advance(2)
    assert world.listed == [1, 2]
    world.timers.advance(LISTED_MS)
    assert world.listed == [2]


def test_a_broker_in_controlled_shutdown_is_not_listed_once_it_is_fenced() -> None:
    world = World()
    world.update(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, in_controlled_shutdown=1))
    world.fence()
    assert world.listed == [2]


def test_a_broker_that_led_nothing_is_not_listed_once_it_is_fenced() -> None:
    """It may have stopped in a controlled way: no record says so where nothing had to be moved."""
    world = World()
    world.update(
        BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=2, fenced=1),
        PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[1]),
    )
    assert world.listed == [1]


def test_a_broker_that_lost_its_leaderships_just_before_it_was_fenced_is_listed_for_a_while() -> None:
    world = World()
    world.update(PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[2], leader=2))
    world.timers.advance(LISTED_MS - 1)
    world.update(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1))
    assert world.listed == [1, 2]
    world.timers.advance(LISTED_MS)
    assert world.listed == [2]


def test_a_broker_that_led_long_ago_is_not_listed_once_it_is_fenced() -> None:
    world = World()
    world.update(PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, isr=[2], leader=2))
    world.timers.advance(LISTED_MS)
    world.update(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=1))
    assert world.listed == [2]


def test_a_broker_that_was_never_unfenced_is_not_listed() -> None:
    world = World()
    world.update(
        RegisterBrokerRecord(
            broker_id=3,
            broker_epoch=30,
            incarnation_id=Uuid(bytes([3]) * 16),
            end_points=[BrokerEndpoint(name=LISTENER, host="h", port=9092)],
        )
    )
    assert world.listed == [1, 2]


def test_a_missing_broker_leads_nothing_before_the_controller_fences_it() -> None:
    world = World()
    world.cache.keep(KEY, [b"led by 1"])
    world.cache.mark_missing(1, 1)
    assert world.cache.kept(KEY) is None
    assert world.leader == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert world.listed == [1, 2]
    assert [broker.id for broker in world.cache.alive_brokers(LISTENER)] == [2]
    world.fence()
    assert world.leader == (2, ErrorCode.NONE)


def test_a_broker_that_is_missing_and_not_fenced_leads_again_after_a_while() -> None:
    world = World()
    world.cache.mark_missing(1, 1)
    assert world.cache.is_missing(1)
    world.timers.advance(MISSING_MS)
    assert world.leader == (1, ErrorCode.NONE)
    assert not world.cache.is_missing(1)


def test_a_broker_that_registered_again_is_not_missing() -> None:
    world = World()
    world.cache.mark_missing(1, 0)
    assert world.leader == (1, ErrorCode.NONE)


def test_a_broker_waits_until_responses_list_it() -> None:
    """The heartbeat that unfences it may be answered before this node has the record."""
    world = World()
    world.fence()
    waiting = world.cache.unfenced(1)
    assert world.cache.unfenced(1) is waiting
    world.update(TopicRecord(name="u", topic_id=Uuid(bytes(15) + b"\x08")))
    assert not waiting.done
    world.update(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=1, fenced=-1))
    assert waiting.done
    assert 1 in world.listed
    assert world.cache.unfenced(1).done
    assert not world.cache.unfenced(3).done, "it is not registered"
