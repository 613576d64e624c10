"""User names of Kerberos principals, by `sasl.kerberos.principal.to.local.rules`.

    RULE:[2:$1](kafka.*)s/kafka/broker/,RULE:[1:$1@$0](.*@OTHER.ORG)s/@.*//L,DEFAULT

Rules are tried in order; the first that is for the principal decides. `[2:$1]` is for principals of two components, and
takes the first; the text in parentheses must match all of it; `s/a/b/g` replaces; `L` and `U` change the case.
`DEFAULT` is the first component of a principal of the default realm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kalda.base.patterns import Pattern, java_pattern

_NAME = re.compile(r"([^/@]*)(?:/([^/@]*))?@([^/@]*)")
_RULE = re.compile(r"(DEFAULT)|RULE:\[(\d*):([^\]]*)\](?:\(([^)]*)\))?(?:s/([^/]*)/([^/]*)/(g)?)?/?(L|U)?")
_PARAMETER = re.compile(r"\$(\d)")
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


class NoMatchingKerberosRule(ValueError):
    """No rule makes a user name of a Kerberos principal."""


class _Rule(NamedTuple):
    """One rule of `sasl.kerberos.principal.to.local.rules`."""

    is_default: bool
    components: int
    """How many components a principal has that the rule is for: 1 for `alice@R`, 2 for `kafka/host@R`."""
    template: str
    """`$0` is the realm, `$1` and `$2` are the components."""
    match: Pattern | None
    pattern: Pattern | None
    """What `replacement` takes the place of; None where nothing is replaced."""
    replacement: str
    replaces_all: bool
    case: str

    def apply(self, parameters: Sequence[str], default_realm: str) -> str | None:
        """The user name; None where the rule is for other principals. Raises `NoMatchingKerberosRule`."""
        if self.is_default:
            result = parameters[1] if parameters[0] == default_realm else None
        elif len(parameters) - 1 != self.components:
            return None
        else:
            result = _PARAMETER.sub(lambda found: _parameter(parameters, int(found[1])), self.template)
            if self.match is not None and not self.match.matches(result):
                return None
            if self.pattern is not None:
                result = self.pattern.compiled.sub(self._text_of, result, count=0 if self.replaces_all else 1)
        if result is not None and ("/" in result or "@" in result):
            raise NoMatchingKerberosRule(f"Non-simple name {result} after auth_to_local rule")
        return None if result is None else {"L": str.lower, "U": str.upper}.get(self.case, str)(result)

    def _text_of(self, found: re.Match[str]) -> str:
        return _REFERENCE.sub(lambda each: each[1] or found[int(each[2])] or "", self.replacement)


def _parameter(parameters: Sequence[str], number: int) -> str:
    if number >= len(parameters):
        raise NoMatchingKerberosRule(f"the index {number} of an auth_to_local rule is out of range")
    return parameters[number]


class KerberosNames:
    """User names of Kerberos principals, by `sasl.kerberos.principal.to.local.rules`."""

    def __init__(self, rules: Sequence[str], default_realm: Callable[[], str]) -> None:
        """`default_realm()` is the realm of the principals that the rule DEFAULT is for. Raises `ValueError`."""
        self._rules = [_parse_rule(rule.strip()) for rule in rules or ("DEFAULT",)]
        self._default_realm = default_realm

    def user_of(self, principal: str) -> str:
        """Raises `ValueError`."""
        found = _NAME.fullmatch(principal)
        if found is None:
            if "@" in principal:
                raise ValueError(f"Malformed Kerberos name: {principal}")
            return principal
        parameters = [found[3], found[1]] + ([] if found[2] is None else [found[2]])
        for rule in self._rules:
            user = rule.apply(parameters, self._default_realm() if rule.is_default else "")
            if user is not None:
                return user
        raise NoMatchingKerberosRule(f"No rules apply to {principal}")


def _parse_rule(rule: str) -> _Rule:
    found = _RULE.fullmatch(rule)
    if found is None:
        raise ValueError(f"sasl.kerberos.principal.to.local.rules: invalid rule: {rule}")
    if found[1]:
        return _Rule(True, 0, "", None, None, "", False, "")
    try:
        match, pattern = (None if each is None else java_pattern(each) for each in (found[4], found[5]))
        components = int(found[2])
    except ValueError as error:
        raise ValueError(f"sasl.kerberos.principal.to.local.rules: invalid rule: {rule}: {error}") from error
    return _Rule(False, components, found[3], match, pattern, found[6] or "", bool(found[7]), found[8] or "")
