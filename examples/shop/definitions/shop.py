"""Orders and customers from topics: a table, the present state of changed rows, totals, and alerts to a topic.

Values of `orders` are {"customer": "alice", "total": 12.5}. Those of `customers` are {"id": "alice", "country": "NZ",
"at": 1}, with a larger `at` for each change, and {"id": "alice", "at": 2, "deleted": true} at the end.
"""

# ruff: noqa: F821  (`spark` is a global name of definition files)

from pyspark import pipelines as dp

from kalda.pipeline import expect_or_drop

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def values_of(topic, columns):
    rows = spark.readStream.format("kalda").options(**SERVERS).option("subscribe", topic)
    rows = rows.option("startingOffsets", "earliest").load()
    return rows.selectExpr(f"from_json(cast(value as string), '{columns}') AS v").select("v.*")


@dp.table
@expect_or_drop("a total", "total >= 0")
def orders():
    return values_of("orders", "customer string, total double")


@dp.temporary_view
def customer_changes():
    return values_of("customers", "id string, country string, at bigint, deleted boolean")


dp.create_streaming_table("customers")
dp.create_auto_cdc_flow(
    target="customers",
    source="customer_changes",
    keys=["id"],
    sequence_by="at",
    apply_as_deletes="deleted",
    except_column_list=["at", "deleted"],
)

dp.create_sink("alerts", "kalda", {**SERVERS, "topic": "alerts"})


@dp.append_flow(target="alerts")
def large_orders():
    return (
        spark.readStream.table("orders")
        .where("total > 1000")
        .selectExpr("customer AS key", "cast(total AS string) AS value")
    )
