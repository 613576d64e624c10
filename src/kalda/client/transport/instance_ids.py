"""`client_instance_id()` of all clients: the id that the cluster has given to a client for its telemetry (KIP-714)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from kalda.base.errors import WrongState
from kalda.base.ids import Uuid
from kalda.clientcore.connections.own_metrics import OwnMetrics


def _required(own: OwnMetrics | None, timeout: float) -> OwnMetrics:
    if own is None:
        raise WrongState("Telemetry is not enabled. Set config `enable.metrics.push` to `true`.")
    if timeout < 0:
        raise ValueError(f"The timeout cannot be negative: it is {timeout}")
    return own


def wait_for_id(own: OwnMetrics | None, wake: Callable[[], None], timeout: float) -> Uuid | None:
    """The id; None where it is not known after `timeout` seconds. `wake()` makes the client's thread go on. Raises
    `WrongState` where the client pushes no metrics, and `ValueError` for a negative timeout."""
    own = _required(own, timeout)
    known = threading.Event()
    own.call_with_id(known.set)
    wake()
    known.wait(timeout)
    return own.instance_id


async def await_id(own: OwnMetrics | None, wake: Callable[[], None], timeout: float) -> Uuid | None:
    """As `wait_for_id`, on the client's loop."""
    own = _required(own, timeout)
    known = asyncio.Event()
    own.call_with_id(known.set)
    wake()
    try:
        async with asyncio.timeout(timeout):
            await known.wait()
    except TimeoutError:
        pass
    return own.instance_id
