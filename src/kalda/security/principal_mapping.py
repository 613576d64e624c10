"""`ssl.principal.mapping.rules` (KIP-371): which name the owner of a certificate gets.

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,RULE:^CN=(.*?)$/$1/,DEFAULT

Rules are tried in order; the first whose pattern matches the whole distinguished name decides. As in Kafka, each match
of its pattern within the name is then replaced, as Java's `String.replaceAll` does it. `L` and `U` change the case of
the result; `DEFAULT` is the distinguished name itself.
"""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple, NoReturn

from kalda.base.patterns import BadPattern, Pattern, java_pattern, re2_pattern

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = r"\s*(" + _RULE + r")\s*(,\s*|$)"
_DEFAULT = "DEFAULT"
_DIGITS = tuple("0123456789")
_REFERENCE = re.compile(r"\$(\d+)", re.ASCII)


class NoMatchingRule(ValueError):
    """No rule is for this distinguished name."""


class _Rule(NamedTuple):
    pattern: Pattern | None
    """None: DEFAULT."""
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """The name that the rule makes of a distinguished name; None where it is for others. Raises `ValueError` for a
        replacement that Java cannot read."""
        if self.pattern is None:
            return name
        if not self.pattern.matches(name):
            return None
        result = self.pattern.compiled.sub(partial(_replaced, self.replacement), name)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


def _replaced(replacement: str, found: re.Match[str]) -> str:
    """What replaces a match: `\\x` stands for x, `$12` for the group of that number, or of as many of its digits as
    there are groups, `${name}` for a group with a name. Raises `ValueError`."""
    parts = []
    at, groups = 0, len(found.groups())
    while at < len(replacement):
        character = replacement[at]
        at += 1
        if character == "\\":
            parts.append(replacement[at : at + 1] or _unreadable(replacement))
            at += 1
        elif character != "$":
            parts.append(character)
        elif replacement[at : at + 1] == "{":
            end = replacement.find("}", at)
            name = replacement[at + 1 : end]
            parts.append(found[name] or "" if name in found.re.groupindex else _unreadable(replacement))
            at = end + 1
        else:
            start = at
            while replacement[at : at + 1] in _DIGITS and (at == start or int(replacement[start : at + 1]) <= groups):
                at += 1
            if at == start or int(replacement[start:at]) > groups:
                _unreadable(replacement)
            parts.append(found[int(replacement[start:at])] or "")
    return "".join(parts)


def _unreadable(replacement: str) -> NoReturn:
    raise ValueError(f"ssl.principal.mapping.rules: the replacement {replacement} has a reference to no group")


def _escaped(replacement: str, groups: int) -> str:
    """With the references to groups that the pattern lacks as plain text. As in Kafka, not where it has no group, and
    only the first of several is escaped at its place."""
    value = replacement
    for found in _REFERENCE.finditer(replacement) if groups else ():
        index = int(found[1])
        while index > groups and index >= 10:
            index //= 10
        if index > groups and not found[1].startswith("0"):
            value = f"{value[: found.start()]}\\{value[found.start() :]}"
    return value


class PrincipalMapping:
    """The rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Raises `ValueError` for a rule that cannot be read."""
        self._text = rules
        self._rules = [_Rule(None, "", "")] if rules.strip() == _DEFAULT else _parsed(rules)

    def name_of(self, distinguished_name: str) -> str:
        """The name in the principal. Raises `NoMatchingRule`, `ValueError`."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoMatchingRule(f"No rules apply to {distinguished_name}, rules {self._text}")


def _parsed(rules: str) -> list[_Rule]:
    splitter, parser = (re2_pattern(each).compiled for each in (_SPLITTER, _RULE))
    return [_parse(parser, found[1]) for found in splitter.finditer(rules.strip()) if found[1]]


def _parse(parser: re.Pattern[str], rule: str) -> _Rule:
    found = parser.match(rule)
    if found is None:
        raise ValueError(f"Invalid rule: {rule}")
    if found.end() != len(rule) or (found[1] is None and found[2] is None):
        raise ValueError(f"Invalid rule: `{rule}`, unmatched substring: `{rule[found.end() :]}`")
    if found[1] is not None:
        return _Rule(None, "", "")
    try:
        pattern = java_pattern(found[2])
        return _Rule(pattern, _escaped(found[3], pattern.compiled.groups), found[4])
    except BadPattern as error:
        raise ValueError(f"Invalid rule: `{rule}`: {error}") from error
