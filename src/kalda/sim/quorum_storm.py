"""Seeded faults in quorums of three and five machines: storms, and stale leaders.

A storm has delays, losses, repetitions, links that fail in both directions or in one, slow links and disks, pauses,
kills, crashes that lose what was not synced, snapshots, damaged ones among them, and changes of the voters. Stale
leaders lead an epoch without having received the newer one. The quorum checks Raft's promises after every step; in the
end all faults are removed, all nodes must agree, and a write must go through.

A seed costs a thousandth of one with whole nodes, so rare interleavings of elections are looked for here.
"""

from __future__ import annotations

import random

from kalda.raft import rpc
from kalda.sim.quorum import CLUSTER, SimQuorum, endpoint_of, key_of


def storm(seed: int, steps: int = 60) -> SimQuorum:
    """A quorum after `steps` faults or writes. Raises `AssertionError` where a promise is broken."""
    rng = random.Random(seed)
    size = rng.choice((3, 3, 5))
    dynamic = rng.random() < 0.7
    voters = tuple(range(1, size + 1))
    joiners = (size + 1,) if dynamic and rng.random() < 0.5 else ()
    cluster = SimQuorum(voters, observers=(9,), joiners=joiners, dynamic=dynamic, seed=seed)
    cluster.delay = rng.choice(((1, 5), (1, 50), (1, 300)))
    cluster.flush_delay = rng.choice(((1, 5), (5, 100)))
    cluster.refusal_rate = rng.choice((0.0, 0.5, 1.0))
    cluster.damage_rate = random.Random(~seed).choice((0.0, 0.0, 0.7))
    cluster.start()
    written = 0
    for _ in range(steps):
        roll = rng.random()
        ids = list(cluster.nodes)
        if roll < 0.45:
            for _ in range(rng.randint(1, 5)):
                leader = cluster.leader
                if leader is not None:
                    cluster.append(*(f"{seed}.{written + at}" for at in range(rng.randint(1, 3))))
                    written += 3
        elif roll < 0.6:
            victim = rng.choice(ids)
            if rng.random() < 0.4:
                written += lose_power(cluster, rng, f"{seed}.{written}")
            elif cluster.nodes[victim].up:
                cluster.crash(victim, lose_unflushed=rng.random() < 0.7)
        elif roll < 0.75:
            for node_id in ids:
                if not cluster.nodes[node_id].up and rng.random() < 0.7:
                    cluster.start(node_id)
        elif roll < 0.8:
            side = set(rng.sample(ids, rng.randint(1, len(ids) - 1)))
            cluster.cut = {frozenset((a, b)) for a in side for b in ids if b not in side}
        elif roll < 0.84:
            add_fault(cluster, rng)
        elif roll < 0.93:
            remove_faults(cluster)
            cluster.loss_rate = rng.choice((0.0, 0.05, 0.3))
            cluster.repeat_rate = rng.choice((0.0, 0.0, 0.2))
        else:
            change_state(cluster, rng)
        cluster.run(rng.choice((5, 50, 400, 1500)))
        cluster.check_logs_match()
    return cluster


def stale_leaders(seed: int, rounds: int = 6) -> SimQuorum:
    """A quorum in which `rounds` leaders wrote after another one was elected. Raises as `storm` does."""
    rng = random.Random(seed)
    size = rng.choice((3, 3, 5))
    cluster = SimQuorum(tuple(range(1, size + 1)), observers=(9,), dynamic=rng.random() < 0.7, seed=seed)
    cluster.flush_delay = rng.choice(((1, 5), (5, 100)))
    cluster.start()
    cluster.run(5_000)
    for at in range(rounds):
        cluster.delay = rng.choice(((1, 5), (1, 50)))
        add_stale_leader(cluster, rng, f"{seed}.{at}")
        cluster.check_logs_match()
        remove_faults(cluster)
        cluster.run(rng.choice((50, 1_500, 4_000)))
        cluster.check_logs_match()
    return cluster


def add_stale_leader(cluster: SimQuorum, rng: random.Random, value: str) -> None:
    """The leader is cut off, writes, and is paused until another one is elected. Then both reach all nodes but each
    other, and both write: nodes can tell the two apart by their epochs only."""
    old = cluster.leader
    if old is None:
        return
    cluster.cut = {frozenset((old.id, other)) for other in cluster.nodes if other != old.id}
    cluster.append(f"{value}.alone", by=old)
    cluster.pause(old.id)
    until = cluster.now + 3_500
    while cluster.leader is old and cluster.now < until:
        cluster.run(100)
    new = cluster.leader
    if new is None or new is old:
        return
    cluster.slow_nodes[new.id] = (50, 200)
    cluster.cut = {frozenset((old.id, new.id))}
    cluster.wake(old.id)
    for turn in range(rng.randint(1, 4)):
        cluster.append(f"{value}.{turn}.old", by=old)
        cluster.append(f"{value}.{turn}.new", by=new)
        cluster.run(rng.choice((50, 400)))


def lose_power(cluster: SimQuorum, rng: random.Random, value: str) -> int:
    """All nodes lose their power, and what they have not flushed, during a write. How many records were written."""
    leader = cluster.leader
    if leader is not None:
        cluster.append(value)
        cluster.run(rng.randint(2, 20))
    for node in cluster.nodes.values():
        if node.up:
            cluster.crash(node.id)
    return 1 if leader is not None else 0


def add_fault(cluster: SimQuorum, rng: random.Random) -> None:
    """A fault that lasts and does not stop the node."""
    ids = list(cluster.nodes)
    node_id = rng.choice(ids)
    match rng.randrange(5):
        case 0:
            cluster.pause(node_id)
        case 1:
            others = rng.sample(ids, rng.randint(1, len(ids)))
            away = rng.random() < 0.5
            cluster.cut_one_way |= {(node_id, other) if away else (other, node_id) for other in others}
        case 2:
            cluster.slow_nodes[node_id] = rng.choice(((50, 200), (100, 2_000)))
        case 3:
            cluster.firewalls |= {(node_id, other) for other in rng.sample(ids, rng.randint(1, len(ids)))}
        case _:
            cluster.nodes[node_id].flush_delay = rng.choice(((20, 500), (500, 3_000)))


def remove_faults(cluster: SimQuorum) -> None:
    """End all faults that last. Nodes that are down stay down."""
    cluster.cut, cluster.cut_one_way = set(), set()
    cluster.loss_rate = cluster.repeat_rate = 0.0
    cluster.firewalls = set()
    cluster.slow_nodes.clear()
    for node in cluster.nodes.values():
        node.flush_delay = None
        cluster.wake(node.id)


def change_state(cluster: SimQuorum, rng: random.Random) -> None:
    """Take a snapshot, or add or remove a voter."""
    leader = cluster.leader
    if leader is None or leader.machine is None:
        return
    if rng.random() < 0.5:
        awake = [node for node in cluster.nodes.values() if node.up and not node.paused]
        node = rng.choice(awake) if awake else leader
        if awake and node.high_watermark > node.start_offset:
            cluster.take_snapshot(node.id, rng.randint(node.start_offset + 1, node.high_watermark))
    elif cluster.dynamic:
        voters = leader.machine.voters.ids
        outside = [n.id for n in cluster.nodes.values() if n.can_be_voter and n.id not in voters]
        if outside and (len(voters) < 3 or rng.random() < 0.5):
            node_id = rng.choice(outside)
            cluster.call(leader.id, rpc.AddVoterCall(CLUSTER, key_of(node_id), (endpoint_of(node_id),), 3_000))
        elif len(voters) > 2:
            cluster.call(leader.id, rpc.RemoveVoterCall(CLUSTER, key_of(rng.choice(voters))))


def recover(cluster: SimQuorum) -> None:
    """Remove all faults and start all nodes: a write must go through and reach every node."""
    remove_faults(cluster)
    cluster.delay, cluster.damage_rate = (1, 5), 0.0
    for node in cluster.nodes.values():
        if not node.up:
            cluster.start(node.id)
    cluster.run(15_000)
    assert cluster.leader is not None, "no leader without faults"
    cluster.append("the end")
    cluster.run(5_000)
    for node in cluster.nodes.values():
        assert node.entries[-1:] == cluster.leader.entries[-1:], f"node {node.id} has not caught up"
        assert node.high_watermark == cluster.leader.end_offset, f"the high watermark of node {node.id} is behind"
    cluster.check_logs_match()
