"""Text from others made safe to print: no character of it ends a line, moves a cursor or turns text around.

Client ids, group ids and records hold what their senders like: newlines by which a log line could be forged, escape
sequences that terminals obey.
"""

from __future__ import annotations

from itertools import chain

_UNSAFE = (
    *chain(range(0x20), range(0x7F, 0xA0)),  # controls
    *(0x2028, 0x2029),  # line and paragraph separators
    *chain((0x200E, 0x200F, 0x061C), range(0x202A, 0x202F), range(0x2066, 0x206A)),  # directions of text
    *range(0xD800, 0xE000),  # halves of pairs, which no encoding takes
)
_ESCAPES = {code: chr(code).encode("unicode_escape").decode("ascii") for code in _UNSAFE}
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in _UNSAFE if code >= 0x7F}


def printable(text: str) -> str:
    r"""The text with such characters as Python's escapes: a newline as `\n`, an escape character as `\x1b`."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def printable_json(document: str) -> str:
    """A JSON document, which has its own escapes for most of these characters, with such escapes for the others."""
    return document if document.isprintable() else document.translate(_JSON_ESCAPES)
