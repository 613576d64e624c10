"""Text of others on terminals and in logs."""

from __future__ import annotations

import json

import pytest

from kalda.base.texts import printable, printable_json

UNSAFE = "\n\r\t\x00\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066\ud800"


def test_text_without_such_characters_stays_as_it_is() -> None:
    for text in ("orders-1", "Grüße 世界", "a\\nb", "👩\u200d💻", "no\u00a0break"):
        assert printable(text) == text
        assert printable_json(text) == text


@pytest.mark.parametrize("character", UNSAFE)
def test_a_line_stays_a_line_and_says_what_was_there(character: str) -> None:
    shown = printable(f"a{character}b")
    assert shown.splitlines() == [shown]
    assert shown.isascii()
    assert shown.encode().decode("unicode_escape") == f"a{character}b"


def test_json_has_the_same_values() -> None:
    document = printable_json(json.dumps({"a": UNSAFE}, ensure_ascii=False))
    assert document.splitlines() == [document]
    assert document.isprintable()
    assert json.loads(document) == {"a": UNSAFE}
