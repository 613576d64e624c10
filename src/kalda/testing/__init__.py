"""A whole cluster inside one Python process, for tests: real nodes, sockets on loopback, a directory of its own.

    from kalda.testing import Cluster

    with Cluster() as cluster:
        cluster.create_topic("orders", partitions=3)
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
        ...

Three brokers, one of which is killed and started again:

    with Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", configs={"min.insync.replicas": 2})
        cluster.kill_node(2)
        ...
        cluster.start_node(2)

Three brokers with a network between them that a test can break: the leader is separated from the others, which elect
another one, and follows it when the network is healed:

    with Cluster(nodes=3, network_faults=True) as cluster:
        cluster.create_topic("orders", configs={"min.insync.replicas": 2})
        leader = cluster.leader("orders")
        cluster.network.partition([leader])
        cluster.wait_for_leader("orders", other_than=leader)
        ...
        cluster.network.heal()

`cluster.network` also delays (`delay`), stalls (`stall`) and cuts (`cut`) what two nodes send each other, and with
`Network.CLIENTS` what the clients and a node do.

A cluster whose listeners need TLS and a login; `client_config` has the keys of a client:

    with Cluster(security="SASL_SSL") as cluster:
        producer = kalda.Producer(cluster.client_config(user="alice", mechanism="SCRAM-SHA-512"))

The installed pytest plugin provides one cluster for the session, with a new topic for each test, and makes other
clusters for a test:

    def test_orders(kalda_cluster, kalda_topic):
        kalda_cluster.produce(kalda_topic, ["order"])
        assert [record.value for record in kalda_cluster.consume_all(kalda_topic)] == [b"order"]

    def test_failover(kalda_cluster_factory):
        cluster = kalda_cluster_factory(nodes=3, network_faults=True)

- `cluster`: the cluster, on a thread and a loop of its own
- `network`: faults between its nodes, and between them and clients
- `layout`: ports, properties and formatted directories of its nodes
- `schema_registry`: a schema registry in memory
- `plugin`: the fixtures
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from kalda.testing.cluster import Cluster
    from kalda.testing.network import Network
    from kalda.testing.schema_registry import SchemaRegistry

__all__ = ["Cluster", "Network", "SchemaRegistry"]

_PUBLIC = {
    "Cluster": "kalda.testing.cluster",
    "Network": "kalda.testing.network",
    "SchemaRegistry": "kalda.testing.schema_registry",
}


def __getattr__(name: str) -> object:
    """A public name, imported at its first use: the plugin, which each run of pytest loads, needs none of them."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'kalda.testing' has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
