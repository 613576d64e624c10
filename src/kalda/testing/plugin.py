"""pytest fixtures: `kalda_cluster`, one node for the whole session, `kalda_topic`, a new topic of it for each test, and
`kalda_cluster_factory`, which makes other clusters.

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
    """A cluster of one node that all tests of the session share. `kalda_topic` is a topic that no other test uses."""
    from kalda.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def kalda_topic(kalda_cluster: Cluster) -> Iterator[str]:
    """The name of a new topic of `kalda_cluster` with one partition. After the test it is deleted, unless the test has
    deleted it."""
    from kalda.base.errors import ApiError, ErrorCode
    from kalda.base.ids import uuid_to_text
    from kalda.testing.layout import new_id

    name = f"test-{uuid_to_text(new_id())}"
    kalda_cluster.create_topic(name)
    yield name
    try:
        kalda_cluster.delete_topic(name)
    except ApiError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise


@pytest.fixture
def kalda_cluster_factory() -> Iterator[Callable[..., Cluster]]:
    """Makes and starts clusters, with the arguments of `Cluster`; they are stopped after the test."""
    from kalda.testing.cluster import Cluster

    with ExitStack() as clusters:

        def make(*args: Any, **kwargs: Any) -> Cluster:
            return clusters.enter_context(Cluster(*args, **kwargs))

        yield make
