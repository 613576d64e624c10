"""How many things Kalda's own clients and nodes name in one request: half of what its nodes take at most.

Elements are counted as the decoder of a request counts them: each element of each list, at all depths. A partition is
two where its topic has no other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import cycle, islice
from typing import Any, TypeVar

from kalda.protocol.notation import Struct

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_ELEMENTS_SENT = 10_000
MAX_PARTITIONS_NAMED = MAX_ELEMENTS_SENT // 2
MAX_PARTITIONS_FETCHED = 4 * MAX_PARTITIONS_NAMED
"""The same for a Fetch: nodes take more in those, since they send them to each other."""


def elements_of(value: Any) -> int:
    """Elements in all lists of a message."""
    if isinstance(value, list):
        return len(value) + sum(map(elements_of, value)) if value and isinstance(value[0], Struct) else len(value)
    if not isinstance(value, Struct):
        return 0
    return sum(elements_of(getattr(value, name)) for name in type(value).declared)


def within_one_request(
    wanted: Mapping[K, V], held: Mapping[K, V], differs: Callable[[V, V], bool], most: int
) -> Mapping[K, V] | None:
    """What a session that holds `held` can hold of `wanted` after a request that names `most` things: all that it holds
    already, and of the others as many as fit. None where what has changed or goes does not fit itself."""
    if len(wanted) + len(held) <= most:
        return wanted
    left = most - sum(key not in wanted for key in held)
    added: list[K] = []
    for key, value in wanted.items():
        before = held.get(key)
        if before is None:
            added.append(key)
        elif before is not value and differs(before, value):
            left -= 1
    if left < 0:
        return None
    if len(added) <= left:
        return wanted
    postponed = set(added[left:])
    return {key: value for key, value in wanted.items() if key not in postponed}


def turn_of(wanted: Mapping[K, V], begin: int, most: int) -> Mapping[K, V]:
    """`most` of these, beginning at a place that counts on with each request: all have their turn."""
    if len(wanted) <= most:
        return wanted
    begin %= len(wanted)
    return {key: wanted[key] for key in islice(cycle(wanted), begin, begin + most)}


def pieces(things: Iterable[V], most: int = MAX_PARTITIONS_NAMED) -> Iterator[list[V]]:
    """The things of one request, and of the next ones."""
    left = iter(things)
    while piece := list(islice(left, most)):
        yield piece
