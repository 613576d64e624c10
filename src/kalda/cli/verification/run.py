"""One run: topics, processes, settling, and the history of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random

from kalda.base.configs.producer import PRODUCER
from kalda.base.errors import ApiError, ErrorCode
from kalda.base.ids import TopicPartition
from kalda.cli.common.command_admin import CommandAdmin
from kalda.cli.verification.clients import (
    CommittedReader,
    GroupSource,
    Ledger,
    LedgerWriter,
    Loop,
    MemberSource,
    consumer_of,
    read_of,
    sample,
    seen,
)
from kalda.cli.verification.processes import (
    Phase,
    Processes,
    ProcessReady,
    Recorder,
    Role,
    Shared,
    finish,
    now_us,
    recorded_lines,
)
from kalda.client.admin.topics import NewTopic
from kalda.client.producer.delivery import DeliveryFuture
from kalda.client.producer.producer import Producer
from kalda.client.transport.config_files import keys_of
from kalda.clientcore.consuming.positions import GroupMetadata
from kalda.clientcore.producing.producer_errors import AbortableTransactionError, FatalTransactionError
from kalda.protocol.messages.partitions import OffsetSpec
from kalda.records.builder import NewRecord
from kalda.verify.history import FIRST_LINE, FinalLog, FinalOffset, OffsetSample, Operation, Seen, Settings

# A producer of transactions with the calls of a `Ledger`, over the blocking producer.


class TransactionOperations:
    """One transactional id. Calls that have no answer in time raise REQUEST_TIMED_OUT; `init`, `commit` and `abort` may
    be called again then, and continue."""

    def __init__(
        self,
        config: Mapping[str, object],
        transactional_id: str,
        *,
        transaction_timeout_ms: int,
        timeout_ms: int,
        request_timeout_ms: int,
    ) -> None:
        self._producer = Producer(
            {
                **config,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": transaction_timeout_ms,
                "request.timeout.ms": request_timeout_ms,
                "delivery.timeout.ms": timeout_ms,
                "max.block.ms": timeout_ms,
                "linger.ms": 0,
            }
        )
        self._timeout_s = timeout_ms / 1_000
        self._sent: dict[TopicPartition, list[DeliveryFuture]] = {}
        """The records of the transaction that `flush` has not reported yet."""

    def close(self) -> None:
        """Close the connections; a transaction that is open stays so until its timeout."""
        self._producer.close(0)

    def init(self) -> None:
        """Get a producer id, and fence earlier producers of this transactional id. Raises `ApiError`."""
        self._in_time(self._producer.init_transactions)

    def begin(self) -> None:
        """Begin a transaction. Raises `ApiError`."""
        self._sent.clear()
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, records: Sequence[NewRecord]) -> None:
        """Send records. Raises `ApiError` where no transaction is open, or it has failed."""
        for timestamp_ms, key, value, headers in records:
            future = self._producer.send(topic, value, key, partition, timestamp_ms, headers)
            self._sent.setdefault(TopicPartition(topic, partition), []).append(future)

    def flush(self) -> dict[TopicPartition, list[int]]:
        """Wait for what was sent; the offset of each record, -1 where it was a duplicate whose offset the leader has
        forgotten. Raises `AbortableTransactionError`, `FatalTransactionError` and REQUEST_TIMED_OUT."""
        offsets: dict[TopicPartition, list[int]] = {}
        until_s = time.monotonic() + 2 * self._timeout_s
        for partition, futures in self._sent.items():
            for future in futures:
                try:
                    found = future.result(max(0.0, until_s - time.monotonic()))
                except TimeoutError as error:
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error
                except (AbortableTransactionError, FatalTransactionError):
                    raise
                except ApiError as error:
                    raise AbortableTransactionError(error.code, error.message) from error
                offsets.setdefault(partition, []).append(found.offset)
        self._sent.clear()
        return offsets

    def send_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, int], member: GroupMetadata | None = None
    ) -> None:
        """Commit a group's offsets within the transaction, as the member that has read the input where it is one.
        Raises `ApiError`."""
        self._in_time(lambda: self._producer.send_offsets_to_transaction(offsets, member or group_id))

    def commit(self) -> None:
        """Commit. Raises `ApiError`; REQUEST_TIMED_OUT: it may be committed or not, and a second call has the
        outcome."""
        self._in_time(self._producer.commit_transaction)

    def abort(self) -> None:
        """Abort. Raises `ApiError`."""
        self._in_time(self._producer.abort_transaction)

    def _in_time(self, call: Callable[[], None]) -> None:
        try:
            call()
        except TimeoutError as error:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, str(error)) from error


# After the workload: partitions until they are stable, then the final logs and the group's offsets.

_PAUSE_S = 0.3
_MAX_PASSES = 3
"""So often the final logs are read while late records arrive."""
_STALLED_S = 30.0
"""For how long a log may return nothing while it is read to its end."""


def wait_until_stable(
    admin: CommandAdmin,
    partitions: Collection[TopicPartition],
    record: Callable[[Operation], None],
    timeout_s: float,
) -> list[OffsetSample]:
    """Sample until every last stable offset has reached its high watermark, or the time has passed; the last samples.

    Raises `ApiError` where the cluster has not answered at all."""
    until_s = time.monotonic() + timeout_s
    last: list[OffsetSample] = []
    while True:
        failure: ApiError | None = None
        try:
            last = sample(admin, partitions)
        except ApiError as error:
            failure = error
        for each in last if failure is None else ():
            record(each)
        if last and failure is None and all(each.last_stable_offset >= each.high_watermark for each in last):
            return last
        if time.monotonic() >= until_s:
            if failure is not None and not last:
                raise failure
            return last
        time.sleep(_PAUSE_S)


def settled_logs(
    admin: CommandAdmin,
    partitions: Collection[TopicPartition],
    record: Callable[[Operation], None],
    timeout_s: float,
) -> list[FinalLog]:
    """The final logs, when the partitions are stable or the time has passed. A record that arrives after that, from a
    broker that was paused, may have begun another transaction: it gets its time too. Raises `ApiError`."""
    for _ in range(_MAX_PASSES):
        samples = wait_until_stable(admin, partitions, record, timeout_s)
        logs = final_logs(admin, partitions)
        if all(log.last_stable_offset >= log.end for log in logs):
            break
        if any(each.last_stable_offset < each.high_watermark for each in samples):
            break
    return logs


def final_logs(admin: CommandAdmin, partitions: Collection[TopicPartition]) -> list[FinalLog]:
    """Every partition, read to its high watermark and, as read_committed, to its last stable offset. Raises
    `ApiError`."""
    starts = admin.offsets_at(partitions, OffsetSpec.EARLIEST)
    stable = admin.offsets_at(partitions, OffsetSpec.LATEST, read_committed=True)
    ends = admin.offsets_at(partitions, OffsetSpec.LATEST)
    return [
        FinalLog(
            partition,
            starts[partition],
            ends[partition],
            stable[partition],
            _read(admin, partition, starts[partition], ends[partition], False),
            _read(admin, partition, starts[partition], stable[partition], True),
        )
        for partition in partitions
    ]


def _read(
    admin: CommandAdmin, partition: TopicPartition, start: int, end: int, read_committed: bool
) -> tuple[Seen, ...]:
    found: list[Seen] = []
    if end > start:
        with consumer_of(admin.config, read_committed=read_committed) as consumer:
            consumer.assign([partition])
            consumer.seek(partition, start)
            until_s = time.monotonic() + _STALLED_S
            while (position := consumer.position(partition)) < end:
                found += (each for each in seen(consumer.poll()) if each.offset < end)
                if consumer.position(partition) > position:
                    until_s = time.monotonic() + _STALLED_S
                elif time.monotonic() >= until_s:
                    why = f"{partition} could not be read on from offset {position} for {_STALLED_S:.0f} s"
                    raise ApiError(ErrorCode.REQUEST_TIMED_OUT, why)
    return tuple(found)


def has_records(admin: CommandAdmin, partition: TopicPartition, start: int, end: int) -> bool:
    """Whether a read_committed consumer gets any record of [start, end). Raises `ApiError`."""
    return bool(_read(admin, partition, start, end, True))


def final_offsets(admin: CommandAdmin, group: str, partitions: Collection[TopicPartition]) -> list[FinalOffset]:
    """The group's committed offsets. Raises `ApiError`."""
    found = admin.list_group_offsets(group, partitions, require_stable=True).check()
    return [FinalOffset(group, partition, each.offset) for partition, each in found.succeeded.items()]


_CLIENT_TIMEOUT_MS = 15_000
_REQUEST_TIMEOUT_MS = 5_000
_SLACK_MS = 30_000
"""Beyond the transaction timeout: the coordinator's search for what has timed out, every 10 s by default, and a
failover."""
_READERS = 2
_SAMPLE_S = 0.2
_MAX_PAUSE_S = 0.02
"""The longest pause between two transactions of a client."""


@dataclass(frozen=True, slots=True)
class VerificationPlan:
    """What to run. `name` begins the names of topics, group and transactional ids."""

    bootstrap: str
    name: str
    seed: int
    duration_s: float
    producers: int
    topics: int
    partitions: int
    replication_factor: int
    transaction_timeout_ms: int
    faults_command: str | None
    client_faults: bool

    @property
    def inputs(self) -> list[TopicPartition]:
        """What writers write to, and loops read."""
        return [TopicPartition(f"{self.name}-in-{t}", p) for t in range(self.topics) for p in range(self.partitions)]

    @property
    def outputs(self) -> dict[TopicPartition, TopicPartition]:
        """The output partition of each input partition."""
        return {each: TopicPartition(f"{self.name}-out", index) for index, each in enumerate(self.inputs)}

    @property
    def group(self) -> str:
        return f"{self.name}-loops"

    @property
    def member_outputs(self) -> dict[TopicPartition, TopicPartition]:
        """Likewise, of the loops that are members of a group."""
        return {each: TopicPartition(f"{self.name}-members-out", index) for index, each in enumerate(self.inputs)}

    @property
    def all_outputs(self) -> list[TopicPartition]:
        return [*self.outputs.values(), *self.member_outputs.values()]

    @property
    def member_group(self) -> str:
        return f"{self.name}-members"

    @property
    def loops(self) -> int:
        """Loops; each has at least one input partition."""
        return min(max(1, self.producers // 2), len(self.inputs))


class Clients:
    """The mains of the processes."""

    def __init__(self, plan: VerificationPlan, shared: Shared, directory: Path) -> None:
        self._plan = plan
        self._shared = shared
        self._directory = directory

    def roles(self) -> list[Role]:
        writers = [Role(f"writer-{n}", self.write, Phase.RUN, True) for n in range(self._plan.producers)]
        loops = [Role(f"loop-{n}", self.loop, Phase.DRAIN, True) for n in range(self._plan.loops)]
        readers = [Role(f"reader-{n}", self.read, Phase.DRAIN, False) for n in range(_READERS)]
        members = [Role(f"loop-member-{n}", self.member, Phase.DRAIN, True) for n in range(max(2, self._plan.loops))]
        return [*writers, *loops, *members, *readers, Role("sampler", self.sample, Phase.DRAIN, False)]

    def _client(self, name: str) -> CommandAdmin:
        return CommandAdmin(self._plan.bootstrap, client_id=name, timeout_ms=_CLIENT_TIMEOUT_MS)

    def _ledger(self, admin: CommandAdmin, name: str, incarnation: int, recorder: Recorder) -> Ledger:
        """With a producer that has fenced the incarnations before. Raises `ApiError`."""
        producer = TransactionOperations(
            keys_of(PRODUCER, admin.config),
            f"{self._plan.name}-{name}",
            transaction_timeout_ms=self._plan.transaction_timeout_ms,
            timeout_ms=_CLIENT_TIMEOUT_MS,
            request_timeout_ms=_REQUEST_TIMEOUT_MS,
        )
        producer.init()
        return Ledger(producer, recorder.add, now_us, name, incarnation)

    def _rng(self, name: str, incarnation: int) -> Random:
        return Random(f"{self._plan.seed}/{name}/{incarnation}")

    def write(self, name: str, incarnation: int, ready: ProcessReady) -> None:
        rng = self._rng(name, incarnation)
        with Recorder(self._directory, f"{name}.{incarnation}") as recorder, self._client(name) as admin:
            writer = LedgerWriter(self._ledger(admin, name, incarnation, recorder), rng, self._plan.inputs)
            ready.set()
            while self._shared.phase is Phase.RUN:
                writer.step()
                time.sleep(rng.uniform(0, _MAX_PAUSE_S))
        finish()

    def loop(self, name: str, incarnation: int, ready: ProcessReady) -> None:
        rng, plan = self._rng(name, incarnation), self._plan
        mine = plan.inputs[int(name.rpartition("-")[2]) :: plan.loops]
        with Recorder(self._directory, f"{name}.{incarnation}") as recorder, self._client(name) as admin:
            ledger = self._ledger(admin, name, incarnation, recorder)
            source = GroupSource(admin, plan.group, mine)
            loop = Loop(ledger, source, recorder.add, rng, plan.group, plan.outputs)
            ready.set()
            while self._shared.phase < Phase.STOP:
                if loop.step() is None and self._shared.phase is Phase.DRAIN:
                    samples = sample(admin, mine)
                    if all(source.positions.get(each.partition, -1) >= each.high_watermark for each in samples):
                        break
        finish()

    def member(self, name: str, incarnation: int, ready: ProcessReady) -> None:
        rng, plan = self._rng(name, incarnation), self._plan
        own = f"{name}+{incarnation}"
        with Recorder(self._directory, own) as recorder, self._client(own) as admin:
            ledger = self._ledger(admin, own, 0, recorder)
            source = MemberSource(admin.config, plan.member_group, sorted({each.topic for each in plan.inputs}))
            loop = Loop(ledger, source, recorder.add, rng, plan.member_group, plan.member_outputs)
            ready.set()
            while self._shared.phase < Phase.STOP:
                if loop.step() is None and self._shared.phase is Phase.DRAIN and self._are_drained(admin):
                    break
            source.close()
        finish()

    def _are_drained(self, admin: CommandAdmin) -> bool:
        """Whether the members' group has no input left: no record follows its committed offsets."""
        plan = self._plan
        found = admin.list_group_offsets(plan.member_group, plan.inputs, require_stable=True).check().succeeded
        for each in sample(admin, plan.inputs):
            start = found[each.partition].offset if each.partition in found else 0
            if each.last_stable_offset < each.high_watermark:
                return False
            if has_records(admin, each.partition, start, each.high_watermark):
                return False
        return True

    def read(self, name: str, incarnation: int, ready: ProcessReady) -> None:
        starts = dict.fromkeys([*self._plan.inputs, *self._plan.all_outputs], 0)
        with Recorder(self._directory, f"{name}.{incarnation}") as recorder, self._client(name) as admin:
            reader = CommittedReader(admin.config, starts)
            while self._shared.phase < Phase.STOP:
                batch = reader.poll()
                if batch is not None:
                    recorder.add(read_of(f"{name}.{incarnation}", batch))
        finish()

    def sample(self, name: str, incarnation: int, ready: ProcessReady) -> None:
        partitions = [*self._plan.inputs, *self._plan.all_outputs]
        with Recorder(self._directory, f"{name}.{incarnation}") as recorder, self._client(name) as admin:
            while self._shared.phase < Phase.STOP:
                for each in sample(admin, partitions):
                    recorder.add(each)
                time.sleep(_SAMPLE_S)
        finish()


def run(plan: VerificationPlan, directory: Path, report: Callable[[str], None]) -> list[str]:
    """The lines of the history. `report` is called with a line about the progress. Raises `ApiError` where the run
    cannot be begun, or the final logs cannot be read."""
    with CommandAdmin(plan.bootstrap, client_id="kalda-verify") as admin:
        _create_topics(admin, plan)
    shared, rng = Shared(), Random(f"{plan.seed}/faults")
    settings = Settings(plan.transaction_timeout_ms, _SLACK_MS)
    settle_s = (plan.transaction_timeout_ms + _SLACK_MS) / 1_000
    partitions = [*plan.inputs, *plan.all_outputs]
    began_s = time.monotonic()
    with Recorder(directory, "run") as recorder:
        recorder.add(settings)
        processes = Processes(
            Clients(plan, shared, directory).roles(),
            shared,
            rng,
            recorder.add,
            faults_command=plan.faults_command,
            client_faults=plan.client_faults,
            longest_pause_s=1.5 * plan.transaction_timeout_ms / 1_000,
        )

        def tick() -> None:
            report(
                f"{shared.phase.name.lower()}, {time.monotonic() - began_s:.0f} s: {processes.kills} clients killed, "
                f"{processes.pauses} paused"
            )

        with processes.running():
            processes.run(plan.duration_s, tick)
            processes.end_phase(Phase.FINISH, 2 * _CLIENT_TIMEOUT_MS / 1_000, tick)
            with CommandAdmin(plan.bootstrap, client_id="kalda-verify", timeout_ms=_CLIENT_TIMEOUT_MS) as admin:
                report("waiting until the last stable offsets reach the high watermarks")
                wait_until_stable(admin, plan.inputs, _ignore, settle_s + 1)
            shared.phase = Phase.DRAIN
            processes.drain("loop-", 2 * settle_s, tick)
            processes.end_phase(Phase.STOP, 2 * _CLIENT_TIMEOUT_MS / 1_000, tick)
        with CommandAdmin(plan.bootstrap, client_id="kalda-verify") as admin:
            report("reading the final logs")
            for log in settled_logs(admin, partitions, recorder.add, settle_s + 1):
                recorder.add(log)
            for group in (plan.group, plan.member_group):
                for offset in final_offsets(admin, group, plan.inputs):
                    recorder.add(offset)
    return list(chain([FIRST_LINE], recorded_lines(directory)))


def _ignore(_: Operation) -> None:
    """Samples are recorded by the sampler while it runs: those of two processes would have no order."""


def _create_topics(admin: CommandAdmin, plan: VerificationPlan) -> None:
    """The plan's topics, with its number of replicas. Raises `ApiError`."""
    replicas = plan.replication_factor
    configs = {"min.insync.replicas": str(max(1, replicas - 1))}
    names = {partition.topic: plan.partitions for partition in plan.inputs}
    names |= {partition.topic: len(plan.inputs) for partition in plan.all_outputs}
    topics = [NewTopic(name, count, replicas, configs) for name, count in names.items()]
    admin.create_topics(topics).check()
    for name in names:
        admin.topic(name)


def remove_topics(plan: VerificationPlan) -> None:
    """Delete the plan's topics. A failure is ignored: nothing depends on it."""
    names = {partition.topic for partition in (*plan.inputs, *plan.all_outputs)}
    try:
        with CommandAdmin(plan.bootstrap, client_id="kalda-verify") as admin:
            admin.delete_topics(sorted(names))
    except ApiError:
        return
