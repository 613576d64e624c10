"""An operator's own authorizer: a Python class, with the contract of Kafka's `Authorizer` (KIP-504).

`authorizer.class.name` names it as `package.module.Class` or `package.module:Class`:

```python
from kalda.security.custom_authorizer import Action, RequestFacts

class OfficeHours:
    def configure(self, configs):               # optional: the node's properties
        self.admins = configs["our.admins"].split(",")

    def authorize(self, request, actions):      # one bool for each action, in their order
        return [request.principal in self.admins or action.operation == "DESCRIBE" for action in actions]

    def authorize_by_resource_type(self, request, operation, resource_type):   # optional, a bool
        return False

    def on_acls(self, acls):                    # optional: the entries of the cluster, with each change of them
        ...

    def close(self):                            # optional: at the node's stop, and before a changed class replaces it
        ...
```

`authorize` is called on the event loop for nearly every request: it must return at once, without files or network. A
principal of `super.users` may do everything without a call. What raises, or returns anything but as many bools, is
logged, and the actions are denied. CreateAcls, DescribeAcls and DeleteAcls work on the entries of the cluster whatever
the class does with them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from kalda.base.ids import Uuid
from kalda.base.texts import printable
from kalda.metadata.acls import StandardAcl
from kalda.protocol.access import Caller, Decided
from kalda.protocol.messages.security import AclOperation, AclResourceType

log = logging.getLogger("kalda.security")


class RequestFacts(NamedTuple):
    """Who sent a request, and what kind of request."""

    principal: str
    client_address: str
    client_id: str
    listener_name: str
    request_name: str
    request_version: int


class Action(NamedTuple):
    """One thing that a request would do. The names are Kafka's: `READ`, `TOPIC`."""

    operation: str
    resource_type: str
    resource_name: str
    log_if_denied: bool = True
    resource_reference_count: int = 1
    """How many items of the request concern the resource."""


class AuthorizerClass(Protocol):
    """What an operator's class must have; the other methods are optional."""

    def authorize(self, request: RequestFacts, actions: Sequence[Action]) -> Sequence[bool]: ...


class CustomAuthorizer:
    """An `Authorizer` (`kalda.protocol.access`) that calls an object of the operator's class."""

    version = -1
    """Every decision may differ from the former one."""
    allowed: frozenset[Decided] = frozenset()
    """Nothing is known without a call."""

    def __init__(self, authorizer: AuthorizerClass, super_users: Iterable[str]) -> None:
        self._inner: Any = authorizer
        self._super_users = frozenset(super_users)
        self._acls: dict[Uuid, StandardAcl] = {}
        self._failures = 0
        """So far; each that is a power of two is logged."""

    def replace(self, authorizer: AuthorizerClass) -> None:
        """Call another object from now on."""
        self.close()
        self._inner = authorizer
        self._pass_acls()

    def apply(self, changes: Mapping[Uuid, StandardAcl | None], offset: int) -> None:
        """Take over the changes of an image; None stands for an entry that was removed."""
        for acl_id, acl in changes.items():
            if acl is None:
                self._acls.pop(acl_id, None)
            else:
                self._acls[acl_id] = acl
        self._pass_acls()

    def _pass_acls(self) -> None:
        on_acls = getattr(self._inner, "on_acls", None)
        if on_acls is not None:
            try:
                on_acls(list(self._acls.values()))
            except Exception as error:
                self._note(error)

    def allows(
        self,
        caller: Caller,
        operation: AclOperation,
        resource: AclResourceType,
        name: str,
        logs_denial: bool = True,
        references: int = 1,
    ) -> bool:
        """Whether `caller` may do `operation` on that resource."""
        return self._authorize(caller, [Action(operation.name, resource.name, name, logs_denial, references)])[0]

    def allows_on_any(self, caller: Caller, operation: AclOperation, resource: AclResourceType) -> bool:
        """Whether `caller` may do `operation` on at least one resource of that type. Without a method for that: on one
        with a name that none has, as Kafka's default begins."""
        by_type = getattr(self._inner, "authorize_by_resource_type", None)
        if by_type is None or caller.principal in self._super_users:
            return self.allows(caller, operation, resource, "hardcode", False)
        try:
            return by_type(_facts(caller), operation.name, resource.name) is True
        except Exception as error:
            self._note(error)
            return False

    def operations(
        self, caller: Caller, resource: AclResourceType, name: str, operations: Sequence[AclOperation]
    ) -> int:
        """The bits of those of `operations` that `caller` may do on that resource (KIP-430)."""
        allowed = self._authorize(caller, [Action(each.name, resource.name, name, False) for each in operations])
        return AclOperation.bits(*(each for each, is_allowed in zip(operations, allowed, strict=True) if is_allowed))

    def close(self) -> None:
        """Call `close` of an object that has it."""
        close = getattr(self._inner, "close", None)
        if close is not None:
            try:
                close()
            except Exception as error:
                self._note(error)

    def _authorize(self, caller: Caller, actions: list[Action]) -> list[bool]:
        if caller.principal in self._super_users:
            return [True] * len(actions)
        try:
            decided = list(self._inner.authorize(_facts(caller), actions))
            if len(decided) != len(actions):
                raise ValueError(f"{len(decided)} results for {len(actions)} actions")
        except Exception as error:
            self._note(error)
            return [False] * len(actions)
        return [each is True for each in decided]

    def _note(self, error: Exception) -> None:
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:
            log.error(
                "%s of authorizer.class.name has failed %d times, and what it was called for is denied: %s",
                type(self._inner).__qualname__,
                self._failures,
                printable(repr(error)),
            )


def _facts(caller: Caller) -> RequestFacts:
    return RequestFacts(
        caller.principal,
        caller.client_host,
        caller.client_id,
        caller.listener_name,
        caller.request_name,
        caller.api_version,
    )
