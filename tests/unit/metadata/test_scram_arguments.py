"""SCRAM credentials from a command line. The keys were computed by Apache Kafka's tool."""

from __future__ import annotations

import pytest

from kalda.metadata.scram import ScramMechanism, credential, parse_scram_arguments, salted_password


def parse(argument: str) -> list[tuple[str, int, bytes, bytes, bytes, int]]:
    return [
        (r.name, r.mechanism, bytes(r.salt), bytes(r.stored_key), bytes(r.server_key), r.iterations)
        for r in parse_scram_arguments([argument], lambda size: b"x" * size)
    ]


def test_rfc_7677s_example() -> None:
    salt = bytes.fromhex("5b6d99689d12358eeca04b141236fa81")
    salted = salted_password(ScramMechanism.SCRAM_SHA_256, "pencil", salt, 4096)
    assert salted.hex() == "c4a49510323ab4f952cac1fa99441939e78ea74d6be81ddf7096e87513dc615d"


def test_kafkas_keys_for_a_short_salt() -> None:
    assert parse("SCRAM-SHA-256=[name=alice,password=x,salt=abc]") == [
        (
            "alice",
            1,
            b"\x69\xb7",
            bytes.fromhex("9a81f96901297d1d04e2af52d87f8295d6b6bada99eb1e455bb65f2141c82d6f"),
            bytes.fromhex("8056f1d0bcc7fa3c56acb0835e2b38bbf3e7c1210d5a6d6406b9cc1d851f9f61"),
            4096,
        )
    ]


def test_a_salted_password_needs_no_password() -> None:
    [(_, _, salt, stored_key, server_key, iterations)] = parse(
        'SCRAM-SHA-512=[name=bob,iterations=8192,salt="N3E=",saltedpassword="YCE="]'
    )
    expected = credential(ScramMechanism.SCRAM_SHA_512, b"`!", b"7q", 8192)
    assert (salt, stored_key, server_key, iterations) == tuple(expected)


def test_a_salt_that_is_not_given_is_random() -> None:
    [(_, _, salt, *_)] = parse("SCRAM-SHA-256=[name=alice,password=a=b]")
    assert salt == b"x" * 24


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("SCRAM-SHA-1=[name=a,password=b]", "The add-scram mechanism SCRAM-SHA-1 is not supported."),
        ("SCRAM-SHA-256", "Failed to find equals sign in SCRAM argument 'SCRAM-SHA-256'"),
        ("SCRAM-SHA-256=name=alice", "Expected configuration string to start with ["),
        ("SCRAM-SHA-256=[name=alice", "Expected configuration string to end with ]"),
        ("SCRAM-SHA-256=[name=alice]", "You must supply one of 'password' or 'saltedpassword' to add-scram"),
        ("SCRAM-SHA-256=[password=x]", "You must supply 'name' to add-scram"),
        ('SCRAM-SHA-256=[name=a,saltedpassword="YCE="]', "You must supply 'salt' with 'saltedpassword' to add-scram"),
        ("SCRAM-SHA-256=[name=a,password=x,iterations=10]", "must be >= 4096 for add-scram using SCRAM_SHA_256"),
        ("SCRAM-SHA-256=[name=a,password=x,iterations=100000]", "must be <= 16384 for add-scram using SCRAM_SHA_256"),
        ("SCRAM-SHA-256=[name=a,password=x,iterations=zz]", "Failed to parse iterations count: zz"),
        ("SCRAM-SHA-256=[name=a,password=x,foo=y]", "Unknown SCRAM configurations: foo"),
        ("SCRAM-SHA-256=[name=a,password=x,y]", "No equals sign found in SCRAM component: y"),
        ("SCRAM-SHA-256=[name=a,password=]", "The password of a is empty"),
        ("SCRAM-SHA-256=[name=a,password=x,salt=%%]", "is not base64: %%"),
    ],
)
def test_arguments_that_are_refused(argument: str, words: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        parse(argument)
    assert words in str(caught.value)
