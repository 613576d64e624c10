"""Topic names, by Apache Kafka's own judgement of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import collision_key, is_topic_name, validate_topic_name

ROWS = json.loads((Path(__file__).parents[2] / "golden" / "base" / "topic_names.json").read_text())


@pytest.mark.parametrize("row", [row for row in ROWS if "valid" in row], ids=lambda row: row["name"][:20])
def test_valid_names(row: dict[str, object]) -> None:
    name = str(row["name"])
    assert (collision_key(name) is not None) == row["collides_by_character"]
    assert is_topic_name(name) == row["valid"]
    if row["valid"]:
        validate_topic_name(name)
        return
    with pytest.raises(ApiError) as raised:
        validate_topic_name(name)
    assert raised.value.code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("row", [row for row in ROWS if "other" in row], ids=lambda row: row["other"])
def test_names_that_collide(row: dict[str, object]) -> None:
    keys = [collision_key(str(row[key])) for key in ("name", "other")]
    assert (keys[0] is not None and keys[0] == keys[1]) == row["collide"]
