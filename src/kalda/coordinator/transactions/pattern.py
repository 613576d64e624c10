"""Patterns of ListTransactions: regular expressions in the syntax of RE2, matched against whole transactional ids.

Like RE2 this takes no back-references and no assertions about what surrounds a match, so that a text is matched in time
that is proportional to its length: all positions in the pattern that the text so far may have led to are followed at
once (Thompson's construction). No client can hold the node with a pattern that tries many paths one after another.

A parsed pattern is a program of `_Node`s. Greedy and lazy repetition are the same here, as only whole matches count.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import NoReturn

MAX_PROGRAM = 1_000
"""Nodes of a program. RE2 takes larger ones; longer patterns of ids have no use."""
MAX_REPEAT = 1_000
"""The highest count in braces, as in RE2."""
_MAX_DEPTH = 50
_STEP_OPERATIONS = 20_000
"""Nodes followed in one step: some ten milliseconds."""

Accepts = Callable[[str], bool]
_DIGITS = frozenset("0123456789")
_WORDS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPACES = frozenset("\t\n\f\r ")
_PERL = {"d": _DIGITS, "w": _WORDS, "s": _SPACES}
_POSIX: dict[str, Accepts] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "ascii": str.isascii,
    "blank": lambda c: c in "\t ",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": lambda c: c in _DIGITS,
    "graph": lambda c: "!" <= c <= "~",
    "lower": lambda c: "a" <= c <= "z",
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in "\t\n\v\f\r ",
    "upper": lambda c: "A" <= c <= "Z",
    "word": lambda c: c in _WORDS,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_CATEGORIES = frozenset((*"LMNPSZC", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"))  # fmt: skip
"""General categories of Unicode."""
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_START, _END, _WORD_EDGE, _WORD_INSIDE, _LINE_START, _LINE_END = range(6)


class BadPattern(ValueError):
    """The text is not a pattern, or is one that is too large."""


class _Node:
    """A state of the program: it accepts a character, or holds at a position, and leads on to `next`."""

    __slots__ = ("accepts", "edge", "next", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.accepts: Accepts | None = None
        """Which character leads on; None where none is needed."""
        self.edge: int | None = None
        """Where the node leads on without a character: at which kind of position; None: everywhere."""
        self.next: list[_Node] = []


Fragment = tuple[_Node, list[_Node]]
"""The first node of a piece of a program, and the nodes whose `next` is the piece after it."""


class IdPattern:
    """A pattern. Raises `BadPattern`."""

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self._first, ends = parser.parse()
        self._last = parser.node()
        for end in ends:
            end.next.append(self._last)
        self._operations = 0
        """Nodes followed since the last step ended."""

    def matches(self, text: str) -> Generator[None, None, bool]:
        """Whether the pattern matches the whole text. It yields between bounded pieces of work."""
        current = self._follow([self._first], text, 0)
        for at, character in enumerate(text):
            if not current:
                return False
            self._operations += len(current)
            if self._operations >= _STEP_OPERATIONS:
                self._operations = 0
                yield
            reached = [
                after for node in current if node.accepts is not None and node.accepts(character) for after in node.next
            ]
            current = self._follow(reached, text, at + 1)
        return self._last in current

    def _follow(self, nodes: Iterable[_Node], text: str, at: int) -> list[_Node]:
        """The nodes, and all that they lead to without a character, each once."""
        seen: dict[_Node, None] = {}
        stack = list(nodes)
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen[node] = None
            if node.accepts is None and (node.edge is None or _is_at_edge(node.edge, text, at)):
                stack.extend(node.next)
        self._operations += len(seen)
        return list(seen)


def _is_at_edge(edge: int, text: str, at: int) -> bool:
    if edge in (_START, _END):
        return at == (0 if edge == _START else len(text))
    if edge == _LINE_START:
        return at == 0 or text[at - 1] == "\n"
    if edge == _LINE_END:
        return at == len(text) or text[at] == "\n"
    is_word_edge = (at > 0 and text[at - 1] in _WORDS) != (at < len(text) and text[at] in _WORDS)
    return is_word_edge == (edge == _WORD_EDGE)


def _unquoted(text: str) -> str:
    """The pattern with each character between `\\Q` and `\\E` escaped instead."""
    parts: list[str] = []
    at = 0
    while at < len(text):
        if text.startswith("\\Q", at):
            close = text.find("\\E", at + 2)
            end = len(text) if close < 0 else close
            parts += [each if each in _WORDS else "\\" + each for each in text[at + 2 : end]]
            at = end + 2
        else:
            size = 2 if text[at] == "\\" else 1
            parts.append(text[at : at + size])
            at += size
    return "".join(parts)


class _Parser:
    """Recursive descent over one pattern."""

    def __init__(self, text: str) -> None:
        self._text = _unquoted(text)
        self._at = 0
        self._depth = 0
        self._nodes = 0
        self._flags: frozenset[str] = frozenset()
        """Of i, m, s: those that are on."""

    def parse(self) -> Fragment:
        fragment = self._alternatives()
        if self._at < len(self._text):
            self._fail("a parenthesis closes nothing")
        return fragment

    def node(self) -> _Node:
        self._nodes += 1
        if self._nodes > MAX_PROGRAM:
            self._fail("it is too large")
        return _Node(self._nodes)

    def _fail(self, why: str) -> NoReturn:
        raise BadPattern(f"{why} (at {self._at})")

    def _peek(self, ahead: int = 0) -> str:
        return self._text[self._at + ahead : self._at + ahead + 1]

    def _take(self) -> str:
        character = self._peek()
        if not character:
            self._fail("it ends too early")
        self._at += 1
        return character

    # -- structure

    def _alternatives(self) -> Fragment:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail("it is nested too deeply")
        flags = self._flags
        first = self.node()
        ends: list[_Node] = []
        while True:
            start, last = self._sequence()
            first.next.append(start)
            ends += last
            if self._peek() != "|":
                break
            self._at += 1
        self._flags = flags
        self._depth -= 1
        return first, ends

    def _sequence(self) -> Fragment:
        first = self.node()
        ends = [first]
        while (character := self._peek()) and character not in "|)":
            piece = self._repeated()
            if piece is None:
                continue
            for end in ends:
                end.next.append(piece[0])
            ends = piece[1]
        return first, ends

    def _repeated(self) -> Fragment | None:
        start = self._at
        flags = self._flags
        piece = self._atom()
        repeats = 0
        while piece is not None and (bounds := self._quantifier()) is not None:
            repeats += 1
            if repeats > 1:
                self._fail("a repetition is repeated")
            after, flags_after = self._at, self._flags
            piece = self._expand(start, flags, bounds)
            self._at, self._flags = after, flags_after
        return piece

    def _quantifier(self) -> tuple[int, int | None] | None:
        """The bounds of a repetition, past which this moves; None where there is none."""
        bounds: tuple[int, int | None] | None = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(self._peek())
        if bounds is not None:
            self._at += 1
        elif self._peek() == "{":
            bounds = self._braces()
        if bounds is not None and self._peek() == "?":
            self._at += 1
        return bounds

    def _braces(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}` or `{2,5}`; None for a brace that stands for itself."""
        close = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : max(close, 0)].partition(",")
        if close < 0 or not low.isdecimal() or not low.isascii() or (high and not high.isdecimal()):
            return None
        if max(len(low), len(high)) > 4:
            self._fail("a repetition has too high a count")
        least = int(low)
        most = least if not comma else int(high) if high else None
        if least > MAX_REPEAT or (most is not None and not least <= most <= MAX_REPEAT):
            self._fail("a repetition has invalid counts")
        self._at = close + 1
        return least, most

    def _expand(self, start: int, flags: frozenset[str], bounds: tuple[int, int | None]) -> Fragment:
        """The piece that begins at `start`, parsed again for each of its repetitions."""

        def again() -> Fragment:
            self._at, self._flags = start, flags
            piece = self._atom()
            assert piece is not None, "the piece was parsed before"
            return piece

        least, most = bounds
        first = self.node()
        ends = [first]
        for _ in range(least):
            piece = again()
            for end in ends:
                end.next.append(piece[0])
            ends = piece[1]
        if most is None:
            loop, body = self.node(), again()
            for end in ends + body[1]:
                end.next.append(loop)
            loop.next.append(body[0])
            return first, [loop]
        skips: list[_Node] = []
        for _ in range(most - least):
            skips += ends
            piece = again()
            for end in ends:
                end.next.append(piece[0])
            ends = piece[1]
        return first, ends + skips

    # -- atoms

    def _atom(self) -> Fragment | None:
        """One character, class, position or group; None for flags, which stand for nothing."""
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return self._accepting(self._class())
        if character == ".":
            return self._accepting((lambda _: True) if "s" in self._flags else (lambda c: c != "\n"))
        if character == "^":
            return self._edge(_LINE_START if "m" in self._flags else _START)
        if character == "$":
            return self._edge(_LINE_END if "m" in self._flags else _END)
        if character == "\\":
            return self._escape()
        if character in "*+?":
            self._fail("a repetition repeats nothing")
        return self._literal(character)

    def _group(self) -> Fragment | None:
        outer = self._flags
        if self._peek() == "?":
            self._at += 1
            if self._text.startswith(("P<", "<"), self._at) and self._peek(1) not in ("=", "!"):
                close = self._text.find(">", self._at)
                name = self._text[self._at : close].split("<", 1)[1] if close > 0 else ""
                if not name or not all(each in _WORDS for each in name):
                    self._fail("a group has no valid name")
                self._at = close + 1
            elif self._read_flags():
                return None
        fragment = self._alternatives()
        if self._peek() != ")":
            self._fail("a parenthesis is not closed")
        self._at += 1
        self._flags = outer
        return fragment

    def _read_flags(self) -> bool:
        """Past `i`, `-i:` and the like. True where the flags hold from here on, False where a group follows."""
        flags, is_on = set(self._flags), True
        while (character := self._take()) not in ":)":
            if character == "-" and is_on:
                is_on = False
            elif character in "imsU":
                flags = flags | {character} if is_on else flags - {character}
            else:
                self._fail("a group begins with what is not supported")
        self._flags = frozenset(flags)
        return character == ")"

    def _escape(self) -> Fragment | None:
        character = self._take()
        edges = {"A": _START, "z": _END, "b": _WORD_EDGE, "B": _WORD_INSIDE}
        if character in edges:
            return self._edge(edges[character])
        accepts = self._named_class(character)
        return self._literal(self._escaped(character)) if accepts is None else self._accepting(accepts)

    def _named_class(self, character: str) -> Accepts | None:
        """The class of an escape; None for one that stands for a single character."""
        if character in "pP":
            return self._category(is_negated=character == "P")
        members = _PERL.get(character.lower())
        if members is None:
            return None
        return (lambda c: c in members) if character.islower() else (lambda c: c not in members)

    def _category(self, *, is_negated: bool) -> Accepts:
        """`L` or `{Lu}`: a general category of Unicode. Scripts are not supported."""
        name = self._take()
        if name == "{":
            close = self._text.find("}", self._at)
            name = self._text[self._at : max(close, self._at)]
            self._at = close + 1
        is_negated ^= name.startswith("^")
        name = name.removeprefix("^")
        if name not in _CATEGORIES:
            self._fail("a class of characters has an unknown name")
        from unicodedata import category  # a node needs it for such a pattern only

        return lambda c: category(c).startswith(name) != is_negated

    def _escaped(self, character: str) -> str:
        """The character that an escape stands for."""
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            if self._peek() == "{":
                close = self._text.find("}", self._at)
                digits, after = self._text[self._at + 1 : max(close, 0)], close + 1
            else:
                digits, after = self._text[self._at : self._at + 2], self._at + 2
            if not 1 <= len(digits) <= 6 or any(each not in "0123456789abcdefABCDEF" for each in digits):
                self._fail("an escape has no valid number")
            if int(digits, 16) > 0x10FFFF:
                self._fail("an escape has no valid number")
            self._at = after
            return chr(int(digits, 16))
        if character.isascii() and character.isalnum():
            self._fail(f"the escape \\{character} is not supported")
        return character

    def _class(self) -> Accepts:
        """A character class, past its opening bracket."""
        is_negated = self._peek() == "^"
        self._at += is_negated
        singles: set[str] = set()
        ranges: list[tuple[str, str]] = []
        others: list[Accepts] = []
        is_first = True
        while (character := self._take()) != "]" or is_first:
            is_first = False
            if character == "[" and self._peek() == ":":
                others.append(self._posix())
                continue
            if character == "\\":
                escape = self._take()
                accepts = self._named_class(escape)
                if accepts is not None:
                    others.append(accepts)
                    continue
                character = self._escaped(escape)
            if self._peek() == "-" and self._peek(1) not in ("]", ""):
                self._at += 1
                high = self._take()
                if high == "\\":
                    high = self._escaped(self._take())
                if high < character:
                    self._fail("a range of characters is reversed")
                ranges.append((character, high))
            else:
                singles.add(character)
        folds = "i" in self._flags

        def holds(c: str) -> bool:
            return c in singles or any(low <= c <= high for low, high in ranges) or any(each(c) for each in others)

        def accepts_character(c: str) -> bool:
            found = holds(c) or (folds and (holds(c.lower()) or holds(c.upper())))
            return found != is_negated

        return accepts_character

    def _posix(self) -> Accepts:
        close = self._text.find(":]", self._at)
        name = self._text[self._at + 1 : max(close, 0)]
        is_negated = name.startswith("^")
        accepts = _POSIX.get(name.removeprefix("^"))
        if accepts is None:
            self._fail("a class of characters has an unknown name")
        self._at = close + 2
        return (lambda c: not accepts(c)) if is_negated else accepts

    def _literal(self, character: str) -> Fragment:
        if "i" in self._flags:
            folded = {character, character.lower(), character.upper()}
            return self._accepting(lambda c: c in folded)
        return self._accepting(lambda c: c == character)

    def _accepting(self, accepts: Accepts) -> Fragment:
        node = self.node()
        node.accepts = accepts
        return node, [node]

    def _edge(self, edge: int) -> Fragment:
        node = self.node()
        node.edge = edge
        return node, [node]
