"""The cluster's metadata for clients, read from the newest image.

One image is one consistent view: a reader takes `image` once, and reads all of its response from it. Responses to equal
requests are equal until the image changes, so encoded responses are kept by the bytes of their requests: a thousand
clients that send the same request for a thousand partitions cost one encoding.

In two cases responses differ from the image, each for a short time, for clients of a broker that has died:

- A broker that this node found to be *missing* has no leaderships in a response: its address refuses connections, and
  the controller is about to fence it. A client that is answered LEADER_NOT_AVAILABLE asks again soon; one that is given
  the dead leader keeps it for long. librdkafka asks again after 0.1 s in the one case, after 1 s in the other.
- A broker that was fenced stays in the *list of brokers* for a while, though it leads nothing. A client whose broker
  leaves the list in the same response that moves its partitions may drop the partitions with the broker, and add them
  again with its next Metadata request, a second later: librdkafka does. A broker that led nothing leaves the list at
  once, and so does one that shuts down in a controlled way: its partitions have moved before, and a client that still
  listed it would wait longer with every attempt to connect, and miss its return.

Not obvious:

- Whatever changes a Metadata response must drop the responses that the cache keeps, and raise `changes`: a response
  that is made in steps begins anew then. With an authorizer none is kept, since callers may see different topics.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kalda.base.errors import ErrorCode
from kalda.base.ids import Uuid
from kalda.base.scheduling import Pending, Timer, Timers
from kalda.metadata.cluster import BrokerRegistration
from kalda.metadata.image import EMPTY, MetadataDelta, MetadataImage
from kalda.metadata.topics import PartitionRegistration, TopicImage
from kalda.network.server.connection import Buffer
from kalda.protocol.messages.metadata import MetadataResponseBroker, MetadataResponsePartition

_MAX_KEPT = 128
"""Encoded responses."""
_MAX_KEPT_BYTES = 16 * 1024 * 1024

MISSING_MS = 1_000
"""How long a broker stays missing. If the controller has not fenced it by then, the controller can still reach it."""
LISTED_MS = 5_000
"""How long a fenced broker stays listed. Clients that lose their leader have new metadata within a second or two."""

AnswerKey = tuple[int, str, bytes]
"""Version, listener, and the bytes of the request."""


class MetadataCache:
    """The newest image, and the encoded responses made from it.

    Invariant: a kept response is what would be encoded now. Whatever changes responses calls `_drop_kept`.
    """

    name = "MetadataCache"

    def __init__(self, timers: Timers) -> None:
        self.image: MetadataImage = EMPTY
        self._timers = timers
        self.changes = 0
        """How often the kept responses have been dropped: a response that was begun before such a change is stale."""
        self._kept: dict[AnswerKey, list[Buffer]] = {}
        """Encoded responses without their correlation ids."""
        self._kept_bytes = 0
        self._missing: dict[int, int] = {}
        """Missing brokers: broker id to the epoch that is missing. An entry whose broker has another epoch in the image
        means nothing."""
        self._fenced: dict[int, Timer] = {}
        """Fenced brokers that are still listed, by id; the timer removes the entry."""
        self._relieved: dict[int, Timer] = {}
        """Brokers that lost a leadership less than `LISTED_MS` ago, by id; the timer removes the entry. One of many
        partitions loses them before it is fenced."""
        self._to_be_unfenced: dict[int, Pending[None]] = {}
        """What `unfenced` has returned, until it is settled."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: object) -> None:
        """As a publisher: the new image is visible to all readers. It must be the first publisher of a broker."""
        self.set_image(image, delta)

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """No response names the controller."""

    def set_image(self, image: MetadataImage, delta: MetadataDelta | None = None) -> None:
        """Replace the image, and drop the encoded responses of the old one. `delta`: what has changed; without it all
        topics are compared."""
        before, self.image = self.image, image
        self._drop_kept()
        if image.topics is not before.topics:
            self._note_relieved(before, delta)
        if image.cluster is not before.cluster:
            for broker_id, broker in image.cluster.brokers.items():
                was = before.cluster.brokers.get(broker_id)
                died = was is not None and not was.fenced and not was.in_controlled_shutdown
                if broker.fenced and died and broker_id in self._relieved:
                    self._list_fenced(broker_id)
                if not broker.fenced and broker_id in self._to_be_unfenced:
                    self._to_be_unfenced.pop(broker_id).complete(None)

    def _drop_kept(self) -> None:
        self.changes += 1
        self._kept.clear()
        self._kept_bytes = 0

    # -- brokers that died

    def _note_relieved(self, before: MetadataImage, delta: MetadataDelta | None) -> None:
        """Keep which brokers have just lost a leadership."""
        if not before.topics.by_id:
            return
        after = self.image.topics.by_id
        relieved: set[int] = set()
        for topic_id in after if delta is None or delta.topics is None else delta.topics.changed:
            old, new = before.topics.by_id.get(topic_id), after.get(topic_id)
            if old is None or new is None or old is new:
                continue
            for index, partition in old.partitions.items():
                now = new.partitions.get(index)
                if now is not None and now is not partition and now.leader != partition.leader:
                    relieved.add(partition.leader)
        for broker_id in relieved:
            if broker_id in self._relieved:
                self._relieved[broker_id].cancel()
            self._relieved[broker_id] = self._timers.call_later_ms(
                LISTED_MS, partial(self._relieved.__delitem__, broker_id)
            )

    def _list_fenced(self, broker_id: int) -> None:
        def end() -> None:
            del self._fenced[broker_id]
            self._drop_kept()

        if broker_id in self._fenced:
            self._fenced[broker_id].cancel()
        self._fenced[broker_id] = self._timers.call_later_ms(LISTED_MS, end)

    def reassigning(self, leader_id: int) -> int:
        """How many partitions of this leader are being reassigned. Visits all partitions."""
        return sum(
            partition.leader == leader_id and partition.is_reassigning
            for topic in self.image.topics.by_id.values()
            for partition in topic.partitions.values()
        )

    def is_missing(self, broker_id: int) -> bool:
        """Whether the broker is missing in the epoch that it has in the image."""
        broker = self.image.cluster.brokers.get(broker_id)
        return broker is not None and self._missing.get(broker_id) == broker.epoch

    def mark_missing(self, broker_id: int, broker_epoch: int) -> None:
        """The address of that broker refuses connections. Without effect once it is registered with another epoch."""

        def end() -> None:
            if self._missing.get(broker_id) == broker_epoch:
                del self._missing[broker_id]
                self._drop_kept()

        if self._missing.get(broker_id) != broker_epoch:
            self._missing[broker_id] = broker_epoch
            self._drop_kept()
            self._timers.call_later_ms(MISSING_MS, end)

    def unfenced(self, broker_id: int) -> Pending[None]:
        """Settles when the broker is not fenced in the image: then responses list it."""
        pending: Pending[None] = self._to_be_unfenced.setdefault(broker_id, Pending())
        broker = self.image.cluster.brokers.get(broker_id)
        if broker is not None and not broker.fenced:
            self._to_be_unfenced.pop(broker_id).complete(None)
        return pending

    # -- encoded answers

    def kept(self, key: AnswerKey) -> list[Buffer] | None:
        """The encoded response to an equal request, without its correlation id; None where none is kept."""
        return self._kept.get(key)

    def keep(self, key: AnswerKey, buffers: list[Buffer]) -> None:
        """Keep an encoded response until the next change, if there is room."""
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
        """Brokers that have that listener and are not fenced, or were fenced less than `LISTED_MS` ago, by id."""
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

    def partition_entries(
        self, topic: TopicImage, listener: str, version: int, indexes: Iterable[int] | None = None
    ) -> Iterable[MetadataResponsePartition]:
        """A topic's partitions, or some of them, as a Metadata response lists them."""
        alive = {broker.id for broker in self.alive_brokers(listener)}
        for index in sorted(topic.partitions) if indexes is None else indexes:
            yield self._partition_entry(index, topic.partitions[index], alive, listener, version)

    def _partition_entry(
        self, index: int, partition: PartitionRegistration, alive: set[int], listener: str, version: int
    ) -> MetadataResponsePartition:
        replicas: Iterable[int] = partition.replicas
        isr: Iterable[int] = partition.isr
        leader = partition.leader
        error = ErrorCode.NONE
        if version == 0:
            # Version 0 has no field for offline replicas: they are left out, and the error code reports that.
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
        """Replicas on brokers that are not in `alive`, or in directories that failed."""
        brokers = self.image.cluster.brokers
        offline: list[int] = []
        for replica, directory in zip(partition.replicas, partition.directories, strict=True):
            if replica not in alive or not brokers[replica].has_online_dir(directory):
                offline.append(replica)
        return offline
