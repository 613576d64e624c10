"""Request and response headers, among them those of unknown API versions."""

from __future__ import annotations

import pytest

from kalda.base.errors import InvalidRequest
from kalda.protocol import codec, framing
from kalda.protocol.apis import API, ApiKey, api_of
from kalda.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from kalda.protocol.messages.security import SaslHandshakeRequest, SaslHandshakeResponse
from kalda.protocol.record_framing import (
    UnknownRecordType,
    decode_coordinator_key,
    decode_coordinator_value,
    decode_metadata_record,
)


def test_a_request_of_each_header_version() -> None:
    old = b"".join(framing.encode_request(SaslHandshakeRequest(mechanism="PLAIN"), 1, 7, "me"))
    assert old == b"\x00\x11\x00\x01\x00\x00\x00\x07\x00\x02me\x00\x05PLAIN"
    assert framing.decode_request_header(old) == (ApiKey.SASL_HANDSHAKE, 1, 7, "me", 12)
    request = ApiVersionsRequest(client_software_name="k", client_software_version="1")
    new = b"".join(framing.encode_request(request, 3, 8, None))
    assert new == b"\x00\x12\x00\x03\x00\x00\x00\x08\xff\xff\x00\x02k\x021\x00"
    header = framing.decode_request_header(memoryview(new))
    assert header == (ApiKey.API_VERSIONS, 3, 8, None, 11)
    assert codec.decode(ApiVersionsRequest, new, 3, header.body_at) == request


def test_responses_of_each_header_version() -> None:
    plain = SaslHandshakeResponse(mechanisms=["PLAIN"])
    assert b"".join(framing.encode_response(9, plain, 1))[:6] == b"\x00\x00\x00\x09\x00\x00"
    for version in (0, 3, 4):
        # The client has not received the broker's versions yet: this header never has tagged fields.
        raw = b"".join(framing.encode_response(9, ApiVersionsResponse(), version))
        assert raw == b"\x00\x00\x00\x09" + codec.encode(ApiVersionsResponse(), version)
        assert framing.decode_response_header(API[ApiKey.API_VERSIONS], version, raw) == (9, 4)


def test_api_versions_of_an_unknown_version_has_a_readable_header() -> None:
    frame = b"\x00\x12\x03\xe7\x00\x00\x00\x2a\x00\x04rust\x00" + b"any body"
    assert framing.decode_request_header(frame) == (ApiKey.API_VERSIONS, 999, 42, "rust", 15)
    assert framing.decode_request_header(frame[:2] + b"\xff\xff" + frame[4:]).api_version == -1


def test_tagged_fields_of_a_header_are_skipped() -> None:
    frame = b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x01c" + b"\x02\x00\x02ab\xe8\x07\x00" + b"body"
    assert frame[framing.decode_request_header(frame).body_at :] == b"body"


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (b"", "cut short at 0"),
        (b"\x00\x12\x00\x03\x00\x00\x00\x01\x00", "cut short at 9"),
        (b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x05abc", "client id of 5 bytes in 3"),
        (b"\x00\x12\x00\x03\x00\x00\x00\x01\xff\xfe\x00", "client id of -2"),
        (b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x01\xff\x00", "not UTF-8"),
        (b"\x00\x04\x00\x03\x00\x00\x00\x01\x00\x01c", "API key 4 is unknown"),
        (b"\x7f\xff\x00\x03\x00\x00\x00\x01\x00\x01c", "API key 32767 is unknown"),
        (b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x01c", "varint"),
        (b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x01c\x01\x00\x7f", "cut short"),
        (b"\x00\x12\x00\x03\x00\x00\x00\x01\x00\x01c\xff\xff\xff\xff\x0f", "tagged fields"),
    ],
)
def test_headers_that_are_refused(frame: bytes, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        framing.decode_request_header(frame)


def test_response_headers_that_are_refused() -> None:
    for frame in (b"", b"\x00\x00\x00", b"\x00\x00\x00\x01", b"\x00\x00\x00\x01\x01\x00\x09"):
        with pytest.raises(InvalidRequest):
            framing.decode_response_header(API[ApiKey.FETCH], 12, frame)


def test_an_unknown_api_key() -> None:
    with pytest.raises(InvalidRequest, match="API key 999 is unknown"):
        api_of(999)


def test_record_types_of_a_later_release_and_malformed_records_raise_different_errors() -> None:
    for unknown in (b"\x01\xe7\x07\x00", b"\x01\x02\x63"):
        with pytest.raises(UnknownRecordType):
            decode_metadata_record(unknown)
    for unknown_key in (b"\x03\xe7", b"\x03\xe7rest"):
        with pytest.raises(UnknownRecordType):
            decode_coordinator_key("group_records", unknown_key)
    with pytest.raises(UnknownRecordType):
        decode_coordinator_value("group_records", 2, b"\x00\x63")
    for malformed in (b"", b"\x02\x02\x00", b"\x01", b"\x01\x02", b"\x01\x02\x00\x05ab"):
        with pytest.raises(InvalidRequest) as refused:
            decode_metadata_record(malformed)
        assert not isinstance(refused.value, UnknownRecordType)
    with pytest.raises(InvalidRequest, match="cut short"):
        decode_coordinator_key("group_records", b"\x00")
