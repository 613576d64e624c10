"""pytest fixtures: `kalda_cluster`, one cluster for the whole session, `kalda_topic`, a new topic of it for each test,
`kalda_cluster_factory`, which makes other clusters, and `kalda_schema_registry`. Under pytest-asyncio or anyio there
are clients for asyncio too: `kalda_aio_producer`, `kalda_aio_consumer`, `kalda_aio_admin`.

The entry point `pytest11` loads this wherever Kalda is installed, in every run of pytest. So it imports pytest alone;
nothing of a node or of a client is imported before a fixture is used.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from logging import LogRecord

    from kalda.client.admin.aio_admin import Admin
    from kalda.client.consumer.aio_consumer import Consumer
    from kalda.client.producer.aio_producer import Producer
    from kalda.testing.cluster import Cluster
    from kalda.testing.schema_registry import SchemaRegistry

_NODE_THREADS = ("kalda-cluster", "kalda-job", "kalda-watchdog", "tls-handshakes", "oauth-keys", "client-metrics-")
"""How the names of a node's threads begin. Clients log on other threads."""


class _NodeLogs:
    """The filter of what pytest captures: without the logs of nodes, unless they were asked for."""

    def __init__(self, is_kept: bool) -> None:
        self.is_kept = is_kept

    def __call__(self, record: LogRecord) -> bool:
        is_of_node = record.name.startswith("kalda.") and str(record.threadName).startswith(_NODE_THREADS)
        return self.is_kept or not is_of_node


_NODE_LOGS = pytest.StashKey[_NodeLogs]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `pytest.ini` and its like."""
    parser.addini("kalda_nodes", "the number of nodes of kalda_cluster", default="1")
    parser.addini("kalda_config", "properties of the nodes of kalda_cluster, a line each: name=value", type="linelist")
    parser.addini("kalda_node_logs", "capture what the nodes of test clusters log", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Offer the asyncio fixtures where a plugin that runs them is loaded."""
    runner = sys.modules.get("pytest_asyncio")
    if runner is not None or "anyio.pytest_plugin" in sys.modules:
        config.pluginmanager.register(fixtures_by(pytest.fixture if runner is None else runner.fixture), "kalda-aio")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Keep the logs of nodes out of `caplog` and of the report of a failure."""
    config = session.config
    config.stash[_NODE_LOGS] = _NodeLogs(bool(config.getini("kalda_node_logs")))
    capture = config.pluginmanager.get_plugin("logging-plugin")
    if capture is not None:
        for handler in (capture.caplog_handler, capture.report_handler):
            handler.addFilter(config.stash[_NODE_LOGS])


@pytest.fixture
def kalda_node_logs(pytestconfig: pytest.Config) -> Iterator[None]:
    """The logs of nodes are captured in this test, by `caplog` too."""
    logs = pytestconfig.stash[_NODE_LOGS]
    before, logs.is_kept = logs.is_kept, True
    yield
    logs.is_kept = before


@pytest.fixture(scope="session")
def kalda_cluster_options(pytestconfig: pytest.Config) -> Mapping[str, Any]:
    """The arguments of `Cluster` for `kalda_cluster`: by default those of the options `kalda_nodes` and `kalda_config`.
    A `conftest.py` may have its own fixture of this name."""
    nodes = pytestconfig.getini("kalda_nodes")
    if not str(nodes).isdecimal() or int(nodes) < 1:
        raise pytest.UsageError(f"kalda_nodes = {nodes}: a number of nodes from 1 on is expected")
    config = {}
    for line in pytestconfig.getini("kalda_config"):
        name, equals, value = line.partition("=")
        if not equals:
            raise pytest.UsageError(f"kalda_config: {line!r}: name=value is expected")
        config[name.strip()] = value.strip()
    return {"nodes": int(nodes), "config": config}


@pytest.fixture(scope="session")
def kalda_cluster(kalda_cluster_options: Mapping[str, Any]) -> Iterator[Cluster]:
    """A cluster that all tests of the session share: one node, unless `kalda_cluster_options` has more. `kalda_topic`
    is a topic that no other test uses."""
    from kalda.testing.cluster import Cluster

    with Cluster(**kalda_cluster_options) as cluster:
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


@pytest.fixture(scope="session")
def kalda_schema_registry() -> Iterator[SchemaRegistry]:
    """A schema registry in memory that all tests of the session share; clients take its `url`."""
    from kalda.testing.schema_registry import SchemaRegistry

    with SchemaRegistry() as registry:
        yield registry


async def kalda_aio_producer(kalda_cluster: Cluster) -> AsyncIterator[Producer]:
    """An asyncio producer of `kalda_cluster`, closed after the test."""
    from kalda.client.producer.aio_producer import Producer

    async with Producer(kalda_cluster.client_config()) as producer:
        yield producer


async def kalda_aio_consumer(kalda_cluster: Cluster, kalda_topic: str) -> AsyncIterator[Consumer]:
    """An asyncio consumer that reads `kalda_topic` from its beginning, closed after the test."""
    from kalda.client.consumer.aio_consumer import Consumer

    config = {**kalda_cluster.client_config(), "group.id": f"{kalda_topic}-readers", "auto.offset.reset": "earliest"}
    async with Consumer(config) as consumer:
        consumer.subscribe([kalda_topic])
        yield consumer


async def kalda_aio_admin(kalda_cluster: Cluster) -> AsyncIterator[Admin]:
    """An asyncio admin client of `kalda_cluster`, closed after the test."""
    from kalda.client.admin.aio_admin import Admin

    async with Admin(kalda_cluster.client_config()) as admin:
        yield admin


def fixtures_by(fixture: Callable[..., Any]) -> ModuleType:
    """A plugin with the fixtures. `fixture` is the decorator of the plugin that runs asyncio tests. It is a module,
    whose functions pytest takes as they are: it warns of static methods of a class."""
    plugin = ModuleType("kalda-aio")
    for each in (kalda_aio_producer, kalda_aio_consumer, kalda_aio_admin):
        setattr(plugin, each.__name__, fixture(each))
    return plugin
