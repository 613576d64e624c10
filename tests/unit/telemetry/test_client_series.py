"""What clients push, as Prometheus reads it."""

from __future__ import annotations

import pytest

from kalda.base.ids import Uuid
from kalda.telemetry import client_metrics
from kalda.telemetry.client_instances import Client
from kalda.telemetry.client_metrics import ClientSeries, to_series
from kalda.telemetry.otlp import DataPoint, MetricKind, Temporality

CLIENT = Client(1, 'c"\n', "sw", "1", "h", 1)
LABELS = 'client_instance_id="AAAAAAAAAAAAAAAAAAAAAQ",client_id="c\\"\\n",client_software="sw"'
ID = Uuid(bytes(15) + b"\x01")


def counter(value: float, temporality: Temporality = Temporality.DELTA) -> DataPoint:
    return DataPoint("a.b.total", MetricKind.SUM, value, 0, temporality=temporality, is_monotonic=True)


def gauge(name: str, value: float = 1.0, **attributes: str) -> DataPoint:
    return DataPoint(name, MetricKind.GAUGE, value, 0, attributes=tuple(attributes.items()))


def text(series: ClientSeries) -> list[str]:
    return [line for line in "".join(series.openmetrics()).splitlines() if not line.startswith("#")]


def test_differences_are_added_up_and_totals_and_gauges_replaced() -> None:
    series = ClientSeries()
    series.take(ID, CLIENT, to_series([counter(2), gauge("g", 5.0, node="1")]))
    series.take(ID, CLIENT, to_series([counter(3), gauge("g", 4.0, node="1")]))
    assert text(series) == [f"a_b_total{{{LABELS}}} 5.0", f'g{{{LABELS},node="1"}} 4.0']
    series.take(ID, CLIENT, to_series([counter(9, Temporality.CUMULATIVE)]))
    assert text(series)[0] == f"a_b_total{{{LABELS}}} 9"
    series.remove(ID)
    series.remove(ID)
    assert text(series) == []
    assert (series._size_bytes, len(series)) == (0, 0)


def test_made_up_names_leave_the_text_readable() -> None:
    series = ClientSeries()
    series.take(ID, CLIENT, to_series([gauge("", 1.0), gauge("9\n x", 2.0, client_id="forged", __name__="n")]))
    assert text(series) == [f"unnamed{{{LABELS}}} 1.0", f'_9__x{{{LABELS},_client_id="forged",name="n"}} 2.0']
    series.take(
        Uuid(bytes(15) + b"\x02"), CLIENT, to_series([DataPoint("unnamed", MetricKind.SUM, 3, 0, is_monotonic=True)])
    )
    assert len(text(series)) == 2, "one family is not a gauge and a counter"


def test_series_are_bounded_for_a_client_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_metrics, "MAX_CLIENT_BYTES", 4_000)
    monkeypatch.setattr(client_metrics, "MAX_BYTES", 10_000)
    series = ClientSeries()
    for number in range(10):
        series.take(Uuid(number.to_bytes(16, "big")), CLIENT, to_series([gauge(f"g{each}") for each in range(100)]))
        assert series._size_bytes <= 10_000
    assert [each[-1] for each in series._clients] == [8, 9]
    assert series.left_out > 800
    assert len(to_series([gauge(f"g{each}", a="x" * 96) for each in range(100)])) < 4_000 / 100, "texts are not made"


def test_what_is_not_finite_leaves_the_last_value() -> None:
    series = ClientSeries()
    for value in (1e308, 1e308, float("inf"), float("nan"), -1e308, 2**63):
        series.take(ID, CLIENT, to_series([counter(value)]))
    assert text(series) == [f"a_b_total{{{LABELS}}} {float(2**63)!r}"]
