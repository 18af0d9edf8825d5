"""A Raft group in which every step is chosen by a test: which message arrives, who ticks, who loses power.

`ByHand` has the disks, clocks and checkers of raft_world.World; neither time nor messages move by themselves. The
functions below are histories in which careless implementations went wrong; each raises AssertionError when this one does.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections.abc import Callable

from aerobee.errors import MembershipRefused, StoreError
from aerobee.ha.raft.config import RaftConfig
from aerobee.ha.raft.entry import FIRST_TERM, Entry, EntryKind, Membership
from aerobee.ha.raft.messages import AppendReply, AppendRequest, Message, StandNow, VoteReply, VoteRequest
from aerobee.ha.raft.node import RaftNode
from aerobee.ha.raft.storage import RaftFiles
from aerobee.simulation.simulated_disk import PowerCut, SimulatedDisk
from tests.simulation.raft_world import DRIFT, ELECTION_TIMEOUT_MS, Host, Operation, World

Match = Callable[[Message], bool]
LONG_MS = 3 * ELECTION_TIMEOUT_MS  # every election timeout passes in it


def everything(message: Message) -> bool:
    return True


class ByHand(World):
    """Messages wait on `wire` until they are delivered or dropped."""

    def __init__(
        self, seed: int = 1, *, voters: int = 3, spares: int = 0, config: RaftConfig | None = None
    ) -> None:
        self.wire: list[Message] = []
        self.given = config or RaftConfig(
            election_timeout_ms=ELECTION_TIMEOUT_MS,
            heartbeat_interval_ms=50,
            clock_drift_ratio_max=DRIFT,
            entry_bytes_max=200,
            snapshot_interval_entries=1000,
        )
        super().__init__(seed, voters=voters, spares=spares)
        for host in self.hosts.values():
            host.set_rate(1.0)

    def start(self, host: Host) -> None:
        self.config = self.given
        super().start(host)

    def _tick_later(self, host: Host) -> None:
        """Nothing ticks by itself."""

    def _die(self, host: Host, *, power_loss: bool) -> None:
        host.disk.fail = lambda call, path: 0
        host.stop(power_loss=power_loss)

    def send(self, message: Message) -> None:
        self.wire.append(message)

    # -- steps

    def elapse(self, ms: float) -> None:
        self.now += ms

    def tick(self, *names: str) -> None:
        for name in names:
            host = self.hosts[name]
            if host.replica is not None:
                self.act(host, lambda replica: replica.tick(host.local_ms()))  # noqa: B023

    def arrive(self, message: Message) -> None:
        """One message reaches its target, if that runs."""
        host = self.hosts[message.target]
        if host.replica is not None:
            self.act(host, lambda replica: replica.receive(message, host.local_ms()))

    def deliver(self, match: Match = everything, *, rounds: int = 1) -> int:
        """Deliver what waits on the wire and matches, in order; `rounds` times, with what came of it."""
        count = 0
        for _ in range(rounds):
            chosen = [message for message in self.wire if match(message)]
            self.wire = [message for message in self.wire if not match(message)]
            for message in chosen:
                self.arrive(message)
            count += len(chosen)
        return count

    def drop(self, match: Match = everything) -> list[Message]:
        """Take messages off the wire."""
        dropped = [message for message in self.wire if match(message)]
        self.wire = [message for message in self.wire if not match(message)]
        return dropped

    def settle(self) -> None:
        """Deliver until no message is in flight."""
        for _ in range(200):
            if not self.deliver():
                return
        raise AssertionError("messages never end")

    def elect(self, name: str, *, among: tuple[str, ...] = (), is_silent: bool = False) -> None:
        """Have a node win an election, with messages only among some (all by default); `is_silent`: only votes."""
        names = among or tuple(self.hosts)
        between = self.between(*names)
        for _ in range(3):  # the first may only tell it the term of the others
            self.elapse(LONG_MS)
            self.tick(name)
            for _ in range(6):
                self.deliver(
                    lambda message: (
                        between(message) and not (is_silent and isinstance(message, AppendRequest))
                    )
                )
            if self.hosts[name].node.is_leader:
                break
        if not is_silent:
            self.deliver(between, rounds=4)
            self.drop(lambda message: not between(message))
        assert self.hosts[name].node.is_leader, f"{name} did not win"

    @staticmethod
    def between(*names: str) -> Match:
        return lambda message: message.source in names and message.target in names

    def put(self, name: str) -> Operation:
        """A client writes at this node."""
        operation = self.write(self.hosts[name])
        assert operation is not None
        return operation

    def lose_power(self, *names: str) -> None:
        for name in names:
            self.hosts[name].stop(power_loss=True)

    def restart(self, *names: str) -> None:
        for name in names:
            self.start(self.hosts[name])

    def ask(self, name: str, call: Callable[[RaftNode, float], object]) -> None:
        """A change of members or a handing over. Raises what the node does."""
        host = self.hosts[name]
        assert host.replica is not None
        now_ms = host.local_ms()
        host.replica.run(lambda node: call(node, now_ms), now_ms)
        self.observe(host)

    def node(self, name: str) -> RaftNode:
        return self.hosts[name].node


# -- histories


def a_voter_that_lost_power_remembers_its_vote() -> None:
    """Two stand in one term; the third votes for one, loses power, and gets the request of the other."""
    group = ByHand()
    group.elapse(LONG_MS)
    group.tick("n0", "n1")  # both ask whether they could win
    group.deliver(lambda message: isinstance(message, VoteRequest) and message.target == "n2")
    group.deliver(lambda message: isinstance(message, VoteReply))  # both can: both stand, in one term
    for candidate in ("n0", "n1"):
        group.deliver(lambda message, name=candidate: message.source == name and message.target == "n2")  # type: ignore[misc]
        group.lose_power("n2")
        group.restart("n2")
        group.elapse(LONG_MS)
    group.settle()
    assert sum(host.node.is_leader for host in group.hosts.values()) == 1


def an_entry_is_on_disk_before_its_follower_says_so() -> None:
    """Power is lost at any call while a follower takes an entry in, and its answer got out or did not."""
    for calls in range(12):
        group = ByHand(seed=calls + 1)
        group.elect("n0")
        group.settle()
        group.put("n0")
        group.drop(lambda message: message.target == "n2")
        group.hosts["n1"].disk.cut_power_at(calls)
        group.deliver(lambda message: message.target == "n1")  # dies in it, or not
        if group.hosts["n1"].replica is None:
            group.restart("n1")
        group.deliver(lambda message: message.target == "n0")
        group.lose_power("n0", "n1")
        group.restart("n1")
        group.elect("n1", among=("n1", "n2"))
        group.put("n1")
        group.deliver(group.between("n1", "n2"), rounds=6)
        group.check_history()


def an_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    """Figure 8 of the Raft paper: a majority has an old entry, and a later leader replaces it all the same."""
    group = ByHand(voters=5)
    group.elect("n0")
    group.settle()
    group.put("n0")
    group.deliver(lambda message: message.target == "n1")  # n0 and n1 have entry x of n0's term
    group.drop()
    group.lose_power("n0")
    group.elect("n4", among=("n2", "n3", "n4"), is_silent=True)  # n4 has another entry there, and alone
    group.lose_power("n4")
    group.drop()
    group.restart("n0")
    votes = group.between("n0", "n1", "n2")
    group.elect("n0", among=("n0", "n1", "n2"), is_silent=True)
    group.elapse(60)
    group.tick("n0")
    # n0 leads again and brings x to n2, so that a majority has it; its own first entry reaches no voter.
    for _ in range(6):
        for message in group.drop(lambda message: isinstance(message, AppendRequest)):
            if isinstance(message, AppendRequest) and votes(message):
                old = tuple(entry for entry in message.entries if entry.term < message.term)
                group.arrive(_with_entries(message, old))
        group.deliver(lambda message: isinstance(message, AppendReply))
        group.elapse(60)
        group.tick("n0")
    assert group.node("n2").log.last_index == group.node("n1").log.last_index, "n2 has x"
    group.lose_power("n0")
    group.drop()
    group.restart("n4")
    group.elect("n4", among=("n2", "n3", "n4"))  # n4's entry is newer than x: it may win
    group.put("n4")
    for _ in range(8):
        group.deliver(group.between("n2", "n3", "n4"))
    group.check_history()


def _with_entries(message: AppendRequest, entries: tuple[object, ...]) -> AppendRequest:
    return AppendRequest(
        source=message.source,
        target=message.target,
        term=message.term,
        prev_index=message.prev_index,
        prev_term=message.prev_term,
        commit_index=message.commit_index,
        round=message.round,
        entries=entries,  # type: ignore[arg-type]
    )


def a_change_of_members_waits_for_the_terms_first_entry() -> None:
    """The fault of 2015: leaders of two terms change the members by one each, and their majorities share no voter."""
    group = ByHand(voters=4)
    group.elect("n1", among=("n1", "n2", "n3"), is_silent=True)
    assert group.node("n1").commit_index < group.node("n1").log.last_index
    try:
        group.ask("n1", lambda node, now_ms: node.remove("n0", now_ms))
    except MembershipRefused:
        return
    raise AssertionError("the members were changed before an entry of this term was committed")


def one_change_of_members_at_a_time() -> None:
    """Two simultaneous changes: the former and the new group share no voter."""
    group = ByHand(voters=5)
    group.elect("n0")
    group.settle()
    group.ask("n0", lambda node, now_ms: node.remove("n1", now_ms))
    refused = False
    try:
        group.ask("n0", lambda node, now_ms: node.remove("n2", now_ms))
    except MembershipRefused:
        refused = True
    assert refused, "a second change was taken before the first was committed"
    group.settle()
    group.ask("n0", lambda node, now_ms: node.remove("n2", now_ms))
    group.settle()
    assert group.node("n0").log.membership == Membership(("n0", "n3", "n4"))


def an_old_leader_that_hands_over_reads_nothing_stale() -> None:
    """The order to stand is in flight, the new leader is elected, and the old one still counts its lease."""
    group = ByHand()
    group.elect("n0")
    group.settle()
    group.elapse(55)
    group.tick("n0")
    group.settle()
    assert group.node("n0").has_lease(group.hosts["n0"].local_ms())
    group.ask("n0", lambda node, now_ms: node.transfer("n1", now_ms))
    group.deliver(lambda message: isinstance(message, StandNow))
    group.deliver(group.between("n1", "n2"), rounds=8)
    assert group.node("n1").is_leader
    assert group.node("n0").is_leader, "it does not know yet"
    group.put("n1")
    group.deliver(group.between("n1", "n2"), rounds=8)
    group.elapse(1)
    group.read(group.hosts["n0"])
    group.check_history()


def a_restarted_voter_waits_for_the_lease() -> None:
    """It heard the leader, lost power, and gets a vote request while the leader still has its lease."""
    group = ByHand()
    group.elect("n0")
    group.settle()
    group.elapse(55)
    group.tick("n0")
    group.settle()
    group.lose_power("n1", "n2")
    group.restart("n1", "n2")
    group.node("n1")._election_due_ms = group.hosts["n1"].local_ms()  # a timer that fires too early
    group.tick("n1")
    for _ in range(6):
        group.deliver(group.between("n1", "n2"))
    group.put("n0")
    assert not group.node("n1").is_leader


def a_stale_message_does_not_cut_what_is_committed() -> None:
    """A former append comes again, late: entries added since must stay."""
    group = ByHand()
    group.elect("n0")
    group.settle()
    group.put("n0")
    old = [message for message in group.wire if isinstance(message, AppendRequest)]
    group.settle()
    group.put("n0")
    group.settle()
    last = group.node("n1").log.last_index
    for message in old:
        group.arrive(message)
    assert group.node("n1").log.last_index == last
    group.drop()
    group.lose_power("n0")
    group.elect("n1", among=("n1", "n2"))
    group.check_history()


def a_follower_commits_only_what_was_compared() -> None:
    """A follower has an entry of a dead leader behind what the new one sent: a heartbeat must not commit it."""
    group = ByHand()
    group.elect("n0")
    group.settle()
    group.put("n0")
    group.drop(lambda message: message.target == "n1")
    group.deliver(lambda message: message.target == "n2")  # n2 has an entry that n1 lacks
    group.put("n0")
    group.deliver(lambda message: message.target == "n2")
    group.drop()
    committed = group.node("n0").commit_index
    group.hosts["n2"].stop(power_loss=False)
    group.lose_power("n0")
    group.hosts["n2"].stop(power_loss=False)
    group.restart("n0", "n2")
    node = group.node("n2")
    last = node.log.last_index
    prev_term = node.log.term_at(committed)
    assert prev_term is not None
    group.arrive(
        AppendRequest(
            source="n1",
            target="n2",
            term=node.term + 1,
            prev_index=committed,
            prev_term=prev_term,
            commit_index=last,
            round=1,
            entries=(),
        )
    )
    assert group.node("n2").commit_index == committed, "what was not compared was committed"
    (reply,) = group.drop(lambda message: isinstance(message, AppendReply))
    assert isinstance(reply, AppendReply)
    assert reply.index == committed, "it answers for entries that were not compared"


def what_a_start_found_stays() -> None:
    """A sync fails, the process starts again and answers for what it reads; then the machine loses power."""
    for seed in range(20):
        disk = SimulatedDisk(random.Random(seed))
        files = _files(disk)
        files.open()
        files.initialize(Membership(("n0",)))
        disk.fail = lambda call, path: errno.EIO if call == "sync" else 0
        batch = [Entry(index, FIRST_TERM, EntryKind.COMMAND, bytes(range(1, 200))) for index in range(2, 60)]
        with contextlib.suppress(StoreError):
            files.append(batch)
        disk.fail = lambda call, path: 0
        disk.crash()
        found = _files(disk).open()
        disk.power_loss()
        assert _files(disk).open() == found, (
            "what was read after a failed sync is gone after the next power loss"
        )


def _files(disk: SimulatedDisk) -> RaftFiles:
    return RaftFiles("/raft", disk=disk, file_bytes=1 << 16, entry_bytes_max=200)


def a_torn_record_is_cut() -> None:
    """Power is lost before a large append is synced: what comes back is whole, or not there."""
    for seed in range(40):
        disk = SimulatedDisk(random.Random(seed))
        files = _files(disk)
        files.open()
        first = files.initialize(Membership(("n0",))).entries
        batch = [
            Entry(index, FIRST_TERM, EntryKind.COMMAND, bytes([seed + 1, index] * 400)) for index in (2, 3, 4)
        ]
        disk.cut_power_at(0)
        with contextlib.suppress(PowerCut):
            files.append(batch)
        disk.power_loss()
        found = _files(disk).open().entries
        assert found == (*first, *batch)[: len(found)], "a record came back in part"


def a_long_log_of_an_old_term_does_not_win() -> None:
    """It has more entries, and lacks the committed ones."""
    group = _led()
    for _ in range(5):
        group.put("n0")  # no other node gets them
    group.drop()
    group.lose_power("n0")
    group.elect("n1", among=("n1", "n2"))
    group.put("n1")
    group.settle()
    group.lose_power("n1")
    group.restart("n0")
    for _ in range(3):
        group.elapse(LONG_MS)
        group.tick("n0")
        group.settle()
    assert not group.node("n0").is_leader


def a_slow_clock_does_not_make_the_lease_too_long() -> None:
    """The leader's clock is slow and the voters' are fast, each as far as is allowed."""
    group = _led()
    group.hosts["n0"].set_rate(1 - DRIFT)
    for name in ("n1", "n2"):
        group.hosts[name].set_rate(1 + DRIFT)
    group.elapse(60)
    group.tick("n0")
    group.settle()
    group.elapse(ELECTION_TIMEOUT_MS / (1 + DRIFT) + 0.1)
    _stand_among_others(group)
    assert group.node("n1").is_leader


def an_answer_on_its_way_does_not_make_the_lease_longer() -> None:
    """The lease counts from when the heartbeat left, not from when its answer came."""
    group = _led()
    group.elapse(60)
    group.tick("n0")
    group.deliver(lambda message: message.source == "n0")
    group.elapse(150)
    group.deliver(lambda message: message.target == "n0")
    group.elapse(60)
    _stand_among_others(group)
    assert group.node("n1").is_leader


def _stand_among_others(group: ByHand) -> None:
    group.node("n1")._election_due_ms = group.hosts["n1"].local_ms()
    group.tick("n1")
    group.deliver(group.between("n1", "n2"), rounds=6)


def a_new_leader_reads_what_the_last_one_acknowledged() -> None:
    """It has the entry, and does not know yet that it was committed."""
    group = _led()
    for _ in range(2):
        group.put("n0")
        group.drop(lambda message: message.target == "n2")
        group.deliver(lambda message: message.source == "n0")
        group.deliver(lambda message: message.target == "n0")
        group.elapse(1)
    assert group.operations[-1].index > 0, "the last leader acknowledged it"
    group.drop()
    group.lose_power("n0")
    group.elect("n1", among=("n1", "n2"), is_silent=True)
    assert group.node("n1").commit_index < group.operations[-1].index
    group.read(group.hosts["n1"])
    # n2 lacks what comes before, so its answer says that it follows n1, and commits nothing.
    group.deliver(lambda message: message.target == "n2")
    group.deliver(lambda message: message.target == "n1")
    group.settle()
    assert group.operations[-1].end == group.now, "the read was answered"
    group.check_history()


def a_deposed_leader_reads_nothing_by_an_old_round() -> None:
    """A majority answered its last round, and has another leader since."""
    group = _led()
    group.elapse(60)
    group.tick("n0")
    group.deliver(lambda message: message.source == "n0")
    group.deliver(lambda message: message.source == "n1")
    (late,) = group.drop()
    group.elect("n1", among=("n1", "n2"))
    assert group.node("n0").is_leader, "it does not know yet"
    group.put("n1")
    group.deliver(group.between("n1", "n2"), rounds=4)
    group.elapse(1)
    group.read(group.hosts["n0"])
    group.arrive(late)
    group.check_history()


def a_follower_reads_only_what_it_has_applied() -> None:
    """It knows the index, and the entry is not there yet."""
    group = _led()
    group.put("n0")
    group.drop(lambda message: message.target == "n1")
    group.settle()
    group.elapse(1)
    group.read(group.hosts["n1"])
    group.deliver(rounds=2)
    group.check_history()


def members_of_a_replaced_entry_are_forgotten() -> None:
    """A leader adds a member, dies before another node gets it, and comes back as a follower."""
    group = ByHand(spares=1)
    group.elect("n0")
    group.settle()
    group.ask("n0", lambda node, now_ms: node.add_learner("s0", now_ms))
    group.drop()
    group.elect("n1", among=("n1", "n2"))
    for _ in range(3):
        group.elapse(60)
        group.tick("n1")
        group.settle()
    assert group.node("n0").log.last_index == group.node("n1").log.last_index
    assert group.node("n0").log.membership == Membership(("n0", "n1", "n2"))


def _led() -> ByHand:
    group = ByHand()
    group.elect("n0")
    group.settle()
    group.elapse(55)
    group.tick("n0")
    group.settle()
    return group


HISTORIES: tuple[Callable[[], None], ...] = (
    a_voter_that_lost_power_remembers_its_vote,
    an_entry_is_on_disk_before_its_follower_says_so,
    an_entry_of_an_earlier_term_is_not_committed_by_counting,
    a_change_of_members_waits_for_the_terms_first_entry,
    one_change_of_members_at_a_time,
    an_old_leader_that_hands_over_reads_nothing_stale,
    a_restarted_voter_waits_for_the_lease,
    a_stale_message_does_not_cut_what_is_committed,
    a_follower_commits_only_what_was_compared,
    what_a_start_found_stays,
    a_torn_record_is_cut,
    a_long_log_of_an_old_term_does_not_win,
    a_slow_clock_does_not_make_the_lease_too_long,
    an_answer_on_its_way_does_not_make_the_lease_longer,
    a_new_leader_reads_what_the_last_one_acknowledged,
    a_deposed_leader_reads_nothing_by_an_old_round,
    a_follower_reads_only_what_it_has_applied,
    members_of_a_replaced_entry_are_forgotten,
)
