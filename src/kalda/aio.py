"""The asyncio clients: `from kalda.aio import Producer`. Each is imported at its first use."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kalda.client.admin.aio_admin import Admin as Admin
    from kalda.client.consumer.aio_consumer import Consumer as Consumer
    from kalda.client.producer.aio_producer import Producer as Producer

_PUBLIC = {
    "Admin": "kalda.client.admin.aio_admin",
    "Consumer": "kalda.client.consumer.aio_consumer",
    "Producer": "kalda.client.producer.aio_producer",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kalda.aio' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
