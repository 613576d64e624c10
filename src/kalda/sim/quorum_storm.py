"""Seeded storms over quorums of three and five, without bytes: delays, losses, repetitions, partitions in both
directions and in one, slow links and disks, pauses, kills, crashes that lose what was not synced, snapshots and such
as arrive damaged, changes of the voters; and usurpations, of leaders that do not hear of them. The quorum checks Raft's
promises after every step; in the end, with the weather good again, everyone must agree and a write must go through.

Thousands of times cheaper than whole nodes, and so the place to look for rare interleavings of elections.
"""

from __future__ import annotations

import random

from kalda.raft import rpc
from kalda.sim.quorum import CLUSTER, SimQuorum, endpoint_of, key_of


def storm(seed: int, steps: int = 60) -> SimQuorum:
    """A quorum after so many blows. Raises `AssertionError` where a promise is broken."""
    rng = random.Random(seed)
    size = rng.choice((3, 3, 5))
    dynamic = rng.random() < 0.7
    voters = tuple(range(1, size + 1))
    joiners = (size + 1,) if dynamic and rng.random() < 0.5 else ()
    cluster = SimQuorum(voters, observers=(9,), joiners=joiners, dynamic=dynamic, seed=seed)
    cluster.delay = rng.choice(((1, 5), (1, 50), (1, 300)))
    cluster.flush_delay = rng.choice(((1, 5), (5, 100)))
    cluster.refusal = rng.choice((0.0, 0.5, 1.0))
    cluster.damage = random.Random(~seed).choice((0.0, 0.0, 0.7))
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
                written += black_out(cluster, rng, f"{seed}.{written}")
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
            hinder(cluster, rng)
        elif roll < 0.93:
            mend(cluster)
            cluster.loss = rng.choice((0.0, 0.05, 0.3))
            cluster.repeat = rng.choice((0.0, 0.0, 0.2))
        else:
            change(cluster, rng)
        cluster.run(rng.choice((5, 50, 400, 1500)))
        cluster.check_logs_match()
    return cluster


def usurpations(seed: int, rounds: int = 6) -> SimQuorum:
    """A quorum in which leaders were deposed time and again without hearing of it. Raises as `storm` does."""
    rng = random.Random(seed)
    size = rng.choice((3, 3, 5))
    cluster = SimQuorum(tuple(range(1, size + 1)), observers=(9,), dynamic=rng.random() < 0.7, seed=seed)
    cluster.flush_delay = rng.choice(((1, 5), (5, 100)))
    cluster.start()
    cluster.run(5_000)
    for at in range(rounds):
        cluster.delay = rng.choice(((1, 5), (1, 50)))
        usurp(cluster, rng, f"{seed}.{at}")
        cluster.check_logs_match()
        mend(cluster)
        cluster.run(rng.choice((50, 1_500, 4_000)))
        cluster.check_logs_match()
    return cluster


def usurp(cluster: SimQuorum, rng: random.Random, value: str) -> None:
    """The leader writes, cut off, and sleeps until there is another one. Then both are heard by everybody except each
    other, and both write: only epochs tell who leads."""
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
    cluster.slow[new.id] = (50, 200)
    cluster.cut = {frozenset((old.id, new.id))}
    cluster.wake(old.id)
    for turn in range(rng.randint(1, 4)):
        cluster.append(f"{value}.{turn}.old", by=old)
        cluster.append(f"{value}.{turn}.new", by=new)
        cluster.run(rng.choice((50, 400)))


def black_out(cluster: SimQuorum, rng: random.Random, value: str) -> int:
    """All nodes lose their power, and what they have not flushed, while something is being written. How much is."""
    leader = cluster.leader
    if leader is not None:
        cluster.append(value)
        cluster.run(rng.randint(2, 20))
    for node in cluster.nodes.values():
        if node.up:
            cluster.crash(node.id)
    return 1 if leader is not None else 0


def hinder(cluster: SimQuorum, rng: random.Random) -> None:
    """Something that does not stop a node, but is in its way."""
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
            cluster.slow[node_id] = rng.choice(((50, 200), (100, 2_000)))
        case 3:
            cluster.walls |= {(node_id, other) for other in rng.sample(ids, rng.randint(1, len(ids)))}
        case _:
            cluster.nodes[node_id].flush_delay = rng.choice(((20, 500), (500, 3_000)))


def mend(cluster: SimQuorum) -> None:
    """Nothing is in anybody's way."""
    cluster.cut, cluster.cut_one_way = set(), set()
    cluster.loss = cluster.repeat = 0.0
    cluster.walls = set()
    cluster.slow.clear()
    for node in cluster.nodes.values():
        node.flush_delay = None
        cluster.wake(node.id)


def change(cluster: SimQuorum, rng: random.Random) -> None:
    """A snapshot, or a voter more or less."""
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


def calm(cluster: SimQuorum) -> None:
    """Everything works again: a write goes through, and everyone has it."""
    mend(cluster)
    cluster.delay, cluster.damage = (1, 5), 0.0
    for node in cluster.nodes.values():
        if not node.up:
            cluster.start(node.id)
    cluster.run(15_000)
    assert cluster.leader is not None, "no leader in good weather"
    cluster.append("the end")
    cluster.run(5_000)
    for node in cluster.nodes.values():
        assert node.entries[-1:] == cluster.leader.entries[-1:], f"node {node.id} has not caught up"
        assert node.high_watermark == cluster.leader.end_offset, f"node {node.id} does not know of the commit"
    cluster.check_logs_match()
