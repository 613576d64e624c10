"""What clients are told of the cluster, read from the newest image.

One image is one consistent view: a reader takes `image` once and stays with it. Answers to equal requests are equal
until the image changes, so whole encoded responses are kept by their request bytes: a thousand clients that ask for
the same thousand partitions cost one encoding.

Two things are said otherwise than in the image, each for a short time, and for clients whose broker has died:

- A broker that this node found to be *missing* leads nothing: nobody listens where it did, and the controller will say
  so as well. A client that asks meanwhile is told that there is no leader, and asks again soon; told of the old one, it
  would believe that for long. librdkafka asks again after a tenth of a second in the one case, a second in the other.
- A broker that was fenced is still *listed* for a while, though it leads nothing. A client whose metadata lose a broker
  and move its partitions in the same answer may put down the broker's partitions with the broker, and find them again
  with its next look, a second later: so does librdkafka. Not so one that stops in good order: its partitions have moved
  before, and a client that has it listed would wait longer with every attempt to connect, and miss its return.
"""

from __future__ import annotations

from collections.abc import Iterable

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Timer, Timers
from kalda.metadata.cluster import BrokerRegistration
from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import EMPTY, MetadataImage
from kalda.metadata.partition import PartitionRegistration
from kalda.metadata.topics import TopicImage
from kalda.network.connection import Buffer
from kalda.protocol.messages.metadata import MetadataResponseBroker, MetadataResponsePartition

_MAX_KEPT = 128
_MAX_KEPT_BYTES = 16 * 1024 * 1024

MISSING_MS = 1_000
"""If the controller has not fenced it by then, it sees the broker where this node does not."""
LISTED_MS = 5_000
"""Clients that notice that a leader is gone have new metadata within a second or two."""

AnswerKey = tuple[int, str, bytes]


class MetadataCache:
    """The newest image, and the answers made from it."""

    name = "MetadataCache"

    def __init__(self, timers: Timers) -> None:
        self.image: MetadataImage = EMPTY
        self._timers = timers
        self._kept: dict[AnswerKey, list[Buffer]] = {}
        self._kept_bytes = 0
        self._missing: dict[int, int] = {}
        """Epochs of missing brokers."""
        self._fenced: dict[int, Timer] = {}
        """Brokers that are listed though they are fenced, until the timer ends that."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: object) -> None:
        """As a publisher: the new image is visible to all readers. It must be the first publisher of a broker."""
        self.set_image(image)

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No response names the controller."""

    def set_image(self, image: MetadataImage) -> None:
        """Replace the image, and drop the encoded responses of the old one."""
        before, self.image = self.image, image
        self._forget_answers()
        if image.cluster is not before.cluster:
            for broker_id, broker in image.cluster.brokers.items():
                was = before.cluster.brokers.get(broker_id)
                died = was is not None and not was.fenced and not was.in_controlled_shutdown
                if broker.fenced and died:
                    self._list_fenced(broker_id)

    def _forget_answers(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    # -- brokers that are gone

    def _list_fenced(self, broker_id: int) -> None:
        def end() -> None:
            del self._fenced[broker_id]
            self._forget_answers()

        if broker_id in self._fenced:
            self._fenced[broker_id].cancel()
        self._fenced[broker_id] = self._timers.call_later_ms(LISTED_MS, end)

    def is_missing(self, broker_id: int) -> bool:
        """Whether it is known to be, in its present epoch."""
        broker = self.image.cluster.brokers.get(broker_id)
        return broker is not None and self._missing.get(broker_id) == broker.epoch

    def miss(self, broker_id: int, broker_epoch: int) -> None:
        """Nobody listens where that broker did, in that epoch."""

        def end() -> None:
            if self._missing.get(broker_id) == broker_epoch:
                del self._missing[broker_id]
                self._forget_answers()

        if self._missing.get(broker_id) != broker_epoch:
            self._missing[broker_id] = broker_epoch
            self._forget_answers()
            self._timers.call_later_ms(MISSING_MS, end)

    # -- encoded answers

    def kept(self, key: AnswerKey) -> list[Buffer] | None:
        """The encoded answer to an equal request on this image, without its correlation id."""
        return self._kept.get(key)

    def keep(self, key: AnswerKey, buffers: list[Buffer]) -> None:
        """Keep an answer until the image changes, within bounds."""
        size = sum(len(buffer) for buffer in buffers) + len(key[2])
        if len(self._kept) < _MAX_KEPT and self._kept_bytes + size <= _MAX_KEPT_BYTES:
            self._kept[key] = buffers
            self._kept_bytes += size

    # -- topics

    def topic(self, name: str) -> TopicImage | None:
        """A topic by name."""
        return self.image.topics.by_name.get(name)

    def topic_by_id(self, topic_id: Uuid) -> TopicImage | None:
        """A topic by id."""
        return self.image.topics.by_id.get(topic_id)

    def topic_name(self, topic_id: Uuid) -> str | None:
        """The name of a topic id."""
        topic = self.image.topics.by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> Uuid | None:
        """The id of a topic name."""
        topic = self.image.topics.by_name.get(name)
        return None if topic is None else topic.id

    def topic_exists(self, name: str, topic_id: Uuid, partition: int) -> bool:
        """Whether the cluster has this partition, by name, or by id where there is no name."""
        topic = self.topic(name) if name else self.topic_by_id(topic_id)
        return topic is not None and partition in topic.partitions

    # -- brokers

    def alive_brokers(self, listener: str) -> list[BrokerRegistration]:
        """Brokers that are neither fenced nor missing, and have that listener, by id."""
        brokers = self.image.cluster.brokers
        missing = self._missing
        return [
            broker
            for broker_id, broker in sorted(brokers.items())
            if not broker.fenced
            and listener in broker.listeners
            and not (missing and missing.get(broker_id) == broker.epoch)
        ]

    def listed_brokers(self, listener: str) -> list[BrokerRegistration]:
        """Brokers that have that listener and are not fenced, or have not been for long, by id."""
        return [
            broker
            for broker_id, broker in sorted(self.image.cluster.brokers.items())
            if listener in broker.listeners and (not broker.fenced or broker_id in self._fenced)
        ]

    def broker_entries(self, listener: str) -> list[MetadataResponseBroker]:
        """The brokers as a Metadata response lists them."""
        return [
            MetadataResponseBroker(
                node_id=broker.id,
                host=broker.listeners[listener].host,
                port=broker.listeners[listener].port,
                rack=broker.rack,
            )
            for broker in self.listed_brokers(listener)
        ]

    def partition_entries(self, topic: TopicImage, listener: str, version: int) -> Iterable[MetadataResponsePartition]:
        """A topic's partitions as a Metadata response lists them."""
        alive = {broker.id for broker in self.alive_brokers(listener)}
        for index in sorted(topic.partitions):
            yield self._partition_entry(index, topic.partitions[index], alive, listener, version)

    def _partition_entry(
        self, index: int, partition: PartitionRegistration, alive: set[int], listener: str, version: int
    ) -> MetadataResponsePartition:
        replicas: Iterable[int] = partition.replicas
        isr: Iterable[int] = partition.isr
        leader = partition.leader
        error = ErrorCode.NONE
        if version == 0:
            # The first version knew no offline replicas: it leaves them out, and says so.
            replicas = [each for each in replicas if each in alive]
            isr = [each for each in isr if each in alive]
            if len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr):
                error = ErrorCode.REPLICA_NOT_AVAILABLE
        if leader not in alive:
            registered = self.image.cluster.brokers.get(leader)
            missing_listener = registered is not None and not registered.fenced and listener not in registered.listeners
            error = (
                ErrorCode.LISTENER_NOT_FOUND if missing_listener and version >= 6 else ErrorCode.LEADER_NOT_AVAILABLE
            )
            leader = -1
        return MetadataResponsePartition(
            error_code=error,
            partition_index=index,
            leader_id=leader,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(replicas),
            isr_nodes=list(isr),
            offline_replicas=self.offline_replicas(partition, alive),
        )

    def offline_replicas(self, partition: PartitionRegistration, alive: set[int]) -> list[int]:
        """Replicas on brokers that are not there, or in directories that failed."""
        brokers = self.image.cluster.brokers
        offline: list[int] = []
        for replica, directory in zip(partition.replicas, partition.directories, strict=True):
            if replica not in alive or not brokers[replica].has_online_dir(directory):
                offline.append(replica)
        return offline
