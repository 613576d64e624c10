"""User names of Kerberos principals: the cases of Kafka's own test of `KerberosShortNamer`."""

from __future__ import annotations

import pytest

from kalda.security.principals import KerberosNames, NoMatchingKerberosRule

RULES = [
    "RULE:[1:$1](App\\..*)s/App\\.(.*)/$1/g",
    "RULE:[2:$1](App\\..*)s/App\\.(.*)/$1/g",
    "RULE:[2:$1@$0](.*@BAD.REALM)s/@.*//L",
    "RULE:[1:$1](shout.*)/U",
    "DEFAULT",
]


@pytest.mark.parametrize(
    ("principal", "user"),
    [
        ("App.service-name/example.com@REALM.COM", "service-name"),
        ("App.service-name@REALM.COM", "service-name"),
        ("user/host@REALM.COM", "user"),
        ("User/host@BAD.REALM", "user"),
        ("shout1@OTHER", "SHOUT1"),
        ("alice", "alice"),
        ("alice@REALM.COM", "alice"),
    ],
)
def test_the_first_rule_for_a_principal_decides(principal: str, user: str) -> None:
    assert KerberosNames(RULES, lambda: "REALM.COM").user_of(principal) == user


@pytest.mark.parametrize(
    ("rules", "principal", "why"),
    [
        (["DEFAULT"], "alice@OTHER", "No rules apply to alice@OTHER"),
        (["RULE:[1:$1@$0]"], "alice@OTHER", "Non-simple name alice@OTHER"),
        (["RULE:[1:$3]"], "alice@OTHER", "out of range"),
    ],
)
def test_principals_without_a_user(rules: list[str], principal: str, why: str) -> None:
    with pytest.raises(NoMatchingKerberosRule, match=why):
        KerberosNames(rules, lambda: "REALM.COM").user_of(principal)


def test_a_malformed_principal() -> None:
    with pytest.raises(ValueError, match="Malformed Kerberos name: a@b@c"):
        KerberosNames([], lambda: "").user_of("a@b@c")


@pytest.mark.parametrize(
    "rule",
    ["default", "RULE:[:$1](x)", "RULE:[1:$1]x", "RULE:[1:$1](()", "RULE:[1:$1](a)s/x/y", "RULE:[1:$1](a)s/(?=x)/y/"],
)
def test_invalid_rules(rule: str) -> None:
    with pytest.raises(ValueError, match="invalid rule"):
        KerberosNames([rule], lambda: "")


def test_no_name_takes_long_to_match() -> None:
    names = KerberosNames(["RULE:[1:$1](.*[ab]*[ab]*[ab]*[ab]*c)", "RULE:[1:$1]s/(.*a){25}b/y/"], lambda: "")
    assert names.user_of("a" * 5_000 + "@R") == "a" * 5_000
