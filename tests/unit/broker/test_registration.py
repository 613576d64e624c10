"""When a broker registers again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from kalda.base.configs.addresses import CONTROLLER
from kalda.base.ids import uuid_to_text
from kalda.broker.process.disk import RealDisk
from kalda.broker.process.node import Node
from kalda.cli.common.command_admin import CommandAdmin
from kalda.metadata.features import MetadataVersion
from kalda.metadata.formatter import FormatRequest, format_storage
from kalda.metadata.image import MetadataImage
from kalda.raft.voters import VoterEndpoint
from kalda.testing import layout


class Watcher:
    """A publisher that waits until the broker's registration names log directories."""

    name = "test"

    def __init__(self) -> None:
        self.named = asyncio.Event()
        self.directories: tuple[Any, ...] = ()

    def on_metadata_update(self, _delta: object, image: MetadataImage, _manifest: object) -> None:
        self.directories = image.cluster.brokers[1].directories
        if self.directories:
            self.named.set()

    def on_controller_change(self, _leader_id: int | None, _epoch: int) -> None:
        pass


def test_a_broker_registers_its_directories_once_the_metadata_version_supports_them(tmp_path: Path) -> None:
    """A rolling upgrade raises the level after the last restart, so the broker has to register again (KIP-858)."""
    (place,) = places = layout.lay_out([1], tmp_path)
    voters = {"controller.quorum.voters": f"1@{layout.HOST}:{place.controller_port}"}
    config = layout.config_of(place, places, voters)
    request = FormatRequest(
        cluster_id=uuid_to_text(layout.new_id()),
        node_id=1,
        log_dirs=config.log_dirs,
        metadata_log_dir=config.metadata_log_dir,
        is_controller=True,
        controller_endpoint=VoterEndpoint(CONTROLLER, layout.HOST, place.controller_port),
        has_static_voters=True,
        release_version="3.6",
    )
    format_storage(RealDisk(), request, new_id=layout.new_id, entropy=os.urandom, now_ms=1, say=lambda _: None)

    def raise_level() -> None:
        with CommandAdmin(f"{layout.HOST}:{place.port}") as cluster:
            cluster.update_features({"metadata.version": MetadataVersion.IBP_3_7_IV2.value})

    async def scenario() -> None:
        node, watcher = Node(config), Watcher()
        await node.start()
        try:
            node.running.quorum.loader.install_publishers([watcher])
            assert watcher.directories == ()
            await asyncio.to_thread(raise_level)
            await asyncio.wait_for(watcher.named.wait(), 60)
        finally:
            await node.stop()

    asyncio.run(scenario())
