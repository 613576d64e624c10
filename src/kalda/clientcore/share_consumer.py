"""A whole share consumer without threads, sockets and clocks: its machines, put together (KIP-932).

    run(now, is_polling)       do all that can be done now
    deadline_ms(...)           when `run` is due, if nothing happens before
    begin_poll()               the application calls `poll`: what it was given before is processed
    take_records, take_columns what a poll returns
    acknowledge, commit        explicit mode: what the application says of records; send what was said
    take_completed()           acknowledgements that are done, for the application's callback

With `share.acknowledgement.mode=implicit` the next poll, or a commit, accepts what polls have returned. With `explicit`
the application says of each record whether it was processed (ACCEPT), is to be given to some member again (RELEASE), to
none (REJECT), or needs more time (RENEW, KIP-1222): the next poll returns it again. What is not acknowledged when the
consumer is closed is released.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from kalda.base.configs.share_consumer import ShareConsumerConfig
from kalda.base.errors import ApiError, WrongState
from kalda.base.ids import TopicPartition, Uuid
from kalda.base.share_states import AcknowledgeType
from kalda.clientcore.connections.client_metrics import metric_config
from kalda.clientcore.connections.errors import Random
from kalda.clientcore.consuming.consumer_errors import Operation
from kalda.clientcore.consuming.subscription import Subscription
from kalda.clientcore.groups.consumer_membership import ShareMembership
from kalda.clientcore.groups.membership import MembershipConfig
from kalda.clientcore.sharing.held_records import HeldRecords, offsets_of
from kalda.clientcore.sharing.share_chunks import TakenColumns
from kalda.clientcore.sharing.share_fetcher import ShareFetcher
from kalda.clientcore.sharing.share_metrics import ShareConsumerMetrics
from kalda.clientcore.subscribed_core import SubscribedCore, require_name
from kalda.records.consuming import Record


class ShareConsumerCore(SubscribedCore):
    """The machines of one share consumer."""

    config: ShareConsumerConfig
    metrics: ShareConsumerMetrics

    def __init__(
        self,
        config: ShareConsumerConfig,
        *,
        client_id: str,
        software_version: str,
        random: Random,
        member_id: str,
        now_ms: int,
    ) -> None:
        """`member_id` is a fresh UUID. Raises `InvalidConfig`."""
        super().__init__(
            config,
            Subscription(),
            ShareConsumerMetrics(client_id, metric_config(config.values), version=software_version),
            client_id=client_id,
            software_version=software_version,
            random=random,
            now_ms=now_ms,
        )
        settings = MembershipConfig(
            config.group_id,
            rack=config.client_rack,
            max_poll_interval_ms=config.max_poll_interval_ms,
            request_timeout_ms=config.request_timeout_ms,
        )
        self.membership = ShareMembership(
            settings, member_id, self.subscription, self.requests, self._resolve_topic_ids, self.metrics
        )
        self.fetcher = ShareFetcher(
            config, lambda: self.membership.member_id, self.subscription, self.requests, self.metrics, self._readers()
        )
        self._has_polled = False

    # -- turns

    def run(self, now_ms: int, is_polling: bool) -> None:
        """Do all that can be done now. `is_polling`: the application is in a call of `poll`."""
        self.requests.now_ms = now_ms
        self._want_topics()
        self.requests.run()
        if not self.is_closed:
            self.membership.run(is_polling)
        self.fetcher.run()
        self._run_own_metrics()

    def deadline_ms(self, now_ms: int, is_polling: bool) -> int | None:
        """When `run` is due, if nothing happens before; None: not before an event."""
        self.requests.now_ms = now_ms
        requests_ms = self.requests.deadline_ms()
        if requests_ms == now_ms:
            return now_ms
        times = [requests_ms, self.fetcher.deadline_ms(), self._own_metrics_due_ms]
        if not self.is_closed and self.subscription.is_by_group:
            times.append(self.membership.deadline_ms(is_polling))
        return self.requests.earliest(times)

    # -- what is read

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics, as a member of the group. Raises `ValueError`."""
        names = list(topics)
        for name in names:
            require_name(name)
        if not names:
            raise ValueError("no topic is named; to read nothing, call unsubscribe")
        self.subscription.subscribe(names)
        self._want_topics()

    def unsubscribe(self) -> Operation | None:
        """Read nothing; leave the group. Returns what to wait for."""
        operation = self.membership.begin_leave("the consumer unsubscribed") if self.subscription.is_by_group else None
        self.membership.error = None
        self.subscription.unsubscribe()
        self._want_topics()
        return operation

    # -- polls

    def begin_poll(self) -> None:
        """The application polls: what it was given before is processed. Raises `WrongState` where explicit mode misses
        an acknowledgement."""
        self.metrics.on_poll(self.requests.now_ms)
        self._has_polled = True
        self._send(None, ())
        unsaid = next((held for held in self.fetcher.held.values() if held.has_unsaid), None)
        if self.config.is_explicit and unsaid is not None:
            raise WrongState(
                f"not all records of {unsaid.source.partition} that polls have returned are acknowledged, as "
                f"share.acknowledgement.mode=explicit requires: call acknowledge for each before the next poll"
            )

    def raise_error(self) -> None:
        """Raise what the application has to see before it gets more records."""
        if (fatal := self._cluster_error()) is not None:
            raise fatal
        if self.membership.error is not None:
            error = self.membership.error
            if self.requests.coordinator_error is error:
                self.requests.coordinator_error = None
            self.membership.error = None
            raise error
        if (refusal := self._topic_error()) is not None:
            self.metadata.request_update()
            raise refusal

    @property
    def has_error(self) -> bool:
        """Whether `raise_error` raises."""
        return self._cluster_error() is not None or self.membership.error is not None or self._topic_error() is not None

    @property
    def has_news(self) -> bool:
        """Whether a poll has something to do besides waiting."""
        return self.fetcher.has_records or bool(self.fetcher.completed) or self.has_error

    def take_records(self, limit: int) -> list[Record]:
        """The next records, renewed ones first; where none is buffered, they are fetched. Raises what has failed."""
        records = self.fetcher.take_records(limit)
        if not records:
            self.fetcher.want_records()
        return records

    def take_columns(self, rows: int) -> list[TakenColumns]:
        """The next records, for columns, renewed ones not among them; where none is buffered, they are fetched. What
        is returned of them, `hold` is called for. Raises what has failed."""
        taken = self.fetcher.take_columns(rows)
        if not taken:
            self.fetcher.want_records()
        return taken

    def release(self) -> None:
        """What was taken is not returned: some member gets it again."""
        for held in self.fetcher.held.values():
            held.release()

    # -- acknowledgements

    def acknowledge(self, partition: TopicPartition, offset: int, kind: AcknowledgeType) -> None:
        """Say this of a record. Raises `WrongState` where it is not held, and in implicit mode."""
        if not self.config.is_explicit:
            raise WrongState(
                "share.acknowledgement.mode is implicit: the next poll, or a commit, acknowledges what polls have "
                "returned. To acknowledge records, set it to explicit"
            )
        if not self._has_polled:
            raise WrongState("nothing can be acknowledged before the first poll")
        found: HeldRecords | None = None
        for source, held in self.fetcher.held.items():
            if source.partition == partition and (found is None or held.holds(offset)):
                found = held
        if found is None:
            raise WrongState(f"no record of {partition} is held: offset {offset} cannot be acknowledged")
        found.say(offset, kind)

    def commit(self, operation: Operation | None, rest: Sequence[Record] = ()) -> None:
        """Send all acknowledgements; in implicit mode those of what polls have returned, but `rest`. `operation` gets
        the error, or None, of each partition."""
        self._send(operation, rest)

    def _send(self, operation: Operation | None, rest: Collection[Record]) -> None:
        if not self.config.is_explicit:
            kept: dict[TopicPartition, set[int]] = {}
            for record in rest:
                kept.setdefault(TopicPartition(record.topic, record.partition), set()).add(record.offset)
            for source, held in self.fetcher.held.items():
                held.accept(kept.get(source.partition, ()))
        self.fetcher.acknowledge(self.fetcher.take_held(), operation)

    def take_completed(self, wanted: bool) -> list[tuple[dict[TopicPartition, frozenset[int]], ApiError | None]]:
        """Offsets whose acknowledgements are done, each with the error, or None; nothing where they are not wanted."""
        if not wanted:
            self.fetcher.completed.clear()
        found: list[tuple[dict[TopicPartition, frozenset[int]], ApiError | None]] = []
        while self.fetcher.completed:
            done = self.fetcher.completed.popleft()
            offsets = offsets_of(done.runs)
            if offsets:
                found.append(({done.source.partition: offsets}, done.error))
        return found

    # -- close

    def begin_close(self, operation: Operation) -> None:
        """First step: send what was acknowledged, and end the share sessions, which releases the rest."""
        self.fetcher.acknowledge(self.fetcher.take_held(), None)
        self.fetcher.begin_close(operation)

    def begin_leave(self) -> Operation | None:
        """Second step: leave the group. Returns what to wait for."""
        operation = self.membership.begin_leave("the consumer is being closed")
        self.is_closed = True
        return operation

    # -- inside

    def _on_names(self, names: dict[Uuid, str]) -> None:
        self.membership.names_by_id.update(names)
