"""Brokers that leave and have many partitions: they are fenced, or stop in a controlled way.

The records for all partitions of such a broker, made, written and applied in one event, would hold the node for a
second where they are 30,000. So an event takes it out of the ISRs of at most `PARTITIONS_A_STEP`, those that it leads
first, and requests are handled between two events.

- A broker whose session has ended, or whose process is dead, is fenced by the last event. Before that it counts as
  inactive (`ClusterControl.leaving`): it is not elected, and gets into no ISR. A heartbeat ends that, and it stays. So
  no partition loses its only leader before the last event: one is elected again when the broker is unfenced, and where
  it was never fenced that does not happen.
- A controlled shutdown begins with the record that says so. The broker may stop after the last event.

After each event the metadata is such that any controller can go on from it: to the next one the broker has a new
session, or tells it again that it wants to stop. So all of this is soft state of the active controller.
"""

from __future__ import annotations

from collections.abc import Callable

from kalda.controller.cluster import ClusterControl
from kalda.controller.partition_index import TopicIdPartition
from kalda.controller.partitions import PartitionControl
from kalda.metadata.partition import NO_LEADER
from kalda.protocol.messages.metadata_records import PartitionChangeRecord
from kalda.protocol.record_framing import VersionedRecord

PARTITIONS_A_STEP = 1_000
"""Some 30 milliseconds."""


class Departures:
    """Per leaving broker, the partitions that it still has to be taken out of."""

    def __init__(self, state: PartitionControl, cluster: ClusterControl, is_elr_enabled: Callable[[], bool]) -> None:
        self._state = state
        self._cluster = cluster
        self._is_elr_enabled = is_elr_enabled
        self._left: dict[int, list[TopicIdPartition]] = {}
        """By broker id; the next ones are at the end."""

    def clear(self) -> None:
        """This controller is not active any more."""
        self._left.clear()
        self._cluster.leaving.clear()

    def partitions_of(self, broker_id: int) -> list[TopicIdPartition]:
        """What changes when the broker leaves: partitions that it leads, then others with it in the ISR. That of a
        partition without a leader stays as it is where it is the last member, but for ELR and unclean elections."""
        state, keeps_last = self._state, not self._is_elr_enabled()
        led: list[TopicIdPartition] = []
        others: list[TopicIdPartition] = []
        for at in state.index.with_in_isr(broker_id):
            partition = state.partitions[at]
            if partition.leader == broker_id:
                led.append(at)
            elif not (
                keeps_last
                and len(partition.isr) == 1
                and not partition.has_leader
                and not state.may_elect_uncleanly(state.topic_names[at.topic_id], partition)
            ):
                others.append(at)
        return led + others

    # Fencing

    def begin_fencing(self, broker_id: int, epoch: int) -> bool:
        """The broker is to be fenced. Whether `records` are to be written before that, now or after earlier ones."""
        if self._cluster.leaving.get(broker_id) == epoch:
            return self.is_under_way(broker_id)
        registrations = self._state.partitions
        partitions = [at for at in self.partitions_of(broker_id) if len(registrations[at].isr) > 1]
        if len(partitions) <= PARTITIONS_A_STEP:
            return False
        self._cluster.leaving[broker_id] = epoch
        self._begin(broker_id, partitions)
        return True

    def end_fencing(self, broker_id: int) -> None:
        """The broker is fenced, or has sent a heartbeat and stays."""
        if self._cluster.leaving.pop(broker_id, None) is not None:
            self._left.pop(broker_id, None)

    # Controlled shutdowns

    def begin_shutdown(self, broker_id: int) -> list[VersionedRecord]:
        """The records for the first partitions, to be written with that of the beginning."""
        self._begin(broker_id, self.partitions_of(broker_id))
        records = self.records(broker_id)
        self.advance(broker_id)
        return records

    def next_stopping(self) -> int | None:
        """A broker in a controlled shutdown for which there are more records to write; None where there is none."""
        for broker_id in list(self._left):
            if broker_id in self._cluster.leaving:
                continue
            registration = self._cluster.brokers.get(broker_id)
            if registration is not None and registration.in_controlled_shutdown and not registration.fenced:
                return broker_id
            del self._left[broker_id]
        return None

    def put_last(self, broker_id: int) -> None:
        """The next records of the broker cannot be made or written: other brokers go on first."""
        left = self._left.pop(broker_id, None)
        if left is not None:
            self._left[broker_id] = left

    # Step by step

    def is_under_way(self, broker_id: int) -> bool:
        """Whether there are more records to write for it."""
        return broker_id in self._left

    def _begin(self, broker_id: int, partitions: list[TopicIdPartition]) -> None:
        partitions.reverse()
        self._left[broker_id] = partitions

    def records(self, broker_id: int) -> list[VersionedRecord]:
        """The records for the next partitions. `advance` is called when they are written."""
        partitions = self._state.partitions
        its = [
            at
            for at in reversed(self._left[broker_id][-PARTITIONS_A_STEP:])
            if at in partitions and broker_id in partitions[at].isr
        ]
        records = self._state.leader_and_isr_updates(its, removed=broker_id)
        if broker_id in self._cluster.leaving:
            records = [each for each in records if not _leaves_no_leader(each)]
        return records

    def advance(self, broker_id: int) -> None:
        """The records were written."""
        left = self._left.get(broker_id)
        if left is not None:
            del left[-PARTITIONS_A_STEP:]
            if not left:
                del self._left[broker_id]


def _leaves_no_leader(versioned: VersionedRecord) -> bool:
    record = versioned.record
    return isinstance(record, PartitionChangeRecord) and record.leader == NO_LEADER
