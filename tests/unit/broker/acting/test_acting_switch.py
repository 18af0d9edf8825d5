"""An acting master is made when its setting is first on, at the start or at run time, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from aerobee.broker.acting.acting_master import ActingMaster
from aerobee.broker.acting.switch import ActingSwitch
from aerobee.broker.state.config import BrokerConfig, LiveConfig
from aerobee.remoting.codes import RequestCode
from aerobee.remoting.command import FLAG_ONEWAY, RemotingCommand
from aerobee.remoting.peer import Peer, Reply
from tests.fakes import FakePeer


class Acting:
    """Notes its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def start(self) -> None:
        self.asked.append("start")

    async def stop(self) -> None:
        self.asked.append("stop")

    async def come_back(self) -> bool:
        return True

    def min_broker_changed(self, peer: Peer, request: RemotingCommand) -> Reply:
        self.asked.append("905")
        return None

    async def ha_info(self, peer: Peer, request: RemotingCommand) -> RemotingCommand:
        self.asked.append("906")
        return request.reply(remark="acting")


def plain_ha_info(peer: Peer, request: RemotingCommand) -> RemotingCommand:
    return request.reply(remark="plain")


def make_switch(*, is_on: bool) -> tuple[ActingSwitch, list[Acting], LiveConfig]:
    made: list[Acting] = []

    def make() -> ActingMaster:
        made.append(Acting())
        return cast(ActingMaster, made[-1])

    live = LiveConfig(BrokerConfig(enable_slave_acting_master=is_on))
    return ActingSwitch(live=live, make=make, ha_info=plain_ha_info), made, live


def ask(switch: ActingSwitch, code: RequestCode, flag: int = 0) -> Reply:
    handler = cast(Callable[..., Any], switch.handlers()[code])
    reply = handler(FakePeer(), RemotingCommand(code, flag=flag))
    if isinstance(reply, Coroutine):
        return cast(Reply, asyncio.run(reply))
    return cast(Reply, reply)


def test_nothing_is_made_while_the_setting_is_off() -> None:
    switch, made, live = make_switch(is_on=False)
    switch.start()
    live.replace(trace_on=False)
    answer = ask(switch, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)
    assert answer is not None
    assert answer.code == 0
    assert ask(switch, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, FLAG_ONEWAY) is None
    info = ask(switch, RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert info is not None
    assert info.remark == "plain"
    assert asyncio.run(switch.come_back()) is False
    asyncio.run(switch.stop())
    assert made == []


def test_it_is_made_at_the_start_when_the_setting_is_on() -> None:
    switch, made, _ = make_switch(is_on=True)
    assert len(made) == 1
    assert made[0].asked == []
    assert asyncio.run(switch.come_back()) is True
    switch.start()
    ask(switch, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)
    info = ask(switch, RequestCode.EXCHANGE_BROKER_HA_INFO)
    assert info is not None
    assert info.remark == "acting"
    asyncio.run(switch.stop())
    assert made[0].asked == ["start", "905", "906", "stop"]


def test_a_setting_that_is_turned_on_at_run_time_makes_one_and_starts_it() -> None:
    switch, made, live = make_switch(is_on=False)
    switch.start()
    live.replace(enable_slave_acting_master=True)
    assert [each.asked for each in made] == [["start"]]
    live.replace(enable_slave_acting_master=False)
    live.replace(enable_slave_acting_master=True)
    assert len(made) == 1
    asyncio.run(switch.stop())
    assert made[0].asked == ["start", "stop"]


def test_before_the_start_it_is_made_and_waits() -> None:
    switch, made, live = make_switch(is_on=False)
    live.replace(enable_slave_acting_master=True)
    assert [each.asked for each in made] == [[]]
    switch.start()
    assert made[0].asked == ["start"]
