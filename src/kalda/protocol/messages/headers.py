"""The headers before every request and response."""

from __future__ import annotations

from kalda.protocol.notation import Int16, Int32, LegacyString, Message


class RequestHeader(Message, versions="1-2", flexible="2+"):
    request_api_key: Int16 = 0
    request_api_version: Int16 = 0
    correlation_id: Int32 = 0
    client_id: LegacyString | None = ""


class ResponseHeader(Message, versions="0-1", flexible="1+"):
    correlation_id: Int32 = 0
