"""Whose quota applies to a client: eight levels of users and client ids.

A quota belongs to an entity: a user, a client id, or both, each by name or the default. Of the entities that match a
client the most specific one counts:

    1  user, client id          5  default user, default client id
    2  user, default client id  6  default user
    3  user                     7  client id
    4  default user, client id  8  default client id

All clients that share a level's tags share its usage: with a quota of a user, all client ids of that user; with one of
the default user, all client ids of each user. While quotas of one level alone exist, that level gives the tags without
a look-up. A store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntFlag
from math import copysign, floor, isnan
from typing import Final, NamedTuple, Protocol, TypeAlias

from kalda.base.stats import Rate
from kalda.metadata.client_quotas import CLIENT_ID, USER

ABSENT: Final = ""
"""In place of a name: the entity does not name a user, or a client id."""
DEFAULT: Final = None
"""In place of a name: the default of all users, or of all client ids."""

Tags: TypeAlias = tuple[str, str]
"""The user and the client id whose usage is counted together; ABSENT where all users, or all client ids, are."""


_LONGEST_PRINTED = 100


def printable(name: str) -> str:
    """A name that a client made up, for a line of a log."""
    short = name if len(name) <= _LONGEST_PRINTED else f"{name[:_LONGEST_PRINTED]}..."
    return short if short.isprintable() else repr(short)


class Entity(NamedTuple):
    """What a quota belongs to. One of the two at least is not ABSENT."""

    user: str | None
    client_id: str | None

    def __str__(self) -> str:
        parts = []
        if self.user != ABSENT:
            parts.append("the default user" if self.user is DEFAULT else f"user {printable(self.user)}")
        if self.client_id != ABSENT:
            parts.append(
                "the default client id" if self.client_id is DEFAULT else f"client id {printable(self.client_id)}"
            )
        return ", ".join(parts)


def entity_of(parts: Mapping[str, str | None]) -> Entity:
    """An entity of the metadata, of users and client ids."""
    return Entity(parts.get(USER, ABSENT), parts.get(CLIENT_ID, ABSENT))


class Levels(IntFlag):
    """Which kinds of entities have a quota."""

    NONE = 0
    CLIENT_ID = 1
    USER = 2
    USER_CLIENT_ID = 4
    CUSTOM = 8
    """A class of the operator decides."""


def level_of(entity: Entity) -> Levels:
    """The kind of an entity."""
    if entity.user == ABSENT:
        return Levels.CLIENT_ID
    return Levels.USER if entity.client_id == ABSENT else Levels.USER_CLIENT_ID


class Step(NamedTuple):
    """One of the eight levels, and what was found there for a client."""

    number: int
    entity: Entity
    limit: float | None
    tags: Tags


def steps_of(user: str, client_id: str) -> Iterator[tuple[Entity, Tags]]:
    """The entities that match a client, the most specific one first, each with its tags."""
    both, user_only = (user, client_id), (user, ABSENT)
    yield Entity(user, client_id), both
    yield Entity(user, DEFAULT), both
    yield Entity(user, ABSENT), user_only
    yield Entity(DEFAULT, client_id), both
    yield Entity(DEFAULT, DEFAULT), both
    yield Entity(DEFAULT, ABSENT), user_only
    yield Entity(ABSENT, client_id), (ABSENT, client_id)
    yield Entity(ABSENT, DEFAULT), (ABSENT, client_id)


class Limits:
    """The limits of one kind of quota, by entity. Invariant: a level is in `levels` while an entity of it has a limit.

    The tags of a client depend on which levels are in use, its limit on its tags alone.
    """

    __slots__ = ("_by_entity", "_counts", "levels")

    def __init__(self) -> None:
        self._by_entity: dict[tuple[str | None, str | None], float] = {}
        self._counts: dict[Levels, int] = {}
        """How many entities of each level have a limit."""
        self.levels = Levels.NONE

    def __len__(self) -> int:
        return len(self._by_entity)

    def set(self, entity: Entity, limit: float | None) -> bool:
        """Set the limit of an entity, or remove it. True where other levels are in use than before."""
        if (entity in self._by_entity) != (limit is not None):
            level = level_of(entity)
            self._counts[level] = self._counts.get(level, 0) + (1 if limit is not None else -1)
        before = self.levels
        self.levels = Levels(sum(level for level, count in self._counts.items() if count))
        if limit is None:
            self._by_entity.pop(entity, None)
        else:
            self._by_entity[entity] = limit
        return self.levels != before

    def tags(self, user: str, client_id: str) -> Tags:
        """With which clients this one shares its usage."""
        match self.levels:
            case Levels.NONE | Levels.CLIENT_ID:
                return ABSENT, client_id
            case Levels.USER:
                return user, ABSENT
            case Levels.USER_CLIENT_ID:
                return user, client_id
        known = self._by_entity
        for entity, tags in steps_of(user, client_id):
            if entity in known:
                return tags
        return ABSENT, client_id

    def limit(self, tags: Tags) -> float | None:
        """The limit of what is counted under these tags; None where there is none."""
        user, client_id = tags
        known = self._by_entity.get
        if user and client_id:
            for entity in ((user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT)):
                if (limit := known(entity)) is not None:
                    return limit
            return None
        if user:
            limit = known((user, ABSENT))
            return limit if limit is not None else known((DEFAULT, ABSENT))
        if client_id:
            limit = known((ABSENT, client_id))
            return limit if limit is not None else known((ABSENT, DEFAULT))
        return None

    def steps(self, user: str, client_id: str) -> list[Step]:
        """What is found at each of the eight levels; the first one with a limit counts."""
        return [
            Step(number, entity, self._by_entity.get(entity), tags)
            for number, (entity, tags) in enumerate(steps_of(user, client_id), 1)
        ]

    def entities(self) -> list[tuple[Entity, float]]:
        """All limits."""
        return [(Entity(*entity), limit) for entity, limit in self._by_entity.items()]


# The interface of an operator's own class that decides whose quota applies: `client.quota.callback.class`.
#
# It replaces the eight levels of `entities`. Kafka's `ClientQuotaCallback` (KIP-257), with Python's names.


class ClientQuotaCallback(Protocol):
    """All methods are called on the event loop: they must return at once, without files or network.

    `quota_type` is PRODUCE, FETCH, REQUEST or CONTROLLER_MUTATION.
    """

    def quota_metric_tags(self, quota_type: str, user: str, client_id: str) -> Mapping[str, str]:
        """Clients with the same tags share a quota. Called for every request."""
        ...

    def quota_limit(self, quota_type: str, metric_tags: Mapping[str, str]) -> float | None:
        """The quota of those tags; None for no limit."""
        ...

    def update_quota(self, quota_type: str, entity: Entity, value: float) -> None:
        """A quota in the metadata was set."""
        ...

    def remove_quota(self, quota_type: str, entity: Entity) -> None:
        """A quota in the metadata was removed."""
        ...

    def quota_reset_required(self, quota_type: str) -> bool:
        """Whether limits have changed since the last call: all are asked for again then."""
        ...


# Throttle times, and what is kept of the last ones.
#
# The rate O of a client exceeds its quota T over the window W. A pause of X brings the rate down to the quota where O
# * W / (W + X) = T, so X = (O - T) / T * W.

MAX_INT: Final = 2**31 - 1


class Decision(NamedTuple):
    """One request that was throttled."""

    now_ms: int
    recorded: float
    """Bytes, or percent of the time of the event loop, or partitions."""
    observed: float
    """O: the rate with it; of a token bucket, the tokens left."""
    bound: float
    """T: the quota."""
    window_ms: int
    """W: the time over which the rate is measured; 0 for a token bucket."""
    throttle_ms: int
    """X: the pause."""


def rounded(milliseconds: float) -> int:
    """As Java rounds: half a millisecond up, NaN to 0. At most the largest int, which is what a response can carry."""
    if isnan(milliseconds):
        return 0
    return floor(milliseconds + 0.5) if -MAX_INT < milliseconds < MAX_INT else int(copysign(MAX_INT, milliseconds))


def throttle_ms(rate: Rate, bound: float, now_ms: int) -> tuple[float, int, int]:
    """O, W and X of a rate that exceeds its bound."""
    observed = rate.measure(now_ms)
    window_ms = rate.window_size_ms(now_ms)
    return observed, window_ms, rounded((observed - bound) / bound * window_ms)
