"""Several log directories of a node: it continues when one fails, and the checkers find misplaced replicas."""

from __future__ import annotations

import errno

from kalda.sim.admin import judge, misplaced
from kalda.sim.checks import ClusterObserver
from kalda.sim.client import SimClient
from kalda.sim.cluster import SimCluster
from kalda.sim.workload import Administrator
from kalda.sim.world import World

_DIRS = {"log.dirs": "/data/0,/data/1", "metadata.log.dir": "/metadata"}
_LIMIT_S = 60


def test_a_directory_fails_at_one_start_and_works_at_the_next() -> None:
    with World("away") as world:
        cluster = SimCluster(world, 1, _DIRS)
        node = cluster.nodes[1]
        observer = ClusterObserver(cluster)

        async def restart() -> None:
            node.kill()
            node.start()
            await cluster.wait(lambda: node.serving, "it serves", _LIMIT_S)

        async def main() -> None:
            await cluster.start()
            client = SimClient(world, "admin", cluster.bootstrap)
            admin = Administrator(client, 1, churning=False)
            await client.spawn(admin.create("t", 4, keep=True))
            await cluster.wait(observer.settled, lambda: observer.unsettled, _LIMIT_S)
            node.machine.disk.fail("/data/1", errno.EIO)
            await restart()
            image = cluster.image()
            assert image is not None
            assert [reason for reason in misplaced(node, image) if "offline" in reason]
            leaders = [partition.leader for partition in image.topics.by_name["t"].partitions.values()]
            assert sorted(leaders) == [-1, -1, 1, 1]
            node.machine.disk.mend("/data/1")
            await restart()
            await cluster.wait(observer.settled, lambda: observer.unsettled, _LIMIT_S)
            image = cluster.image()
            assert image is not None
            assert list(judge(node, image)) == []
            node.machine.disk.make_dirs("/data/1/t-0")
            node.machine.disk.make_dirs("/data/0/t-0")
            node.machine.disk.make_dirs("/data/0/t-9.0000-future")
            assert len(list(judge(node, image))) == 2

        world.run(main(), 300)
