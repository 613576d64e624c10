"""The end of a broker's start: clients are served when this node lists the broker too."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from kalda.base.pending import Pending
from kalda.broker.modules.broker_side import BrokerSide


def test_a_broker_serves_only_when_its_own_metadata_lists_it() -> None:
    async def scenario() -> None:
        settled: Pending[None] = Pending()
        settled.complete(None)
        listed: Pending[None] = Pending()
        side: Any = BrokerSide.__new__(BrokerSide)
        side._quorum, side._load_jobs, side._config = Mock(), [], SimpleNamespace(node_id=1)
        side.logs, side.services = Mock(__len__=lambda _: 0, __iter__=lambda _: iter(()), unreadable={}), Mock()
        side.services.publishers.return_value = []
        side.lifecycle = Mock(
            milestones=SimpleNamespace(registered=settled, caught_up=settled, unfenced=settled, may_shut_down=settled)
        )
        side._cache = Mock(unfenced={1: listed}.__getitem__)

        async def accept() -> None:
            pass

        start = asyncio.ensure_future(side.start(accept))
        for _ in range(20):
            await asyncio.sleep(0)
        side.lifecycle.set_ready_to_unfence.assert_called_once()
        assert not start.done()
        listed.complete(None)
        async with asyncio.timeout(30):
            await start

    asyncio.run(scenario())
