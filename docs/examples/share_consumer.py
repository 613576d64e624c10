"""A member of a share group, which says of each record what has become of it."""

import os

from kalda import AcknowledgeType, Admin, Alteration, ConfigOperation, ConfigResource, ConfigResourceType, ShareConsumer

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")

with Admin(bootstrap_servers=SERVERS) as admin:  # the default is latest
    group = ConfigResource(ConfigResourceType.GROUP, "packing")
    begin = Alteration("share.auto.offset.reset", ConfigOperation.SET, "earliest")
    admin.alter_configs({group: [begin]}).check()


def pack(order: bytes | None) -> None:
    if order is None:
        raise ValueError("an order without a value cannot be packed")
    print("packed", order)


with ShareConsumer(bootstrap_servers=SERVERS, group_id="packing", share_acknowledgement_mode="explicit") as consumer:
    consumer.subscribe("orders")
    packed = 0
    while packed < 10:
        for record in consumer.poll():
            try:
                pack(record.value)
            except OSError:  # some member tries again; the broker counts how often
                consumer.acknowledge(record, AcknowledgeType.RELEASE)
            except ValueError:
                consumer.acknowledge(record, AcknowledgeType.REJECT)
            else:
                consumer.acknowledge(record)
                packed += 1
    print(consumer.commit_sync())
