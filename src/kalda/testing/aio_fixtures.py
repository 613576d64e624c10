"""The asyncio fixtures, for tests that run under pytest-asyncio or anyio: clients of `kalda_cluster`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kalda.client.admin.aio_admin import Admin
    from kalda.client.consumer.aio_consumer import Consumer
    from kalda.client.producer.aio_producer import Producer
    from kalda.testing.cluster import Cluster


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
