"""Secrets that are kept out of the configurations of nodes and clients: values that refer to a file, a directory or the
environment (KIP-297, KIP-421).

`config.providers=file` with `config.providers.file.class` and `config.providers.file.param.*` declares a provider; then
`${file:/run/secrets.properties:password}` anywhere in a value stands for that key of that file. As in Kafka, a
reference that a provider cannot resolve stays as it is written. References in dynamic configs, which every broker
reads, are not resolved.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping

from kalda.base.configs.definition import InvalidConfig
from kalda.base.texts import parse_properties, read_properties_file
from kalda.network.named_files import read_named_text

log = logging.getLogger("kalda.configs")

PREFIX = "config.providers"
_KAFKA = "org.apache.kafka.common.config.provider."
_REFERENCE = re.compile(r"\$\{([^}]*?):(?:([^}]*?):)?([^}]*?)\}")

Provider = Callable[[str, str], str | None]
"""`(path, key)` to the value; None where there is none. Raises `InvalidConfig` where the path cannot be read."""


def read_properties(path: str, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """The properties in a file, replaced by `overrides` where both have a key, with every reference resolved.

    Raises `OSError`, `ValueError` with file and line for a malformed escape, `InvalidConfig` for a provider that does
    not work.
    """
    return resolve({**read_properties_file(path), **(overrides or {})}, os.environ)


def resolve(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The properties, with every reference replaced that a declared provider can resolve. Raises `InvalidConfig`."""
    providers = _declared(properties, environment)
    if not providers:
        return dict(properties)

    def replacement(reference: re.Match[str]) -> str:
        provider = providers.get(reference[1])
        found = None if provider is None else provider(reference[2] or "", reference[3])
        return reference[0] if found is None else found

    return {name: _REFERENCE.sub(replacement, text) for name, text in properties.items()}


def _declared(properties: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Provider]:
    makers: dict[str, Callable[[Mapping[str, str]], Provider]] = {
        f"{_KAFKA}FileConfigProvider": lambda parameters: _FileProvider(parameters).get,
        f"{_KAFKA}DirectoryConfigProvider": lambda parameters: _DirectoryProvider(parameters).get,
        f"{_KAFKA}EnvVarConfigProvider": lambda parameters: _EnvironmentProvider(parameters, environment).get,
    }
    providers: dict[str, Provider] = {}
    for name in filter(None, properties.get(PREFIX, "").split(",")):
        class_key, parameter = f"{PREFIX}.{name}.class", f"{PREFIX}.{name}.param."
        class_name = properties.get(class_key)
        if class_name is None:
            log.warning("%s names %s, but there is no %s: references to it stay as they are", PREFIX, name, class_key)
            continue
        maker = makers.get(class_name.strip())
        if maker is None:
            known = ", ".join(sorted(makers))
            raise InvalidConfig(f"Invalid value {class_name} for configuration {class_key}: known are {known}")
        given = {key[len(parameter) :]: text for key, text in properties.items() if key.startswith(parameter)}
        providers[name] = maker(given)
    return providers


class _AllowedPaths:
    """`allowed.paths`: files outside of them are not read."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._allowed: list[str] | None = None
        """Normalized; None: all paths are allowed."""
        if text := parameters.get("allowed.paths"):
            self._allowed = [self._checked(path) for path in text.split(",")]

    @staticmethod
    def _checked(path: str) -> str:
        if not os.path.isabs(path):
            raise InvalidConfig(f"Path {path} is not absolute")
        if not os.path.exists(path):
            raise InvalidConfig(f"Path {path} does not exist")
        return os.path.normpath(path)

    def find(self, path: str) -> str | None:
        """The normalized path; None where it may not be read."""
        if self._allowed is None:
            return path
        normal = os.path.normpath(path)
        if any(normal == allowed or normal.startswith(allowed.rstrip("/") + "/") for allowed in self._allowed):
            return normal
        log.warning("the path %s is not allowed to be accessed: change allowed.paths", path)
        return None


class _FileProvider:
    """Keys of properties files, each of which is read once."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._paths = _AllowedPaths(parameters)
        self._files: dict[str, Mapping[str, str]] = {}
        """By path; empty where the path is not allowed."""

    def get(self, path: str, key: str) -> str | None:
        if path not in self._files:
            self._files[path] = self._read(path)
        return self._files[path].get(key)

    def _read(self, path: str) -> Mapping[str, str]:
        allowed = self._paths.find(path) if path else None
        if allowed is None:
            return {}
        try:
            return parse_properties(read_named_text(allowed))
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"Could not read properties from file {path}: {_why(error)}") from error


class _DirectoryProvider:
    """Files of a directory, each of which holds one value, as Kubernetes mounts secrets."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._paths = _AllowedPaths(parameters)

    def get(self, path: str, key: str) -> str | None:
        allowed = self._paths.find(path) if path else None
        if allowed is None:
            return None
        if not os.path.isdir(allowed):
            log.warning("the path %s is not a directory", path)
            return None
        file = f"{allowed}/{key}"
        if "/" in key or not os.path.isfile(file):
            return None
        try:
            return read_named_text(file)
        except (OSError, ValueError) as error:
            raise InvalidConfig(f"Could not read file {file}: {_why(error)}") from error


class _EnvironmentProvider:
    """Environment variables whose names match `allowlist.pattern`."""

    def __init__(self, parameters: Mapping[str, str], environment: Mapping[str, str]) -> None:
        text = parameters.get("allowlist.pattern", ".*")
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise InvalidConfig(f"Invalid value {text} for allowlist.pattern: {error}") from error
        self._variables = {name: value for name, value in environment.items() if pattern.fullmatch(name)}

    def get(self, path: str, key: str) -> str | None:
        if path:
            raise InvalidConfig(f"Path is not supported for EnvVarConfigProvider, invalid value: {path}")
        return self._variables.get(key)


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
