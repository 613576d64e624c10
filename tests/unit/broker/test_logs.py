"""The lines of a node's log."""

from __future__ import annotations

import io
import json
import logging

import pytest

from kalda.broker.process.loggers import JsonFormatter, TextFormatter

FORGED = "group\n[2026-01-31 12:00:00,123] ERROR the disk has failed (kalda.logs)\r\x1b[2K"


def logged(formatter: logging.Formatter) -> list[str]:
    """What is logged about a client's group, and an exception with its name."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logger = logging.Logger("kalda.test")
    logger.addHandler(handler)
    logger.warning("member of %s left", FORGED)
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("failed")
    return stream.getvalue().splitlines()


def test_no_client_can_forge_a_line() -> None:
    lines = logged(TextFormatter())
    assert (
        r"member of group\n[2026-01-31 12:00:00,123] ERROR the disk has failed (kalda.logs)\r\x1b[2K left" in lines[0]
    )
    assert lines[1].endswith("ERROR failed (kalda.test)")
    assert lines[2] == "Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in lines[3:])
    assert sum(line.startswith("[") for line in lines) == 2


def test_lines_of_json_are_whole() -> None:
    first, second = (json.loads(line) for line in logged(JsonFormatter()))
    assert first["message"] == f"member of {FORGED} left"
    assert FORGED in second["error"]


@pytest.mark.parametrize("name", ["Grüße", "世界"])
def test_other_letters_stay(name: str) -> None:
    record = logging.LogRecord("kalda.test", logging.INFO, "", 0, name, None, None)
    assert name in TextFormatter().format(record)
    assert name in JsonFormatter().format(record)
