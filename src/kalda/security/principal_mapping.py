"""`ssl.principal.mapping.rules` (KIP-371): which name the owner of a certificate gets.

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,RULE:^CN=(.*?)$/$1/,DEFAULT

Rules are tried in order; the first whose pattern matches the whole distinguished name decides. `L` and `U` change the
case of the result; `DEFAULT` is the distinguished name itself.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RULE = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_SPLITTER = re.compile(r"\s*(" + _RULE + r")\s*(,\s*|$)")
_PARSER = re.compile(_RULE)
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class NoMatchingRule(ValueError):
    """No rule is for this distinguished name."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None
    """None: DEFAULT."""
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None

        def text_of(reference: re.Match[str]) -> str:
            if reference[1] is not None:
                return reference[1]
            number = int(reference[2])
            # Kafka escapes references to groups that the pattern lacks.
            return (found[number] or "") if number <= len(found.groups()) else reference[0]

        result = _REFERENCE.sub(text_of, self.replacement)
        return result.lower() if self.case == "L" else result.upper() if self.case == "U" else result


class PrincipalMapping:
    """The rules of one listener."""

    def __init__(self, rules: str) -> None:
        """Raises `ValueError` for a rule that cannot be read."""
        self._text = rules
        self._rules = [_parse(rule) for rule in _split(rules)]

    def name_of(self, distinguished_name: str) -> str:
        """The name in the principal. Raises `NoMatchingRule`."""
        for rule in self._rules:
            name = rule.apply(distinguished_name)
            if name is not None:
                return name
        raise NoMatchingRule(f"No rules apply to {distinguished_name}, rules {self._text}")


def _split(rules: str) -> list[str]:
    text = (rules or "DEFAULT").strip()
    return [found[1] for found in _SPLITTER.finditer(text) if found[1]]


def _parse(rule: str) -> _Rule:
    found = _PARSER.match(rule)
    if found is None:
        raise ValueError(f"Invalid rule: {rule}")
    if found.end() != len(rule) or (found[1] is None and found[2] is None):
        raise ValueError(f"Invalid rule: `{rule}`, unmatched substring: `{rule[found.end() :]}`")
    if found[1] is not None:
        return _Rule(None, "", "")
    try:
        return _Rule(re.compile(found[2]), found[3], found[4])
    except re.error as error:
        raise ValueError(f"Invalid rule: `{rule}`: {error}") from error
