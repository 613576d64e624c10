"""Images of random records: replaying at once or one by one, writing as records, and snapshots give equal images."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from kalda.base.ids import Uuid
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage, Provenance
from kalda.protocol.messages import metadata_records as r
from kalda.protocol.notation import RecordBody
from kalda.protocol.record_framing import decode_metadata_record, encode_metadata_record

seeds = st.integers(0, 2**32)


class History:
    """Random records that are valid one after another, as those of a controller. Tracks which topics, brokers and ACLs
    exist."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.topics: dict[bytes, tuple[str, int]] = {}
        self.brokers: dict[int, int] = {}
        self.acls: list[Uuid] = []
        self.count = 0

    def uuid(self) -> Uuid:
        return Uuid(self.random.randbytes(16))

    def ids(self) -> list[int]:
        return self.random.sample(range(5), self.random.randint(1, 3))

    def next(self) -> RecordBody:
        """One record; a NoOpRecord where the chosen kind has nothing to refer to."""
        self.count += 1
        makers = (
            self.topic,
            self.partition,
            self.change,
            self.change,
            self.config,
            self.quota,
            self.broker,
            self.broker_change,
            self.remove,
            self.acl,
            self.scram,
            self.token,
            self.feature,
            self.clear_elr,
        )
        record = self.random.choice(makers)()
        return r.NoOpRecord() if record is None else record

    def topic(self) -> RecordBody | None:
        name = f"t{self.random.randint(0, 6)}"
        if any(name == existing for existing, _ in self.topics.values()):
            return None
        topic_id = self.uuid()
        self.topics[topic_id] = (name, 0)
        return r.TopicRecord(name=name, topic_id=topic_id)

    def some_topic(self) -> Uuid | None:
        return Uuid(self.random.choice(list(self.topics))) if self.topics else None

    def partition(self) -> RecordBody | None:
        topic_id = self.some_topic()
        if topic_id is None:
            return None
        name, count = self.topics[topic_id]
        self.topics[topic_id] = (name, count + 1)
        replicas = self.ids()
        return r.PartitionRecord(
            partition_id=count,
            topic_id=topic_id,
            replicas=replicas,
            isr=replicas[:1],
            leader=replicas[0],
            leader_epoch=self.random.randint(0, 5),
            partition_epoch=self.random.randint(0, 5),
            directories=[self.uuid() for _ in replicas],
            eligible_leader_replicas=self.random.choice([None, replicas[1:]]),
        )

    def change(self) -> RecordBody | None:
        topic_id = self.some_topic()
        if topic_id is None or self.topics[topic_id][1] == 0:
            return None
        replicas = self.random.choice([None, self.ids()])
        return r.PartitionChangeRecord(
            partition_id=self.random.randrange(self.topics[topic_id][1]),
            topic_id=topic_id,
            isr=self.random.choice([None, self.ids()]),
            leader=self.random.choice([-2, -1, 0, 1]),
            replicas=replicas,
            leader_recovery_state=self.random.choice([-1, 0, 1]),
            directories=None if replicas is None else self.random.choice([None, [self.uuid() for _ in replicas]]),
            eligible_leader_replicas=self.random.choice([None, [], self.ids()]),
            last_known_elr=self.random.choice([None, [], [1]]),
            removing_replicas=self.random.choice([None, [], [2]]),
        )

    def remove(self) -> RecordBody | None:
        topic_id = self.some_topic()
        if topic_id is None:
            return None
        del self.topics[topic_id]
        return r.RemoveTopicRecord(topic_id=topic_id)

    def clear_elr(self) -> RecordBody | None:
        topic_id = self.some_topic()
        name = self.random.choice(["", "" if topic_id is None else self.topics[topic_id][0]])
        return r.ClearElrRecord(topic_name=name)

    def config(self) -> RecordBody:
        return r.ConfigRecord(
            resource_type=self.random.choice([2, 4]),
            resource_name=f"t{self.random.randint(0, 6)}",
            name=f"k{self.random.randint(0, 2)}",
            value=self.random.choice([None, "", "1"]),
        )

    def quota(self) -> RecordBody:
        parts = self.random.sample(["user", "client-id"], self.random.randint(1, 2))
        entity = [
            r.ClientQuotaRecordEntityData(entity_type=part, entity_name=self.random.choice([None, "a"]))
            for part in parts
        ]
        return r.ClientQuotaRecord(
            entity=entity, key="k", value=self.random.random(), remove=self.random.random() < 0.4
        )

    def broker(self) -> RecordBody:
        broker_id = self.random.randint(0, 3)
        self.brokers[broker_id] = self.count
        return r.RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=self.uuid(),
            broker_epoch=self.count,
            rack=None,
            end_points=[r.BrokerEndpoint(name="PLAINTEXT", host="h", port=9092)],
            features=[r.BrokerFeature(name="metadata.version", min_supported_version=7, max_supported_version=30)],
            log_dirs=[self.uuid() for _ in range(self.random.randint(0, 2))],
            cordoned_log_dirs=self.random.choice([None, []]),
        )

    def broker_change(self) -> RecordBody | None:
        if not self.brokers:
            return None
        broker_id, epoch = self.random.choice(list(self.brokers.items()))
        kind = self.random.randint(0, 3)
        if kind == 0:
            del self.brokers[broker_id]
            return r.UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=epoch)
        if kind == 1:
            return r.UnfenceBrokerRecord(id=broker_id, epoch=epoch)
        return r.BrokerRegistrationChangeRecord(
            broker_id=broker_id,
            broker_epoch=epoch,
            fenced=self.random.choice([-1, 0, 1]),
            in_controlled_shutdown=self.random.choice([0, 1]),
            log_dirs=self.random.choice([[], [self.uuid()]]),
            cordoned_log_dirs=self.random.choice([None, [], [self.uuid()]]),
        )

    def acl(self) -> RecordBody:
        if self.acls and self.random.random() < 0.4:
            return r.RemoveAccessControlEntryRecord(id=self.acls.pop())
        self.acls.append(self.uuid())
        return r.AccessControlEntryRecord(id=self.acls[-1], resource_type=2, resource_name="x", principal="User:a")

    def scram(self) -> RecordBody:
        if self.random.random() < 0.4:
            return r.RemoveUserScramCredentialRecord(name="a", mechanism=self.random.choice([1, 2]))
        return r.UserScramCredentialRecord(
            name="a",
            mechanism=self.random.choice([1, 2]),
            salt=self.uuid(),
            stored_key=b"s",
            server_key=b"k",
            iterations=4096,
        )

    def token(self) -> RecordBody:
        token_id = f"token{self.random.randint(0, 2)}"
        if self.random.random() < 0.4:
            return r.RemoveDelegationTokenRecord(token_id=token_id)
        return r.DelegationTokenRecord(owner="User:a", requester="User:a", renewers=["User:b"], token_id=token_id)

    def feature(self) -> RecordBody:
        if self.random.random() < 0.5:
            return r.ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=self.count * 1000)
        name = self.random.choice(["group.version", "share.version", "kraft.version"])
        return r.FeatureLevelRecord(name=name, feature_level=self.random.randint(0, 1))


VERSION = r.FeatureLevelRecord(name="metadata.version", feature_level=30)
ELR = r.FeatureLevelRecord(name="eligible.leader.replicas.version", feature_level=1)


def history(seed: int, length: int) -> list[RecordBody]:
    source = History(seed)
    return [VERSION, ELR, *(source.next() for _ in range(length))]


def fold(records: list[RecordBody], base: MetadataImage = EMPTY) -> MetadataImage:
    delta = MetadataDelta(base)
    for record in records:
        delta.replay(record)
    return delta.apply(Provenance(0, 0, 0))


def load(image: MetadataImage, base: MetadataImage = EMPTY) -> MetadataImage:
    """The image written as a snapshot, encoded, decoded, and loaded over `base`."""
    delta = MetadataDelta(base)
    for record, version in image.write():
        delta.replay(decode_metadata_record(encode_metadata_record(record, version)).record)
    delta.finish_snapshot()
    return delta.apply(Provenance(0, 0, 0))


@given(seeds, st.integers(0, 120))
def test_replaying_record_by_record_gives_the_same_image_as_all_at_once(seed: int, length: int) -> None:
    records = history(seed, length)
    image = EMPTY
    for record in records:
        image = fold([record], image)
    assert image == fold(records)


@given(seeds, st.integers(0, 120))
def test_the_records_of_an_image_give_the_same_image(seed: int, length: int) -> None:
    image = fold(history(seed, length))
    assert load(image) == image
    assert [encode_metadata_record(*record) for record in load(image).write()] == [
        encode_metadata_record(*record) for record in image.write()
    ]


@given(seeds, st.integers(0, 120), st.integers(0, 4))
def test_the_delta_of_a_whole_image_equals_its_records_replayed(seed: int, length: int, broker_id: int) -> None:
    image = fold(history(seed, length))
    whole = MetadataDelta.of_whole(image)
    replayed = MetadataDelta(EMPTY)
    for record, _ in image.write():
        replayed.replay(record)
    assert whole.apply(Provenance(0, 0, 0)) == replayed.apply(Provenance(0, 0, 0)) == image
    for domain in ("features", "cluster", "topics", "configs", "client_quotas", "producer_ids", "acls", "scram"):
        assert (getattr(whole, domain) is None) == (getattr(replayed, domain) is None)
    if whole.topics is not None and replayed.topics is not None:
        assert whole.topics.local_changes(broker_id) == replayed.topics.local_changes(broker_id)
        assert whole.topics.created == replayed.topics.created


@given(seeds, st.integers(0, 60), st.integers(0, 60))
def test_a_later_snapshot_over_an_earlier_image(seed: int, past: int, future: int) -> None:
    records = history(seed, past + future)
    now = fold(records)
    assert load(now, base=fold(records[: 2 + past])) == now


@given(seeds, seeds)
def test_a_snapshot_over_an_unrelated_image(seed: int, other: int) -> None:
    image = fold(history(seed, 80))
    assert load(image, base=fold(history(other, 80))) == image


@given(seeds, st.integers(0, 60), st.integers(1, 60), st.integers(0, 4))
def test_local_changes_lead_a_broker_from_one_image_to_the_next(
    seed: int, past: int, future: int, broker_id: int
) -> None:
    """A broker that applies its local changes has exactly the replicas that the image assigns to it."""
    records = history(seed, past + future)
    before = fold(records[: 2 + past])
    delta = MetadataDelta(before)
    for record in records[2 + past :]:
        delta.replay(record)
    after = delta.apply(Provenance(0, 0, 0))
    held = replicas_of(before, broker_id)
    if delta.topics is not None:
        changes = delta.topics.local_changes(broker_id)
        for key, topic_id in changes.deletes.items():
            del held[topic_id, key.partition]
        for key, local in (changes.leaders | changes.followers).items():
            assert (local.registration.leader == broker_id) == (key in changes.leaders)
            held[local.topic_id, key.partition] = local.registration.partition_epoch
        assert changes.elected_leaders.keys() <= changes.leaders.keys()
        assert not changes.leaders.keys() & changes.followers.keys()
    assert held == replicas_of(after, broker_id)


def replicas_of(image: MetadataImage, broker_id: int) -> dict[tuple[Uuid, int], int]:
    return {
        (topic.id, partition_id): partition.partition_epoch
        for topic in image.topics.by_id.values()
        for partition_id, partition in topic.partitions.items()
        if broker_id in partition.replicas
    }
