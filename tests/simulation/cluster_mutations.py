"""Promises of replication taken out of the real code, each of which a cluster's life must notice."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from aerobee.broker.replication.auto_switch_follower import AutoSwitchFollower
from aerobee.broker.replication.auto_switch_mode import AutoSwitchMode
from aerobee.ha.controller import election, state

Mutation = Callable[[], AbstractContextManager[Any]]


def a_master_waits_for_nobody() -> AbstractContextManager[Any]:
    def confirm(mode: AutoSwitchMode) -> None:
        mode._acks.advance(mode._store.log.end)

    return mock.patch.object(AutoSwitchMode, "_confirm", confirm)


def anybody_may_be_elected() -> AbstractContextManager[Any]:
    choose = election.choose

    def anybody(*args: Any, **named: Any) -> Any:
        return choose(*args, **{**named, "is_unclean_allowed": True})

    return mock.patch.object(state, "choose", anybody)


def who_rejoins_is_not_cut() -> AbstractContextManager[Any]:
    async def align(follower: AutoSwitchFollower, greeting: Any) -> None:
        follower._master_end = greeting.max_offset

    return mock.patch.object(AutoSwitchFollower, "_align", align)


MUTATIONS: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        a_master_waits_for_nobody,
        anybody_may_be_elected,
        who_rejoins_is_not_cut,
    )
}
