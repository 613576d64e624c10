"""What a configuration says about OAuth tokens: keys, options of the login line, places that are allowed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from kalda.network.oauth import check_url


class TokenSettings(NamedTuple):
    """What the configuration says about tokens."""

    value_of: Callable[[str], Any]
    """The value of a key, None without one."""
    options: Mapping[str, str]
    """Of the login line."""
    allowed_urls: Collection[str]
    allowed_files: Collection[str]

    def text(self, key: str, option: str = "") -> str:
        """The value of a key, else of an option of the login line; empty without both."""
        return str(self.value_of(key) or self.options.get(option) or "").strip()

    def number(self, key: str, default: int) -> int:
        """Raises `ValueError`."""
        value = self.value_of(key)
        try:
            return default if value is None else int(value)
        except (TypeError, ValueError):
            raise ValueError(f"{key}={value} is not a number") from None

    def url(self, key: str) -> str:
        """A URL that may be used. Raises `ValueError`."""
        url = self.text(key)
        if not url:
            raise ValueError(f"OAUTHBEARER needs {key}, or unsecuredLoginStringClaim_sub in sasl.jaas.config")
        return check_url(key, url, self.allowed_urls)

    def file(self, key: str) -> str:
        """A file that may be read. Raises `ValueError`."""
        path = self.text(key)
        if not path:
            raise ValueError(f"{key} is not set")
        if path not in self.allowed_files:
            raise ValueError(f"{key}={path} is not allowed; add it to kalda.sasl.oauthbearer.allowed.files")
        return path
