"""Timeline collections: state that can be read as it was at an epoch, and reverted to it.

A `SnapshotRegistry` holds snapshots in rising order of epoch; for the controller and the coordinators an epoch is a
log offset. Each collection holds its live state in one plain dict (the current tier). A snapshot costs nothing when it
is taken: only when a key changes afterwards does the collection save the key's old value, once, in its tier for the
newest snapshot. So

- a live read touches the current tier only, and a write with no snapshot taken is a dict write and one comparison;
- a read at epoch E searches the tiers from E forward: the first one that saved the key has the value at E, and where
  none did, the key has not changed since;
- a revert to E undoes the tiers from the newest to E's, and drops the snapshots after E;
- dropping the oldest snapshots merges nothing, since a read never uses a tier before its epoch.

Iteration is deterministic: the current tier's insertion order, then, for a read in the past, keys removed since, in
the order in which they were first changed. A key that a revert brings back goes to the end.

No thread may share a registry. A collection belongs to one registry for life.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, MutableSet
from typing import Any, Generic, TypeVar, cast, overload
from weakref import WeakSet

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
D = TypeVar("D")

LATEST = (1 << 63) - 1
"""The epoch of the live state."""


class _Absent:
    """What a tier saves for a key that did not exist."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<absent>"


_ABSENT = _Absent()


class SnapshotRegistry:
    """The snapshots that several collections share, in rising order of epoch."""

    __slots__ = ("_collections", "_epochs", "_touched", "newest")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        """The snapshots, rising."""
        self._touched: list[list[_Collection]] = []
        """For each snapshot the collections that saved something for it, in the order in which they first did."""
        self._collections: WeakSet[_Collection] = WeakSet()
        """All that belong to this registry."""
        self.newest: int | None = None
        """The last of `_epochs`; None where there is no snapshot, and writes save nothing."""

    @property
    def epochs(self) -> tuple[int, ...]:
        """The snapshots, rising."""
        return tuple(self._epochs)

    def floor(self, epoch: int) -> int | None:
        """The newest snapshot that is not after `epoch`."""
        after = bisect_right(self._epochs, epoch)
        return self._epochs[after - 1] if after else None

    def create_snapshot(self, epoch: int) -> None:
        """Make the present state readable under `epoch`, which is after the newest. A second call for the newest does
        nothing; the state must not have changed since the first."""
        newest = self.newest
        if newest == epoch:
            assert not self._touched[-1], f"state changed after the snapshot at {epoch} was taken"
            return
        assert newest is None or newest < epoch, f"snapshot {epoch} is older than {newest}"
        self._epochs.append(epoch)
        self._touched.append([])
        self.newest = epoch

    def revert_to(self, epoch: int) -> None:
        """Revert every collection to `epoch` and drop the snapshots after it; `epoch` itself stays."""
        index = self._index(epoch)
        for touched in reversed(self._touched[index:]):
            for collection in touched:
                collection._undo_newest_tier()
        del self._epochs[index + 1 :]
        del self._touched[index + 1 :]
        self._touched[index] = []
        self.newest = epoch

    def restore(self, epoch: int) -> None:
        """Write the state at `epoch` over the current one, by ordinary writes: every snapshot stays, so that this can
        be reverted too."""
        index = self._index(epoch)
        affected: dict[_Collection, None] = {}
        for touched in self._touched[index:]:
            affected.update(dict.fromkeys(touched))
        for collection in affected:
            collection._restore(epoch)

    def delete_up_to(self, epoch: int) -> None:
        """Drop the snapshots before `epoch`."""
        index = 0
        while index < len(self._epochs) and self._epochs[index] < epoch:
            for collection in self._touched[index]:
                collection._drop_oldest_tier()
            index += 1
        del self._epochs[:index]
        del self._touched[:index]
        if not self._epochs:
            self.newest = None

    def drop_all(self) -> None:
        """Drop every snapshot; the collections stay as they are. Until the next snapshot, writes save nothing."""
        for touched in self._touched:
            for collection in touched:
                collection._drop_oldest_tier()
        self._epochs.clear()
        self._touched.clear()
        self.newest = None

    def reset(self) -> None:
        """Drop every snapshot and empty every collection, before a snapshot of the log is loaded."""
        self._epochs.clear()
        self._touched.clear()
        self.newest = None
        for collection in self._collections:  # their order makes no difference
            collection._reset()

    def _index(self, epoch: int) -> int:
        at = bisect_left(self._epochs, epoch)
        if at == len(self._epochs) or self._epochs[at] != epoch:
            raise KeyError(f"no snapshot at {epoch}; there are {self._epochs}")
        return at


class _Collection(ABC):
    """What a registry calls. A collection has a tier for each snapshot after which something of it changed."""

    __slots__ = ("__weakref__", "_registry", "_tier_epochs", "_tiers")

    def __init__(self, registry: SnapshotRegistry) -> None:
        self._registry = registry
        self._tier_epochs: list[int] = []
        """The snapshots that have a tier here, rising."""
        self._tiers: list[dict[Any, Any]] = []
        """For each of `_tier_epochs` the old values, by key."""
        registry._collections.add(self)

    def _tier_to_save_in(self, newest: int) -> dict[Any, Any]:
        epochs = self._tier_epochs
        if epochs and epochs[-1] == newest:
            return self._tiers[-1]
        tier: dict[Any, Any] = {}
        epochs.append(newest)
        self._tiers.append(tier)
        self._registry._touched[-1].append(self)
        return tier

    def _tiers_from(self, epoch: int) -> list[dict[Any, Any]]:
        self._registry._index(epoch)  # raises: a read without a snapshot would give a wrong state
        return self._tiers[bisect_left(self._tier_epochs, epoch) :]

    def _drop_oldest_tier(self) -> None:
        del self._tier_epochs[0]
        del self._tiers[0]

    @abstractmethod
    def _undo_newest_tier(self) -> None: ...

    @abstractmethod
    def _restore(self, epoch: int) -> None: ...

    @abstractmethod
    def _reset(self) -> None: ...


class TimelineDict(_Collection, MutableMapping[K, V]):
    """A dict with a past. Values are replaced, never changed in place: a snapshot holds the same objects."""

    __slots__ = ("_current",)

    def __init__(self, registry: SnapshotRegistry) -> None:
        super().__init__(registry)
        self._current: dict[K, V] = {}

    def __setitem__(self, key: K, value: V) -> None:
        newest = self._registry.newest
        if newest is not None:
            self._tier_to_save_in(newest).setdefault(key, self._current.get(key, _ABSENT))
        self._current[key] = value

    def __delitem__(self, key: K) -> None:
        value = self._current.pop(key)
        newest = self._registry.newest
        if newest is not None:
            self._tier_to_save_in(newest).setdefault(key, value)

    def __getitem__(self, key: K) -> V:
        return self._current[key]

    def __contains__(self, key: object) -> bool:
        return key in self._current

    def __iter__(self) -> Iterator[K]:
        return iter(self._current)

    def __len__(self) -> int:
        return len(self._current)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"TimelineDict({self._current!r})"

    @overload
    def get(self, key: K, default: None = None, epoch: int = LATEST) -> V | None: ...
    @overload
    def get(self, key: K, default: D, epoch: int = LATEST) -> V | D: ...
    def get(self, key: K, default: Any = None, epoch: int = LATEST) -> Any:
        """The value, at `epoch` where one is given; a snapshot must have been taken there."""
        if epoch != LATEST:
            for tier in self._tiers_from(epoch):
                if key in tier:
                    value = tier[key]
                    return default if value is _ABSENT else value
        return self._current.get(key, default)

    def contains(self, key: K, epoch: int = LATEST) -> bool:
        """Whether the key is there, at `epoch` where one is given."""
        return self.get(key, _ABSENT, epoch) is not _ABSENT

    def load(self, items: Mapping[K, V]) -> None:
        """Write many keys at once: the effect of `self[key] = value` for each, at a fraction of the cost."""
        newest = self._registry.newest
        if newest is not None and items:
            tier, current = self._tier_to_save_in(newest), self._current
            if tier.keys().isdisjoint(items) and current.keys().isdisjoint(items):  # as usual
                tier.update(dict.fromkeys(items, _ABSENT))
            else:
                for key in items:
                    tier.setdefault(key, current.get(key, _ABSENT))
        self._current.update(items)

    def remove_all(self, keys: Iterable[K]) -> None:
        """Remove many keys at once, each of which is there."""
        newest = self._registry.newest
        tier = {} if newest is None else self._tier_to_save_in(newest)
        pop = self._current.pop
        for key in keys:
            tier.setdefault(key, pop(key))

    def items(self, epoch: int = LATEST) -> Iterable[tuple[K, V]]:  # type: ignore[override]
        return self._current.items() if epoch == LATEST else self._at(epoch).items()

    def keys(self, epoch: int = LATEST) -> Iterable[K]:  # type: ignore[override]
        return self._current.keys() if epoch == LATEST else self._at(epoch).keys()

    def values(self, epoch: int = LATEST) -> Iterable[V]:  # type: ignore[override]
        return self._current.values() if epoch == LATEST else self._at(epoch).values()

    def size(self, epoch: int = LATEST) -> int:
        return len(self._current) if epoch == LATEST else len(self._at(epoch))

    def clear(self) -> None:
        newest = self._registry.newest
        if newest is not None and self._current:
            tier = self._tier_to_save_in(newest)
            for key, value in self._current.items():
                tier.setdefault(key, value)
        self._current.clear()

    def _saved_since(self, epoch: int) -> dict[K, V | _Absent]:
        saved: dict[K, V | _Absent] = {}
        for tier in self._tiers_from(epoch):
            for key, value in tier.items():
                saved.setdefault(key, value)
        return saved

    def _at(self, epoch: int) -> dict[K, V]:
        saved = self._saved_since(epoch)
        if not saved:
            return self._current
        state: dict[K, V] = {}
        for key, value in self._current.items():
            was = saved.get(key, value)
            if was is not _ABSENT:
                state[key] = cast(V, was)
        for key, was in saved.items():
            if was is not _ABSENT and key not in state:
                state[key] = cast(V, was)
        return state

    def _undo_newest_tier(self) -> None:
        self._tier_epochs.pop()
        for key, value in self._tiers.pop().items():
            if value is _ABSENT:
                self._current.pop(key, None)
            else:
                self._current[key] = value

    def _restore(self, epoch: int) -> None:
        for key, value in self._saved_since(epoch).items():
            if value is not _ABSENT:
                self[key] = cast(V, value)
            elif key in self._current:
                del self[key]

    def _reset(self) -> None:
        self._tier_epochs.clear()
        self._tiers.clear()
        self._current.clear()


class TimelineSet(MutableSet[T]):
    """A set with a past, kept as the keys of a `TimelineDict`: what makes its iteration deterministic."""

    __slots__ = ("_members",)

    def __init__(self, registry: SnapshotRegistry) -> None:
        self._members: TimelineDict[T, None] = TimelineDict(registry)

    def add(self, value: T) -> None:
        if value not in self._members._current:
            self._members[value] = None

    def discard(self, value: T) -> None:
        if value in self._members._current:
            del self._members[value]

    def clear(self) -> None:
        self._members.clear()

    def __contains__(self, value: object) -> bool:
        return value in self._members._current

    def __iter__(self) -> Iterator[T]:
        return iter(self._members._current)

    def __len__(self) -> int:
        return len(self._members._current)

    def load(self, values: Iterable[T]) -> None:
        """Add many at once, of which none is a member."""
        self._members.load(dict.fromkeys(values))

    def remove_all(self, values: Iterable[T]) -> None:
        """Remove many at once, each of which is a member."""
        self._members.remove_all(values)

    def contains(self, value: T, epoch: int = LATEST) -> bool:
        return self._members.contains(value, epoch)

    def members(self, epoch: int = LATEST) -> Iterable[T]:
        return self._members.keys(epoch)

    def size(self, epoch: int = LATEST) -> int:
        return self._members.size(epoch)

    def __repr__(self) -> str:
        return f"TimelineSet({list(self)!r})"

    @classmethod
    def _from_iterable(cls, it: Iterable[Any]) -> set[Any]:
        return set(it)


class TimelineValue(_Collection, Generic[T]):
    """One value with a past. `value` reads and replaces the live one; `reset` brings back the initial one."""

    __slots__ = ("_initial", "_value")

    def __init__(self, registry: SnapshotRegistry, initial: T) -> None:
        super().__init__(registry)
        self._initial = initial
        self._value = initial

    @property
    def value(self) -> T:
        return self._value

    @value.setter
    def value(self, value: T) -> None:
        newest = self._registry.newest
        if newest is not None:
            self._tier_to_save_in(newest).setdefault(None, self._value)
        self._value = value

    def get(self, epoch: int = LATEST) -> T:
        if epoch != LATEST:
            for tier in self._tiers_from(epoch):
                return cast(T, tier[None])
        return self._value

    def set(self, value: T) -> None:
        self.value = value

    def _undo_newest_tier(self) -> None:
        self._tier_epochs.pop()
        self._value = self._tiers.pop()[None]

    def _restore(self, epoch: int) -> None:
        self.value = self.get(epoch)

    def _reset(self) -> None:
        self._tier_epochs.clear()
        self._tiers.clear()
        self._value = self._initial

    def __repr__(self) -> str:
        return f"TimelineValue({self._value!r})"
