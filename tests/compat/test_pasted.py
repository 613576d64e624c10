"""README and the manual, block by block as a reader pastes them. What needs Spark is in `tests/spark`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pasted_pages import PAGES, blocks_of, run_page

from kalda import Producer
from kalda.testing import Cluster

pytestmark = pytest.mark.compat
RUN = [page for page in PAGES if page.stem == "README" or not any(block.needs_spark for block in blocks_of(page))]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """What a page takes for granted that starts no node: one with ten orders."""
    with Cluster() as running:
        for topic in ("orders", "payments", "avro-orders"):
            running.create_topic(topic)
        with Producer(bootstrap_servers=running.bootstrap_servers) as producer:
            for number in range(10):
                producer.send("orders", key=b"alice", value=b'{"total": %d}' % number)
        yield running


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, cluster: Cluster, tmp_path: Path) -> None:
    run_page(page, tmp_path, cluster.bootstrap_servers, lambda block: not block.needs_spark)
