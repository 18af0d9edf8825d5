"""A Raft group driven by hypothesis: it chooses every message, tick, crash and request, and shrinks what breaks."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aerobee.ha.raft.config import RaftConfig
from tests.simulation.raft_by_hand import ByHand
from tests.simulation.raft_world import DRIFT, ELECTION_TIMEOUT_MS

HOSTS = ("n0", "n1", "n2", "s0")
hosts = st.sampled_from(HOSTS)
WIRE_MAX = 60


class RaftMachine(RuleBasedStateMachine):
    """Three voters and a node that may join; the checks are those of the simulation."""

    def __init__(self) -> None:
        super().__init__()
        self.group = ByHand(
            spares=1,
            config=RaftConfig(
                election_timeout_ms=ELECTION_TIMEOUT_MS,
                heartbeat_interval_ms=50,
                clock_drift_ratio_max=DRIFT,
                entry_bytes_max=200,
                append_bytes_max=150,
                in_flight_max=2,
                snapshot_interval_entries=6,
                entries_kept_max=1,
                snapshot_chunk_bytes=60,
            ),
        )

    @rule(ms=st.sampled_from((10, 60, 150, 250, 500)), name=hosts)
    def time_passes(self, ms: int, name: str) -> None:
        self.group.elapse(ms)
        self.group.tick(name)

    @precondition(lambda self: self.group.wire)
    @rule(data=st.data())
    def one_arrives(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.group.wire) - 1))
        self.group.arrive(self.group.wire.pop(place))

    @precondition(lambda self: self.group.wire)
    @rule(data=st.data())
    def one_arrives_and_will_again(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.group.wire) - 1))
        self.group.arrive(self.group.wire[place])

    @rule(one=hosts, other=hosts, rounds=st.integers(1, 6))
    def two_talk(self, one: str, other: str, rounds: int) -> None:
        self.group.deliver(self.group.between(one, other), rounds=rounds)

    @rule(rounds=st.integers(1, 6))
    def all_talk(self, rounds: int) -> None:
        self.group.deliver(rounds=rounds)

    @rule(name=hosts)
    def all_to_one_is_lost(self, name: str) -> None:
        self.group.drop(lambda message: message.target == name)

    @rule(name=hosts)
    def write(self, name: str) -> None:
        self.group.write(self.group.hosts[name])

    @rule(name=hosts)
    def read(self, name: str) -> None:
        self.group.elapse(0.001)  # so that it began after what was answered before
        self.group.read(self.group.hosts[name])

    @rule(name=hosts, power_loss=st.booleans())
    def crash(self, name: str, power_loss: bool) -> None:
        host = self.group.hosts[name]
        if host.replica is not None:
            host.stop(power_loss=power_loss)

    @rule(name=hosts, calls=st.integers(0, 12))
    def power_is_lost_soon(self, name: str, calls: int) -> None:
        if self.group.hosts[name].replica is not None:
            self.group.hosts[name].disk.cut_power_at(calls)

    @rule(name=hosts)
    def start(self, name: str) -> None:
        if self.group.hosts[name].replica is None:
            self.group.restart(name)

    @rule(name=hosts, to=hosts)
    def hand_over(self, name: str, to: str) -> None:
        self._ask(name, lambda node, now_ms: node.transfer(to, now_ms))

    @rule(name=hosts, member=hosts, kind=st.sampled_from(("add_learner", "promote", "remove")))
    def change_members(self, name: str, member: str, kind: str) -> None:
        self._ask(name, lambda node, now_ms: getattr(node, kind)(member, now_ms))

    def _ask(self, name: str, call: object) -> None:
        if self.group.hosts[name].replica is not None:
            host = self.group.hosts[name]
            now_ms = host.local_ms()
            self.group.act(host, lambda replica: replica.run(lambda node: call(node, now_ms), now_ms))  # type: ignore[operator]

    @invariant()
    def what_was_answered_fits_one_order(self) -> None:
        del self.group.wire[:-WIRE_MAX]  # the rest is lost
        self.group.check_history()
