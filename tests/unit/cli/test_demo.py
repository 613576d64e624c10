"""The demonstration without its processes: the values of its picture, its proof, its screen."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from kalda.cli.demo.picture import chart_of, save_page
from kalda.cli.demo.proof import Found, found_in, holds
from kalda.cli.demo.recording import Mark, Recording, Sample, count_at, rate_of
from kalda.cli.demo.scene import Scene
from kalda.cli.demo.screen import numbers, picture_of
from kalda.cli.demo.shop import PRICES, orders

KILLED_AT, TAKEN_AT, END = 10.0, 16.0, 20.0


def recorded() -> Recording:
    """Twenty seconds at 1,000 orders a second; ada is killed at 10 s, ben takes over at 16 s."""
    moments = [number / 5 for number in range(int(END) * 5 + 1)]
    recording = Recording(zero=86_390.0)  # ten seconds before midnight, UTC
    recording.made = [(at, int(1_000 * at)) for at in moments]
    recording.read["ada"] = [(at, int(500 * at)) for at in moments if at <= KILLED_AT]
    recording.read["ben"] = [(at, int(500 * at + 1_500 * max(0.0, at - TAKEN_AT))) for at in moments]
    for name, at in (("node 1", 0.0), ("ada", 0.0), ("ben", 1.0)):
        recording.on_start(name, at)
    recording.on_kill("ada", KILLED_AT)
    recording.samples = [Sample(1.0, 900, 1_000), Sample(15.0, 12_500, 15_000), Sample(END, 19_000, 20_000)]
    recording.marks = [Mark(KILLED_AT, "member", "ada was killed"), Mark(TAKEN_AT, "member", "ben took over <all>")]
    recording.windows = {
        "23:59:50 books": {"orders": 3_000, "cents": 9_000_00},
        "00:00:00 books": {"orders": 2_000, "cents": 6_000_00},
        "00:00:00 garden": {"orders": 500, "cents": 9_99},
    }
    return recording


def test_counts_are_known_between_reports() -> None:
    counts = [(1.0, 10), (2.0, 30)]
    assert [count_at(counts, at) for at in (0.5, 1.0, 1.5, 2.0, 9.0)] == [0, 10, 20, 30, 30]
    assert rate_of(counts, 2.0, span=1.0) == 20
    assert rate_of([], 2.0) == 0


def test_the_chart_has_the_rates_of_each_member_and_who_ran() -> None:
    chart = chart_of(recorded())
    at = {time: place for place, time in enumerate(chart.times)}
    assert chart.times[-1] == chart.end == END + 2
    assert chart.made[at[5.0]] == pytest.approx(1_000)
    assert [chart.billed[name][at[5.0]] for name in ("ada", "ben")] == pytest.approx([500, 500])
    assert [chart.billed[name][at[14.0]] for name in ("ada", "ben")] == pytest.approx([0, 500])
    assert chart.billed["ben"][at[18.0]] == pytest.approx(2_000)
    assert chart.lag == [(1.0, 100), (15.0, 2_500), (END, 1_000)]
    assert chart.runs == {"node 1": [(0.0, END + 2)], "ada": [(0.0, KILLED_AT)], "ben": [(1.0, END + 2)]}


def test_windows_stand_at_their_seconds_over_midnight_too() -> None:
    assert chart_of(recorded()).windows == {"books": [(0.0, 3_000), (10.0, 2_000)], "garden": [(10.0, 500)]}


def test_the_page_holds_all_values_and_loads_nothing(tmp_path: Path) -> None:
    chart = chart_of(recorded())
    save_page(tmp_path / "chart.html", "A <run>", chart, [Found("in topic orders", 20_000, 5_00, 0, 0)])
    page = (tmp_path / "chart.html").read_text(encoding="utf-8")
    data = re.search(r"const data = (\{.*\});", page)
    assert data is not None
    assert json.loads(data[1]) == {**json.loads(json.dumps(chart.as_json())), "window": 5}
    assert "<title>A &lt;run&gt;</title>" in page
    assert "<all>" not in page
    assert not re.search(r"\{\{|(?:src|href)=|url\((?!#)|@import|fetch\(", page)


def test_orders_are_numbered_and_cost_what_their_kind_costs() -> None:
    made = [order for _, order in zip(range(1_000), orders(seed=1), strict=False)]
    assert [order["number"] for order in made] == list(range(1, 1_001))
    assert all(PRICES[order["kind"]][0] <= order["cents"] <= PRICES[order["kind"]][1] for order in made)
    assert {order["kind"] for order in made} == set(PRICES)


def test_the_proof_sees_what_is_lost_and_what_is_twice() -> None:
    made = Found("made", 4, 40)
    assert found_in("topic", {1: 1, 2: 1, 3: 1, 4: 1}, 4, 40, made=4) == Found("topic", 4, 40, lost=0, twice=0)
    swapped = found_in("topic", {1: 2, 2: 1, 4: 1}, 4, 40, made=4)
    assert (swapped.lost, swapped.twice) == (1, 1)
    assert holds([made, Found("topic", 4, 40, 0, 0), Found("windows", 4, 40)])
    assert not holds([made, swapped])
    assert not holds([made, Found("windows", 4, 41)])
    assert not holds([made, Found("windows", 3, 40)])
    assert not holds([Found("made", 0, 0)])


def test_one_screen_fits_80_columns_and_24_lines(tmp_path: Path) -> None:
    scene = Scene(tmp_path, rate=1_000)
    scene.recording = recorded()
    scene.recording.marks *= 10
    scene.recording.leaders = dict.fromkeys(range(6), 1)
    scene.recording.in_sync = {1: 6, 2: 6}
    scene.spark = object()  # type: ignore[assignment]
    console = Console(width=80, height=24, force_terminal=True, color_system=None, record=True, file=None)
    step = (3, 9, "ada is killed with kill -9", "word " * 60)
    with console.capture() as captured:
        console.print(picture_of(scene, step, 18.0, "waiting for Spark: Java starts, 20 s so far", True))
    lines = captured.get().splitlines()
    assert len(lines) <= 24, captured.get()
    assert max(map(len, lines)) <= 80, captured.get()
    shown = " ".join(captured.get().split())
    for part in ("orders made 20,000", "orders billed 19,000", "lag (not billed) 1,000", "0 1 2 3 4 5", "6 of 6"):
        assert part in shown


def test_the_line_of_numbers_is_of_one_sample() -> None:
    assert numbers(recorded(), 18.4) == "made 20,000 (1,000/s), billed 19,000 (2,000/s), lag 1,000, in windows 5,500"
