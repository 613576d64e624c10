"""A whole cluster inside one Python process, for tests: real nodes, sockets on loopback, a directory of its own.

    from kalda.testing import Cluster

    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=3)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
        ...

Three brokers, one of which is killed and started again:

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", configs={"min.insync.replicas": 2})
        cluster.kill_node(2)
        ...
        cluster.start_node(2)

Three brokers with a network between them that a test can break: the leader is separated from the others, which elect
another one, and follows it when the network is healed:

    with Cluster(brokers=3, network_faults=True) as cluster:
        cluster.create_topic("orders", configs={"min.insync.replicas": 2})
        leader = cluster.leader("orders")
        cluster.network.partition([leader])
        cluster.wait_for_leader("orders", other_than=leader)
        ...
        cluster.network.heal()

`cluster.network` also delays (`delay`), stalls (`stall`) and cuts (`cut`) what two nodes send each other.

A cluster whose listeners need TLS and a login; `client_config` has the keys of a client:

    with Cluster(security="SASL_SSL") as cluster:
        producer = kalda.Producer(cluster.client_config(user="alice", mechanism="SCRAM-SHA-512"))

The installed pytest plugin provides one cluster for the session, with a new topic for each test, and makes other
clusters for a test:

    def test_orders(kalda_cluster, kalda_topic):
        producer = confluent_kafka.Producer({"bootstrap.servers": kalda_cluster.bootstrap_servers})
        producer.produce(kalda_topic, b"order")

    def test_failover(kalda_cluster_factory):
        cluster = kalda_cluster_factory(brokers=3, network_faults=True)

- `cluster`: the cluster, on a thread and a loop of its own
- `security`: certificates, users and configuration of a cluster that is not PLAINTEXT
- `layout`: ports, properties and formatted directories of its nodes
- `plugin`: the fixtures
"""

from kalda.testing.cluster import Cluster as Cluster
