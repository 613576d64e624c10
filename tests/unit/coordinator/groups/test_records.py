"""Records as Apache Kafka 4.3.1 wrote them: read, and written again as the same bytes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kalda.base.errors import InvalidRequest
from kalda.base.ids import ZERO_UUID, Uuid
from kalda.coordinator.groups.records import (
    GROUP_VALUE_VERSION,
    OFFSET_VALUE_VERSION,
    OFFSET_VALUE_VERSION_WITH_EXPIRY,
    CommittedOffset,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from kalda.protocol.messages.group_records import GroupMetadataValue, MemberMetadata
from kalda.protocol.record_framing import UnknownRecordType, UnknownRecordVersion
from kalda.records.batch import iter_batches
from kalda.records.builder import read_records

GOLDEN = Path(__file__).parents[3] / "golden" / "coordinator"
CASES: list[dict[str, Any]] = json.loads((GOLDEN / "vectors.json").read_text())["records"]


@pytest.mark.parametrize("case", CASES, ids=lambda each: f"{each['record']}-{each['version']}-{each['variant']}")
def test_values_of_every_version_are_read(case: dict[str, Any]) -> None:
    record = decode_record(bytes.fromhex(case["key_hex"]), bytes.fromhex(case["hex"]))
    value = case["value"]
    if isinstance(record, OffsetRecord):
        topic_id = value.get("topicId")
        assert record.value == CommittedOffset(
            value["offset"],
            value.get("leaderEpoch", -1),
            value["metadata"],
            value["commitTimestamp"],
            value.get("expireTimestamp", -1),
            ZERO_UUID if topic_id is None else Uuid(base64.urlsafe_b64decode(topic_id + "==")),
        )
        assert (record.group_id, record.topic, record.partition) == tuple(case["key"].values())
    else:
        assert isinstance(record, GroupRecord)
        assert record.value is not None
        assert (record.group_id, record.value.generation) == (case["key"]["group"], value["generation"])
        assert [each.member_id for each in record.value.members] == [each["memberId"] for each in value["members"]]
    written = {OFFSET_VALUE_VERSION, OFFSET_VALUE_VERSION_WITH_EXPIRY} if case["type"] == 1 else {GROUP_VALUE_VERSION}
    if case["type"] and case["version"] in written and case["variant"] in ("full", "nulls"):
        assert encode_record(record) == (bytes.fromhex(case["key_hex"]), bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("partition", [0, 1, 3])
def test_whole_logs_are_written_again_as_the_same_bytes(partition: int) -> None:
    log = (GOLDEN / f"consumer_offsets-{partition}.log").read_bytes()
    kinds: set[type] = set()
    for position, header in iter_batches(log):
        if header.is_control:
            continue
        for record in read_records(log, position):
            assert record.key is not None
            decoded = decode_record(record.key, record.value)
            kinds.add(type(decoded))
            assert encode_record(decoded) == (record.key, record.value)
    assert OffsetRecord in kinds


def test_later_types_and_versions_are_unknown() -> None:
    key, _ = encode_record(GroupRecord("g", None))
    for later, what in (
        ((b"\x00\x63abc", b"\x00\x00"), UnknownRecordType),
        ((key, b"\x00\x63..."), UnknownRecordVersion),
    ):
        with pytest.raises(UnknownRecordType) as unknown:
            decode_record(*later)
        assert unknown.type is what


@pytest.mark.parametrize("key", [b"", b"\x00", b"\x00\x01\x00\xff"])
def test_malformed_keys_are_refused(key: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_record(key, None)


@pytest.mark.parametrize("ids", [[("a", None), ("a", None)], [("a", "one"), ("b", "one")]])
def test_checkpoints_with_members_of_one_id_are_refused(ids: list[tuple[str, str | None]]) -> None:
    members = [MemberMetadata(member_id=member, group_instance_id=instance) for member, instance in ids]
    value = GroupMetadataValue(protocol_type="consumer", generation=1, protocol="range", members=members)
    with pytest.raises(InvalidRequest):
        decode_record(*encode_record(GroupRecord("g", value)))
