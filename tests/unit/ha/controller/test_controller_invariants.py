"""Invariants of the controller's state under any sequence of requests, and of a state that is restored from its snapshot."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aerobee.ha.controller.codes import ControllerCode
from aerobee.ha.controller.commands import (
    Command,
    encode_command,
)
from aerobee.ha.controller.state import ControllerState, Group, Outcome
from tests.unit.ha.controller.controller_requests import NAME, alive, alter, apply_id, clean, elect, group_of

ids = st.integers(0, 4)
behind = st.sampled_from((0, 0, 0, 1))
some = st.lists(st.integers(1, 4), max_size=4, unique=True).map(tuple)


class Controllers(RuleBasedStateMachine):
    """One state that gets commands, and a second that gets them after a restore of the first's snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.other = ControllerState(), ControllerState()
        self.masters: dict[int, int] = {}  # by epoch
        self.was = Group(cluster_name="", broker_name=NAME)
        self.unclean = False

    def give(self, command: Command) -> Outcome:
        data = encode_command(command)
        mine, theirs = self.state.apply(1, data), self.other.apply(1, data)
        assert mine == theirs
        return mine

    @rule(broker_id=ids)
    def apply_for_an_id(self, broker_id: int) -> None:
        self.give(apply_id(broker_id))

    @rule(requester=ids, preferred=ids, living=some, unclean=st.sampled_from((False, False, False, True)))
    def a_peer_elects(self, requester: int, preferred: int, living: tuple[int, ...], unclean: bool) -> None:
        self.elect(requester, preferred, living, unclean=unclean)

    def elect(self, requester: int, preferred: int, living: tuple[int, ...], *, unclean: bool) -> None:
        before = self.state.groups.get(NAME)
        outcome = self.give(elect(requester, preferred, living=alive(*living), unclean=unclean))
        if (
            outcome.code is ControllerCode.SUCCESS
            and before is not None
            and before.master_epoch
            and not unclean
        ):
            winner = group_of(outcome).master_id
            assert winner in before.in_sync, "a broker that is not in sync was elected"
            assert winner in living

    @rule(members=some, living=some, epoch_behind=behind, set_epoch_behind=behind)
    def the_master_alters_the_set(
        self, members: tuple[int, ...], living: tuple[int, ...], epoch_behind: int, set_epoch_behind: int
    ) -> None:
        group = self.state.groups.get(NAME)
        if group is None or not group.master_id:
            return
        before = self.state.snapshot()
        outcome = self.give(
            alter(
                (*{group.master_id, *members},),
                master=group.master_id,
                epoch=group.master_epoch - epoch_behind,
                set_epoch=group.set_epoch - set_epoch_behind,
                living=(group.master_id, *living),
            )
        )
        if epoch_behind or set_epoch_behind:
            assert outcome.code is not ControllerCode.SUCCESS, "a broker with old epochs changed the set"
            assert self.state.snapshot() == before

    @rule()
    def all_join(self) -> None:
        for broker_id in (1, 2, 3):
            self.give(apply_id(broker_id))

    @rule(living=some)
    def the_controller_elects(self, living: tuple[int, ...]) -> None:
        self.elect(0, 0, living, unclean=False)

    @rule(gone=some, living=some, forced=st.booleans())
    def clean(self, gone: tuple[int, ...], living: tuple[int, ...], forced: bool) -> None:
        self.give(clean(*gone, living=living, forced=forced))
        if NAME not in self.state.groups:
            self.masters.clear()  # the name begins again
            self.was = Group(cluster_name="", broker_name=NAME)

    @rule()
    def take_a_snapshot(self) -> None:
        self.other = ControllerState()
        self.other.restore(self.state.snapshot())

    @invariant()
    def what_always_holds(self) -> None:
        group = self.state.groups.get(NAME)
        if group is None:
            return
        assert group.master_epoch >= self.was.master_epoch
        assert group.set_epoch >= self.was.set_epoch
        assert group.next_id >= self.was.next_id
        if group.set_epoch == self.was.set_epoch:
            assert group.in_sync == self.was.in_sync, "another set under the same epoch"
        assert group.in_sync <= group.replicas.keys()
        known = self.masters.setdefault(group.master_epoch, group.master_id)
        assert known == group.master_id, f"two masters in epoch {group.master_epoch}"
        assert not group.master_id or group.master_id in group.in_sync
        self.was = group


TestControllers = Controllers.TestCase
