"""Kalda: Apache Kafka rebuilt in Python.

    from kalda import Producer, Consumer, Admin     # blocking clients, for Kalda and for Apache Kafka
    from kalda.aio import Producer, Consumer, Admin     # the same for asyncio
    from kalda.registry import Registry     # serializers of a schema registry
    from kalda.testing import Cluster     # real nodes in this process, for tests
    from kalda.spark import session     # topics in Spark

Nodes and tools are run by the command `kalda`. Everything else is internal: its packages, the floors, are listed from
the ground up in ARCHITECTURE.md; imports go down only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kalda.client.admin_client import Admin as Admin
    from kalda.client.consumer import Consumer as Consumer
    from kalda.client.producer import Producer as Producer

__version__ = "0.1.0"

_PUBLIC = {
    "Admin": "kalda.client.admin_client",
    "Consumer": "kalda.client.consumer",
    "Producer": "kalda.client.producer",
}


def __getattr__(name: str) -> object:
    """The public classes, imported at their first use: `import kalda` itself costs nothing."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kalda' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found
