"""How entities of quotas are shown."""

from __future__ import annotations

import pytest

from kalda.cli.quotas import _show


@pytest.mark.parametrize(
    ("entity", "shown"),
    [
        ({"user": None}, "user <default>"),
        ({"user": "<default>"}, "user '<default>'"),
        ({"user": "alice", "client-id": None}, "client-id <default>, user alice"),
        ({"user": "CN=a,O=b"}, "user 'CN=a,O=b'"),
        ({"client-id": "a, user b"}, "client-id 'a, user b'"),
        ({"client-id": ""}, "client-id ''"),
        ({"client-id": "it's-é"}, "client-id it's-é"),
    ],
)
def test_a_name_is_told_from_the_default_and_from_other_names(entity: dict[str, str | None], shown: str) -> None:
    assert _show(entity) == shown
