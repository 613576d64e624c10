"""Batches of idempotent producers that were refused, and will come again.

A producer has up to five requests in flight. Where the first one is refused, as this broker does not lead the partition
yet or too few replicas are in sync, and the next ones come after that has changed, they have a gap before them. Kafka
answers OUT_OF_ORDER_SEQUENCE_NUMBER. librdkafka then takes a new producer epoch and sends again what it has no answer
to, though the former leader may have written it: records twice. To a partition that has no records of the producer yet
Kafka appends them, whatever their sequence, and refuses the first one when it comes again.

So what follows a refused batch is refused with the same error until that batch has come again, for at most `MAX_MS`:
as if the broker had begun to lead a moment later, which is an answer that every client must be ready for.

`notes` is empty nearly always, and the produce path checks that it is before anything else. So notes whose time is over
are dropped by the next batch that comes, of whatever producer.
"""

from __future__ import annotations

from collections import OrderedDict
from struct import Struct
from typing import NamedTuple

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import Uuid
from kalda.base.topic_names import MAX_LENGTH
from kalda.records.batch import HEADER_SIZE, MAX_INT32
from kalda.replication.partition import Partition

MAX_MS = 10_000
"""For so long the batches behind a refused one are refused. A client that has given it up takes a new epoch, or gets
OUT_OF_ORDER_SEQUENCE_NUMBER after this time, as from Kafka."""
MAX_NOTES = 1_000
"""Producers with a refused batch in a partition; the oldest notes are dropped first."""
RETRIED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    )
)
"""Refusals before a look at the log, after which clients send the same batch again."""

_producer = Struct(">qhi").unpack_from
_PRODUCER_AT = 43
"""Producer id, epoch and base sequence of a batch."""
_MAGIC_AT = 16
_Key = tuple[str | Uuid, int, int]


class _Note(NamedTuple):
    epoch: int
    sequence: int
    code: ErrorCode
    noted_ms: int


class RefusedBatches:
    """Per partition and producer id, the first batch that was refused and has not come again."""

    def __init__(self) -> None:
        self.notes: OrderedDict[_Key, _Note] = OrderedDict()
        """By the topic's name, or its id where the name was not known yet; partition; producer id. The oldest ones come
        first."""

    def note(self, topic: str | Uuid, index: int, records: object, error: ApiError, now_ms: int) -> None:
        """Records were refused. Nothing where no later batch depends on them."""
        if error.code not in RETRIED or not isinstance(records, memoryview | bytearray) or not _is_batch(records):
            return
        producer_id, epoch, sequence = _producer(records, _PRODUCER_AT)
        if producer_id < 0 or sequence < 0 or len(topic) > MAX_LENGTH:
            return
        self._drop_old(now_ms)
        key = topic, index, producer_id
        found = self.notes.get(key)
        if found is not None and (epoch < found.epoch or (epoch == found.epoch and _follows(sequence, found.sequence))):
            return
        self.notes[key] = _Note(epoch, sequence, error.code, now_ms)
        self.notes.move_to_end(key)
        if len(self.notes) > MAX_NOTES:
            self.notes.popitem(last=False)

    def check(self, partition: Partition, records: memoryview | bytearray, now_ms: int) -> None:
        """Raise where the records follow a refused batch that has not come again."""
        self._drop_old(now_ms)
        if not _is_batch(records):
            return
        producer_id, epoch, sequence = _producer(records, _PRODUCER_AT)
        if producer_id < 0:
            return
        topic, index = partition.topic_partition
        for key in ((topic, index, producer_id), (partition.topic_id, index, producer_id)):
            found = self.notes.get(key)
            if found is None:
                continue
            if _has_come(partition, producer_id, found):
                del self.notes[key]
            elif epoch == found.epoch and _follows(sequence, found.sequence):
                raise ApiError(found.code, "an earlier batch of this producer was refused, and has not come again")

    def _drop_old(self, now_ms: int) -> None:
        notes = self.notes
        while notes:
            key, oldest = next(iter(notes.items()))
            if 0 <= now_ms - oldest.noted_ms < MAX_MS:
                return
            del notes[key]  # also where the clock was set back


def _is_batch(records: memoryview | bytearray) -> bool:
    return len(records) >= HEADER_SIZE and records[_MAGIC_AT] == 2


def _follows(sequence: int, earlier: int) -> bool:
    """Whether a sequence is behind another one; they begin again with 0 after the largest."""
    return 0 < (sequence - earlier) & MAX_INT32 <= MAX_INT32 // 2


def _has_come(partition: Partition, producer_id: int, note: _Note) -> bool:
    """Whether the log has the batch, or needs it no more as the producer has a newer epoch."""
    state = partition.log.producer_states.get(producer_id)
    if state is None or state.epoch < note.epoch:
        return False
    return state.epoch > note.epoch or (bool(state.batches) and not _follows(note.sequence, state.last_sequence))
