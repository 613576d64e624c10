"""The driver of the quorum: carries the machine's effects out on disk and network, and tells the listeners.

Effects are carried out strictly in order. Two of them take time, and their outcome comes back as an event: the sync of
the log, on a thread, one at a time, so that whatever was appended during one is made durable by the next together; and
the installation of a fetched snapshot. `quorum-state` is synced on the spot: elections are rare, and a vote must not
leave before it.

A leader's append fixes its offsets at once, but its bytes are written when the loop turns: the caller applies its
records in between, and a record that cannot be applied stops the node before any replica has seen it. A leader keeps
what it appended until it is committed, and delivers that rather than read it back.

Listeners are told in order: a snapshot where they lack what the log no longer has, committed batches, and who leads.
Of itself as the leader a listener hears once it was given everything that was committed before. All of it goes in
turns, a bounded part each, with everybody else's requests in between. A listener that is far behind may be left there
(`hold_beyond`) until somebody has given it the state of another one, and says so (`resume`).

No asyncio here: time, threads and the network are handed in, so a simulator can drive it as well.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from kalda.base.clock import Clock
from kalda.base.errors import ApiError, CorruptRecord, ErrorCode
from kalda.base.pending import Pending
from kalda.base.scheduling import Jobs, Timer, Timers
from kalda.protocol.notation import Request, Response
from kalda.protocol.record_framing import VersionedRecord
from kalda.raft import effects as fx
from kalda.raft import events as ev
from kalda.raft import reconfiguration, rpc, wire
from kalda.raft.batches import CommittedBatch, encode_batch
from kalda.raft.config import RaftConfig
from kalda.raft.leader import LeaderRole
from kalda.raft.machine import RaftMachine
from kalda.raft.metadata_log import MetadataLog
from kalda.raft.roles import Resigned
from kalda.raft.snapshots import SnapshotReader
from kalda.raft.values import BOOTSTRAP_SNAPSHOT, Destination, OffsetAndEpoch
from kalda.raft.voters import VoterSet
from kalda.records.control import control_batch, read_control_batch

_LOG = logging.getLogger("kalda.raft")

MAX_UNCOMMITTED_BYTES = 80 * 1024 * 1024
MAX_BATCHES_A_TURN = 256
MAX_BYTES_A_TURN = 128 * 1024
"""To replay so much takes some 20 ms, in which this node answers nobody."""
CLEAN_INTERVAL_MS = 60_000


class Listener(Protocol):
    """A state machine on the metadata log."""

    def on_commit(self, batches: list[CommittedBatch]) -> None:
        """Committed batches, in order, none left out; control batches come with no records."""
        ...

    def on_load_snapshot(self, reader: SnapshotReader) -> Iterator[None] | None:
        """Forget everything and take this state instead; commits go on from `reader.offset`. Where that takes long, the
        steps of it, which are taken one a turn; until the last is, nothing is committed here."""
        ...

    def on_leader_change(self, leader_id: int | None, epoch: int) -> None: ...


SendRpc = Callable[[Destination, Request, int], Pending[Any]]
"""Send a request with a timeout in ms; the response, or the `ApiError` that none came of it, which is a `ReplicaGone`
where no process listens there any more."""


class ReplicaGone(ApiError):
    """Connections are refused."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class LeaderAndEpoch(NamedTuple):
    leader_id: int | None
    epoch: int


class _Encoded(NamedTuple):
    """A batch on its way into the log, and as it is to be delivered."""

    batch: bytearray
    kept: CommittedBatch


class Registration:
    """How far one listener has been told."""

    __slots__ = ("held", "hold_beyond", "leader", "listener", "loading", "next_offset", "told")

    def __init__(self, listener: Listener, hold_beyond: Callable[[], int] | None) -> None:
        self.listener = listener
        self.hold_beyond = hold_beyond
        self.held = False
        """Whether it is told of no commits until `resume`."""
        self.next_offset = 0
        self.loading: Iterator[None] | None = None
        """The rest of the snapshot that ends at `next_offset`."""
        self.leader: tuple[LeaderAndEpoch, int] | None = None
        self.told: LeaderAndEpoch | None = None


class RaftDriver:
    """One replica of the metadata log, running."""

    def __init__(
        self,
        config: RaftConfig,
        log: MetadataLog,
        static_voters: VoterSet,
        *,
        clock: Clock,
        timers: Timers,
        jobs: Jobs,
        send: SendRpc,
        below: Callable[[int], int],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """Raises `ValueError` where `quorum-state` cannot be read, `CorruptRecord` where a snapshot cannot.

        `below(n)` gives random integers below n. `on_fatal` is told of what this replica cannot go on after: its disk
        failed, or a listener did."""
        self.config = config
        self.log = log
        self._clock = clock
        self._timers = timers
        self._jobs = jobs
        self._send = send
        self._on_fatal = on_fatal
        self.machine = RaftMachine(config, log.state(), log.history(static_voters), log.read_election(), below)
        self._role = self.machine.role
        self._effects: deque[fx.Effect] = deque()
        self._running = False
        self._scheduled = False
        self._failed = False
        self._timer: Timer | None = None
        self._timer_at: int | None = None
        self._registrations: list[Registration] = []
        self._leader = LeaderAndEpoch(None, 0)
        self._high_watermark = 0
        self._kept: deque[CommittedBatch] = deque()
        self._kept_bytes = 0
        self._flushing = False
        self._flush_wanted: fx.FlushLog | None = None
        self._requests: dict[int, tuple[Request, int, Pending[Response]]] = {}
        self._next_token = 0
        self._delivering = False
        self._clean_timer: Timer | None = None
        self._closing: Pending[None] | None = None

    # What others use.

    def start(self) -> None:
        """Take part. A quorum of one leads as soon as its first records are synced."""
        self._clean_timer = self._timers.call_later_ms(CLEAN_INTERVAL_MS, self._clean)
        self._step(ev.Start())

    def register(self, listener: Listener, *, hold_beyond: Callable[[], int] | None = None) -> Registration:
        """Tell `listener` everything, from the latest snapshot on. Where it is more than `hold_beyond()` records behind
        what is committed, it is told nothing more until `resume`."""
        registration = Registration(listener, hold_beyond)
        registration.leader = (self._leader, self._high_watermark if self._leads_itself else 0)
        self._registrations.append(registration)
        self._deliver()
        return registration

    def resume(self, registration: Registration, offset: int | None) -> None:
        """Tell a listener that was held what is committed from `offset` on: what is before it has. With None, it is
        told everything that it lacks, and not held again."""
        registration.held = False
        if offset is None:
            registration.hold_beyond = None
        else:
            registration.next_offset = offset
        self._timers.call_later_ms(0, self._deliver)

    @property
    def high_watermark(self) -> int:
        """Everything before it is committed."""
        return self._high_watermark

    @property
    def leader_high_watermark(self) -> int | None:
        """The high watermark as the leader told it, which this node may yet have to fetch; None while none was heard
        of."""
        return self.machine.leader_high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.machine.log.end_offset

    def leader_and_epoch(self) -> LeaderAndEpoch:
        """Who leads, as the listeners are told."""
        return self._leader

    @property
    def kraft_version(self) -> int:
        """The finalized `kraft.version`: 1 once the voters are in the log (KIP-853)."""
        return self.machine.history.kraft_version

    def upgrade_kraft_version(self, version: int, *, validate_only: bool) -> None:
        """Have the quorum keep its voters in the log (KIP-853), as the leader. Raises `ApiError`."""
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
            self._effects.extend(
                machine.step(ev.UpgradeKraftVersion(machine.role.epoch, version), self._clock.mono_ms())
            )
            self._run_soon()

    @property
    def node_endpoints(self) -> tuple[tuple[int, tuple[Any, ...]], ...]:
        """Voters and their endpoints."""
        return tuple((voter.key.id, voter.endpoints) for voter in self.machine.voters.voters)

    def append(self, epoch: int, records: Sequence[VersionedRecord]) -> int:
        """Append one batch as the leader of `epoch`; returns the offset of its last record. Raises `ApiError` where
        this node does not lead that epoch, or the batch is too large, or too much waits for its commit."""
        machine = self.machine
        if not isinstance(machine.role, LeaderRole) or machine.role.epoch != epoch:
            raise ApiError(ErrorCode.NOT_CONTROLLER, f"node {self.config.local.id} does not lead epoch {epoch}")
        if self._kept_bytes > MAX_UNCOMMITTED_BYTES:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT, "too many metadata records wait for their commit")
        now_ms = self._clock.wall_ms()
        first = machine.log.end_offset
        batch = encode_batch(records, first, epoch, now_ms)
        last = first + len(records) - 1
        kept = CommittedBatch(first, last, epoch, now_ms, len(batch), records)
        self._effects.extend(machine.step(ev.Append(epoch, len(records), _Encoded(batch, kept)), self._clock.mono_ms()))
        self._run_soon()
        return last

    def resign(self, epoch: int) -> None:
        """Give up the leadership of `epoch`, where this node has it."""
        self._step(ev.Resign(epoch))

    def create_snapshot(self, offset: int, epoch: int, records: Any, last_contained_timestamp_ms: int) -> Pending[bool]:
        """Write the state before `offset`, whose last record is of `epoch`, as a snapshot. `records` is any iterable;
        it is drawn on another thread, so it must not touch what changes. False where there is such a snapshot or a
        later one already."""
        done: Pending[bool] = Pending()
        snapshot = OffsetAndEpoch(offset, epoch)
        latest = self.log.latest_snapshot
        if offset > self._high_watermark:
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
            # A log that was replaced by a later one meanwhile has no use for it.
            made = error is None and snapshot.offset >= self.machine.log.start_offset
            if made:
                self.log.add_snapshot(snapshot)
                self._step(ev.SnapshotTaken(snapshot))
            done.complete(made)

        self._jobs.run(job, finish)
        return done

    def handle(self, request: Request, version: int) -> Response | Pending[Response]:
        """Answer Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and FetchSnapshot of the metadata partition,
        DescribeQuorum, and the changes of the voters."""
        try:
            call = wire.call_of(request)
        except wire.NotMetadata:
            unknown = request.API_KEY == 55
            return wire.error_response(
                request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if unknown else ErrorCode.INVALID_REQUEST
            )
        pending: Pending[Response] = Pending()
        token, self._next_token = self._next_token, self._next_token + 1
        self._requests[token] = (request, version, pending)
        self._step(ev.CallReceived(token, call))
        if pending.done:
            assert pending.value is not None
            return pending.value
        return pending

    def shutdown(self) -> Pending[None]:
        """Stop: a leader resigns and says so. Done when the log is synced; then `close`."""
        if self._closing is None:
            self._closing = Pending()
            self._step(ev.Shutdown())
            if not self._flushing:
                self._closing.complete(None)
        return self._closing

    def close(self, clean: bool = True) -> None:
        """Let go of the files; with `clean` false leave them as they are."""
        self._failed = True
        for timer in (self._timer, self._clean_timer):
            if timer is not None:
                timer.cancel()
        self.log.log.close(clean)

    # Events in, effects out.

    def _step(self, event: ev.Event) -> None:
        if self._failed:
            return
        try:
            self._effects.extend(self.machine.step(event, self._clock.mono_ms()))
        except Exception as error:
            self._fail(error)
            return
        self._run()

    def _run_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._timers.call_later_ms(0, self._run_scheduled)

    def _run_scheduled(self) -> None:
        self._scheduled = False
        self._run()

    def _run(self) -> None:
        """Carry out what is queued. An effect may bring events, whose effects then queue behind."""
        self._note_transition()
        if self._running or self._failed:
            return
        self._running = True
        try:
            while self._effects and not self._failed:
                self._carry_out(self._effects.popleft())
        except Exception as error:
            self._fail(error)
        finally:
            self._running = False
        if not self._failed:
            self._deliver()
            self._set_timer()

    def _note_transition(self) -> None:
        now, before = self.machine.role, self._role
        if now is not before:
            self._role = now
            _LOG.info(
                "[RaftManager id=%s] Completed transition to %s(epoch=%d, leaderId=%s) from %s(epoch=%d, leaderId=%s)",
                self.config.local.id,
                type(now).__name__,
                now.epoch,
                now.leader_id,
                type(before).__name__,
                before.epoch,
                before.leader_id,
            )

    def _fail(self, error: BaseException) -> None:
        """This replica cannot go on: what it would say or write from here on is not to be trusted."""
        if not self._failed:
            self._failed = True
            self._on_fatal(error)

    def _set_timer(self) -> None:
        due = self.machine.deadline
        if due == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at, self._timer = due, None
        if due is not None:
            self._timer = self._timers.call_later_ms(max(0, due - self._clock.mono_ms()), self._tick)

    def _tick(self) -> None:
        self._timer_at = self._timer = None
        self._step(ev.Tick())

    def _carry_out(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Persist(state, voter_ids, kraft_version):
                if not self._superseded():
                    self.log.write_election(state, voter_ids, kraft_version)
            case fx.AppendPayload(_, epoch, payload):
                assert isinstance(payload, _Encoded)
                self.log.append(payload.batch, epoch)
                self._keep(payload.kept)
            case fx.AppendControls(first, epoch, records):
                self._append_controls(first, epoch, records)
            case fx.AppendFetched(_, end_offset, records):
                self.log.append_fetched(records, end_offset, self.machine.epoch)  # type: ignore[arg-type]
            case fx.TruncateLog(offset):
                self._forget_kept()
                self.log.truncate(offset)
            case fx.FlushLog():
                self._flush_wanted = effect
                self._flush()
            case fx.SendCall(correlation, destination, call, timeout_ms):
                self._send_call(correlation, destination, call, timeout_ms)
            case fx.SendReply(token, reply):
                self._reply(token, reply)
            case fx.SetHighWatermark(offset):
                self._high_watermark = offset
                self.log.log.update_high_watermark(offset)
            case fx.LeaderChanged(leader_id, epoch):
                self._leader_changed(LeaderAndEpoch(leader_id, epoch))
            case fx.SaveSnapshotChunk(snapshot, position, data):
                self.log.save_chunk(snapshot, position, data)  # type: ignore[arg-type]
            case fx.InstallSnapshot(snapshot):
                self._install(snapshot)

    def _superseded(self) -> bool:
        """Whether the next thing to do is to persist once more: then nobody can have seen this one."""
        for effect in self._effects:
            if isinstance(effect, fx.Persist):
                return True
            if not isinstance(effect, fx.LeaderChanged):
                return False
        return False

    # The log.

    def _append_controls(self, first: int, epoch: int, records: tuple[Any, ...]) -> None:
        now_ms = self._clock.wall_ms()
        batch = control_batch(records, timestamp_ms=now_ms, base_offset=first, leader_epoch=epoch)
        self.log.append(batch, epoch)
        controls = read_control_batch(batch)
        self._keep(CommittedBatch(first, first + len(records) - 1, epoch, now_ms, len(batch), (), controls))

    def _keep(self, batch: CommittedBatch) -> None:
        if self._kept and self._kept[-1].last_offset + 1 != batch.base_offset:
            self._forget_kept()
        self._kept.append(batch)
        self._kept_bytes += batch.size_bytes

    def _forget_kept(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    def _flush(self) -> None:
        wanted = self._flush_wanted
        if self._flushing or wanted is None:
            return
        self._flush_wanted = None
        try:
            job = self.log.flush_job(wanted.offset)
        except (OSError, ApiError) as problem:
            self._fail(problem)
            return
        self._flushing = True

        def finish(_: object, error: BaseException | None) -> None:
            self._flushing = False
            try:
                if error is not None:
                    raise error
                job.finish()
            except (OSError, ApiError) as problem:
                self._fail(problem)
                return
            self._flush()
            self._step(ev.Flushed(wanted.offset, wanted.generation))
            if self._closing is not None and not self._flushing and not self._closing.done:
                self._closing.complete(None)

        self._jobs.run(job.run, finish)

    def _install(self, snapshot: OffsetAndEpoch) -> None:
        def finish(_: None, error: BaseException | None) -> None:
            if isinstance(error, CorruptRecord):
                _LOG.warning("A fetched snapshot of the metadata log is fetched again: %s", error.message)
                self._step(ev.SnapshotDamaged(snapshot))
                return
            if error is not None:
                self._fail(error)
                return
            try:
                self.log.restart_at(snapshot)
                self._forget_kept()
                controls = self.log.snapshot_controls(snapshot)
            except (OSError, ApiError) as problem:
                self._fail(problem)
                return
            self._step(ev.SnapshotInstalled(snapshot, controls))

        self._jobs.run(self.log.publish_job(snapshot), finish)

    def _clean(self) -> None:
        """Now and then: what the retention of the metadata log no longer wants."""
        self._clean_timer = self._timers.call_later_ms(CLEAN_INTERVAL_MS, self._clean)
        try:
            cleaned = self.log.clean(self._clock.wall_ms())
        except (OSError, ApiError) as error:
            self._fail(error)
            return
        if cleaned is not None:
            self._step(ev.PrefixDeleted(*cleaned))

    # The network.

    def _send_call(self, correlation: int, destination: Destination, call: rpc.Call, timeout_ms: int) -> None:
        def on_response(response: Any, error: ApiError | None) -> None:
            if error is None:
                self._step(ev.ReplyReceived(correlation, wire.reply_of(call, response, self.config.listener)))
            elif error.code is ErrorCode.UNSUPPORTED_VERSION:
                self._step(ev.ReplyReceived(correlation, wire.failed_reply(call, error.code)))
            else:
                self._step(ev.CallFailed(correlation, isinstance(error, ReplicaGone)))

        try:
            pending = self._send(destination, wire.request_of(call), timeout_ms)
        except ApiError as error:
            failed = error
            self._timers.call_later_ms(0, lambda: on_response(None, failed))
            return
        pending.then(on_response)

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
            call = wire.call_of(self._requests[token][0])
            assert isinstance(call, rpc.SnapshotCall)
            limit = min(call.max_bytes, self.config.fetch_snapshot_max_bytes)
            self._read_then_reply(token, reply, lambda: self.log.read_chunk(call.snapshot, call.position, limit))
            return
        self._respond(token, reply)

    def _read_then_reply(self, token: int, reply: rpc.FetchReply | rpc.SnapshotReply, read: Callable[[], Any]) -> None:
        def finish(found: Any, error: BaseException | None) -> None:
            if error is not None:
                self._fail(error)
            elif isinstance(reply, rpc.FetchReply):
                self._respond(token, reply._replace(records=found))
            elif found is None:
                header = reply.header._replace(error=ErrorCode.SNAPSHOT_NOT_FOUND)
                self._respond(token, reply._replace(header=header))
            elif reply.position >= found[0]:
                header = reply.header._replace(error=ErrorCode.POSITION_OUT_OF_RANGE)
                self._respond(token, reply._replace(header=header))
            else:
                self._respond(token, reply._replace(size=found[0], data=found[1]))

        self._jobs.run(read, finish)

    def _respond(self, token: int, reply: rpc.Reply) -> None:
        request, version, pending = self._requests.pop(token)
        offset = self._clock.wall_ms() - self._clock.mono_ms()

        def wall_ms(time: int) -> int:
            return self._clock.wall_ms() if time == 0 else time + offset

        pending.complete(wire.response_of(request, reply, version, self.config.listener, wall_ms))

    # The listeners.

    @property
    def _leads_itself(self) -> bool:
        return self._leader.leader_id == self.config.local.id

    def _leader_changed(self, leader: LeaderAndEpoch) -> None:
        self._leader = leader
        if not self._leads_itself and isinstance(self.machine.role, Resigned):
            self._forget_kept()
        due = self._high_watermark if self._leads_itself else 0
        for registration in self._registrations:
            registration.leader = (leader, due)

    def _deliver(self) -> None:
        """Tell every listener what it has not heard, some batches at a time."""
        if self._delivering or self._failed:
            return
        self._delivering = True
        more = False
        drawn: dict[int, list[CommittedBatch]] = {}
        try:
            for registration in list(self._registrations):
                more = self._tell(registration, drawn) or more
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._delivering = False
        low = min((r.next_offset for r in self._registrations if not r.held), default=self._high_watermark)
        while self._kept and self._kept[0].last_offset < low:
            self._kept_bytes -= self._kept.popleft().size_bytes
        if more:
            self._timers.call_later_ms(0, self._deliver)

    def _tell(self, registration: Registration, drawn: dict[int, list[CommittedBatch]]) -> bool:
        """Whether there is more to tell. `drawn` are batches by where they start: listeners that are equally far, as
        they are when a node starts, share what is read and decoded."""
        listener = registration.listener
        more = False
        if not self._holds(registration):
            if not self._load_some(registration):
                start = registration.next_offset
                batches = drawn.get(start)
                if batches is None:
                    batches = drawn[start] = self._committed_from(start)
                if batches:
                    registration.next_offset = batches[-1].last_offset + 1
                    listener.on_commit(batches)
            more = registration.loading is not None or registration.next_offset < self._high_watermark
        if registration.leader is not None and registration.loading is None:
            leader, due = registration.leader
            if registration.next_offset >= due:
                registration.leader = None
                if leader != registration.told and leader != LeaderAndEpoch(None, 0):
                    registration.told = leader
                    listener.on_leader_change(*leader)
        return more

    def _holds(self, registration: Registration) -> bool:
        """Whether to leave that listener behind: begun snapshots are loaded, and who writes has replayed."""
        if registration.held or registration.hold_beyond is None or registration.loading is not None:
            return registration.held
        if registration.told is None or registration.told.leader_id != self.config.local.id:
            latest = self.log.latest_snapshot
            end = max(self._high_watermark, self.leader_high_watermark or 0, latest.offset if latest is not None else 0)
            registration.held = end - registration.next_offset > registration.hold_beyond()
        return registration.held

    def _load_some(self, registration: Registration) -> bool:
        """Take a step of a snapshot where the log does not have what that listener lacks; whether one was taken."""
        if registration.loading is None:
            snapshot = self.log.latest_snapshot
            lacks = registration.next_offset < self.log.log.log_start_offset or registration.next_offset == 0
            if snapshot is None or snapshot == BOOTSTRAP_SNAPSHOT or not lacks:
                return False
            steps = registration.listener.on_load_snapshot(self.log.reader(snapshot))
            registration.next_offset = snapshot.offset
            if steps is None:
                return False
            registration.loading = steps
        try:
            next(registration.loading)
        except StopIteration:
            registration.loading = None
        return True

    def _committed_from(self, offset: int) -> list[CommittedBatch]:
        """Up to `MAX_BATCHES_A_TURN` batches that are committed, from `offset` on, of some `MAX_BYTES_A_TURN`."""
        limit = self._high_watermark
        if offset >= limit:
            return []
        batches: list[CommittedBatch] = []
        kept = bool(self._kept) and self._kept[0].base_offset <= offset
        size = 0
        for batch in self._kept if kept else self.log.read_batches(offset, limit):
            if batch.last_offset >= limit:
                break
            if batch.base_offset >= offset:
                batches.append(batch)
                size += batch.size_bytes
                if len(batches) == MAX_BATCHES_A_TURN or size >= MAX_BYTES_A_TURN:
                    break  # before one more is decoded
        return batches
