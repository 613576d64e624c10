"""A partition of `__share_group_state` that Apache Kafka 4.3.1 wrote.

A group had consumed a topic of 100 records with its console client: 30 accepted, the next 20 rejected, 10 released.
"""

from __future__ import annotations

from pathlib import Path

from kalda.base.share_states import RecordState
from kalda.coordinator.share.records import decode_record, encode_record
from kalda.protocol.messages.share_records import ShareSnapshotValue, ShareUpdateValue
from kalda.records.batch import iter_batches
from kalda.records.builder import read_records

LOG = (Path(__file__).parents[3] / "golden" / "coordinator" / "share_group_state-40.log").read_bytes()


def test_the_records_of_apache_kafka_are_read_and_written_byte_for_byte() -> None:
    raw = [record for at, header in iter_batches(LOG) for record in read_records(LOG, at, header)]
    for record in raw:
        assert record.key is not None
        assert encode_record(decode_record(record.key, record.value)) == (record.key, record.value)
    values = [decode_record(record.key or b"", record.value).value for record in raw]
    assert isinstance(values[0], ShareSnapshotValue)
    assert values[0].start_offset == -1, "initialized, and not read yet"
    written = [value for value in values if isinstance(value, ShareUpdateValue)]
    assert written[-1].start_offset == 50, "30 were acknowledged and 20 rejected"
    states = {batch.delivery_state for value in written for batch in value.state_batches}
    assert states == {RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED}
