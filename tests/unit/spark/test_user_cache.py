"""Where the cache is of a user with a home, and of one without: a container's, whose number has no passwd entry."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from kalda.client.transport.profiles import profiles_path, read_profiles
from kalda.spark.user_cache import user_cache


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The directory of temporary files of a process whose user has no name and no home that can be written."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "KALDA_PROFILES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_user_with_a_home_has_the_cache_there(tmp_path: Path) -> None:
    assert user_cache({"HOME": str(tmp_path)}) == tmp_path / ".cache" / "kalda"
    assert user_cache({"HOME": "/", "XDG_CACHE_HOME": "/c"}) == Path("/c/kalda")


def test_a_user_without_a_home_has_it_among_temporary_files(temporary: Path) -> None:
    expected = temporary / f"kalda-{os.getuid()}"
    for environment in ({}, {"HOME": "/"}, {"HOME": "/is/not/there"}):
        assert user_cache(environment) == expected
    assert expected.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_another_user_has_made_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.getuid() + 1
    (temporary / f"kalda-{other}").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: other)
    with pytest.raises(PermissionError, match="belongs to another user"):
        user_cache({})


def test_a_user_without_a_home_has_no_profiles(temporary: Path) -> None:
    assert read_profiles() == {}
    assert profiles_path() == Path("~/.config/kalda/profiles.toml")
