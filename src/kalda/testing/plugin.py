"""pytest fixtures: `kalda_cluster`, one node for the whole session, and `kalda_cluster_factory`, which makes others.

The entry point `pytest11` loads them wherever Kalda is installed. The modules of a cluster are imported only when a
test uses one.
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
    """A cluster of one node that all tests of the session share: use topic names that no other test uses."""
    from kalda.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def kalda_cluster_factory() -> Iterator[Callable[..., Cluster]]:
    """Makes and starts clusters, with the arguments of `Cluster`; they are stopped after the test."""
    from kalda.testing.cluster import Cluster

    with ExitStack() as clusters:

        def make(*args: Any, **kwargs: Any) -> Cluster:
            return clusters.enter_context(Cluster(*args, **kwargs))

        yield make
