"""The pages of the manual that need Spark, whole, block by block as a reader pastes them.

Each command of theirs starts Spark, so they take minutes: `KALDA_PASTED=all` runs them. What they show is tested beside
the sources, sinks and pipelines too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pasted_pages import PAGES, blocks_of, run_page

from kalda.testing import Cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(os.environ.get("KALDA_PASTED") != "all", reason="takes minutes: set KALDA_PASTED=all"),
]
WITH_SPARK = [page for page in PAGES if any(block.needs_spark for block in blocks_of(page))]


@pytest.mark.parametrize("page", WITH_SPARK, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    with Cluster() as cluster:  # of the pages that start none
        run_page(page, tmp_path, cluster.bootstrap_servers, lambda _: True)
