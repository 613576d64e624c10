"""pytest fixtures: `kalda_cluster`, one node for the whole session, and `kalda_cluster_factory` for a test's own.

Loaded by the entry point `pytest11`, so whoever has Kalda installed has them. Nothing of a cluster is imported before
a test asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kalda.testing.cluster import Cluster


@pytest.fixture(scope="session")
def kalda_cluster() -> Iterator[Cluster]:
    """A cluster of one node that all tests of the session share: give topics names of their own."""
    from kalda.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def kalda_cluster_factory() -> Iterator[Callable[..., Cluster]]:
    """Makes clusters, with the arguments of `Cluster`; they are started, and stopped after the test."""
    from kalda.testing.cluster import Cluster

    with ExitStack() as clusters:

        def make(*args: Any, **kwargs: Any) -> Cluster:
            return clusters.enter_context(Cluster(*args, **kwargs))

        yield make
