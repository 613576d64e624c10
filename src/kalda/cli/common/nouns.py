"""The classes of all commands: helps that are not cut, habits of other tools, and what was meant by a wrong word."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import Any, Final

import click

from kalda.cli.common.output import print_report

# What users of Kafka's tools, kcat and rpk type by habit: the spelling that Kalda has for it.
#
# A command line is rewritten only where the command lacks the option, so no option of Kalda is hidden by a habit.

KAFKA_TOOLS: Final = {
    "kafka-acls": "acls", "kafka-broker-api-versions": "version", "kafka-client-metrics": "client-metrics",
    "kafka-cluster": "cluster", "kafka-configs": "configs", "kafka-console-consumer": "consume",
    "kafka-console-producer": "produce", "kafka-console-share-consumer": "consume", "kafka-consumer-groups": "groups",
    "kafka-delegation-tokens": "tokens", "kafka-dump-log": "dump-log", "kafka-features": "features",
    "kafka-groups": "groups", "kafka-leader-election": "elect", "kafka-log-dirs": "cluster",
    "kafka-metadata-quorum": "quorum", "kafka-reassign-partitions": "reassign", "kafka-server-start": "server",
    "kafka-share-groups": "groups", "kafka-storage": "storage", "kafka-streams-groups": "groups",
    "kafka-topics": "topics", "kafka-transactions": "transactions",
}  # fmt: skip
"""Nouns by the names of Kafka's scripts, without `.sh`."""
SHARE_CONSUMER: Final = "kafka-console-share-consumer"
"""The script whose `--group` is a share group; without one it has a group of this name."""
_SHARE_GROUP: Final = "console-share-consumer"
OTHER_NAMES: Final = {
    "producer": "produce", "consumer": "consume", "start": "server", "broker": "server", "node": "server",
    "lag": "groups", "security": "acls", "brokers": "cluster", "partitions": "reassign", "txn": "transactions",
    "config": "configs", "health": "doctor", "check": "doctor",
}  # fmt: skip
"""Nouns by other words for them."""
KCAT_MODES: Final = {"-P": "kalda produce TOPIC", "-C": "kalda consume TOPIC", "-G": "kalda consume TOPIC --group NAME",
    "-L": "kalda cluster describe, or kalda topics describe", "-Q": "kalda topics offsets TOPIC --at TIME"}  # fmt: skip
SAME_COMMANDS: Final = {
    "info": "describe", "show": "describe", "ls": "list", "list": "describe", "add": "create", "rm": "delete",
    "remove": "delete", "new": "create", "create": "add", "edit": "alter", "update": "alter", "set": "alter",
    "seek": "reset-offsets", "metadata": "describe", "status": "describe", "trim-prefix": "delete-records",
    "add-partitions": "alter", "delete": "remove", "execute": "run", "generate": "plan", "verify": "status",
}  # fmt: skip
"""Commands of a noun by other words for them."""
OF_OTHER_NOUNS: Final = {
    "produce": "records are written by kalda produce TOPIC", "consume": "records are read by kalda consume TOPIC",
    "health": "what is wrong with a cluster is shown by kalda doctor",
    "alter-config": "configs are changed by kalda configs alter --topic TOPIC --add-config KEY=VALUE",
    "logdirs": "what is on the disks of brokers is shown by kalda cluster log-dirs",
}  # fmt: skip
"""Commands of rpk under a noun that has no such command: what is shown for them."""

_BOOTSTRAP = ("--bootstrap-server",)
SAME_OPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "-b": _BOOTSTRAP, "--brokers": _BOOTSTRAP, "--bootstrap-servers": _BOOTSTRAP,
    "--broker-list": ("--brokers", *_BOOTSTRAP),
    "--bootstrap": _BOOTSTRAP,
    "--command-config-file": ("--command-config",), "--config-file": ("--command-config",),
    "--producer.config": ("--command-config",), "--consumer.config": ("--command-config",),
    "--producer-config": ("--command-config",), "--consumer-config": ("--command-config",),
    "--producer-property": ("-X",), "--consumer-property": ("-X",), "--command-property": ("-X",),
    "--producer-props": ("-X",),
    "--topic": ("TOPIC",), "--topics": ("TOPIC",), "-t": ("TOPIC", "--topic"),
    "-f": ("--feature", "--follow"), "-g": ("GROUP",), "--group": ("GROUP",),
    "--group-id": ("--group", "GROUP"), "-G": ("--group",),
    "--reassignment-json-file": ("FILE",), "--topics-to-move-json-file": ("--topics-file",),
    "--offset": ("--from",), "-o": ("--from",), "-c": ("--max-messages",), "--num": ("--max-messages",),
    "--timeout": ("--timeout-ms",), "--replicas": ("--replication-factor",), "--topic-config": ("--config",),
    "--validate-only": ("--dry-run",), "--dry": ("--dry-run",), "--force": ("--yes",), "-y": ("--yes",),
    "--execute": ("--yes",), "--no-confirm": ("--yes",), "--client": ("--client-id",),
    "--broker-id": ("--broker",), "--broker": ("--node",), "--transactionalId": ("--transactional-id",),
    "--set": ("--add-config", "--config"), "--add": ("--add-config",), "--delete": ("--delete-config",),
    "--records": ("--num-records",), "--size": ("--record-size",),
    "--input-topic": ("--topic",), "--all-input-topics": ("--all-topics",),
    "--id": ("--broker",), "--follow": ("--watch",), "--output": ("--format",), "--reset-offsets": (),
}  # fmt: skip
"""Options of commands by other names; an upper-case word stands for an argument, which takes the option's value."""
WITH_VALUES: Final[dict[str, tuple[str, ...]]] = {
    "--from-beginning": ("--from", "beginning"), "--all-records": ("--from", "beginning"), "-J": ("--json",),
    "--print-keys": ("--print-key",),
}  # fmt: skip
"""Options that are others with their values."""
PROPERTIES: Final = {
    "print.key=true": ("--print-key",), "print.timestamp=true": ("--print-timestamp",),
    "print.offset=true": ("--print-offset",), "print.partition=true": ("--print-partition",),
    "print.headers=true": ("--print-headers",), "parse.key=true": (), "parse.headers=true": ("--parse-headers",),
}  # fmt: skip
"""Values of `--property` of Kafka's console tools."""


OF_DESCRIBE: Final = frozenset(("--offsets", "--verbose"))
"""Options of Kafka's tools for groups for what `kalda groups describe`, which has `--members`, shows without."""


ENTITIES: Final = {
    "topics": "--topic", "brokers": "--broker", "broker-loggers": "--broker-logger", "groups": "--group",
    "client-metrics": "--client-metrics", "users": "--user", "clients": "--client-id", "ips": "--ip",
}  # fmt: skip
"""Options by the values of `--entity-type` of kafka-configs."""


def _entities(words: list[str]) -> list[str]:
    """`--entity-type topics --entity-name orders`, in any order and several of them, as `--topic orders`."""
    kinds = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--entity-type"]
    names = [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--entity-name"]
    if len(kinds) != len(names) or not all(kind in ENTITIES for kind in kinds):
        return words
    taken = {
        at + step for at, word in enumerate(words) for step in (0, 1) if word in ("--entity-type", "--entity-name")
    }
    pairs = [part for kind, name in zip(kinds, names, strict=True) for part in (ENTITIES[kind], name)]
    return [*pairs, *(word for at, word in enumerate(words) if at not in taken)]


def as_share_consumer(words: list[str]) -> list[str]:
    """The command line of `SHARE_CONSUMER` with `--share` for the group."""
    shared = [f"--share{word[7:]}" if word.partition("=")[0] == "--group" else word for word in words]
    return shared if shared != words else ["--share", _SHARE_GROUP, *words]


def names_servers(word: str) -> bool:
    """Whether it is the option of the servers, or one that stands for it."""
    option = word.partition("=")[0]
    return option in _BOOTSTRAP or _BOOTSTRAP[0] in SAME_OPTIONS.get(option, ())


def in_kaldas_words(words: list[str], options: Collection[str], arguments: Collection[str]) -> list[str]:
    """The command line with Kalda's options. `options` are those of the command, `arguments` the metavars of its
    arguments, such as TOPIC."""
    result: list[str] = []
    rest = list(words) if "--entity-type" in options else _entities(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*result, word, *rest]
        name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        if name in options:
            result.append(word)
        elif name in OF_DESCRIBE and "--members" in options:
            continue
        elif name in WITH_VALUES and WITH_VALUES[name][0] in options:
            result += WITH_VALUES[name]
        elif name in ("--property", "--formatter-property", "--reader-property") and (equals or rest):
            result += _of_property(value if equals else rest.pop(0), options)
        else:
            new = _same_option(name, options, arguments)
            if new is None:
                result.append(word)
            elif new.startswith("-"):
                result += [new + equals + value] if new.startswith("--") or not equals else [new, value]
            elif equals:
                result.append(value)
    return result


def _same_option(name: str, options: Collection[str], arguments: Collection[str]) -> str | None:
    for new in SAME_OPTIONS.get(name, ()):
        if new in options or new in arguments:
            return new
    return None


def _of_property(text: str, options: Collection[str]) -> list[str]:
    key, _, value = text.partition("=")
    if key == "key.separator" and "--key-separator" in options:
        return ["--key-separator", value]
    if key == "key.separator" and "--separator" in options:
        return ["--separator", value]
    known = PROPERTIES.get(text)
    if known is not None and all(option in options for option in known):
        return list(known)
    return ["--property", text]


_LONG = 1_000
"""More characters than a first sentence has."""


class KaldaCommand(click.Command):
    """A command that takes the options of other tools for its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if (ctx.info_name or "").removesuffix(".sh") == SHARE_CONSUMER:
            args = as_share_consumer(args)
        options = {name for option in self.get_params(ctx) for name in (*option.opts, *option.secondary_opts)}
        arguments = {
            re.sub(r"[^A-Z]", "", argument.make_metavar(ctx))
            for argument in self.params
            if isinstance(argument, click.Argument)
        }
        try:
            return super().parse_args(ctx, in_kaldas_words(args, options, arguments))
        except click.NoSuchOption as error:
            if error.option_name not in KCAT_MODES:
                raise
            raise click.UsageError(kcat_mode(error.option_name), ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        result = super().invoke(ctx)
        print_report(ctx)
        return result


class Noun(click.Group):
    """The commands of a thing: `kalda topics --list` is `kalda topics list`."""

    command_class = KaldaCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for index, word in enumerate(args):
            if word.startswith("--") and self._name_of(ctx, word[2:]) is not None:
                args = [word[2:], *args[:index], *args[index + 1 :]]
                break
            if not word.startswith("-") and (self._name_of(ctx, word) is not None or word in OF_OTHER_NOUNS):
                break
        return super().parse_args(ctx, command_first(args, lambda word: self._name_of(ctx, word) is not None))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = self._name_of(ctx, cmd_name)
        return None if name is None else super().get_command(ctx, name)

    def _name_of(self, ctx: click.Context, word: str) -> str | None:
        """The command that a word stands for."""
        names = self.list_commands(ctx)
        return next((name for name in (word, SAME_COMMANDS.get(word)) if name in names), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            if args[0] in OF_OTHER_NOUNS:
                raise click.UsageError(OF_OTHER_NOUNS[args[0]], ctx)
            raise click.UsageError(no_such_command(args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, command.get_short_help_str(_LONG))
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None and not command.hidden
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def kcat_mode(option: str) -> str:
    """What an option that is a mode of kcat is here."""
    return f"{option} is an option of kcat; here it is: {KCAT_MODES[option]}"


def command_first(args: list[str], is_command: Callable[[str], bool]) -> list[str]:
    """The words with the command before the servers, where these stand in front: `-b HOST:PORT topics list`."""
    if not args or not names_servers(args[0]):
        return args
    first = 1 if "=" in args[0] else 2
    at = next((index for index, word in enumerate(args[first:], first) if is_command(word)), None)
    if at is None:
        raise click.UsageError(f"{args[0]} stands behind a command: kalda topics list {args[0]} HOST:PORT")
    return [args[at], *args[:at], *args[at + 1 :]]


def no_such_command(word: str, names: list[str]) -> str:
    """What is wrong with a word in the place of a command."""
    near = get_close_matches(word, names, 2)
    meant = f" Did you mean {' or '.join(near)}?" if near else f" There are {', '.join(names)}."
    return f"No such command {word!r}.{meant}"
