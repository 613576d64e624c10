"""Decisions over access control entries: against Kafka's own class, against a naive model, and by the rules."""

from __future__ import annotations

import gzip
import json
import logging
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kalda.base.errors import ApiError
from kalda.metadata.acls import StandardAcl
from kalda.protocol.access import TOPIC_OPERATIONS, Caller
from kalda.protocol.messages.security import AclOperation, AclResourceType
from kalda.security.standard_authorizer import AccessRule, StandardAuthorizer, address_text, parse_super_users

GOLDEN = Path(__file__).parents[2] / "golden" / "security" / "vectors.json.gz"
TOPIC, GROUP = AclResourceType.TOPIC, AclResourceType.GROUP
LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE


def acl_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def authorizer_of(*acls: StandardAcl, supers: tuple[str, ...] = (), allow: bool = False) -> StandardAuthorizer:
    authorizer = StandardAuthorizer(supers, allow_without_entries=allow)
    authorizer.apply({acl_id(number): acl for number, acl in enumerate(acls)}, 5)
    return authorizer


def caller(principal: str = "User:alice", host: str = "10.0.0.1") -> Caller:
    return Caller(principal=principal, client_host=host)


def entry(
    name: str = "t",
    operation: int = READ,
    permission: int = ALLOW,
    principal: str = "User:alice",
    host: str = "*",
    pattern: int = LITERAL,
    resource: int = TOPIC,
) -> StandardAcl:
    return StandardAcl(resource, name, pattern, principal, host, operation, permission)


# The same products, in the same order, as in the program that called Kafka's class.
PRINCIPALS = ("User:alice", "User:bob", "User:ANONYMOUS")
HOSTS = ("10.0.0.1", "10.0.0.2", "::1")
OPERATIONS = (3, 4, 5, 6, 7, 8, 10, 11)
NAMES = ("a", "ab", "abc", "b", "ba", "*", "a-b", "hardcode")


def test_decides_as_kafkas_class() -> None:
    """Apache Kafka 4.4.0's StandardAuthorizer over random entries: literal, prefixed, wildcards, hosts and ranges of
    them, denials, super users, the default."""
    for case in json.loads(gzip.decompress(GOLDEN.read_bytes())):
        supers = ("User:bob", "User:carol") if case["super"] else ()
        authorizer = authorizer_of(*(StandardAcl(*acl) for acl in case["acls"]), supers=supers, allow=case["allow"])
        one, on_any = [], []
        for principal, host, operation, resource in product(PRINCIPALS, HOSTS, OPERATIONS, (TOPIC, GROUP)):
            who, what = caller(principal, host), AclOperation(operation)
            one += [authorizer.allows(who, what, resource, name, False) for name in NAMES]
            on_any.append(authorizer.allows_on_any(who, what, resource))
        for decided, text in ((one, case["one"]), (on_any, case["any"])):
            assert decided == [bit == "1" for bit in f"{int(text, 16):b}"[1:]], case["acls"]


def naive(acls: list[StandardAcl], principal: str, host: str, operation: int, resource: int, name: str) -> bool:
    applying = [
        acl
        for acl in acls
        if acl.resource_type == resource
        and (name.startswith(acl.resource_name) if acl.pattern_type == PREFIXED else acl.resource_name in (name, "*"))
    ]
    mine = [acl for acl in applying if acl.principal in (principal, "User:*") and acl.host in ("*", host)]
    if any(acl.permission_type == DENY and acl.operation in (2, operation) for acl in mine):
        return False
    implied = {8: (3, 4, 6, 7, 8), 10: (10, 11)}.get(operation, (operation,))
    return any(acl.permission_type == ALLOW and acl.operation in (2, *implied) for acl in mine)


ENTRIES = st.builds(
    StandardAcl,
    resource_type=st.sampled_from((2, 3)),
    resource_name=st.sampled_from(("a", "ab", "abc", "b", "*", "é", "aé")),
    pattern_type=st.sampled_from((LITERAL, PREFIXED)),
    principal=st.sampled_from(("User:alice", "User:bob", "User:*", "Group:alice")),
    host=st.sampled_from(("*", "10.0.0.1")),
    operation=st.sampled_from((2, 3, 4, 6, 7, 8, 10, 11)),
    permission_type=st.sampled_from((DENY, ALLOW, ALLOW)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 7), st.none() | ENTRIES), max_size=16))
def test_decides_as_a_naive_model_while_entries_come_and_go(changes: list[tuple[int, StandardAcl | None]]) -> None:
    authorizer = StandardAuthorizer()
    entries: dict[bytes, StandardAcl] = {}
    names = ("a", "abx", "aé")
    questions = list(product(("User:alice", "User:bob"), ("10.0.0.1", "10.0.0.2"), (3, 8, 10), (2, 3), names))
    for offset, (number, acl) in enumerate(changes):
        authorizer.apply({acl_id(number): acl}, offset)
        if acl is None:
            entries.pop(acl_id(number), None)
        else:
            entries[acl_id(number)] = acl
        for question in questions:
            assert authorizer.decide(*question).is_allowed == naive(list(entries.values()), *question)
    for number in range(8):
        authorizer.apply({acl_id(number): None}, 99)
    assert authorizer.index.patterns(2, "abx") == authorizer.index.patterns(3, "abx") == []


def test_the_removal_of_one_of_two_entries_of_a_resource_leaves_the_other() -> None:
    """As CVE-2024-27309 was: also where both ids have the same entry."""
    authorizer = authorizer_of(entry(), entry(), entry(principal="User:bob", permission=DENY, operation=2))
    authorizer.apply({acl_id(0): None}, 6)
    assert authorizer.allows(caller(), READ, TOPIC, "t")
    assert not authorizer.allows(caller("User:bob"), READ, TOPIC, "t")
    authorizer.apply({acl_id(1): None}, 7)
    assert not authorizer.allows(caller(), READ, TOPIC, "t")
    assert not authorizer.allows(caller("User:carol"), READ, TOPIC, "t"), "an entry still applies to the resource"


def test_an_entry_for_another_principal_ends_the_default() -> None:
    authorizer = authorizer_of(entry(), allow=True)
    assert not authorizer.allows(caller("User:bob"), READ, TOPIC, "t")
    assert authorizer.allows(caller("User:bob"), READ, TOPIC, "u")


def test_before_the_entries_are_known_only_super_users_are_served() -> None:
    authorizer = StandardAuthorizer(("User:admin",), allow_without_entries=True)
    assert authorizer.allows(caller("User:admin"), READ, TOPIC, "t")
    with pytest.raises(ApiError, match="not ready"):
        authorizer.allows(caller(), READ, TOPIC, "t")
    authorizer.apply({}, 0)
    assert authorizer.allows(caller(), READ, TOPIC, "t")


def test_kept_decisions_end_with_a_change_and_are_bounded() -> None:
    authorizer = authorizer_of(entry(pattern=PREFIXED, name="t"))
    assert authorizer.allows(caller(), READ, TOPIC, "t1")
    version = authorizer.version
    authorizer.apply({acl_id(1): entry(name="t1", permission=DENY)}, 6)
    assert authorizer.version > version
    assert not authorizer.allows(caller(), READ, TOPIC, "t1")
    for number in range(30_000):
        authorizer.allows(caller(), READ, TOPIC, f"t{number}", False)
    assert len(authorizer._kept) + len(authorizer._kept_before) <= 20_000


def test_the_bits_of_authorized_operations() -> None:
    authorizer = authorizer_of(entry(operation=WRITE), entry(operation=AclOperation.ALTER_CONFIGS))
    wanted = (WRITE, DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
    assert authorizer.operations(caller(), TOPIC, "t", TOPIC_OPERATIONS) == AclOperation.bits(*wanted)
    assert authorizer.operations(caller(), TOPIC, "u", TOPIC_OPERATIONS) == 0


class Requesting(Caller):
    @property
    def request_name(self) -> str:
        return "Fetch"


def test_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka's lines. What a caller writes into its names cannot forge one."""
    authorizer = authorizer_of(entry(), entry(name="u", permission=DENY))
    alice = Requesting(principal="User:alice", client_host="10.0.0.1")
    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        authorizer.allows(alice, READ, TOPIC, "t")
        authorizer.allows(alice, READ, TOPIC, "v", False)
        assert caplog.messages == []
        authorizer.allows(alice, READ, TOPIC, "u", True, 3)
        authorizer.allows(alice, READ, TOPIC, "x\nPrincipal = User:root is Allowed")
    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        authorizer.allows(alice, READ, TOPIC, "t")
    assert caplog.messages == [
        "Principal = User:alice is Denied operation = READ from host = 10.0.0.1 on resource = Topic:LITERAL:u for "
        "request = Fetch with resourceRefCount = 3 based on rule MatchingAcl(acl=StandardAcl[resourceType=TOPIC, "
        "resourceName=u, patternType=LITERAL, principal=User:alice, host=*, operation=READ, permissionType=DENY])",
        "Principal = User:alice is Denied operation = READ from host = 10.0.0.1 on resource = "
        "Topic:LITERAL:x\\nPrincipal = User:root is Allowed for request = Fetch with resourceRefCount = 1 based on "
        "rule DefaultDeny",
        "Principal = User:alice is Allowed operation = READ from host = 10.0.0.1 on resource = Topic:LITERAL:t for "
        "request = Fetch with resourceRefCount = 1 based on rule MatchingAcl(acl=StandardAcl[resourceType=TOPIC, "
        "resourceName=t, patternType=LITERAL, principal=User:alice, host=*, operation=READ, permissionType=ALLOW])",
    ]


def test_a_decision_names_its_entry_and_the_image_that_brought_it() -> None:
    authorizer = authorizer_of(entry())
    authorizer.apply({acl_id(7): entry(operation=2, permission=DENY, principal="User:*")}, 9)
    decision = authorizer.decide("User:alice", "10.0.0.1", READ, TOPIC, "t")
    assert decision.rule is AccessRule.ENTRY
    assert decision.acl is not None
    assert (decision.acl.acl.principal, decision.acl.offset) == ("User:*", 9)


@pytest.mark.parametrize(
    ("given", "java"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("x:y", "x:y"),
    ],
)
def test_addresses_are_written_as_java_writes_them(given: str, java: str) -> None:
    assert address_text(given) == java


def test_super_users() -> None:
    assert parse_super_users(" User:a;;User:CN=b,O=c ; ") == ["User:a", "User:CN=b,O=c"]
    with pytest.raises(ValueError, match="TYPE:NAME"):
        parse_super_users("alice")
