"""What `kalda doctor` examines: a cluster through Kafka's protocol, and the host and the properties of a node.

Only requests that Apache Kafka answers too are sent. Each check returns findings; none raises for what it finds.

- `findings`: a finding, and its severity
- `cluster`: brokers, partitions, quorum, versions, disks and clocks, as the cluster reports them
- `host`: this host's limits, and a server.properties
"""
