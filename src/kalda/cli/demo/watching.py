"""Threads that ask the cluster as any client would: for the group's lag and the partitions' leaders, and for the table
of windows. They run until they are stopped; an answer that is late, as while a leader is missing, is left out."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from kalda.base.errors import ApiError
from kalda.cli.demo.member import GROUP
from kalda.cli.demo.nodes import PARTITIONS
from kalda.cli.demo.recording import Sample
from kalda.cli.demo.shop import ORDERS
from kalda.cli.demo.windows import SALES
from kalda.clientcore.connections.cluster_values import Topic

_EVERY_S = 0.5
_TIMEOUT_S = 3.0


class Watching:
    """Calls back on its threads: with a sample, with the topic's description, with a row of the windows."""

    def __init__(
        self,
        servers: str,
        on_sample: Callable[[Sample], None],
        on_topic: Callable[[Topic], None],
        on_window: Callable[[str, dict[str, int]], None] | None,
    ) -> None:
        """A sample's time is `time.time()`. Without `on_window` the table of windows is not read."""
        self._servers = servers
        self._on_sample = on_sample
        self._on_topic = on_topic
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._ask, name="lag and leaders", daemon=True)]
        if on_window is not None:
            self._threads.append(threading.Thread(target=self._read, args=(on_window,), name="windows", daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(2 * _TIMEOUT_S)

    def _ask(self) -> None:
        from kalda import Admin, OffsetSpec

        partitions = [(ORDERS, number) for number in range(PARTITIONS)]
        with Admin(bootstrap_servers=self._servers, client_id="watching") as admin:
            while not self._stopped.wait(_EVERY_S):
                try:
                    topic = admin.describe_topics([ORDERS], timeout=_TIMEOUT_S).succeeded[ORDERS]
                    self._on_topic(topic)
                    committed = admin.list_group_offsets(GROUP, partitions, timeout=_TIMEOUT_S).succeeded
                    now = time.time()
                    ends = admin.list_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST), timeout=_TIMEOUT_S)
                    ends.check()
                except (ApiError, KeyError):
                    continue
                read = sum(each.offset for each in committed.values() if each.offset > 0)
                self._on_sample(Sample(now, read, sum(each.offset for each in ends.succeeded.values())))

    def _read(self, on_window: Callable[[str, dict[str, int]], None]) -> None:
        from kalda import Consumer

        with Consumer(
            bootstrap_servers=self._servers, client_id="watching", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([(SALES, 0)])
            consumer.seek_to_beginning((SALES, 0))
            while not self._stopped.is_set():
                for record in consumer.poll(0.3):
                    row = json.loads(record.value or b"{}")
                    on_window(row["slot"], {"orders": row["orders"], "cents": row["cents"]})
