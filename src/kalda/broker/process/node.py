"""A node: one process of a cluster, broker or controller or both.

`Node(config)` reads nothing and opens nothing. `kalda.broker.process.running_node` has the order of the start,
`kalda.broker.process.closing` that of the stop.

A start that fails raises `StartError` with what to do about it; `stop` then closes what was opened.

Not obvious:

- `Listener.handler` changes when the gate opens: a connection keeps the handler it was made with.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from kalda.base.configs.server import ServerConfig
from kalda.base.errors import ApiError
from kalda.base.sensors import Sensors
from kalda.broker.channels.lifecycle import BrokerLifecycle
from kalda.broker.process.closing import Closing, Ending
from kalda.broker.process.logs import started_ms_ago
from kalda.broker.process.node_parts import Surroundings
from kalda.broker.process.running_node import RunningNode, start_node
from kalda.broker.process.shell import Host, wait_settled
from kalda.metadata.image import MetadataImage
from kalda.metadata.meta_properties import MetaPropertiesError

if TYPE_CHECKING:
    from kalda.broker.quorum.raft_driver import RaftDriver
    from kalda.replication.replica_manager import ReplicaManager
    from kalda.storage.dirs.log_manager import LogManager

log = logging.getLogger("kalda.node")

_NO_TIMEOUT_MS = 2**53
"""From this `server.max.startup.time.ms` on, a start has no time limit; the default of the key is the largest long."""


class StartError(Exception):
    """The node cannot start. The message says why, and what to do."""


class Node:
    """One process of a cluster: broker, controller, or both."""

    def __init__(self, config: ServerConfig, host: Host | None = None) -> None:
        """`host` is the machine that the node runs on; None for the real one."""
        self.config = config
        self.failed = False
        """Whether `on_fatal` was called. A node that failed does not hand over leaderships when it stops."""
        self.on_fatal: Callable[[str], object] = lambda why: None
        """Called once, with the reason, when the node cannot go on: the caller should stop it."""
        self.sensors = Sensors()
        """What the floors of this node count."""
        self._host = host if host is not None else Host()
        self._closing = Closing()
        self._resources = ExitStack()
        self._resources.callback(self._host.close)
        self.running: RunningNode | None = None
        """The parts of this node; None until it takes part in the quorum."""
        self._stopping = False
        """Whether the part of the stop that cannot be interrupted has begun."""
        self._skips_handover = False
        """Whether a stop does not wait until leaderships have moved."""
        self._handing_over: BrokerLifecycle | None = None
        """While a stop waits for that."""

    def port(self, listener: str) -> int:
        """The port that a listener is bound to."""
        return self._started.listeners.ports[listener]

    @property
    def image(self) -> MetadataImage:
        """The newest metadata image of this node."""
        return self._started.quorum.loader.image

    @property
    def raft(self) -> RaftDriver:
        """This node's replica of the metadata log."""
        return self._started.quorum.raft

    @property
    def replicas(self) -> ReplicaManager | None:
        """This broker's partitions; None without the broker role, and before the start."""
        broker = None if self.running is None else self.running.broker
        return None if broker is None else broker.services.replicas

    @property
    def logs(self) -> LogManager | None:
        """This broker's logs; None as with `replicas`."""
        broker = None if self.running is None else self.running.broker
        return None if broker is None else broker.logs

    @property
    def _started(self) -> RunningNode:
        assert self.running is not None, "the node has not been started"
        return self.running

    # -- start

    async def start(self) -> None:
        """Return when clients are served. Raises `StartError`.

        Without `server.max.startup.time.ms` there is no time limit: after a loss of power all logs are read, and a node
        that gave up would have to read them again.
        """
        limit_ms = self.config["server.max.startup.time.ms"]
        try:
            async with asyncio.timeout(None if limit_ms > _NO_TIMEOUT_MS else limit_ms / 1000):
                await self._start()
        except (MetaPropertiesError, ValueError) as error:
            raise StartError(str(error)) from error
        except TimeoutError:
            raise StartError(f"the node did not come up within {limit_ms} ms; see the lines above") from None
        except OSError as error:
            raise StartError(f"{error.filename or 'the node'}: {error.strerror or error}") from error
        except ApiError as error:
            raise StartError(error.message or error.code.name) from error  # the metadata log's disk
        except Exception as error:
            log.exception("the start failed")
            raise StartError(f"the node cannot start, by an error that was not foreseen: {error!r}") from error

    async def _start(self) -> None:
        given = Surroundings(self.config, self._host, self.sensors, self._closing, self._resources, self._fatal)
        self.running = await start_node(given)
        await self.running.serve()
        # Test suites of other clients wait for exactly this line.
        log.info("[KafkaRaftServer nodeId=%d] Kafka Server started", self.config.node_id)
        cluster_id = self.running.parts.cluster_id
        log.info("node %d of cluster %s serves after %d ms", self.config.node_id, cluster_id, started_ms_ago())

    def _fatal(self, why: str) -> None:
        if not self.failed and not self._stopping:
            self.failed = True
            log.critical("node %d stops: %s", self.config.node_id, why)
            self.skip_handover()
            self.on_fatal(why)

    # -- stop

    async def stop(self, *, clean: bool = True) -> None:
        """Hand leaderships over, finish the requests under way, close. Does nothing when called again, and closes what
        a failed start has opened.

        With `clean` false nothing is handed over and nothing is flushed, and no marker of a clean stop is written.
        """
        if self._stopping:
            return
        log.info("node %d is stopping", self.config.node_id)
        broker = None if self.running is None else self.running.broker
        if clean and broker is not None and not self.failed and self.config["controlled.shutdown.enable"]:
            await self._hand_over(broker.lifecycle)
        self._stopping = True
        with self._resources:
            await self._closing.run(Ending(clean, self.failed))
        log.info("node %d has stopped", self.config.node_id)

    def skip_handover(self) -> None:
        """A `stop` under way, or a later one, does not wait until leaderships have moved. Logs are closed as ever."""
        self._skips_handover = True
        if self._handing_over is not None:
            self._handing_over.close()

    async def _hand_over(self, lifecycle: BrokerLifecycle) -> None:
        """Have the controller move this broker's leaderships away. The lifecycle limits how long that may take."""
        lifecycle.begin_controlled_shutdown()
        if not self._skips_handover:
            self._handing_over = lifecycle
            await wait_settled(lifecycle.milestones.may_shut_down)
            self._handing_over = None
