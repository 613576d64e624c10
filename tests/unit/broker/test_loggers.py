"""The loggers of a broker as a config resource."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.loggers import LoggerChange, alter_loggers, logger_levels

NAME = "kalda.tests.loggers"
SET, DELETE, APPEND = 0, 1, 2


@pytest.fixture(autouse=True)
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger(NAME)
    yield made
    made.setLevel(logging.NOTSET)


def test_a_level_is_set_described_and_unset(logger: logging.Logger) -> None:
    alter_loggers([LoggerChange(NAME, SET, "DEBUG")], validate_only=False)
    assert logger.level == logging.DEBUG
    assert logger_levels([NAME]) == [(NAME, "DEBUG")]
    alter_loggers([LoggerChange(NAME, DELETE, None)], validate_only=False)
    assert logger.level == logging.NOTSET


def test_the_root_logger_is_first_and_all_are_listed() -> None:
    names = [name for name, _ in logger_levels()]
    assert names[0] == "root"
    assert NAME in names


def test_validation_changes_nothing(logger: logging.Logger) -> None:
    alter_loggers([LoggerChange(NAME, SET, "FATAL")], validate_only=True)
    assert logger.level == logging.NOTSET


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (LoggerChange("kalda.tests.nobody", SET, "INFO"), ErrorCode.INVALID_CONFIG),
        (LoggerChange(NAME, SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (LoggerChange(NAME, SET, None), ErrorCode.INVALID_CONFIG),
        (LoggerChange("root", DELETE, None), ErrorCode.INVALID_REQUEST),
        (LoggerChange(NAME, APPEND, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_one_invalid_change_refuses_all(logger: logging.Logger, change: LoggerChange, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        alter_loggers([LoggerChange(NAME, SET, "DEBUG"), change], validate_only=False)
    assert refused.value.code is code
    assert logger.level == logging.NOTSET
