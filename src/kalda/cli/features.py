"""`kalda features`: describe, upgrade and downgrade feature levels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kalda.cli.common.nouns import Noun
from kalda.cli.common.output import is_json, print_json, print_table, report_option, say
from kalda.cli.common.session import MAX_INT16, json_option, parse_pairs, with_cluster_or_controllers

if TYPE_CHECKING:
    from kalda.cli.common.command_admin import CommandAdmin

METADATA_VERSION = "metadata.version"

_feature_option = click.option(
    "--feature", "levels", metavar="FEATURE=LEVEL", multiple=True, help="A feature's new level. May be repeated."
)
_release_option = click.option(
    "-r", "--release-version", metavar="RELEASE", help="Set all features to the levels of this release: 4.3, 4.4-IV0."
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Check the change, and do not make it.")


@click.group(cls=Noun)
def features() -> None:
    """Describe and change feature levels, such as metadata.version."""


@features.command("describe")
@json_option
@with_cluster_or_controllers
def describe_command(admin: CommandAdmin) -> None:
    """Describe the levels that the brokers support, and those that the cluster has finalized.

    \b
    Example:
      kalda features describe
    """
    found = admin.describe_features()
    if is_json():
        print_json({"epoch": found.epoch, "features": [feature._asdict() for feature in found.features]})
        return
    print_table(
        ("FEATURE", "SUPPORTED-MIN", "SUPPORTED-MAX", "FINALIZED", "EPOCH"),
        [
            (f.name, *(_level(f.name, level) for level in (f.supported_min, f.supported_max, f.finalized)), found.epoch)
            for f in found.features
        ],
    )


def _level(feature: str, level: int) -> str:
    """The level's number; for metadata.version, with the release's name."""
    if feature == METADATA_VERSION and level:
        from kalda.metadata.features import from_level

        try:
            return f"{level} ({from_level(level)})"
        except ValueError:
            pass  # a level of a later release has no name here
    return str(level)


@features.command("upgrade")
@_feature_option
@_release_option
@_dry_run_option
@report_option
@with_cluster_or_controllers
def upgrade_command(admin: CommandAdmin, levels: tuple[str, ...], release_version: str | None, dry_run: bool) -> None:
    """Raise feature levels: all that are named, or none.

    \b
    Examples:
      kalda features upgrade --release-version 4.4
      kalda features upgrade --feature transaction.version=2 --dry-run
    """
    from kalda.protocol.kinds import UpgradeType

    _update(admin, levels, release_version, UpgradeType.UPGRADE, dry_run, "Upgraded")


@features.command("downgrade")
@_feature_option
@_release_option
@click.option(
    "--unsafe", is_flag=True, help="Downgrade even where metadata is lost that the lower level does not have."
)
@_dry_run_option
@report_option
@with_cluster_or_controllers
def downgrade_command(
    admin: CommandAdmin, levels: tuple[str, ...], release_version: str | None, unsafe: bool, dry_run: bool
) -> None:
    """Lower feature levels; level 0 turns a feature off.

    \b
    Example:
      kalda features downgrade --feature share.version=0
    """
    from kalda.protocol.kinds import UpgradeType

    kind = UpgradeType.UNSAFE_DOWNGRADE if unsafe else UpgradeType.SAFE_DOWNGRADE
    _update(admin, levels, release_version, kind, dry_run, "Downgraded")


def _levels_of_release(release: str) -> dict[str, int]:
    from kalda.metadata.features import KRAFT_VERSION, default_levels
    from kalda.metadata.formatter import parse_release_version

    try:
        version = parse_release_version(release, unstable=True)
    except ValueError as error:
        raise click.UsageError(f"--release-version {release}: {error}") from error
    levels = {METADATA_VERSION: version.value, **default_levels(version)}
    del levels[KRAFT_VERSION]  # kraft.version is only raised, and only when it is named
    return levels


def _named_levels(texts: tuple[str, ...]) -> dict[str, int]:
    levels = {}
    for name, text in parse_pairs("--feature", texts).items():
        if not text.isdecimal() or int(text) > MAX_INT16:
            raise click.UsageError(f"--feature {name}={text}: a level from 0 to {MAX_INT16} is expected")
        levels[name] = int(text)
    return levels


def _update(
    admin: CommandAdmin, texts: tuple[str, ...], release: str | None, kind: int, dry_run: bool, done: str
) -> None:
    """Finalize the levels of a release, as far as the cluster supports them, and those that are named."""
    from kalda.protocol.kinds import UpgradeType

    levels, named = {} if release is None else _levels_of_release(release), _named_levels(texts)
    if not levels and not named:
        raise click.UsageError("nothing to change: give --feature FEATURE=LEVEL or --release-version RELEASE")
    described = {feature.name: feature for feature in admin.describe_features().features}
    for name, level in [(name, level) for name, level in levels.items() if level and name not in named]:
        most = described[name].supported_max if name in described else 0
        if not most:
            del levels[name]
            say(f"{name} of release {release} is left out: the cluster does not support it.")
        elif most < level and name != METADATA_VERSION:
            levels[name] = most
            say(f"{name} of release {release} is {level}: {most} is the highest that the cluster supports.")
    finalized = {name: feature.finalized for name, feature in described.items()}
    changes = {name: level for name, level in {**levels, **named}.items() if finalized.get(name, 0) != level}
    if not changes:
        say("Nothing to do: all these levels are finalized already.")
        return
    admin.update_features(changes, UpgradeType(kind), validate_only=dry_run)
    for name, level in changes.items():
        word = f"Could have {done.lower()}" if dry_run else done
        say(f"{word} {name} from {finalized.get(name, 0)} to {level}.")
