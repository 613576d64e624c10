"""Unclean elections that wait until a broker's session would have ended by time.

A broker whose listener refuses connections is fenced at once (`suspects.py`). The refusal may be wrong: then the broker
is alive, and its next heartbeat unfences it. Fencing is harmless, but an unclean election in its place is not: it drops
records that this broker, the last member of the ISR, has acknowledged. So such a broker is *held*: as long as its
session would have lasted, no partition that may need its records elects a leader uncleanly by itself. Such a partition
has no leader meanwhile. When the hold ends, the election takes place.

A request of an operator for an unclean election is carried out in any case.
"""

from __future__ import annotations

from kalda.metadata.partition import PartitionRegistration


class UncleanHolds:
    """The brokers that are held. Soft state; empty while this controller is not active."""

    def __init__(self) -> None:
        self._until_ms: dict[int, int] = {}
        """By broker id, when its session would have ended."""
        self._ended: dict[int, None] = {}
        """Ids of brokers whose hold has ended, and whose partitions have not had their elections yet."""

    def hold(self, broker_id: int, until_ms: int) -> None:
        """Hold the broker until then. A later end replaces an earlier one."""
        self._until_ms[broker_id] = max(until_ms, self._until_ms.get(broker_id, until_ms))

    def blocks(self, partition: PartitionRegistration) -> bool:
        """Whether a broker is held that may have records of the partition which no other replica has."""
        if not self._until_ms:
            return False
        last = (*partition.isr, *partition.elr, *partition.last_known_elr)
        return any(replica in self._until_ms for replica in last)

    def first_ended(self, now_ms: int) -> int | None:
        """A broker whose hold has ended, and for whose partitions `remove` was not called since."""
        for broker_id in [held for held, until_ms in self._until_ms.items() if until_ms < now_ms]:
            del self._until_ms[broker_id]
            self._ended[broker_id] = None
        return next(iter(self._ended), None)

    def remove(self, broker_id: int) -> None:
        """The elections in the partitions of that broker are done."""
        self._ended.pop(broker_id, None)

    def put_last(self, broker_id: int) -> None:
        """Those elections have failed: they are tried again after those of other brokers."""
        if broker_id in self._ended:
            del self._ended[broker_id]
            self._ended[broker_id] = None

    def clear(self) -> None:
        self._until_ms.clear()
        self._ended.clear()
