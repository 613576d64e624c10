"""The asyncio clients: `from kalda.aio import Producer`. Each is imported at its first use."""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from kalda.client.admin.aio_admin import Admin
    from kalda.client.consumer.aio_consumer import Consumer
    from kalda.client.consumer.aio_share_consumer import ShareConsumer
    from kalda.client.producer.aio_producer import Producer

__all__ = ["Admin", "Consumer", "Producer", "ShareConsumer"]

_PUBLIC = {
    "Admin": "kalda.client.admin.aio_admin",
    "Consumer": "kalda.client.consumer.aio_consumer",
    "Producer": "kalda.client.producer.aio_producer",
    "ShareConsumer": "kalda.client.consumer.aio_share_consumer",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kalda.aio' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
