"""The end of a broker's start: clients are served when this node lists the broker too."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

from kalda.base.scheduling import Pending
from kalda.broker.process.broker_side import BrokerSide


def test_a_broker_serves_only_when_its_own_metadata_lists_it() -> None:
    async def scenario() -> None:
        settled: Pending[None] = Pending()
        settled.complete(None)
        listed: Pending[None] = Pending()
        side: Any = BrokerSide.__new__(BrokerSide)
        side._parts = Mock(config=SimpleNamespace(node_id=1, broker_listeners=[SimpleNamespace(listener="CLIENTS")]))
        side._quorum, side._load_jobs, side._listeners = Mock(), [], Mock(accept_clients=AsyncMock())
        side.logs, side.services = Mock(__len__=lambda _: 0, __iter__=lambda _: iter(()), unreadable={}), Mock()
        side.services.cache.unfenced = {1: listed}.__getitem__
        side.lifecycle = Mock(
            milestones=SimpleNamespace(registered=settled, caught_up=settled, unfenced=settled, may_shut_down=settled)
        )
        start = asyncio.ensure_future(side.start())
        for _ in range(20):
            await asyncio.sleep(0)
        side.lifecycle.set_ready_to_unfence.assert_called_once()
        side._listeners.accept_clients.assert_awaited_once()
        side._listeners.open.assert_not_called()
        listed.complete(None)
        async with asyncio.timeout(30):
            await start
        side._listeners.open.assert_called_once()

    asyncio.run(scenario())
