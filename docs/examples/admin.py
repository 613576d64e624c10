"""An admin client: topics, configs, offsets and lag of groups. Calls take many items, and have a result for each."""

import os

from kalda import Admin, Alteration, ConfigOperation, ConfigResource, ConfigResourceType, NewTopic, OffsetSpec

SERVERS = os.environ.get("KALDA_BOOTSTRAP_SERVER", "localhost:9092")

with Admin(bootstrap_servers=SERVERS) as admin:
    results = admin.create_topics(
        [NewTopic("invoices", partitions=3, replication_factor=1), NewTopic("bad name", 1, 1)]
    )
    for name, error in results.errors.items():
        print(f"{name}: {error}")  # an ApiError: error.code, error.message
    for name, topic in admin.list_topics().items():
        print(name, len(topic.partitions))

    invoices = ConfigResource(ConfigResourceType.TOPIC, "invoices")
    admin.alter_configs({invoices: [Alteration("retention.ms", ConfigOperation.SET, "86400000")]}).check()
    print(admin.describe_configs([invoices]).value(invoices)["retention.ms"].value)

    for group in admin.list_groups():
        committed = admin.list_group_offsets(group).succeeded
        ends = admin.list_offsets({partition: int(OffsetSpec.LATEST) for partition in committed})
        for partition, offset in committed.items():
            print(f"{group} {partition}: {ends.value(partition).offset - offset.offset} behind")
    admin.delete_topics(["invoices"]).check()
