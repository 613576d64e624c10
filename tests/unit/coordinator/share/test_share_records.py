"""Keys and bytes of `__share_group_state`."""

from __future__ import annotations

import pytest

from kalda.base.errors import InvalidRequest
from kalda.base.ids import Uuid
from kalda.base.share_states import SharePartitionKey
from kalda.coordinator.share.records import ShareRecord, decode_record, encode_record, share_partition_key
from kalda.protocol.messages.share_records import ShareSnapshotValue, ShareUpdateValue, ShareUpdateValueStateBatch

TOPIC = Uuid(bytes(range(16)))
KEY = SharePartitionKey("team:red", TOPIC, 7)
UPDATE_OF_KAFKA = (
    "0001000a67726f757049642d33330123456789abce12fedcba98765431ed033696b3",
    "000002f98da70318122d010224aac0e15cab03010227653ed08d2001022936e81aad6eaf188c02e80703010203f0a2040001022eabe3f90e"
    "580102307d8d432ea6b71ca402e80703010203f0a20400030004045881ace80703010203f0a20400",
)
"""Key and value of an update that Apache Kafka 4.3.1 wrote, with tags of a later release."""


@pytest.mark.parametrize(
    "record",
    [
        ShareRecord(KEY, ShareSnapshotValue(snapshot_epoch=3, state_epoch=1, leader_epoch=2, start_offset=40)),
        ShareRecord(
            KEY,
            ShareUpdateValue(
                snapshot_epoch=3,
                leader_epoch=2,
                start_offset=41,
                delivery_complete_count=6,
                state_batches=[
                    ShareUpdateValueStateBatch(first_offset=41, last_offset=50, delivery_state=2, delivery_count=1)
                ],
            ),
        ),
        ShareRecord(KEY, None),
    ],
)
def test_a_record_comes_back_from_its_bytes(record: ShareRecord) -> None:
    assert decode_record(*encode_record(record)) == record


def test_what_apache_kafka_wrote_is_read() -> None:
    key, value = map(bytes.fromhex, UPDATE_OF_KAFKA)
    record = decode_record(key, value)
    assert record.key.group_id == "groupId-33"
    assert isinstance(record.value, ShareUpdateValue)
    assert record.value.snapshot_epoch == 49909159
    assert encode_record(record)[0] == key


def test_malformed_records_are_refused() -> None:
    update = ShareUpdateValue(state_batches=[ShareUpdateValueStateBatch(first_offset=9, last_offset=8)])
    key, value = encode_record(ShareRecord(KEY, update))
    with pytest.raises(InvalidRequest, match="9 to 8"):
        decode_record(key, value)
    with pytest.raises(InvalidRequest, match="no value"):
        decode_record(key, None)


def test_a_key_is_read_from_its_text_whatever_the_group_is_called() -> None:
    assert share_partition_key(KEY.coordinator_key) == KEY
    assert share_partition_key(KEY.coordinator_key[:-1] + "007").coordinator_key == KEY.coordinator_key


@pytest.mark.parametrize(
    "text",
    ["", "g", "g:AAECAwQFBgcICQoLDA0ODw", " :AAECAwQFBgcICQoLDA0ODw:1", "g:short:1", "g:AAECAwQFBgcICQoLDA0ODw:x"],
)
def test_a_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Share coordinator key"):
        share_partition_key(text)
