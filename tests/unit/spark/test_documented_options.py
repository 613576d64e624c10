"""The tables of options in the docs, and the options of the code: the same names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kalda.spark import options, segments, sink_options

DOCS = Path(__file__).parents[3] / "docs"


def documented(page: str, head: str) -> set[str]:
    """The names in the first column of the table that begins with `head`, without those of Kafka's clients."""
    table = (DOCS / page).read_text(encoding="utf-8").partition(head)[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    names = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    return {name for name in names if not name.startswith("kafka.")}


def test_each_option_is_in_the_docs() -> None:
    assert documented("spark.md", "| option | default |") == {*options.NAMES, *options.WITHOUT_EFFECT}
    columns = {"value", "key", "headers", "partition", "timestamp"}
    assert documented("spark.md", "| option or column |") == {*sink_options.NAMES, *columns}
    assert documented("pipeline.md", "| option | |") == {*segments.NAMES}
