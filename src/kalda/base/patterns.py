"""Regular expressions out of requests and configs, matched by RE2: in time that is linear in the text.

An expression that goes back to try another path, as those of Python's `re` and of Java do, may take longer than the
node runs. RE2 follows all paths at once. It has no look-around, no back-references, no possessive repetition and no
atomic groups, so patterns with these are refused.

`re2_pattern` takes the syntax of RE2, which Kafka uses in ListTransactions. `java_pattern` takes that of
`java.util.regex`, which Kafka uses in configs, and writes it in RE2's: what both have keeps Java's meaning, what RE2
lacks is refused, and so are intersections of classes, the flags d, x and U, and Java's own classes. Letters that are
equal without case are so in all of Unicode.

RE2 is imported with the first pattern: most nodes have none.
"""

from __future__ import annotations

import re
from typing import NoReturn, cast

MAX_LENGTH = 8_192
"""Characters of a pattern: it is compiled within 100 ms, whatever it is."""
MAX_PROGRAM = 10_000
"""Instructions of a pattern: a text of 256 characters takes some milliseconds, whatever it is."""
_MAX_MEMORY = 1 << 20
"""Bytes of a pattern and of what its matches keep."""


class BadPattern(ValueError):
    """The text is not a pattern, or one that is not supported or too large."""


class Pattern:
    """A compiled pattern."""

    __slots__ = ("compiled", "size")

    def __init__(self, compiled: re.Pattern[str], size: int) -> None:
        self.compiled = compiled
        """It has the interface of Python's own."""
        self.size = size
        """Instructions. A match takes at most some 30 ns for each, times the characters of the text."""

    def matches(self, text: str) -> bool:
        """Whether the whole text matches. One that cannot be encoded does not."""
        try:
            return self.compiled.fullmatch(text) is not None
        except UnicodeEncodeError:
            return False


def re2_pattern(text: str) -> Pattern:
    """Raises `BadPattern`."""
    _require_short(text)
    if _takes_bytes(text):
        raise BadPattern(r"\C is not supported")
    return _compile(text)


def java_pattern(text: str) -> Pattern:
    """Raises `BadPattern`."""
    _require_short(text)
    return _compile(_Translation(text).result)


def _require_short(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise BadPattern(f"it has {len(text)} characters; {MAX_LENGTH} are supported")


def _compile(text: str) -> Pattern:
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_MEMORY
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        (why,) = error.args
        raise BadPattern(why.decode() if isinstance(why, bytes) else str(why)) from None
    except UnicodeEncodeError as error:
        raise BadPattern(f"it cannot be encoded: {error.reason}") from None
    finally:
        re2.purge()  # which keeps 128 patterns otherwise
    if compiled.programsize > MAX_PROGRAM:
        raise BadPattern("it is too large")
    return Pattern(cast("re.Pattern[str]", compiled), compiled.programsize)


def _takes_bytes(text: str) -> bool:
    """Whether `\\C`, a single byte, is in the pattern: RE2's C++ has it, that of Java has not."""
    at = 0
    while (at := text.find("\\", at)) >= 0:
        if text.startswith("\\C", at):
            return True
        end = text.find("\\E", at) if text.startswith("\\Q", at) else at
        at = len(text) if end < 0 else end + 2
    return False


_MAX_DEPTH = 50
_LINE_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"
_BLANKS = r" \t\x{a0}\x{1680}\x{180e}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}"
_NO_BLANKS = (
    r"\x{0}-\x{8}\x{a}-\x{1f}\x{21}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{180d}\x{180f}-\x{1fff}\x{200b}-\x{202e}"
    r"\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{10ffff}"
)
_CLASSES = {
    "d": r"\d",
    "D": r"\D",
    "w": r"\w",
    "W": r"\W",
    "s": r"\t-\r ",
    "S": r"\x{0}-\x{8}\x{e}-\x{1f}\x{21}-\x{10ffff}",
    "h": _BLANKS,
    "H": _NO_BLANKS,
    "v": r"\n-\r\x{85}\x{2028}\x{2029}",
    "V": r"\x{0}-\x{9}\x{e}-\x{84}\x{86}-\x{2027}\x{202a}-\x{10ffff}",
}
"""What stands in a class for an escape."""
_POSIX = frozenset(
    ("Lower", "Upper", "ASCII", "Alpha", "Digit", "Alnum", "Punct", "Graph", "Print", "Blank", "Cntrl", "XDigit",
     "Space")
)  # fmt: skip
_CONTROLS = {"t": 9, "n": 10, "r": 13, "f": 12, "a": 7, "e": 27}
_COUNT = re.compile(r"\{[0-9]{1,4}(?:,[0-9]{0,4})?\}")
_GROUP = re.compile(r"<[A-Za-z][A-Za-z0-9]*>")
_FLAGS = re.compile(r"([imsu]*)(?:-([imsu]*))?([:)])")
_HEX = re.compile(r"u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]{1,8})\}")
_OCTAL = re.compile(r"0([0-3][0-7]{2}|[0-7]{1,2})")
_PROPERTY = re.compile(r"\{(?:Is)?([A-Za-z_]+)\}|([A-Z])")


class _Translation:
    """One pattern of Java, written in RE2's syntax."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._all_lines = [False]
        """By open group: whether `.` matches line ends there."""
        parts: list[str] = []
        while self._at < len(text):
            parts.append(self._next())
        if len(self._all_lines) > 1:
            self._fail("a group is not closed")
        self.result = "".join(parts)

    def _fail(self, why: str) -> NoReturn:
        raise BadPattern(f"{why} (at {self._at})")

    def _take(self, expression: re.Pattern[str], why: str) -> re.Match[str]:
        found = expression.match(self._text, self._at)
        if found is None:
            self._fail(why)
        self._at = found.end()
        return found

    def _next(self) -> str:
        character = self._text[self._at]
        self._at += 1
        match character:
            case "\\":
                return self._escape(in_class=False)
            case "[":
                return self._class()
            case "(":
                return self._open()
            case ")":
                if len(self._all_lines) == 1:
                    self._fail("a group is closed that is not open")
                self._all_lines.pop()
                return character
            case ".":
                return r"(?s:.)" if self._all_lines[-1] else f"[^{_LINE_ENDS}]"
            case "*" | "+" | "?":
                return character + self._reluctance()
            case "{":
                self._at -= 1
                return self._take(_COUNT, "a repetition has no valid count")[0] + self._reluctance()
        return character if character in "|^$" else _literal(character)

    def _reluctance(self) -> str:
        if self._text.startswith("+", self._at):
            self._fail("possessive repetitions are not supported")
        if self._text.startswith("?", self._at):
            self._at += 1
            return "?"
        return ""

    def _open(self) -> str:
        self._all_lines.append(self._all_lines[-1])
        if not self._text.startswith("?", self._at):
            return "("
        self._at += 1
        if self._text.startswith(("=", "!", "<=", "<!", ">"), self._at):
            self._fail("look-around and atomic groups are not supported")
        if self._text.startswith("<", self._at):
            return "(?P" + self._take(_GROUP, "a group has no valid name")[0]
        on, off, end = self._take(_FLAGS, "a group begins with what is not supported").groups()
        self._all_lines[-1] = "s" in on or (self._all_lines[-1] and "s" not in (off or ""))
        if end == ")":  # the flags hold for the rest of the group around
            all_lines = self._all_lines.pop()
            self._all_lines[-1] = all_lines
            if self._text.startswith(("*", "+", "?"), self._at):
                self._fail("a repetition repeats nothing")
        on, off = (re.sub("[su]", "", each or "") for each in (on, off))
        flags = on + (f"-{off}" if off else "")
        return f"(?{flags}{end}" if flags or end == ":" else ""

    def _escape(self, *, in_class: bool) -> str:
        character = self._text[self._at : self._at + 1]
        self._at += 1
        if not character:
            self._fail("it ends too early")
        if character == "Q":
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at :] if end < 0 else self._text[self._at : end]
            self._at = len(self._text) if end < 0 else end + 2
            return "".join(map(_literal, quoted))
        if character in _CLASSES or character in "pP":
            ranges = _CLASSES.get(character) or self._property(character)
            return ranges if in_class else f"[{ranges}]"
        if character in _CONTROLS:
            return _code(_CONTROLS[character])
        if character in "ux0":
            self._at -= 1
            return self._number()
        if character == "c" and self._at < len(self._text):
            self._at += 1
            return _code(ord(self._text[self._at - 1]) ^ 64)
        if character in "bBAzZ" and not in_class:
            if self._text.startswith("{g}", self._at):
                self._fail(r"\b{g} is not supported")
            return r"\z" if character == "Z" else f"\\{character}"
        if character == "R" and not in_class:
            return f"(?:\\r\\n|[{_CLASSES['v']}])"
        if character.isascii() and character.isalnum():
            self._fail(f"\\{character} is not supported")
        return _literal(character)

    def _number(self) -> str:
        if self._text[self._at] == "0":
            return _code(int(self._take(_OCTAL, "an escape has no valid number")[1], 8))
        code = self._hex()
        if 0xD800 <= code < 0xDC00 and self._text.startswith("\\u", self._at):
            self._at += 1
            code = 0x10000 + ((code - 0xD800) << 10) + (self._hex() - 0xDC00)
        if not 0 <= code <= 0x10FFFF or 0xD800 <= code < 0xE000:
            self._fail("an escape has no valid number")
        return _code(code)

    def _hex(self) -> int:
        found = self._take(_HEX, "an escape has no valid number")
        return int(found[1] or found[2] or found[3], 16)

    def _property(self, kind: str) -> str:
        found = self._take(_PROPERTY, "a class of characters has no valid name")
        name = found[1] or found[2]
        if name in _POSIX:
            return f"[:{'^' if kind == 'P' else ''}{name.lower()}:]"
        return f"\\{kind}{{{name}}}"

    def _class(self) -> str:
        """A class, past its opening bracket. A class inside of it is a part of the union."""
        is_negated = self._text.startswith("^", self._at)
        self._at += is_negated
        return f"[{'^' if is_negated else ''}{self._union(0)}]"

    def _union(self, depth: int) -> str:
        if depth > _MAX_DEPTH:
            self._fail("classes are nested too deeply")
        parts: list[str] = []
        begins_range = ends_range = False  # whether what was read last may begin a range, or a range has no end yet
        while True:
            character = self._text[self._at : self._at + 1]
            self._at += 1
            if not character:
                self._fail("a class is not closed")
            if character == "]" and parts:
                return "".join(parts)
            if self._text.startswith("&&", self._at - 1):
                self._fail("intersections of classes are not supported")
            if character == "-" and begins_range and self._text[self._at : self._at + 1] not in ("]", "[", ""):
                parts.append("-")
                begins_range, ends_range = False, True
                continue
            is_set = character == "[" or (character == "\\" and self._at_set())
            if is_set and (ends_range or self._text.startswith("\\v-", self._at - 1)):  # \v is U+000B in Java there
                self._fail("a set of characters does not bound a range")
            if character == "[":
                if self._text.startswith("^", self._at):
                    self._fail("a negated class inside of a class is not supported")
                parts.append(self._union(depth + 1))
            elif character == "\\":
                parts.append(self._escape(in_class=True))
            else:
                parts.append(_literal(character))
            begins_range, ends_range = not is_set and not ends_range, False

    def _at_set(self) -> bool:
        """Whether an escape that is read next stands for several characters."""
        return self._text[self._at : self._at + 1] in ("p", "P", *_CLASSES)


def _literal(character: str) -> str:
    return character if character.isalnum() or not character.isascii() else _code(ord(character))


def _code(code: int) -> str:
    return f"\\x{{{code:x}}}"
