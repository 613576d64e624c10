"""The driver of the quorum's machine: carries its effects out on disk and network, feeds their outcomes back.

A driver is the house's sixth shape. It is synchronous and owns state; `Jobs`, `Timers`, a clock and `send` are handed
in, and it never imports asyncio, so that the simulator and the tests run it on virtual time. Its rule on re-entrancy:
it changes its state completely before it calls out, or does its work in a `Reentrancy`. What it calls (a `Pending` that
it completes, a listener, `send`) may call it back at once: such a call may queue effects, and those are carried out by
the work that is under way.

Effects are carried out strictly in order. Two take time, and their outcome comes back as an event: the sync of the log,
on a thread, one at a time, so that the next one covers whatever was appended meanwhile; and the installation of a
fetched snapshot. `quorum-state` is synced at once, on the event loop: elections are rare, and a vote must not leave
before it is durable.

An append as the leader has two halves. `prepare_append` fixes the offsets and encodes the batch, and may refuse it;
then the caller applies the records; then `schedule_append` queues the batch. So a batch whose records cannot be applied
is never written. Between the two halves nothing else is called.

Invariant: an exception never ends the replica in silence. It is answered, or it stops the node through `on_fatal`.

`RaftListeners` delivers what is committed.

Not obvious:

- The controller applies records before the quorum has them: nothing may be appended between `prepare_append` and
  `schedule_append`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, ParamSpec

from kalda.base.background import Background
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.scheduling import Clock, Jobs, Pending, Reentrancy, Timer, Timers
from kalda.base.sensors import Measurable, SensorName
from kalda.base.stats import Avg, Max, Rate
from kalda.broker.quorum.raft_listeners import LeaderAndEpoch, RaftListeners
from kalda.protocol.framing import ConnectionRefused
from kalda.protocol.messages.quorum import DescribeQuorumRequest
from kalda.protocol.notation import Request, Response
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft import events as ev
from kalda.raft import events as fx
from kalda.raft import reconfiguration, rpc, wire
from kalda.raft.machine import RaftMachine
from kalda.raft.metadata_log import MetadataLog
from kalda.raft.roles import Candidate, Follower, LeaderRole, Prospective, Resigned, Role
from kalda.raft.snapshots import CommittedBatch, encode_batch
from kalda.raft.voters import Destination, OffsetAndEpoch, RaftConfig, VoterSet
from kalda.records.control import control_batch, read_control_batch

# What is measured of a replica of the metadata log over time, under the names of Kafka's `raft-metrics`.
#
#     commit-latency         from the append of a batch on the leader to its commit
#     election-latency       from the moment at which this replica stands for election until there is a leader
#     append-records-rate    records that this replica has appended as the leader
#     fetch-records-rate     records that it has fetched as a follower
#
# Each is of the last one to two windows of 30 s. Metadata changes rarely, so nothing here is on the data path. A
# store.

RAFT = "kafka.server:type=raft-metrics"


class RaftTimes:
    """Of one replica."""

    def __init__(self) -> None:
        self._appended: deque[tuple[int, int]] = deque()
        """Last offset and time of each batch that this replica has appended as the leader and that is not committed."""
        self._election_began_ms: int | None = None
        """None while this replica does not stand for election."""
        self._commits = (Avg(), Max())
        self._elections = (Avg(), Max())
        self._append_rate = Rate()
        self._fetch_rate = Rate()

    def on_append(self, last_offset: int, records: int, now_ms: int) -> None:
        """A batch was appended as the leader."""
        self._appended.append((last_offset, now_ms))
        self._append_rate.record(records, now_ms)

    def on_fetched(self, records: int, now_ms: int) -> None:
        """Records were appended as a follower."""
        self._fetch_rate.record(records, now_ms)

    def on_commit(self, high_watermark: int, now_ms: int) -> None:
        """Everything before `high_watermark` is committed."""
        while self._appended and self._appended[0][0] < high_watermark:
            latency_ms = now_ms - self._appended.popleft()[1]
            for stat in self._commits:
                stat.record(latency_ms, now_ms)

    def on_role(self, role: Role, now_ms: int) -> None:
        """The replica has changed its role."""
        self._appended.clear()
        if isinstance(role, Prospective | Candidate):
            if self._election_began_ms is None:
                self._election_began_ms = now_ms
        elif isinstance(role, LeaderRole | Follower):
            if self._election_began_ms is not None:
                for stat in self._elections:
                    stat.record(now_ms - self._election_began_ms, now_ms)
            self._election_began_ms = None

    def sensors(self) -> Iterator[tuple[SensorName, Measurable]]:
        """A source for `Sensors.add_source`."""
        for name, (mean, largest) in (("commit-latency", self._commits), ("election-latency", self._elections)):
            yield SensorName(RAFT, f"{name}-avg"), mean
            yield SensorName(RAFT, f"{name}-max"), largest
        yield SensorName(RAFT, "append-records-rate"), self._append_rate
        yield SensorName(RAFT, "fetch-records-rate"), self._fetch_rate


_LOG = logging.getLogger("kalda.raft")

MAX_UNCOMMITTED_BYTES = 80 * 1024 * 1024
CLEAN_INTERVAL_MS = 60_000

P = ParamSpec("P")
SendRpc = Callable[[Destination, Request, int], Pending[Any]]
"""Send a request with a timeout in ms. The response, or an `ApiError` where there is none: `ConnectionRefused` where no
process listens at that address. Raises nothing."""


class _EncodedBatch(NamedTuple):
    """The payload of `Append`: the batch as it is written, and as it is delivered once committed. Its epoch is that of
    the leader that prepared it."""

    data: bytearray
    decoded: CommittedBatch


class _ReceivedRequest(NamedTuple):
    """A request that the machine has not answered yet."""

    request: Request
    version: int
    response: Pending[Response]


class RaftDriver:
    """One replica of the metadata log."""

    def __init__(
        self,
        config: RaftConfig,
        log: MetadataLog,
        static_voters: VoterSet,
        *,
        clock: Clock,
        timers: Timers,
        jobs: Jobs,
        background: Background,
        send: SendRpc,
        random_below: Callable[[int], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Raises `ValueError` where `quorum-state` cannot be read, `CorruptRecord` where a snapshot cannot.

        `random_below(n)` gives integers from 0 to n - 1. `on_fatal` is called once, with the error after which this
        replica cannot go on: of its disk, of the machine, of a listener."""
        self.config = config
        self.log = log
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._send = send
        self._on_fatal = on_fatal
        self.machine = RaftMachine(config, log.state(), log.history(static_voters), log.read_election(), random_below)
        """Ahead of `log` by the effects that are queued."""
        self.listeners = RaftListeners(
            log,
            config.local.id,
            background=background,
            leader_high_watermark=lambda: self.machine.leader_high_watermark,
            on_fatal=self._fail,
        )
        self.times = RaftTimes()
        self._logged_role = self.machine.role
        """The role to which the last transition was logged."""
        self._effects: deque[fx.Effect] = deque()
        """What the machine has emitted and is not carried out yet, in order."""
        self._prepared: _EncodedBatch | None = None
        """Set between `prepare_append` and `schedule_append`; one that was never scheduled is replaced by the next."""
        self._reentrancy = Reentrancy(self._work)
        self._has_scheduled_work = False
        """Whether the next turn of the event loop will run the work, for the effects of an append."""
        self._is_failed = False
        """Nothing is carried out any more: after a fatal error, or `close`."""
        self._timer: Timer | None = None
        self._timer_deadline: int | None = None
        """The machine's deadline for which `_timer` is set."""
        self._is_flushing = False
        """Whether a sync of the log is on a thread. At most one is."""
        self._next_flush: fx.FlushLog | None = None
        """What to sync after it; the newest only, which covers those before it."""
        self._received: dict[int, _ReceivedRequest] = {}
        """By the token under which the machine has the call."""
        self._next_token = 0
        self._clean_timer: Timer | None = None
        self._shutdown: Pending[None] | None = None

    # What others use.

    def start(self) -> None:
        """Take part in the quorum. A quorum of one leads as soon as its first records are synced."""
        self._clean_timer = self._timers.call_later_ms(CLEAN_INTERVAL_MS, self._contained(self._clean))
        self._step(ev.Start())

    @property
    def high_watermark(self) -> int:
        """Everything before it is committed and in this log."""
        return self.listeners.high_watermark

    @property
    def leader_high_watermark(self) -> int | None:
        """The high watermark that the leader has reported, which may be past the end of this log; None before the first
        report."""
        return self.machine.leader_high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.machine.log.end_offset

    def leader_and_epoch(self) -> LeaderAndEpoch:
        """The leader as the listeners receive it: this replica only once it has committed in its epoch."""
        return self.listeners.leader

    @property
    def kraft_version(self) -> int:
        """The finalized `kraft.version`: 1 once the voters are in the log (KIP-853)."""
        return self.machine.history.kraft_version

    def upgrade_kraft_version(self, version: int, *, validate_only: bool) -> None:
        """As the leader, have the quorum keep its voters in the log (KIP-853). Raises `ApiError`."""
        machine = self.machine
        if not isinstance(machine.role, LeaderRole):
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"node {self.config.local.id} does not lead the quorum")
        reason = reconfiguration.upgrade_refusal(machine, version)
        if reason is not None:
            raise ApiError(
                ErrorCode.INVALID_UPDATE_VERSION,
                f"Cannot finalize kraft.version {version} from {self.kraft_version}: {reason}.",
            )
        if not validate_only:
            self._step_later(ev.UpgradeKraftVersion(machine.role.epoch, version))

    @property
    def node_endpoints(self) -> tuple[tuple[int, tuple[Any, ...]], ...]:
        """Voters and their endpoints."""
        return tuple((voter.key.id, voter.endpoints) for voter in self.machine.voters.voters)

    def prepare_append(self, epoch: int, records: Sequence[VersionedRecord]) -> int:
        """Make one batch as the leader of `epoch`; returns the offset that its last record will have. Raises `ApiError`
        where this node does not lead that epoch, the batch is too large, or too many bytes wait for their commit."""
        machine = self.machine
        if self._is_failed or not isinstance(machine.role, LeaderRole) or machine.role.epoch != epoch:
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"node {self.config.local.id} does not lead epoch {epoch}")
        if self.listeners.appended.size_bytes > MAX_UNCOMMITTED_BYTES:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many metadata records wait for their commit")
        now_ms = self._clock.wall_ms()
        first = machine.log.end_offset
        data = encode_batch(records, first, epoch, now_ms)
        last = first + len(records) - 1
        self._prepared = _EncodedBatch(data, CommittedBatch(first, last, epoch, now_ms, len(data), records))
        return last

    def schedule_append(self) -> None:
        """Append the batch that was prepared last. It is written in the next turn of the event loop."""
        batch, self._prepared = self._prepared, None
        assert batch is not None, "no batch was prepared"
        decoded = batch.decoded
        assert decoded.base_offset == self.machine.log.end_offset, "something was appended since the batch was prepared"
        self._step_later(ev.AppendRecords(decoded.epoch, len(decoded.records), batch))

    def resign(self, epoch: int) -> None:
        """Give up the leadership of `epoch`, where this node has it."""
        self._step(ev.Resign(epoch))

    def create_snapshot(self, offset: int, epoch: int, records: Any, last_contained_timestamp_ms: int) -> Pending[bool]:
        """Write the state before `offset`, whose last record is of `epoch`, as a snapshot. `records` is any iterable
        that another thread may draw from while the state here changes. False where there is such a snapshot or a later
        one already."""
        done: Pending[bool] = Pending()
        snapshot = OffsetAndEpoch(offset, epoch)
        latest = self.log.latest_snapshot
        if offset > self.high_watermark:
            raise ValueError(f"a snapshot before {offset} would hold what is not committed")
        if latest is not None and latest.offset >= offset:
            done.complete(False)
            return done
        job = self.log.snapshot_job(
            snapshot,
            records,
            self.machine.history,
            last_contained_timestamp_ms=last_contained_timestamp_ms,
            now_ms=self._clock.wall_ms(),
        )

        def finish(_: int | None, error: BaseException | None) -> None:
            if error is not None:
                self._fail(error)
            # Where a fetched snapshot has replaced the log meanwhile, this one is older than the log's start.
            is_made = error is None and snapshot.offset >= self.machine.log.start_offset
            if is_made:
                is_made = self._carries_out(lambda: self.log.add_snapshot(snapshot))
            if is_made:
                self._step(ev.SnapshotTaken(snapshot))
            done.complete(is_made)

        self._jobs.run(job, self._contained(finish))
        return done

    def handle(self, request: Request, version: int) -> Response | Pending[Response]:
        """Answer Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and FetchSnapshot of the metadata partition,
        DescribeQuorum, and the changes of the voters."""
        try:
            call = wire.call_of(request)
        except wire.NotMetadata:
            is_describe = request.API_KEY == DescribeQuorumRequest.API_KEY
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_describe else ErrorCode.INVALID_REQUEST
            return wire.error_response(request, error)
        pending: Pending[Response] = Pending()
        token, self._next_token = self._next_token, self._next_token + 1
        self._received[token] = _ReceivedRequest(request, version, pending)
        self._step(ev.CallReceived(token, call))
        if pending.done:
            assert pending.value is not None
            return pending.value
        return pending

    def shutdown(self) -> Pending[None]:
        """Stop taking part: a leader resigns and sends EndQuorumEpoch. Settles when the log is synced; `close` then."""
        if self._shutdown is None:
            self._shutdown = Pending()
            self._step(ev.Shutdown())
            if not self._is_flushing:
                self._shutdown.complete(None)
        return self._shutdown

    def close(self, clean: bool = True) -> None:
        """Close the files; with `clean` false leave them as they are."""
        self._is_failed = True
        self.listeners.stop()
        for timer in (self._timer, self._clean_timer):
            if timer is not None:
                timer.cancel()
        self.log.log.close(clean)

    # Events in, effects out.

    def _step(self, event: ev.Event) -> None:
        if self._is_failed:
            return
        try:
            self._effects.extend(self.machine.step(event, self._clock.mono_ms()))
        except Exception as error:
            self._fail(error)
            return
        self._run_work()

    def _step_later(self, event: ev.Event) -> None:
        """Step the machine; the effects are carried out in the next turn of the event loop. Raises what the machine
        raises, which stops this replica."""
        try:
            self._effects.extend(self.machine.step(event, self._clock.mono_ms()))
        except Exception as error:
            self._fail(error)
            raise
        if not self._has_scheduled_work:
            self._has_scheduled_work = True
            self._timers.call_soon(self._contained(self._run_scheduled_work))

    def _run_scheduled_work(self) -> None:
        self._has_scheduled_work = False
        self._run_work()

    def _run_work(self) -> None:
        try:
            self._log_transition()
            if not self._is_failed:
                self._reentrancy.run()
        except Exception as error:
            self._fail(error)

    def _work(self) -> None:
        """Carry out what is queued, also what is queued meanwhile; then deliver, and set the timer."""
        try:
            while self._effects and not self._is_failed:
                self._carry_out(self._effects.popleft())
        except Exception as error:
            self._fail(error)
        if not self._is_failed:
            self._drop_partial_snapshot()
            self.listeners.deliver()
            self._set_timer()

    def _drop_partial_snapshot(self) -> None:
        """Remove what was fetched of a snapshot that is not fetched any more."""
        if self.log.partial is not None:
            role = self.machine.role
            try:
                self.log.drop_partial(role.snapshot if isinstance(role, Follower) else None)
            except OSError as error:
                self._fail(error)

    def _log_transition(self) -> None:
        role, before = self.machine.role, self._logged_role
        if role is not before:
            self._logged_role = role
            self.times.on_role(role, self._clock.mono_ms())
            _LOG.info(
                "[RaftManager id=%s] Completed transition to %s(epoch=%d, leaderId=%s) from %s(epoch=%d, leaderId=%s)",
                self.config.local.id,
                type(role).__name__,
                role.epoch,
                role.leader_id,
                type(before).__name__,
                before.epoch,
                before.leader_id,
            )

    def _contained(self, callback: Callable[P, None]) -> Callable[P, None]:
        """What timers, threads and the network call: where it raises, this replica stops. Their callers would only log
        the exception, and the machine would wait for the outcome for ever."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                callback(*args, **kwargs)
            except Exception as error:
                self._fail(error)

        return call

    def _carries_out(self, action: Callable[[], object]) -> bool:
        """Whether `action` succeeds. Where it raises, this replica stops."""
        try:
            action()
        except Exception as error:
            self._fail(error)
            return False
        return True

    def _fail(self, error: BaseException) -> None:
        """This replica must not reply or write any more: its state may be wrong."""
        if not self._is_failed:
            self._is_failed = True
            self.listeners.stop()
            self._on_fatal(error)

    def _set_timer(self) -> None:
        deadline = self.machine.deadline
        if deadline == self._timer_deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_deadline, self._timer = deadline, None
        if deadline is not None:
            delay_ms = max(0, deadline - self._clock.mono_ms())
            self._timer = self._timers.call_later_ms(delay_ms, self._contained(self._tick))

    def _tick(self) -> None:
        self._timer_deadline = self._timer = None
        self._step(ev.Tick())

    def _carry_out(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Persist(state, voter_ids, kraft_version):
                if not self._is_persisted_again_next():
                    self.log.write_election(state, voter_ids, kraft_version)
            case fx.AppendPayload(_, epoch, payload):
                assert isinstance(payload, _EncodedBatch)
                self.log.append(payload.data, epoch)
                self.listeners.appended.add(payload.decoded)
                decoded = payload.decoded
                self.times.on_append(decoded.last_offset, len(decoded.records), self._clock.mono_ms())
            case fx.AppendControls(first, epoch, records):
                self._append_controls(first, epoch, records)
            case fx.AppendFetched(first, end_offset, records):
                self.times.on_fetched(end_offset - first, self._clock.mono_ms())
                self.log.append_fetched(records, end_offset, self.machine.epoch)  # type: ignore[arg-type]
            case fx.TruncateLog(offset):
                self.listeners.appended.clear()
                self.log.truncate(offset)
            case fx.FlushLog():
                self._next_flush = effect
                self._flush()
            case fx.SendCall(correlation, destination, call, timeout_ms):
                self._send_call(correlation, destination, call, timeout_ms)
            case fx.SendReply(token, reply):
                self._reply(token, reply)
            case fx.SetHighWatermark(offset):
                self.times.on_commit(offset, self._clock.mono_ms())
                self.listeners.commit(offset)
                self.log.log.update_high_watermark(offset)
            case fx.LeaderChanged(leader_id, epoch):
                self._change_leader(LeaderAndEpoch(leader_id, epoch))
            case fx.SaveSnapshotChunk(snapshot, position, data):
                self.log.save_chunk(snapshot, position, data)  # type: ignore[arg-type]
            case fx.InstallSnapshot(snapshot):
                self._install(snapshot)

    def _is_persisted_again_next(self) -> bool:
        """Whether a newer `Persist` comes before any effect that other replicas could see: this one may be left out."""
        for effect in self._effects:
            if isinstance(effect, fx.Persist):
                return True
            if not isinstance(effect, fx.LeaderChanged):
                return False
        return False

    def _change_leader(self, leader: LeaderAndEpoch) -> None:
        self.listeners.change_leader(leader)
        if not self.listeners.is_local_leader and isinstance(self.machine.role, Resigned):
            # The next leader may truncate what is not committed of them.
            self.listeners.appended.clear()

    # The log.

    def _append_controls(self, first: int, epoch: int, records: tuple[Any, ...]) -> None:
        now_ms = self._clock.wall_ms()
        data = control_batch(records, timestamp_ms=now_ms, base_offset=first, leader_epoch=epoch)
        self.log.append(data, epoch)
        last = first + len(records) - 1
        batch = CommittedBatch(first, last, epoch, now_ms, len(data), (), read_control_batch(data))
        self.listeners.appended.add(batch)

    def _flush(self) -> None:
        flush = self._next_flush
        if self._is_flushing or flush is None:
            return
        self._next_flush = None
        try:
            job = self.log.flush_job(flush.offset)
        except Exception as problem:
            self._fail(problem)
            return
        self._is_flushing = True

        def finish(_: object, error: BaseException | None) -> None:
            self._is_flushing = False
            if error is not None:
                self._fail(error)
                return
            job.finish()
            self._flush()
            self._step(ev.Flushed(flush.offset, flush.generation))
            if self._shutdown is not None and not self._is_flushing and not self._shutdown.done:
                self._shutdown.complete(None)

        self._jobs.run(job.run, self._contained(finish))

    def _install(self, snapshot: OffsetAndEpoch) -> None:
        def finish(_: None, error: BaseException | None) -> None:
            if isinstance(error, CorruptRecord):
                _LOG.warning("A fetched snapshot of the metadata log is fetched again: %s", error.message)
                self._step(ev.SnapshotDamaged(snapshot))
                return
            if error is not None:
                self._fail(error)
                return
            self.log.restart_at(snapshot)
            self.listeners.appended.clear()
            controls = self.log.snapshot_controls(snapshot)
            self._step(ev.SnapshotInstalled(snapshot, controls))

        self._jobs.run(self.log.publish_job(snapshot), self._contained(finish))

    def _clean(self) -> None:
        """Periodically: delete snapshots, and the log before them, as the retention of the metadata log demands."""
        self._clean_timer = self._timers.call_later_ms(CLEAN_INTERVAL_MS, self._contained(self._clean))
        cleaned = self.log.clean(self._clock.wall_ms())
        if cleaned is not None:
            self._step(ev.PrefixDeleted(*cleaned))

    # The network.

    def _send_call(self, correlation: int, destination: Destination, call: rpc.Call, timeout_ms: int) -> None:
        def on_response(response: Any, error: ApiError | None) -> None:
            if error is None:
                self._step(self._reply_event(correlation, call, response))
            elif error.code is ErrorCode.UNSUPPORTED_VERSION:
                self._step(ev.ReplyReceived(correlation, wire.failed_reply(call, error.code)))
            else:
                self._step(ev.CallFailed(correlation, isinstance(error, ConnectionRefused)))

        self._send(destination, wire.request_of(call), timeout_ms).then(self._contained(on_response))

    def _reply_event(self, correlation: int, call: rpc.Call, response: Any) -> ev.Event:
        """What the machine receives for a response; a failed call where the response makes no sense."""
        try:
            return ev.ReplyReceived(correlation, wire.reply_of(call, response, self.config.listener))
        except Exception:
            _LOG.exception("The response to %s cannot be read; the call counts as failed.", type(call).__name__)
            return ev.CallFailed(correlation, False)

    def _reply(self, token: Hashable, reply: rpc.Reply) -> None:
        assert isinstance(token, int)
        if isinstance(reply, rpc.FetchReply) and reply.read_from is not None:
            offset, max_bytes = reply.read_from, reply.max_bytes
            records = self.log.read_for_fetch(offset, max_bytes)
            if callable(records):
                self._read_then_reply(token, reply, records)
                return
            reply = reply._replace(records=records)
        elif isinstance(reply, rpc.SnapshotReply) and reply.header.error is ErrorCode.NONE:
            call = wire.call_of(self._received[token].request)
            assert isinstance(call, rpc.SnapshotCall)
            limit = min(call.max_bytes, self.config.fetch_snapshot_max_bytes)
            self._read_then_reply(token, reply, lambda: self.log.read_chunk(call.snapshot, call.position, limit))
            return
        self._respond(token, reply)

    def _read_then_reply(self, token: int, reply: rpc.FetchReply | rpc.SnapshotReply, read: Callable[[], Any]) -> None:
        def finish(found: Any, error: BaseException | None) -> None:
            if error is not None:
                self._fail(error)
            else:
                self._respond(token, _with_records(reply, found))

        self._jobs.run(read, self._contained(finish))

    def _respond(self, token: int, reply: rpc.Reply) -> None:
        request, version, pending = self._received.pop(token)
        offset_ms = self._clock.wall_ms() - self._clock.mono_ms()

        def wall_ms(time_ms: int) -> int:
            return self._clock.wall_ms() if time_ms == 0 else time_ms + offset_ms

        pending.complete(wire.response_of(request, reply, version, self.config.listener, wall_ms))


def _with_records(reply: rpc.FetchReply | rpc.SnapshotReply, found: Any) -> rpc.Reply:
    """`reply` with what a thread has read for it: records, or the size of a snapshot and a part of it; None where the
    snapshot was deleted."""
    if isinstance(reply, rpc.FetchReply):
        return reply._replace(records=found)
    if found is None:
        return reply._replace(header=reply.header._replace(error=ErrorCode.SNAPSHOT_NOT_FOUND))
    if reply.position >= found[0]:
        return reply._replace(header=reply.header._replace(error=ErrorCode.POSITION_OUT_OF_RANGE))
    return reply._replace(size=found[0], data=found[1])
