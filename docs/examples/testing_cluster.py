"""Three real nodes in this process; the one that leads a partition is killed, and another one takes over."""

from kalda import Producer
from kalda.testing import Cluster

with Cluster(nodes=3) as cluster:
    cluster.create_topic("orders", configs={"min.insync.replicas": 2})
    leader = cluster.leader("orders")
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send("orders", b"before").result(timeout=30)
        cluster.kill_node(leader)
        written = producer.send("orders", b"after").result(timeout=30)
    print(f"offset {written.offset}; node {leader} led, node {cluster.leader('orders')} leads")
    cluster.start_node(leader)
