"""Who is in sync, and the confirm offset: the rules one by one, and what holds whatever happens."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aerobee.ha.stream.sync_state_set import SyncStateSet


def of_master(*members: int, needs_all: bool = True, epoch_start: int = 0, confirm: int = 0) -> SyncStateSet:
    return SyncStateSet(
        1,
        members=members,
        set_epoch=1,
        epoch_start_offset=epoch_start,
        confirm_offset=confirm,
        needs_all=needs_all,
        catch_up_ms_max=1_000,
    )


def test_alone_everything_is_confirmed_at_once() -> None:
    state = of_master(1)
    assert state.advance(100) == 100
    assert state.wanted(0) is None


def test_with_members_the_slowest_confirms() -> None:
    state = of_master(1, 2, 3)
    assert state.advance(100) == 0
    state.report(2, 80, own_end=100, now_ms=0)
    assert state.confirm_offset == 0, "3 has not reported"
    state.report(3, 60, own_end=100, now_ms=0)
    assert state.confirm_offset == 60
    state.left(3)
    state.report(2, 100, own_end=100, now_ms=0)
    assert state.confirm_offset == 60, "what 3 has is not known"


def test_without_needs_all_what_the_master_has_is_confirmed() -> None:
    state = of_master(1, 2, needs_all=False)
    assert state.advance(100) == 100


def test_a_replica_is_asked_in_when_it_has_all_that_is_confirmed_and_counts_from_then_on() -> None:
    state = of_master(1)
    state.advance(100)
    state.report(2, 90, own_end=100, now_ms=0)
    assert state.wanted(0) is None
    state.report(2, 100, own_end=100, now_ms=1)
    assert state.wanted(1) == {1, 2}
    state.ask(frozenset({1, 2}))
    assert state.wanted(1) is None, "an answer is due"
    assert state.advance(200) == 100, "it counts before the answer comes"
    state.learned({1, 2}, 2)
    state.report(2, 150, own_end=200, now_ms=2)
    assert state.confirm_offset == 150


def test_a_replica_must_have_what_this_master_wrote_first() -> None:
    state = of_master(1, epoch_start=50, confirm=10)
    state.report(2, 20, own_end=10, now_ms=0)
    assert state.wanted(0) is None


def test_a_learner_is_never_asked_in() -> None:
    state = of_master(1)
    state.report(2, 100, own_end=100, now_ms=0, is_learner=True)
    assert state.wanted(0) is None


def test_who_lags_for_long_or_leaves_is_asked_out_and_counts_until_that_is_granted() -> None:
    state = of_master(1, 2)
    state.report(2, 100, own_end=100, now_ms=0)
    for now_ms in (400, 800):
        state.report(2, 100, own_end=200, now_ms=now_ms)
        assert state.wanted(now_ms) is None
    state.report(2, 110, own_end=300, now_ms=1_600)
    assert state.wanted(1_600) == {1}
    state.ask(frozenset({1}))
    assert state.advance(300) == 110
    state.learned({1}, 2)
    assert state.advance(300) == 300
    state = of_master(1, 2)
    assert state.wanted(0) == {1}, "not connected"


def test_one_that_always_lags_a_little_stays() -> None:
    state = of_master(1, 2)
    for step in range(50):
        state.report(2, step * 100, own_end=step * 100 + 100, now_ms=step * 400)
        if step:
            assert state.wanted(step * 400) is None


def test_a_member_that_lost_what_it_had_is_asked_out_at_once() -> None:
    state = of_master(1, 2)
    state.report(2, 100, own_end=100, now_ms=0)
    state.report(2, 40, own_end=100, now_ms=1)
    assert state.confirm_offset == 100
    assert state.wanted(1) == {1}


def test_a_lost_answer_counts_until_a_newer_set_is_known() -> None:
    state = of_master(1)
    state.report(2, 100, own_end=100, now_ms=0)
    state.ask(frozenset({1, 2}))
    state.unanswered()
    state.learned({1}, 1)
    assert state.advance(500) == 100, "the request may still be granted"
    state.learned({1}, 2)
    assert state.advance(500) == 500


def test_a_no_ends_the_request() -> None:
    state = of_master(1)
    state.report(2, 100, own_end=100, now_ms=0)
    state.ask(frozenset({1, 2}))
    state.refused()
    assert state.advance(500) == 500


def test_a_lost_answer_stops_counting_when_the_same_set_gets_a_new_epoch() -> None:
    state = of_master(1)
    state.report(2, 100, own_end=100, now_ms=0)
    state.ask(frozenset({1, 2}))
    state.unanswered()
    state.left(2)
    assert state.wanted(1) is None, "controllers that give no new epoch are not asked"
    assert state.wanted(1, may_renew=True) == {1}
    state.ask(frozenset({1}))
    assert state.wanted(1, may_renew=True) is None, "an answer is due"
    assert state.advance(500) == 100
    state.unanswered()
    assert state.wanted(1, may_renew=True) == {1}, "asked again"
    state.ask(frozenset({1}))
    state.learned({1}, 2)
    assert state.advance(500) == 500
    assert state.wanted(1, may_renew=True) is None


class Mastership(RuleBasedStateMachine):
    """A master, two replicas that lose connections and data, and a controller whose answers get lost and come late."""

    def __init__(self) -> None:
        super().__init__()
        self.state = of_master(1)
        self.end = 0
        self.now_ms = 0
        self.has = {2: 0, 3: 0}
        self.lost: set[int] = set()  # who reported less than before, and broke its promise itself
        self.granted: tuple[frozenset[int], int] = (frozenset({1}), 1)
        self.requests: list[tuple[frozenset[int], int]] = []
        self.confirmed = 0

    @rule(count=st.integers(1, 100))
    def append(self, count: int) -> None:
        self.end += count
        self.state.advance(self.end)

    @rule(broker_id=st.sampled_from((2, 3)), share=st.floats(0, 1), ms=st.integers(0, 900))
    def report(self, broker_id: int, share: float, ms: int) -> None:
        self.now_ms += ms
        self.has[broker_id] += round((self.end - self.has[broker_id]) * share)
        self.state.report(broker_id, self.has[broker_id], own_end=self.end, now_ms=self.now_ms)

    @rule(broker_id=st.sampled_from((2, 3)))
    def leave(self, broker_id: int) -> None:
        self.state.left(broker_id)

    @rule()
    def ask(self) -> None:
        wanted = self.state.wanted(self.now_ms, may_renew=True)
        if wanted is not None:
            self.state.ask(wanted)
            self.requests.append((wanted, self.state.set_epoch))

    @rule(data=st.data(), answer_arrives=st.booleans())
    def controller_decides(self, data: st.DataObject, answer_arrives: bool) -> None:
        if not self.requests:
            return
        position = data.draw(st.integers(0, len(self.requests) - 1))
        is_last = position == len(self.requests) - 1
        members, set_epoch = self.requests.pop(position)
        if set_epoch == self.granted[1]:
            self.granted = (members, set_epoch + 1)
            if answer_arrives:
                self.state.learned(*self.granted)
                self.state.advance(self.end)
        elif answer_arrives and is_last:
            self.state.refused()

    @rule()
    def no_answer_comes(self) -> None:
        self.state.unanswered()

    @rule()
    def look_at_the_controller(self) -> None:
        self.state.learned(*self.granted)
        self.state.advance(self.end)

    @invariant()
    def electable_replicas_have_what_is_confirmed(self) -> None:
        for member in self.granted[0] - {1}:
            assert self.has[member] >= self.state.confirm_offset

    @invariant()
    def the_confirm_offset_never_goes_back(self) -> None:
        assert self.state.confirm_offset >= self.confirmed
        self.confirmed = self.state.confirm_offset


TestMastership = Mastership.TestCase
