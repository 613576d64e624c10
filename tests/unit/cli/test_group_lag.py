"""What two samples of a group's offsets say about its lag."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kalda.base.ids import TopicPartition
from kalda.cli.groups import Sample, findings, lags, span
from kalda.client.admin.group_values import Group, Member

SECONDS = 10


def at(index: int) -> TopicPartition:
    return TopicPartition("orders", index)


def group(*members: tuple[int, ...], state: str = "Stable") -> Group:
    made = (Member(f"m{n}", None, "app", "/127.0.0.1", tuple(map(at, owned))) for n, owned in enumerate(members))
    return Group("billing", "classic", state, "range", 1, tuple(made))


def samples(
    *partitions: tuple[int, int, int, int], first: int = 0, stable: Mapping[int, int] | None = None
) -> tuple[Sample, Sample]:
    """Of each partition: what was committed before and after, and where it ended before and after."""
    made = []
    for moment in (0, 1):
        committed = {at(index): values[moment] for index, values in enumerate(partitions)}
        end = {at(index): values[2 + moment] for index, values in enumerate(partitions)}
        held = {at(index): offset for index, offset in (stable or {}).items()}
        made.append(Sample(100.0 + SECONDS * moment, committed, dict.fromkeys(end, first), end | held, end))
    return made[0], made[1]


def test_rates_and_when_a_group_is_caught_up() -> None:
    before, after = samples((0, 100, 500, 550), (0, 50, 60, 150))
    one, two = lags(group((0, 1)), before, after)
    assert (one.lag, one.produced, one.consumed, one.caught_up_s, one.member) == (450, 5.0, 10.0, 90.0, "m0")
    assert (two.lag, two.produced, two.consumed, two.caught_up_s) == (100, 9.0, 5.0, None)
    (sentence,) = findings(group((0,)), *samples((0, 100, 500, 550)), {})
    assert "gone in 90 s" in sentence


@pytest.mark.parametrize(
    ("described", "taken", "ages", "said"),
    [
        (group(), samples((5, 5, 9, 9)), {}, ["no members"]),
        (group((0,)), samples((9, 9, 9, 9)), {}, ["keeps up"]),
        (group((0,), state="PreparingRebalance"), samples((5, 6, 9, 9)), {}, ["PreparingRebalance", "gone in"]),
        (group((0,), ()), samples((5, 6, 9, 9)), {}, ["1 of 2 members without a partition", "gone in"]),
        (group((0,)), samples((9, 9, 9, 9), (0, 0, 3, 3)), {}, ["No member is assigned 1 partition of orders"]),
        (group((0,)), samples((5, 5, 9, 9), first=7), {}, ["lost 2 records", "m0 committed nothing"]),
        (group((0,)), samples((12, 12, 9, 9)), {}, ["ends at 9, before the committed offset 12"]),
        (group((0,)), samples((5, 5, 9, 9), stable={0: 5}), {}, ["open transaction", "m0 committed nothing"]),
        (group((0,)), samples((0, 10, 90, 190)), {}, ["grows by 9.0 records/s"]),
        (
            group((0, 1, 2), ()),
            samples((0, 50, 100, 200), (0, 1, 1, 2), (0, 1, 1, 2)),
            {},
            ["1 of 2 members", "more than is read", "orders-0 of 3 get 98% of what is produced to orders"],
        ),
        (group((0,), (1,)), samples((0, 10, 90, 90), (0, 80, 90, 90)), {}, ["gone in", "m0 reads 1.0 records/s"]),
        (
            group((0,)),
            samples((0, 10, 90, 90)),
            {at(0): (0.9, 864_000_000)},
            ["older than 90% of its retention.ms, 10 d: they may be deleted in 24 h or less", "gone in"],
        ),
    ],
)
def test_each_cause_is_named(
    described: Group,
    taken: tuple[Sample, Sample],
    ages: Mapping[TopicPartition, tuple[float, int]],
    said: list[str],
) -> None:
    found = findings(described, *taken, ages)
    assert len(found) == len(said), found
    for sentence, words in zip(found, said, strict=True):
        assert words in sentence


def test_spans_are_named_in_the_unit_that_fits() -> None:
    assert [span(each) for each in (0, 119, 120, 7_200, 172_800)] == ["0 s", "119 s", "2 min", "2 h", "2 d"]
