"""The operator's own rules for new topics and altered configs (KIP-108, KIP-133).

`create.topic.policy.class.name` and `alter.config.policy.class.name` name Python classes, as `package.module.Class` or
`package.module:Class`, that the node can import (installed, or on PYTHONPATH). The active controller calls `validate`
before it creates a topic or alters a config:

```python
from kalda.broker.policies import PolicyViolation

class TopicsHaveOwners:
    def configure(self, configs):            # optional: the node's properties, once, at its start
        self.prefixes = configs["our.owners"].split(",")

    def validate(self, request):             # a NewTopicRequest, or an AlterConfigRequest
        if request.topic.split(".")[0] not in self.prefixes:
            raise PolicyViolation(f"{request.topic} begins with no owner")

    def close(self):                         # optional: at the node's stop
        ...
```

`validate` runs on the event loop of the controller: it must return at once, without files or network. A client gets
POLICY_VIOLATION with the message of the `PolicyViolation`. Any other exception is logged, and the request fails with
UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kalda.base.configs.resources import ConfigResourceType
from kalda.base.errors import ApiError, ErrorCode
from kalda.metadata.configs import ConfigResource
from kalda.network.python_classes import make

log = logging.getLogger("kalda.policies")

CREATE_TOPIC = "create.topic.policy.class.name"
ALTER_CONFIG = "alter.config.policy.class.name"


class PolicyViolation(Exception):
    """Raised by a policy: the request is not allowed. The message says why, and is sent to the client."""


class NewTopicRequest(NamedTuple):
    """A topic that a client wants to create: by numbers, or by an assignment of brokers to its partitions."""

    topic: str
    num_partitions: int | None
    replication_factor: int | None
    """None where `replicas_assignments` is given; so is `replication_factor`."""
    replicas_assignments: Mapping[int, Sequence[int]] | None
    """Broker ids by partition; None where the controller places the replicas."""
    configs: Mapping[str, str | None]


class AlterConfigRequest(NamedTuple):
    """Configs of one resource that a client wants to alter."""

    resource_type: str
    """`TOPIC`, `BROKER`, `GROUP` or `CLIENT_METRICS`"""
    resource_name: str
    """Empty for the defaults of all brokers."""
    configs: Mapping[str, str | None]
    """New values by key; None removes the key."""


class Policies:
    """The policies of a controller. Each is None where the properties name none, and after `close`."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Import, make and configure what the properties name. Raises `ClassFailed`."""
        self._create_topic = _load(CREATE_TOPIC, properties)
        self._alter_config = _load(ALTER_CONFIG, properties)

    def check_new_topic(self, topic: tuple[Any, ...]) -> None:
        """`topic` is a `kalda.controller.topics.NewTopic`. Raises `ApiError`."""
        if self._create_topic is not None:
            _validate(self._create_topic, NewTopicRequest(*topic))

    def check_configs(self, resource: ConfigResource, configs: Mapping[str, str | None]) -> None:
        """`configs` are new values by key; None removes the key. Raises `ApiError`."""
        if self._alter_config is not None:
            _validate(
                self._alter_config, AlterConfigRequest(ConfigResourceType(resource.type).name, resource.name, configs)
            )

    def close(self) -> None:
        """Call `close` of the policies that have it. May be called again."""
        policies, self._create_topic, self._alter_config = (self._create_topic, self._alter_config), None, None
        for policy in policies:
            close = getattr(policy, "close", None)
            if close is None:
                continue
            try:
                close()
            except Exception:
                log.exception("%s could not be closed", type(policy).__qualname__)


def _validate(policy: Any, request: NewTopicRequest | AlterConfigRequest) -> None:
    try:
        policy.validate(request)
    except PolicyViolation as violation:
        raise ApiError(ErrorCode.POLICY_VIOLATION, str(violation)) from violation
    except Exception as error:
        log.exception("%s failed over %s", type(policy).__qualname__, request)
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{type(policy).__qualname__} failed: {error}") from error


def _load(key: str, properties: Mapping[str, str]) -> Any:
    """The policy that the properties name; None where they name none. Raises `ClassFailed`."""
    path = properties.get(key, "").strip()
    return make(key, path, properties, "validate") if path else None
