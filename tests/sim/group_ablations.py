"""Safeguards of consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071), switched off one by
one: without each of them a seed must violate a promise.

As in `ablations`, a switch patches named attributes and restores them; the product has no code for it.
"""

from __future__ import annotations

from typing import Any

from ablations import Ablation, Switch

from kalda.base.scheduling import Pending
from kalda.base.share_states import RecordState


def _done(value: Any = None) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.complete(value)
    return pending


def _give_what_others_have(switch: Switch) -> None:
    """A partition is assigned before the member that has it gives it back."""
    from kalda.coordinator.groups.consumer_protocol import Reconciliation

    checked = Reconciliation.__init__

    def reconcile(self: Reconciliation, *arguments: Any) -> None:
        checked(self, *arguments)
        self._is_taken = lambda topic_id, partition: False

    switch.set(Reconciliation, "__init__", reconcile)


def _commit_in_any_epoch(switch: Switch) -> None:
    from kalda.coordinator.groups.consumer_group import ConsumerGroup

    switch.set(ConsumerGroup, "check_offset_commit", lambda *_, **__: None)


def _forget_offsets_on_the_way(switch: Switch) -> None:
    """A group that changes its kind loses what it has committed."""
    from kalda.coordinator.groups.records import OffsetRecord
    from kalda.coordinator.groups.shard import GroupShard

    checked = GroupShard._ending_for_consumers

    def ending(self: GroupShard, group_id: str) -> Any:
        records = checked(self, group_id)
        offsets = self.offsets.by_group.get(group_id, {}) if records else {}
        return [*records, *(OffsetRecord(group_id, *partition, None) for partition in offsets)]

    switch.set(GroupShard, "_ending_for_consumers", ending)


def _acknowledge_before_writing(switch: Switch) -> None:
    from kalda.replication.share.share_partition import SharePartition

    checked = SharePartition.acknowledge

    def acknowledge(self: SharePartition, *arguments: Any) -> Pending[None]:
        outcome = checked(self, *arguments)
        return outcome if outcome.done else _done()

    switch.set(SharePartition, "acknowledge", acknowledge)


def _snapshot_without_batches(switch: Switch) -> None:
    from kalda.coordinator.share import shard

    switch.set(shard, "snapshot_batches", lambda batches: [])


def _deliver_without_limit(switch: Switch) -> None:
    from kalda.replication.share.share_partition import ShareSettings

    switch.set(ShareSettings, "after_release", lambda self, delivery_count: RecordState.AVAILABLE)


def _archive_after_one_attempt(switch: Switch) -> None:
    """A record whose dead letter could not be written at once is archived without it."""
    from kalda.broker.channels.dead_letter_writer import DeadLetterWriter

    switch.set(DeadLetterWriter, "_retry", lambda self, letters, failure: letters.outcome.complete(None))


def _deliver_what_others_have(switch: Switch) -> None:
    from kalda.replication.share.in_flight import Run

    free = property(lambda self: self.state in (RecordState.AVAILABLE, RecordState.ACQUIRED) and self.former is None)
    switch.set(Run, "is_free", free)


def _begin_without_the_state(switch: Switch) -> None:
    """The next leader knows the start offset alone."""
    from kalda.replication.share.share_partition import SharePartition

    checked = SharePartition._begin

    def begin(self: SharePartition, state: Any, start_offset: int) -> None:
        checked(self, state._replace(batches=[]), start_offset)

    switch.set(SharePartition, "_begin", begin)


def _write_for_any_leader(switch: Switch) -> None:
    """A leader that was replaced without its knowledge goes on writing."""
    from kalda.coordinator.share.shard import ShareShard

    switch.set(ShareShard, "_check_leader_epoch", lambda *_: None)


def _forget_letters_of_former_leaders(switch: Switch) -> None:
    """Records whose dead letters a former leader has not written stay without."""
    from kalda.replication.share.share_partition import SharePartition

    checked = SharePartition._begin

    def begin(self: SharePartition, *arguments: Any) -> None:
        checked(self, *arguments)
        for run in self.in_flight.runs:
            run.cause = None

    switch.set(SharePartition, "_begin", begin)


def _run_what_others_run(switch: Switch) -> None:
    """A task is given to a member before the one that runs it has given it back."""
    from kalda.coordinator.groups.streams.member import _Step

    switch.set(_Step, "_free_to_run", lambda self, tasks: tasks)


def _copy_beside_the_task(switch: Switch) -> None:
    """A process gets a standby copy of a task of which it has another copy."""
    from kalda.coordinator.groups.streams.member import _Step

    switch.set(_Step, "_waits_for_standby", lambda self, task: False)


def _take_back_unsaid(switch: Switch) -> None:
    """A task counts as given back before its member has said so."""
    from kalda.coordinator.groups.streams.member import _Step

    switch.set(_Step, "still_has", lambda self, tasks: False)


def _keep_silent_members(switch: Switch) -> None:
    from kalda.coordinator.groups.kind_protocol import KindGroups

    switch.set(KindGroups, "_expire", lambda *_: None)


def _keep_positions_of_former_topics(switch: Switch) -> None:
    """A consumer goes on at its position in a topic that was deleted, when it was created again."""
    from kalda.clientcore.consumer import ConsumerCore

    switch.set(ConsumerCore, "_watch_topic_ids", lambda self: None)


_CONSUMERS, _MIXED, _SHARES = ("consumer-groups",), ("migrating-groups",), ("share-groups",)
_STREAMS = ("streams-groups",)
GROUP_ABLATIONS = {
    each.name: each
    for each in (
        Ablation("given back before given", _give_what_others_have, 1, ("pause-client",), 8.0, loads=_CONSUMERS),
        Ablation("commits by epoch", _commit_in_any_epoch, 1, ("pause-client", "reset"), 20.0, loads=_CONSUMERS),
        Ablation("offsets stay with the group", _forget_offsets_on_the_way, 1, (), 8.0, loads=_MIXED),
        Ablation(
            "written before acknowledged", _acknowledge_before_writing, 3, ("slow", "kill", "cut"), 15.0, loads=_SHARES
        ),
        Ablation("snapshots have all batches", _snapshot_without_batches, 1, ("kill",), 8.0, loads=_SHARES),
        Ablation("the delivery count limit", _deliver_without_limit, 1, (), 8.0, loads=_SHARES),
        Ablation("letters are tried again", _archive_after_one_attempt, 1, (), 4.0, loads=_SHARES),
        Ablation("records have one owner", _deliver_what_others_have, 1, (), 4.0, loads=_SHARES),
        Ablation("the next leader reads the state", _begin_without_the_state, 1, ("kill",), 8.0, loads=_SHARES),
        Ablation("former leaders are fenced", _write_for_any_leader, 3, ("pause", "cut"), 15.0, loads=_SHARES),
        Ablation(
            "the next leader writes the letters",
            _forget_letters_of_former_leaders,
            1,
            ("kill", "slow-disk"),
            15.0,
            loads=_SHARES,
        ),
        Ablation("tasks run once", _run_what_others_run, 1, (), 8.0, loads=_STREAMS),
        Ablation("copies are apart", _copy_beside_the_task, 1, (), 8.0, loads=_STREAMS),
        Ablation("given back when it is said", _take_back_unsaid, 1, (), 8.0, loads=_STREAMS),
        Ablation(
            "positions end with their topic",
            _keep_positions_of_former_topics,
            1,
            (),
            8.0,
            loads=("recreated-topics",),
        ),
        Ablation("sessions end", _keep_silent_members, 1, (), 8.0, loads=_STREAMS),
    )
}
"""By the name of the safeguard."""
