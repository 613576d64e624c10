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
from functools import partial
from typing import Any

from kalda.base.configs.server import ServerConfig
from kalda.base.scheduling import Jobs, Timers
from kalda.metadata.image import MetadataDelta, MetadataImage
from kalda.metadata.publisher import Manifest
from kalda.network.python_classes import WatchedClass
from kalda.security.custom_authorizer import AuthorizerClass, CustomAuthorizer
from kalda.security.standard_authorizer import StandardAuthorizer, parse_super_users

log = logging.getLogger("kalda.security")

AUTHORIZER_CLASS = "authorizer.class.name"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_OF_ZOOKEEPER = ("kafka.security.authorizer.AclAuthorizer", "kafka.security.auth.SimpleAclAuthorizer")


class NodeAuthorizer:
    """What the node's pipelines ask."""

    name = "Authorizer"

    def __init__(self, config: ServerConfig, path: str, timers: Timers, jobs: Jobs) -> None:
        """Raises `ValueError` where the operator's class cannot be loaded."""
        self._timers = timers
        self._jobs = jobs
        self._on_loaded: list[Callable[[], None]] = []
        self.is_loaded = False
        """Whether the entries of the metadata are known."""
        supers = parse_super_users(config.properties.get("super.users", ""))
        allows = config.properties.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true"
        properties = dict(config.properties)
        self._file: WatchedClass[AuthorizerClass] | None = None
        if path != STANDARD:
            expected = f"{STANDARD} is expected, or a Python class"
            self._file = WatchedClass(AUTHORIZER_CLASS, path, partial(_made, path, properties), expected)
        self.authorizer: StandardAuthorizer | CustomAuthorizer = (
            StandardAuthorizer(supers, allow_without_entries=allows)
            if self._file is None
            else CustomAuthorizer(self._file.made, supers)
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
            assert isinstance(self.authorizer, CustomAuthorizer)
            self._file.start(self._timers, self._jobs, self.authorizer.replace)

    def close(self) -> None:
        """Stop the timer, and close the operator's object."""
        if self._file is not None:
            self._file.close()
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


def _made(path: str, properties: dict[str, str], found: Any) -> AuthorizerClass:
    """A configured object of the operator's class. Raises `ValueError`, or what its own code raises."""
    if not callable(getattr(found, "authorize", None)):
        raise ValueError(f"{AUTHORIZER_CLASS}={path}: no class with a method authorize(request, actions)")
    made: AuthorizerClass = found()
    configure = getattr(made, "configure", None)
    if configure is not None:
        configure(properties)
    return made
