"""An admin client: topics, configs, offsets of groups. Every call takes many items, and has a result for each."""

import os

from kalda import Admin
from kalda.client.admin.topics import NewTopic
from kalda.protocol.messages.fetch import OffsetSpec

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")

with Admin(bootstrap_servers=SERVERS) as admin:
    results = admin.create_topics(
        [NewTopic("invoices", partitions=3, replication_factor=1), NewTopic("bad name", 1, 1)]
    )
    for name, error in results.errors.items():
        print(f"{name}: {error}")
    for name, topic in admin.list_topics().items():
        print(name, len(topic.partitions))
    ends = admin.list_offsets({("orders", 0): int(OffsetSpec.LATEST)})
    print(ends.value(next(iter(ends))).offset)
    print(sorted(admin.list_groups()))
