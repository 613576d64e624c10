"""The loggers of a broker as a config resource."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import kalda
from kalda.base.errors import ApiError, ErrorCode
from kalda.broker.process.loggers import ALIASES, LoggerChange, alter_loggers, logger_levels

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


def test_kafkas_names_stand_for_loggers_here() -> None:
    """Those that client libraries and the log4j2.yaml of Kafka name."""
    requests = logging.getLogger("kalda.requests")
    try:
        for name in ("kafka.server.KafkaApis", "kafka.request.logger"):
            alter_loggers([LoggerChange(name, SET, "TRACE")], validate_only=False)
            assert requests.level == 5
            assert logger_levels([name, "kalda.requests"]) == [(name, "TRACE"), ("kalda.requests", "TRACE")]
            alter_loggers([LoggerChange(name, DELETE, None)], validate_only=False)
            assert requests.level == logging.NOTSET
    finally:
        requests.setLevel(logging.NOTSET)
    assert {"kafka", "org.apache.kafka", "state.change.logger", "kafka.controller.KafkaController"} <= {
        name for name, _ in logger_levels()
    }
    with pytest.raises(ApiError):
        alter_loggers([LoggerChange("kafka.server.Nobody", SET, "INFO")], validate_only=False)


def test_every_alias_stands_for_a_logger_of_the_program() -> None:
    sources = Path(kalda.__file__).parent
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources.rglob("*.py"))
    for name in set(ALIASES.values()):
        parts = name.split(".")[1:]
        is_module = (sources / Path(*parts)).is_dir() or (sources / Path(*parts)).with_suffix(".py").exists()
        assert is_module or f'getLogger("{name}")' in text, name


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
        (LoggerChange(NAME, SET, "INFO"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_one_invalid_change_refuses_all(logger: logging.Logger, change: LoggerChange, code: ErrorCode) -> None:
    with pytest.raises(ApiError) as refused:
        alter_loggers([LoggerChange(NAME, SET, "DEBUG"), change], validate_only=False)
    assert refused.value.code is code
    assert logger.level == logging.NOTSET
