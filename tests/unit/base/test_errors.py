"""Failures with Kafka's error codes."""

from __future__ import annotations

import pytest

from kalda.base.errors import ApiError, ErrorCode, as_api_error
from kalda.protocol.framing import encode_response
from kalda.protocol.messages.admin import (
    IncrementalAlterConfigsResponse,
    IncrementalAlterConfigsResponseAlterConfigsResourceResponse,
)


@pytest.mark.parametrize("character", ["x", "\u00e4", "\u20ac", "\U0001f600"])
def test_a_message_fits_into_a_string_of_the_protocol(character: str) -> None:
    """It may list thousands of keys that the client has sent: a response that cannot be encoded has no answer."""
    error = ApiError(ErrorCode.INVALID_CONFIG, f"Cannot update {character * 100_000}")
    assert error.message.startswith("Cannot update " + character)
    assert error.message.endswith("\u2026")
    result = IncrementalAlterConfigsResponseAlterConfigsResourceResponse(
        error_code=error.code, error_message=error.message, resource_name="", resource_type=4
    )
    assert encode_response(1, IncrementalAlterConfigsResponse(responses=[result]), 1)
    assert ApiError(ErrorCode.INVALID_CONFIG, character * 8_000).message == character * 8_000


def test_an_unforeseen_error_keeps_its_cause() -> None:
    known, unforeseen = ApiError(ErrorCode.NOT_CONTROLLER), KeyError("a fault")
    assert as_api_error(known) is known
    wrapped = as_api_error(unforeseen)
    assert wrapped.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert wrapped.__cause__ is unforeseen
