"""Which messages a version can express, and what happens to a field that the version lacks."""

from __future__ import annotations

import pytest

from kalda.base.errors import InvalidRequest
from kalda.protocol import codec
from kalda.protocol.decoder import TooManyElements
from kalda.protocol.messages.metadata import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from kalda.protocol.messages.partitions import (
    FetchableTopicResponse,
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestReplicaState,
    FetchResponse,
    FetchResponseLeaderIdAndEpoch,
    FetchResponsePartitionData,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)


def fetched(records: object) -> FetchResponse:
    partition = FetchResponsePartitionData(partition_index=3, records=records)  # type: ignore[arg-type]
    return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition])])


def test_records_are_neither_joined_nor_copied() -> None:
    first, second = memoryview(b"first batch"), b"second"
    buffers = codec.encode_buffers(fetched([first, second]), 11)
    assert any(buffer is first for buffer in buffers)
    assert any(buffer is second for buffer in buffers)
    assert b"".join(buffers) == codec.encode(fetched(b"first batchsecond"), 11)


def test_records_are_views_of_the_frame() -> None:
    topic = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=b"batch")])
    frame = bytearray(codec.encode(ProduceRequest(acks=1, topic_data=[topic]), 9))
    records = codec.decode(ProduceRequest, memoryview(frame), 9).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records == b"batch"
    records[:2] = b"BA"
    assert b"BAtch" in frame


def test_empty_and_null_records() -> None:
    for records in (None, b"", []):
        read = codec.decode(FetchResponse, codec.encode(fetched(records), 12), 12)
        found = read.responses[0].partitions[0].records
        assert (found is None) if records is None else (found is not None and len(found) == 0)


def test_an_ignorable_field_is_dropped_where_the_version_lacks_it() -> None:
    request = FetchRequest(rack_id="here", cluster_id="there")
    assert codec.decode(FetchRequest, codec.encode(request, 4), 4) == FetchRequest()


def test_any_other_field_is_refused_where_the_version_lacks_it() -> None:
    request = FetchRequest(replica_state=FetchRequestReplicaState(replica_id=1))
    with pytest.raises(ValueError, match=r"FetchRequest\.replica_state .* version 14 has no such field"):
        codec.encode(request, 14)
    assert codec.decode(FetchRequest, codec.encode(request, 15), 15) == request
    partition = FetchRequestFetchPartition(partition=1, last_fetched_epoch=7)
    request = FetchRequest(topics=[FetchRequestFetchTopic(topic="t", partitions=[partition])])
    with pytest.raises(ValueError, match="last_fetched_epoch is 7"):
        codec.encode(request, 11)


def test_a_tagged_field_with_its_default_is_not_written() -> None:
    plain = fetched(None)
    moved = fetched(None)
    moved.responses[0].partitions[0].current_leader = FetchResponseLeaderIdAndEpoch(leader_id=2, leader_epoch=5)
    grown = len(codec.encode(moved, 12)) - len(codec.encode(plain, 12))
    assert grown == 2 + 4 + 4 + 1  # tag, size, two int32, an empty tagged section


@pytest.mark.parametrize("version", [-1, 14, 32767])
def test_versions_that_a_message_does_not_have(version: int) -> None:
    with pytest.raises(InvalidRequest, match="MetadataRequest has versions 0-13"):
        codec.decode(MetadataRequest, b"", version)
    with pytest.raises(InvalidRequest, match="MetadataRequest has versions 0-13"):
        codec.encode(MetadataRequest(), version)


def test_null_where_it_may_not_be() -> None:
    with pytest.raises(ValueError, match="topics may not be null in version 0"):
        codec.encode(MetadataRequest(topics=None), 0)
    assert codec.decode(MetadataRequest, codec.encode(MetadataRequest(topics=None), 1), 1).topics is None
    with pytest.raises(InvalidRequest, match="client_software_name may not be null"):
        codec.decode(ApiVersionsRequest, b"\x00\x01\x00", 3)


def test_a_string_has_at_most_32767_bytes_in_every_encoding() -> None:
    def named(size: int) -> MetadataRequest:
        return MetadataRequest(topics=[MetadataRequestTopic(name="n" * size)])

    for version in (1, 9):
        raw = codec.encode(named(32767), version)
        assert codec.decode(MetadataRequest, raw, version) == named(32767)
        with pytest.raises(ValueError, match=r"32768|format requires"):
            codec.encode(named(32768), version)
    long = b"\x02\x81\x80\x02" + b"n" * 32768 + b"\x00\x00\x00\x00\x00"
    with pytest.raises(InvalidRequest, match="name of 32768"):
        codec.decode(MetadataRequest, long, 9)


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="ProduceRequest v9"):
        codec.encode(ProduceRequest(acks=1 << 15), 9)


def test_strings_must_be_utf_8() -> None:
    with pytest.raises(InvalidRequest, match="not UTF-8"):
        codec.decode(ApiVersionsRequest, b"\x02\xc3\x02a\x00", 3)


def test_each_instance_has_its_own_lists_and_structs() -> None:
    one, other = FetchRequest(), FetchRequest()
    one.topics.append(FetchRequestFetchTopic())
    one.replica_state.replica_id = 9
    assert other.topics == []
    assert other.replica_state.replica_id == -1
    raw = codec.encode(FetchRequest(), 17)
    read, again = codec.decode(FetchRequest, raw, 17), codec.decode(FetchRequest, raw, 17)
    read.replica_state.replica_id = 9
    assert again.replica_state.replica_id == FetchRequest().replica_state.replica_id == -1


def test_unknown_tagged_fields_count_as_elements() -> None:
    """Each takes as long as one, in two bytes."""
    unknown = b"".join(bytes((tag, 0)) for tag in range(100))
    topic = bytes(16) + b"\x02a" + bytes((100,)) + unknown
    message = bytes((51,)) + 50 * topic + b"\x00\x00\x00"
    decode = codec.decoder(MetadataRequest, 12)
    assert len(decode(message, 0, 50 + 50 * 100)[0].topics) == 50
    with pytest.raises(TooManyElements):
        decode(message, 0, 49 + 50 * 100)
