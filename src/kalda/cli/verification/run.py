"""One run: topics, processes, settling, and the history of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from random import Random

from kalda.base.configs.producer import PRODUCER
from kalda.base.errors import ApiError
from kalda.base.ids import TopicPartition
from kalda.cli.command_admin import CommandAdmin
from kalda.cli.verification.loops import Loop
from kalda.cli.verification.members import MemberLoop, MemberSource
from kalda.cli.verification.observers import CommittedReader, GroupSource, read_of, sample
from kalda.cli.verification.processes import Phase, Processes, Ready, Role, Shared, finish
from kalda.cli.verification.recording import Recorder, now_us, recorded_lines
from kalda.cli.verification.settling import final_offsets, has_records, settled_logs, wait_until_stable
from kalda.cli.verification.transactional import TransactionalProducer
from kalda.cli.verification.writers import Ledger, Writer
from kalda.client.admin.topics import NewTopic
from kalda.client.config_files import keys_of
from kalda.verify.history import Operation, Settings
from kalda.verify.history_file import FIRST_LINE

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
class Plan:
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

    def __init__(self, plan: Plan, shared: Shared, directory: Path) -> None:
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
        producer = TransactionalProducer(
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

    def write(self, name: str, incarnation: int, ready: Ready) -> None:
        rng = self._rng(name, incarnation)
        with Recorder(self._directory, f"{name}.{incarnation}") as recorder, self._client(name) as admin:
            writer = Writer(self._ledger(admin, name, incarnation, recorder), rng, self._plan.inputs)
            ready.set()
            while self._shared.phase is Phase.RUN:
                writer.step()
                time.sleep(rng.uniform(0, _MAX_PAUSE_S))
        finish()

    def loop(self, name: str, incarnation: int, ready: Ready) -> None:
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
                    if all(loop.positions.get(each.partition, -1) >= each.high_watermark for each in samples):
                        break
        finish()

    def member(self, name: str, incarnation: int, ready: Ready) -> None:
        rng, plan = self._rng(name, incarnation), self._plan
        own = f"{name}+{incarnation}"
        with Recorder(self._directory, own) as recorder, self._client(own) as admin:
            ledger = self._ledger(admin, own, 0, recorder)
            source = MemberSource(admin.config, plan.member_group, sorted({each.topic for each in plan.inputs}))
            loop = MemberLoop(ledger, source, recorder.add, rng, plan.member_group, plan.member_outputs)
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

    def read(self, name: str, incarnation: int, ready: Ready) -> None:
        starts = dict.fromkeys([*self._plan.inputs, *self._plan.all_outputs], 0)
        with Recorder(self._directory, f"{name}.{incarnation}") as recorder, self._client(name) as admin:
            reader = CommittedReader(admin.config, starts)
            while self._shared.phase < Phase.STOP:
                batch = reader.poll()
                if batch is not None:
                    recorder.add(read_of(f"{name}.{incarnation}", batch))
        finish()

    def sample(self, name: str, incarnation: int, ready: Ready) -> None:
        partitions = [*self._plan.inputs, *self._plan.all_outputs]
        with Recorder(self._directory, f"{name}.{incarnation}") as recorder, self._client(name) as admin:
            while self._shared.phase < Phase.STOP:
                for each in sample(admin, partitions):
                    recorder.add(each)
                time.sleep(_SAMPLE_S)
        finish()


def run(plan: Plan, directory: Path, report: Callable[[str], None]) -> list[str]:
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


def _create_topics(admin: CommandAdmin, plan: Plan) -> None:
    """The plan's topics, with its number of replicas. Raises `ApiError`."""
    replicas = plan.replication_factor
    configs = {"min.insync.replicas": str(max(1, replicas - 1))}
    names = {partition.topic: plan.partitions for partition in plan.inputs}
    names |= {partition.topic: len(plan.inputs) for partition in plan.all_outputs}
    topics = [NewTopic(name, count, replicas, configs) for name, count in names.items()]
    admin.create_topics(topics).check()
    for name in names:
        admin.topic(name)


def remove_topics(plan: Plan) -> None:
    """Delete the plan's topics. A failure is ignored: nothing depends on it."""
    names = {partition.topic for partition in (*plan.inputs, *plan.all_outputs)}
    try:
        with CommandAdmin(plan.bootstrap, client_id="kalda-verify") as admin:
            admin.delete_topics(sorted(names))
    except ApiError:
        return
