"""Invariants during faults, checked every WATCH_S and with each acknowledgement. Raises Broken.

- CONFIRMED: a broker's confirm offset is not beyond its log's end, and the logs of two brokers are equal up to the lower confirm offset
- ONE_MASTER: an epoch has one master; once a broker accepts messages in an epoch, no broker of an earlier epoch acknowledges a message that
  is sent afterwards
- CONFIRMED, after the faults: bytes that two brokers confirmed are in the remaining log, also in a group that waits for no replica
- OFFSETS: while a broker runs, the offset that a group committed there does not go back, except at a slave whose log was cut, when it
  takes its master's table (offset_merge.py): the master may not have copied the last commits; and except at a master whose predecessor had a
  lower offset, because it had not copied the last commits: consumers return to it and commit lower offsets at the next master, too
"""

from __future__ import annotations

import itertools
from typing import Any

from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.simulation.broken import Broken, Checker
from aerobee.simulation.names import GROUP, QUEUES, TOPIC
from aerobee.simulation.node import Node, Settings
from aerobee.simulation.party import Sent
from aerobee.simulation.simulated_loop import SimulatedClock

WATCH_S = 0.25


class Watch:
    """The checks of one cluster. `look()` is called every WATCH_S, `acknowledged()` with each acknowledged send."""

    def __init__(self, brokers: list[Node], settings: Settings, clock: SimulatedClock) -> None:
        self._brokers, self._settings, self._clock = brokers, settings, clock
        self._masters: dict[int, str] = {}  # epoch -> broker that accepted messages in it
        self._began: dict[int, float] = {}  # epoch -> time from which on it did
        # (broker, its start, queue) -> committed offset
        self._committed: dict[tuple[str, int, int], int] = {}
        self._at_master: dict[
            tuple[int, int], int
        ] = {}  # (epoch, queue) -> last known offset at the epoch's master
        # A master was unreachable for longer than the time-out of a commit: that commit may arrive after a
        # newer one.
        self.commits_come_late = False
        self._kept = bytearray()  # bytes that two brokers confirmed, from `_kept_from` on
        self._kept_from = 0

    def follow(self, node: Node) -> None:
        """Watch a broker that has just started: note when it takes its master's offsets after a truncation of
        its log.
        """
        offsets, role, life = node.process.offsets, node.process.role, (node.host.name, node.starts)
        cut_is_over = offsets.cut_is_over

        def noted() -> None:
            if offsets.counts_cut_off and not role.takes_writes:
                self._committed = {key: at for key, at in self._committed.items() if key[:2] != life}
            cut_is_over()

        offsets.cut_is_over = noted  # called with each table of the master, before the slave sets its offsets

    def look(self) -> None:
        """Raise Broken for an invariant that is violated now."""
        running = [node for node in self._brokers if node.process is not None]
        for node in running:
            self._look_at_role(node)
            self._look_at_offsets(node)
        if self._settings.controllers:
            self._look_at_confirmed(running)

    def _keep(self, found: list[tuple[Node, Any, int]]) -> None:
        """Note the bytes that two brokers confirm (`kept_by` of the settings) and that are equal: after the faults each log must
        contain them (check_kept).
        """
        count = self._settings.kept_by
        some = sorted(found, key=lambda each: each[2])[-count:]
        if len(some) < count:
            return
        (_, log, end), *others = some
        at = self._kept_from + len(self._kept)
        if max(each.min_offset for _, each, _ in some) > at:
            return  # retention deleted the next bytes; no run writes enough for that
        while at < end:
            stop = min(end, *(each.segment_at(at).end for _, each, _ in some))
            content = log.read(at, stop - at)
            if any(content != other.read(at, stop - at) for _, other, _ in others):
                return  # a master that waits for no replica confirms bytes that no other broker has
            self._kept += content
            at = stop

    def check_kept(self, log: Any) -> None:
        """Raise Broken when the log after the faults differs from the bytes that two brokers confirmed."""
        at, end = max(self._kept_from, log.min_offset), self._kept_from + len(self._kept)
        while at < end:
            stop = min(end, log.segment_at(at).end) if at < log.end else at
            kept = bytes(self._kept[at - self._kept_from : stop - self._kept_from])
            if stop == at or log.read(at, stop - at) != kept:
                raise Broken(
                    Checker.CONFIRMED,
                    f"{self._settings.kept_by} brokers had confirmed up to {end}, and the log that is left differs from {at} on",
                )
            at = stop

    def _look_at_role(self, node: Node) -> None:
        role = node.process.role
        if not (role.takes_writes and self._settings.controllers):
            return
        other = self._masters.setdefault(role.epoch, node.host.name)
        if other != node.host.name:
            raise Broken(
                Checker.ONE_MASTER, f"{other} and {node.host.name} are masters of epoch {role.epoch}"
            )
        self._began.setdefault(role.epoch, self._clock.monotonic())

    def acknowledged(self, sent: Sent) -> None:
        """A producer received the acknowledgement of this message."""
        for node in self._brokers:
            if node.process is not None:
                self._look_at_role(node)
        epoch = max((epoch for epoch, name in self._masters.items() if name == sent.broker), default=None)
        if epoch is None:
            return
        for newer, began in self._began.items():
            if newer > epoch and began < sent.at:
                raise Broken(
                    Checker.ONE_MASTER,
                    f"{sent.broker}, master of epoch {epoch}, acknowledged {sent.body[:12]!r}, sent at {sent.at:.3f} s, and "
                    f"{self._masters[newer]} took messages in epoch {newer} since {began:.3f} s",
                )

    def _look_at_offsets(self, node: Node) -> None:
        if self.commits_come_late:
            return
        if not self._settings.waits_for_replicas:
            return  # consumed messages may be truncated, and the offset decreases with them
        for queue_id in range(QUEUES):
            offset = node.process.offsets.query(GROUP, TOPIC, queue_id)
            role = node.process.role
            if role.takes_writes:
                self._at_master[role.epoch, queue_id] = offset or 0
            if offset is None:
                continue
            key = node.host.name, node.starts, queue_id
            before = self._committed.get(key, -1)
            if offset < before and not (role.takes_writes and self._was_lost(queue_id, offset, role.epoch)):
                raise Broken(
                    Checker.OFFSETS,
                    f"{GROUP} in queue {queue_id} of {TOPIC} went from {before} back to {offset} at {node.host.name}",
                )
            self._committed[key] = offset

    def _was_lost(self, queue_id: int, offset: int, epoch: int) -> bool:
        """Whether the master of the previous epoch had this offset or a lower one."""
        before = [each for each, queue in self._at_master if queue == queue_id and each < epoch]
        return bool(before) and self._at_master[max(before), queue_id] <= offset

    def _look_at_confirmed(self, running: list[Node]) -> None:
        found = []
        for node in running:
            log, mode = node.process.store.log, node.process.replication.mode
            assert isinstance(mode, AutoSwitchMode)
            confirmed = mode.confirm_offset
            if confirmed > log.end:
                raise Broken(
                    Checker.CONFIRMED, f"{node.host.name} confirms {confirmed}, and its log ends at {log.end}"
                )
            found.append((node, log, confirmed))
        self._keep(found)
        if not self._settings.waits_for_replicas:
            return  # a master confirms bytes that no other broker has
        for (one, log, confirmed), (other, other_log, other_confirmed) in itertools.pairwise(found):
            end = min(confirmed, other_confirmed)
            at = max(log.min_offset, other_log.min_offset)
            while at < end:
                segment, other_segment = log.segment_at(at), other_log.segment_at(at)
                stop = min(end, segment.end, other_segment.end)
                if log.read(at, stop - at) != other_log.read(at, stop - at):
                    raise Broken(
                        Checker.CONFIRMED,
                        f"{one.host.name} and {other.host.name} both confirm {end}, and differ between {at} and {stop}",
                    )
                at = stop
