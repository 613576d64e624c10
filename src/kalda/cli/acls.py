"""`kalda acls`: add, remove and list access control entries, with the words of kafka-acls."""

from __future__ import annotations

import sys
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import confirm, is_json, print_json, print_table, yes_option
from kalda.cli.common.session import json_option, with_cluster

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin
    from kalda.client.admin.acls import Acl, AclFilter

_RESOURCES = {
    "topic": 2, "group": 3, "transactional_id": 5, "delegation_token": 6, "user_principal": 7,
}  # fmt: skip
_CLUSTER, _CLUSTER_NAME = 4, "kafka-cluster"
_PATTERNS = {"any": 1, "match": 2, "literal": 3, "prefixed": 4}
_ANY, _DENY, _ALLOW = 1, 2, 3
_ALL, _READ, _WRITE, _CREATE, _DESCRIBE, _IDEMPOTENT_WRITE = 2, 3, 4, 5, 8, 12


@click.group(cls=Noun)
def acls() -> None:
    """Add, remove and list access control entries.

    \b
    Examples:
      kalda acls add --allow-principal User:alice --producer --topic orders
      kalda acls add --allow-principal User:bob --consumer --topic orders --group billing
      kalda acls add --deny-principal User:eve --operation Read --topic logs --resource-pattern-type prefixed
      kalda acls list --topic orders
      kalda acls remove --topic orders --yes
    """


def _resource_options(command: Any) -> Any:
    for option, what in reversed(
        (
            ("topic", "A topic, or * for all."),
            ("group", "A group, or * for all."),
            ("transactional-id", "A transactional id, or * for all."),
            ("delegation-token", "The id of a delegation token."),
            ("user-principal", "A principal whose tokens are created or described."),
        )
    ):
        command = click.option(f"--{option}", metavar="NAME", multiple=True, help=what)(command)
    command = click.option("--cluster", "of_cluster", is_flag=True, help="The cluster itself.")(command)
    return click.option(
        "--resource-pattern-type",
        type=click.Choice(list(_PATTERNS), case_sensitive=False),
        default="literal",
        show_default=True,
        help="How names are compared; any and match are for list and remove.",
    )(command)


def _entry_options(command: Any) -> Any:
    for option, what in reversed(
        (
            ("allow-principal", "Allow this principal, as User:alice, or User:* for all."),
            ("deny-principal", "Deny this principal."),
            ("allow-host", "Only from this address, or range: 10.1.0.0/16. [default: *]"),
            ("deny-host", "Only from this address, or range: 10.1.0.0/16. [default: *]"),
            ("operation", "Read, Write, Create, Delete, Alter, Describe, ClusterAction, All … [default: All]"),
        )
    ):
        command = click.option(f"--{option}", metavar="NAME", multiple=True, help=what)(command)
    command = click.option("--producer", is_flag=True, help="All that a producer to --topic needs.")(command)
    command = click.option("--consumer", is_flag=True, help="All that a consumer of --topic in --group needs.")(command)
    return click.option("--idempotent", is_flag=True, help="With --producer: write idempotently.")(command)


def _resources(options: dict[str, Any], of_cluster: bool) -> list[tuple[int, str]]:
    found = [(number, name) for option, number in _RESOURCES.items() for name in options[option]]
    return [*found, (_CLUSTER, _CLUSTER_NAME)] if of_cluster else found


def _operation(name: str) -> int:
    """Raises `click.UsageError`."""
    from kalda.protocol.messages.security import AclOperation

    plain = name.replace("_", "").replace("-", "").upper()
    for each in AclOperation:
        if each.name.replace("_", "") == plain and each > _ANY:
            return each.value
    raise click.UsageError(f"{name} is no operation: Read, Write, Create, Delete, Alter, Describe, All … are")


def _wanted(options: dict[str, Any], of_cluster: bool) -> list[tuple[int, str, int]]:
    """Resource type, name and operation of each entry. Raises `click.UsageError`."""
    if not options["producer"] and not options["consumer"]:
        operations = [_operation(each) for each in options["operation"]] or [_ALL]
        resources = _resources(options, of_cluster)
        if not resources:
            raise click.UsageError("name at least one resource: --topic, --group, --cluster, --transactional-id …")
        return [(*resource, operation) for resource, operation in product(resources, operations)]
    if not options["topic"]:
        raise click.UsageError("--producer and --consumer need --topic")
    found = []
    if options["producer"]:
        found += [(2, name, each) for name in options["topic"] for each in (_WRITE, _DESCRIBE, _CREATE)]
        found += [(5, name, each) for name in options["transactional_id"] for each in (_WRITE, _DESCRIBE)]
        if options["idempotent"]:
            found.append((_CLUSTER, _CLUSTER_NAME, _IDEMPOTENT_WRITE))
    if options["consumer"]:
        if not options["group"]:
            raise click.UsageError("--consumer needs --group")
        found += [(2, name, each) for name in options["topic"] for each in (_READ, _DESCRIBE)]
        found += [(3, name, _READ) for name in options["group"]]
    return list(dict.fromkeys(found))


def _entries(options: dict[str, Any], of_cluster: bool) -> list[Acl]:
    """Raises `click.UsageError`."""
    from kalda.client.admin.acls import Acl

    pattern = _PATTERNS[options["resource_pattern_type"].lower()]
    found = []
    for permission, word in ((_ALLOW, "allow"), (_DENY, "deny")):
        hosts = options[f"{word}_host"] or ("*",)
        for principal, host in product(options[f"{word}_principal"], hosts):
            for resource_type, name, operation in _wanted(options, of_cluster):
                of_this = 3 if resource_type == _CLUSTER else pattern
                found.append(Acl(resource_type, name, of_this, principal, host, operation, permission))
    return found


@acls.command("add")
@_resource_options
@_entry_options
@json_option
@with_cluster
def add_command(admin: CommandAdmin, /, of_cluster: bool, **options: Any) -> None:
    """Add entries: one for each resource, principal, host and operation.

    \b
    Examples:
      kalda acls add --allow-principal User:alice --operation Read --topic orders
      kalda acls add --allow-principal User:bob --consumer --topic orders --group billing
    """
    if options["resource_pattern_type"].lower() not in ("literal", "prefixed"):
        raise click.UsageError("an entry has the pattern type literal or prefixed")
    wanted = _entries(options, of_cluster)
    if not wanted:
        raise click.UsageError("name whom the entries are for: --allow-principal or --deny-principal")
    admin.create_acls(wanted).check()
    _print(wanted)


@acls.command("remove")
@_resource_options
@_entry_options
@yes_option
@json_option
@with_cluster
def remove_command(admin: CommandAdmin, /, of_cluster: bool, yes: bool, **options: Any) -> None:
    """Remove entries: those that are named, or all of a resource.

    \b
    Examples:
      kalda acls remove --allow-principal User:alice --operation Read --topic orders
      kalda acls remove --topic orders --yes
    """
    from kalda.client.admin.acls import AclFilter

    filters: list[AclFilter] = [AclFilter(*acl) for acl in _entries(options, of_cluster)]
    if not filters:
        filters = _filters(options, of_cluster, ())
        if filters == [AclFilter()]:
            raise click.UsageError("name at least one resource, or the entries")
    if not yes and sys.stdin.isatty():
        _show([acl for each in filters for acl in admin.describe_acls(each)])
    confirm("Remove these entries?", yes)
    deleted = admin.delete_acls(filters).check().succeeded
    _print(list(dict.fromkeys(acl for each in deleted.values() for acl in each)))


@acls.command("list")
@_resource_options
@click.option("--principal", metavar="NAME", multiple=True, help="Only entries of this principal.")
@json_option
@with_cluster
def list_command(admin: CommandAdmin, /, of_cluster: bool, principal: tuple[str, ...], **options: Any) -> None:
    """List the entries of some resources, or all.

    \b
    Examples:
      kalda acls list --topic orders
      kalda acls list --principal User:alice --json
    """
    found = [acl for each in _filters(options, of_cluster, principal) for acl in admin.describe_acls(each)]
    _print(list(dict.fromkeys(found)))


def _filters(options: dict[str, Any], of_cluster: bool, principals: tuple[str, ...]) -> list[AclFilter]:
    from kalda.client.admin.acls import AclFilter

    pattern = _PATTERNS[options["resource_pattern_type"].lower()]
    resources: list[tuple[int, str | None, int]] = [
        (kind, name, pattern) for kind, name in _resources(options, of_cluster)
    ]
    return [
        AclFilter(kind, name, of_this, principal)
        for kind, name, of_this in resources or [(_ANY, None, _ANY)]
        for principal in principals or (None,)
    ]


def _print(found: list[Acl]) -> None:
    if is_json():
        print_json([_named(acl) for acl in found])
    else:
        _show(found)


def _show(found: list[Acl]) -> None:
    if not found:
        click.echo("There are no entries.")
    else:
        print_table(
            ("RESOURCE", "NAME", "PATTERN", "PRINCIPAL", "HOST", "OPERATION", "PERMISSION"),
            [tuple(_named(acl).values()) for acl in found],
        )


def _named(acl: Acl) -> dict[str, str]:
    """Names in place of numbers, in the order of the columns."""
    from kalda.protocol.messages.security import AclOperation, AclResourceType

    patterns = {number: name.upper() for name, number in _PATTERNS.items()}
    return {
        "resource_type": AclResourceType(acl.resource_type).name,
        "resource_name": acl.resource_name,
        "pattern_type": patterns.get(acl.pattern_type, str(acl.pattern_type)),
        "principal": acl.principal,
        "host": acl.host,
        "operation": AclOperation(acl.operation).name,
        "permission": "ALLOW" if acl.permission == _ALLOW else "DENY",
    }
