"""The authorizer of a node: one for both of its roles, which its pipelines call and the metadata keeps up to date.

`NodeAuthorizer` is the first publisher of the node. Invariant: when any other part of the node acts on an image, every
decision is made with the access control entries of that image or of a later one. Until the entries are loaded only
super users are served.

`authorizer.class.name` names Kafka's StandardAuthorizer, or a Python class (`kalda.security.custom_authorizer`). The
file of such a class is checked every few seconds: when it has changed, the class is loaded anew. Where that fails, the
former one stays, and the reason is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from typing import Any

from kalda.base.configs.server import ServerConfig
from kalda.base.scheduling import Jobs, Timer, Timers
from kalda.metadata.delta import MetadataDelta
from kalda.metadata.image import MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.network.python_classes import module_from_source
from kalda.security.custom_authorizer import AuthorizerClass, CustomAuthorizer
from kalda.security.standard_authorizer import StandardAuthorizer, parse_super_users

log = logging.getLogger("kalda.security")

AUTHORIZER_CLASS = "authorizer.class.name"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_OF_ZOOKEEPER = ("kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer")
_FILE_CHECK_INTERVAL_MS = 2_000


class NodeAuthorizer:
    """What the node's pipelines ask."""

    name = "Authorizer"

    def __init__(self, config: ServerConfig, path: str, timers: Timers, jobs: Jobs) -> None:
        """Raises `ValueError` where the operator's class cannot be loaded."""
        self._timers = timers
        self._jobs = jobs
        self._timer: Timer | None = None
        """For the next check of the file; None without an operator's class, and after `close`."""
        self._on_loaded: list[Callable[[], None]] = []
        self.is_loaded = False
        """Whether the entries of the metadata are known."""
        supers = parse_super_users(config.properties.get("super.users", ""))
        allows = config.properties.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true"
        self._file = None if path == STANDARD else _ClassFile(path, dict(config.properties))
        self.authorizer: StandardAuthorizer | CustomAuthorizer = (
            StandardAuthorizer(supers, allow_without_entries=allows)
            if self._file is None
            else CustomAuthorizer(self._file.make(), supers)
        )
        log.info("set super.users=%s, default result=%s", ",".join(sorted(supers)), "ALLOWED" if allows else "DENIED")

    @classmethod
    def of(cls, config: ServerConfig, timers: Timers, jobs: Jobs) -> NodeAuthorizer | None:
        """None where the properties name no authorizer: everyone may do everything. Raises `ValueError`."""
        path = (config[AUTHORIZER_CLASS] or "").strip()
        if path in _OF_ZOOKEEPER:
            raise ValueError(f"{AUTHORIZER_CLASS}={path} kept its entries in ZooKeeper: set {STANDARD}")
        return cls(config, path, timers, jobs) if path else None

    def start(self) -> None:
        """Watch the file of the operator's class, from now on."""
        if self._file is not None:
            self._timer = self._timers.call_later_ms(_FILE_CHECK_INTERVAL_MS, self._check_file)

    def close(self) -> None:
        """Stop the timer, and close the operator's object."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(self.authorizer, CustomAuthorizer):
            self.authorizer.close()

    def when_loaded(self, action: Callable[[], None]) -> None:
        """Call `action` as soon as the entries of the metadata are known."""
        if self.is_loaded:
            action()
        else:
            self._on_loaded.append(action)

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage, manifest: Manifest) -> None:
        """Apply the entries that have changed."""
        if delta.acls is not None:
            self.authorizer.apply(delta.acls.changes, image.offset)
        elif not self.is_loaded:
            self.authorizer.apply({}, image.offset)
        if not self.is_loaded:
            self.is_loaded = True
            log.info("%d access control entries are loaded", len(image.acls.acls))
            actions, self._on_loaded = self._on_loaded, []
            for action in actions:
                action()

    def on_controller_change(self, leader_id: int | None, epoch: int) -> None:
        """Entries do not depend on the controller."""

    def _check_file(self) -> None:
        file, authorizer = self._file, self.authorizer
        assert file is not None
        assert isinstance(authorizer, CustomAuthorizer)

        def finish(changed: bool | None, error: BaseException | None) -> None:
            if self._timer is None:
                return  # the node stops
            if changed and error is None:
                made = file.make_anew()
                if made is not None:
                    authorizer.replace(made)
            self._timer = self._timers.call_later_ms(_FILE_CHECK_INTERVAL_MS, self._check_file)

        self._jobs.run(file.has_changed, finish)


class _ClassFile:
    """The operator's class, and the file that it is in."""

    def __init__(self, path: str, properties: dict[str, str]) -> None:
        self._path = path
        self._properties = properties
        module_name, _, self._class_name = path.rpartition(":" if ":" in path else ".")
        if not module_name or not self._class_name:
            raise ValueError(f"{AUTHORIZER_CLASS}={path}: package.module.Class or package.module:Class is expected")
        try:
            self._module = import_module(module_name)
        except Exception as error:
            raise ValueError(
                f"{AUTHORIZER_CLASS}={path} cannot be imported: {error}. {STANDARD} is expected, or a Python class, "
                "installed or on PYTHONPATH"
            ) from error
        self._changed_ns = self._modified_ns()

    def has_changed(self) -> bool:
        """Whether the file is another than when it was loaded last. Runs on a thread."""
        return self._modified_ns() not in (self._changed_ns, 0)

    def make_anew(self) -> AuthorizerClass | None:
        """An object of the class in the changed file; None, and a line in the log, where it cannot be loaded."""
        self._changed_ns = self._modified_ns()
        former = self._module
        try:
            self._module = module_from_source(former)
            made = self.make()
        except Exception as error:
            self._module = former
            log.error(
                "%s=%s has changed, and cannot be loaded: %s. The former one stays", AUTHORIZER_CLASS, self._path, error
            )
            return None
        log.info("%s=%s has changed, and is loaded anew", AUTHORIZER_CLASS, self._path)
        return made

    def make(self) -> AuthorizerClass:
        """A configured object of the class. Raises `ValueError`, or what its own code raises."""
        found: Any = getattr(self._module, self._class_name, None)
        if not callable(getattr(found, "authorize", None)):
            raise ValueError(f"{AUTHORIZER_CLASS}={self._path}: no class with a method authorize(request, actions)")
        made: AuthorizerClass = found()
        configure = getattr(made, "configure", None)
        if configure is not None:
            configure(self._properties)
        return made

    def _modified_ns(self) -> int:
        from os import stat

        try:
            return stat(self._module.__file__ or "").st_mtime_ns
        except OSError:
            return 0
