"""Broker keys of transactions and of producer state."""

from __future__ import annotations

from kalda.base.configs.definition import BOOLEAN, CLUSTER_WIDE, INT, SHORT, AtLeast, Key

TRANSACTIONS_KEYS = (
    Key("add.partitions.to.txn.retry.backoff.max.ms", INT, 100, AtLeast(0)),
    Key("add.partitions.to.txn.retry.backoff.ms", INT, 20, AtLeast(1)),
    Key("producer.id.expiration.check.interval.ms", INT, 600_000, AtLeast(1), internal=True),
    Key("producer.id.expiration.ms", INT, 86_400_000, AtLeast(1), update=CLUSTER_WIDE),
    Key("transaction.abort.timed.out.transaction.cleanup.interval.ms", INT, 10_000, AtLeast(1)),
    Key("transaction.max.timeout.ms", INT, 900_000, AtLeast(1)),
    Key("transaction.partition.verification.enable", BOOLEAN, True, update=CLUSTER_WIDE),
    Key("transaction.remove.expired.transaction.cleanup.interval.ms", INT, 3_600_000, AtLeast(1)),
    Key("transaction.state.log.load.buffer.size", INT, 5_242_880, AtLeast(1)),
    Key("transaction.state.log.min.isr", INT, 2, AtLeast(1)),
    Key("transaction.state.log.num.partitions", INT, 50, AtLeast(1)),
    Key("transaction.state.log.replication.factor", SHORT, 3, AtLeast(1)),
    Key("transaction.state.log.segment.bytes", INT, 104_857_600, AtLeast(1)),
    Key("transaction.two.phase.commit.enable", BOOLEAN, False),
    Key("transactional.id.expiration.ms", INT, 604_800_000, AtLeast(1)),
)
